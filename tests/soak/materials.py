"""Small corpora, models and files that the cases spoil."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.ablations import TWO_YAML
from tests.fairseq_commands import OPTIMIZE, QUIET, TINY, binarize, run_preprocess, write_reversal_corpus
from tests.masked_language_models import MASKED
from tests.places import PYTHON, ROOT
from tests.preloaded import Preloaded
from tests.table_folders import write_configs

PLUGIN = ["--user-dir", str(ROOT / "modular_fairseq")]
PICTURES = ["--size", "4x3", "--colours", "6", "--grey", "--valid", "4", "--test", "4"]
# The words of a training of a language model of these pictures, of 12 pixels.
DRAWER = (
    "--task language_modeling --arch modular_transformer_lm_pixels --decoder-layers 2 --decoder-embed-dim 16 "
    "--decoder-ffn-embed-dim 16 --decoder-attention-heads 2 --sample-break-mode eos --tokens-per-sample 13 "
    "--optimizer adam --lr 0.01 --max-tokens 200 --max-update 4 --no-epoch-checkpoints"
)


class Materials(NamedTuple):
    """What cases work with.

    Args:
        folder: the folder of everything: text/ (raw text), bin/ (binarized), mae/ (a trained mixture of
            experts, with train.log), inside/ (its analyses), configs/mine/ (a table), data/ (its corpus),
            two.yaml (mechanisms for an ablation), pictures.npz, pixels/ (these pictures as text), pixels-lm/
            (a language model of them), masked/ (binarized text in one language) and masked-lm/ (a masked
            language model of it).
        environment: environment variables with which commands start in 0.1 s (see tests/preloaded).
        python: the interpreter for the same purpose.
    """

    folder: Path
    environment: dict[str, str]
    python: str

    @property
    def train(self) -> list[str]:
        """The words of a short training, without an arch and a folder."""
        options = [*TINY, *OPTIMIZE, *QUIET, *PLUGIN]
        return [self.python, "-m", "fairseq_cli.train", str(self.folder / "bin"), *options]

    @property
    def train_masked(self) -> list[str]:
        """The words of a short training of a masked language model, without an arch and a folder."""
        data = str(self.folder / "masked")
        return [self.python, "-m", "fairseq_cli.train", data, *MASKED.split(), *QUIET, *PLUGIN]

    @property
    def ours(self) -> list[str]:
        """The words before a command of modular-fairseq."""
        return [self.python, "-m", "modular_fairseq_cli"]

    @property
    def checkpoint(self) -> Path:
        """The best checkpoint of the mixture of experts."""
        return self.folder / "mae/checkpoint_best.pt"


def prepare(folder: Path, server: Preloaded | None) -> Materials:
    """Make the materials in a folder, unless they are there.

    Args:
        folder: the folder.
        server: a Python that has imported torch; None: commands start by themselves.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{os.path.dirname(PYTHON)}{os.pathsep}{environment['PATH']}"
    if server:
        environment["PATH"] = f"{server.programs}{os.pathsep}{environment['PATH']}"
    made = Materials(folder, environment, str(server.python) if server else PYTHON)
    if (folder / "done").exists():
        return made
    (folder / "text").mkdir(parents=True, exist_ok=True)
    write_reversal_corpus(folder / "text")
    binarize(folder / "text", folder / "bin")
    (folder / "configs/mine").mkdir(parents=True, exist_ok=True)
    write_configs(folder / "configs/mine")
    corpus = folder / "data/toy.de-en"
    corpus.mkdir(parents=True, exist_ok=True)
    for name, part in (("bin", "bin"), ("raw", "text")):
        if not (corpus / name).is_symlink():
            (corpus / name).symlink_to(folder.resolve() / part)
    (folder / "two.yaml").write_text(TWO_YAML)
    experts = ["--arch", "mae_transformer", "--mae-gate-interval", "2", "--max-epoch", "4"]
    with open(folder / "train.log", "w", encoding="utf-8") as log:
        words = [*made.train, *experts, "--save-dir", str(folder / "mae"), "--log-format", "json"]
        subprocess.run(words, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
    random = np.random.default_rng(1)
    np.savez(folder / "pictures.npz", x_train=random.integers(0, 256, (40, 4, 3), dtype=np.uint8))
    sources = ["--only-source", "--destdir", folder / "masked"]
    for split in ("train", "valid", "test"):
        sources += [f"--{split}pref", folder / f"text/{split}.en"]
    run_preprocess(*sources)
    drawer = [made.python, "-m", "fairseq_cli.train", str(folder / "pixels/bin"), *DRAWER.split(), *QUIET]
    masked = [*made.train_masked, "--arch", "modular_roberta"]
    prepare_pixels = [*made.ours, "prepare-pixels", str(folder / "pictures.npz"), *PICTURES]
    with open(folder / "models.log", "w", encoding="utf-8") as log:
        for words in (
            [*prepare_pixels, "--out", str(folder / "pixels")],
            [*drawer, *PLUGIN, "--save-dir", str(folder / "pixels-lm")],
            [*masked, "--criterion", "modular_masked_lm", "--save-dir", str(folder / "masked-lm")],
        ):
            subprocess.run(words, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
    model = [str(folder / "bin"), "--path", str(made.checkpoint), "--gen-subset", "valid"]
    analyses = [*made.ours, "analyze", "all", *model, "--out", str(folder / "inside")]
    subprocess.run(analyses, env=environment, stdout=sys.stderr, check=True)
    (folder / "done").touch()
    return made
