"""Test that a mechanism becomes part of the package through new files alone."""

import shutil
import subprocess
import sys

from tests.import_graph import upward
from tests.places import ROOT

MARK = "# The analysis follows. In the package it would be a file of its own in analysis/.\n"


def test_a_mechanism_moves_in_without_a_change_of_any_other_file(tmp_path):
    """The example becomes one file of models/ and one of analysis/. Its attention type, option, arch and
    analysis work.
    """
    for package in ("modular_fairseq", "modular_fairseq_cli"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "examples/distance/__init__.py").read_text()
    head, _, body = text.partition("@dataclass\n")
    mechanism, _, analysis = body.partition(MARK)
    of_analysis = [line for line in head.splitlines() if "analysis" in line or "tabulate" in line]
    kept = "\n".join(line for line in head.splitlines() if line not in of_analysis)
    (tmp_path / "modular_fairseq/models/distance.py").write_text(f"{kept}\n@dataclass\n{mechanism}")
    needed = [*of_analysis, "import torch", "from dataclasses import dataclass"]
    needed += ["from modular_fairseq.models.distance import DistancePenalty"]
    needed += ["from modular_fairseq_cli.errors import UsageError"]
    (tmp_path / "modular_fairseq/analysis/distance.py").write_text("\n".join(needed) + "\n\n\n" + analysis)
    assert not upward(tmp_path)
    (tmp_path / "task.py").write_text(
        "from types import SimpleNamespace\n"
        "import modular_fairseq, torch\n"
        "from fairseq.data import Dictionary\n"
        "from fairseq.models import ARCH_CONFIG_REGISTRY\n"
        "from modular_fairseq.analysis import ANALYSES\n"
        "from modular_fairseq.analysis.one_pass import one_pass\n"
        "from modular_fairseq.models.options import FAMILIES\n"
        "from modular_fairseq.models.translation import ModularTransformer\n"
        "from argparse import Namespace\n"
        "args = Namespace(encoder_embed_dim=16, distance_slope=0.25)\n"
        "ARCH_CONFIG_REGISTRY['distance_transformer_tiny_cpu'](args)\n"
        "task = SimpleNamespace(source_dictionary=Dictionary(), target_dictionary=Dictionary())\n"
        "model = ModularTransformer.build_model(FAMILIES['modular_transformer'](**vars(args)), task)\n"
        "print(model.encoder.layers[0].self_attn.mask.slope.flatten().tolist())\n"
        "tokens = torch.tensor([[3, 3, 2]])\n"
        "given = {'src_tokens': tokens, 'src_lengths': torch.tensor([3]), 'prev_output_tokens': tokens}\n"
        "[report] = one_pass(model, [{'net_input': given}], [ANALYSES['distance'](model)])\n"
        "print(*report.text().splitlines()[2].split()[:3])\n"
    )
    done = subprocess.run([sys.executable, "task.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{[0.25] * 8}\nencoder.layers.0.self_attn 1 0.250\n", done.stderr
