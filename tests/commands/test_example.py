"""Test that examples/distance, a mechanism in one file, works like the mechanisms of the package.

It is registered, decoded, trained, analysed and timed.
"""

import ast
import json
import os
import subprocess
import sys
from dataclasses import field, make_dataclass

import pytest
import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_REGISTRY
from hydra.core.hydra_config import HydraConfig

from modular_fairseq.analysis.one_pass import one_pass
from modular_fairseq.models.auxiliary_losses import AuxiliaryLosses
from modular_fairseq.models.language_model import ModularTransformerLanguageModel
from modular_fairseq.models.options import FAMILIES, PRESETS
from modular_fairseq.models.registry import (
    MECHANISMS,
    LayerParts,
    register_attention,
    register_encoder,
    register_layer,
)
from modular_fairseq.models.translation import ModularTransformer
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq.training.command_line import parse
from modular_fairseq_cli.errors import UsageError
from tests import plugins
from tests.fairseq_commands import OPTIMIZE, QUIET, TINY
from tests.helpers import LENGTHS, batch, build, build_stock, options, randomize_parts, task
from tests.places import ROOT
from tests.processes import PATIENCE
from tests.properties import PROPERTIES, logits, ready

EXAMPLE = ROOT / "examples" / "distance"
ARCH = "distance_transformer_tiny_cpu"


@pytest.fixture
def registries():
    with plugins.registries():
        yield


@pytest.fixture
def distance():
    """Import the module of the example as --user-dir does."""
    with plugins.imported(EXAMPLE) as module:
        yield module


def build_distance(slope=None, seed=1, **changes):
    chosen = options(**{"attention_type": "distance", **changes})
    if slope is not None:
        chosen.distance_slope = slope
    torch.manual_seed(seed)
    return ModularTransformer.build_model(chosen, task())


def call(*args):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *map(str, args)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_it_is_short_and_documented():
    nodes = list(ast.walk(ast.parse((EXAMPLE / "__init__.py").read_text())))
    statements = [node for node in nodes if isinstance(node, ast.stmt) and not is_docstring(node)]
    assert len(statements) < 60
    documented = [node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert all(ast.get_docstring(node) for node in documented if not node.name.startswith("__"))
    assert [path.name for path in EXAMPLE.iterdir() if path.name != "__pycache__"] == ["__init__.py"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_type": "distance+mae"},
        {"attention_type": "mae+distance"},
        {"tim_layers": "all"},
        {"streams": 2, "encoder_layers": 4},
    ],
    ids=str,
)
def test_it_decodes_as_it_trains(distance, changes):
    """Step-by-step decoding, also in a reordered beam, equals training. Later words and padding change
    nothing.
    """
    model = build_distance(**changes)
    randomize_parts(model)
    for holds in PROPERTIES:
        holds(model.eval())


def test_the_bias_falls_with_the_logarithm_of_the_distance(distance):
    penalty = distance.DistancePenalty(2, 0.5)
    with torch.no_grad():
        penalty.slope[0, 1] = -2.0
    found = penalty(torch.zeros(4, 3, 8), None, None, None, None)
    naive = [
        [[-s * torch.tensor(1.0 + abs(i - j)).log() for j in range(4)] for i in range(4)] for s in (0.5, -2.0)
    ]
    torch.testing.assert_close(found, torch.tensor([naive]))


def test_it_is_in_self_attention_only_and_its_slopes_learn(distance):
    model = build_distance(slope=0.25).train()
    slopes = {name: p for name, p in model.named_parameters() if ".mask." in name}
    places = [
        f"{stack}.layers.{layer}.self_attn.mask.slope" for stack in ("encoder", "decoder") for layer in (0, 1)
    ]
    assert sorted(slopes) == sorted(places)
    assert all(torch.equal(p, torch.full((1, 4, 1, 1), 0.25)) for p in slopes.values())
    torch.nn.functional.cross_entropy(
        logits(model, batch(LENGTHS)).transpose(1, 2), batch(LENGTHS)["target"]
    ).backward()
    assert all((p.grad != 0).all() for p in slopes.values())


def test_with_slope_zero_it_is_fairseqs_transformer_whose_checkpoint_loads(distance):
    stock = build_stock(seed=3).eval()
    for slope, same in ((0, True), (0.5, False)):
        model = build_distance(slope=slope).eval()
        model.load_state_dict(stock.state_dict())
        difference = (logits(model, batch(LENGTHS)) - logits(stock, batch(LENGTHS))).abs().max()
        assert (difference < 1e-5) == same, difference


def test_language_models_have_it_too(distance):
    size = {
        "decoder_embed_dim": 32,
        "decoder_ffn_embed_dim": 32,
        "decoder_layers": 1,
        "decoder_attention_heads": 4,
    }
    args = FAMILIES["modular_transformer_lm"](
        **size, attention_type="distance", distance_slope=0.75, max_target_positions=16, tokens_per_sample=16
    )
    model = ModularTransformerLanguageModel.build_model(args, task())
    assert model.decoder.layers[0].self_attn.mask.slope.flatten().tolist() == [0.75] * 4


def test_the_analysis_gives_slopes_and_mean_distances(distance):
    model, sample = build_distance().eval(), batch([(1, 1), (1, 3), (1, 2)])
    randomize_parts(model)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.startswith("decoder.layers.0.self_attn.q_proj"):
                p.zero_()  # only the penalty decides the weights
    [report] = one_pass(model, [sample, sample], [distance.Distance(model)])
    assert len(report.table) == 4 * 4 and report.tables() == {"distance": report.table}
    rows = [row for row in report.table if row["module"] == "decoder.layers.0.self_attn"]
    slopes = model.decoder.layers[0].self_attn.mask.slope.flatten().tolist()
    for head, (row, slope) in enumerate(zip(rows, slopes, strict=True)):
        second, third = ([(1 + d) ** -slope for d in range(words)] for words in (2, 3))
        far = [sum(d * w for d, w in enumerate(weights)) / sum(weights) for weights in (second, third)]
        mean = (3 * 0 + 2 * far[0] + far[1]) / 6  # 3 first words, 2 second ones, 1 third
        assert (
            row["head"] == head + 1
            and row["slope"] == pytest.approx(slope)
            and row["mean distance"] == pytest.approx(mean, rel=1e-4)
        )
        assert f"{slope:.3f}" in report.text()
    with pytest.raises(
        UsageError, match="no distance penalty; analyse a model trained with --attention-type distance"
    ):
        distance.Distance(build())


def test_its_arch_is_a_preset_that_hydra_may_not_lose(distance, monkeypatch):
    assert PRESETS[ARCH] == {**PRESETS["modular_transformer_tiny_cpu"], "attention_type": "distance"}
    assert ARCH_MODEL_REGISTRY[ARCH] is ModularTransformer
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    with pytest.raises(
        UsageError,
        match=rf"the arch {ARCH} has no effect in .*; write \+model._name=modular_transformer .*"
        r"\+model.attention_type=distance",
    ):
        ModularTransformer.build_model(FAMILIES["modular_transformer"](_name=ARCH), task())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"attention_type": "distant"},
            "--attention-type is 'distant'; it must be one of plain, mae, ",
        ),
        ({"attention_type": "plain+distance"}, "--attention-type is 'plain+distance'; it must be one of"),
        (
            {"attention_type": "distance+distance"},
            "--attention-type is 'distance+distance'; it must be one of",
        ),
        ({"attention_type": ""}, "--attention-type is ''; it must be one of"),
        (
            {"attention_type": "distance+dma"},
            "--attention-type distance+dma: distance and dma both add to the scores, and only one part can; "
            "leave one of them out",
        ),
        (
            {"attention_type": "mae", "slope": 0.1},
            f"--distance-slope has no effect without --attention-type distance (or an arch such as {ARCH}); "
            "leave it out",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_a_sentence(distance, changes, sentence):
    with pytest.raises(UsageError) as error:
        build_distance(**changes)
    assert sentence in str(error.value)


def test_the_order_of_two_parts_makes_no_difference():
    one, other = (build(attention_type=value).state_dict() for value in ("mae+dma", "dma+mae"))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_without_the_example_its_name_is_unknown():
    with pytest.raises(
        UsageError,
        match="it must be one of plain, mae, dma, .*, or one that a plugin in --user-dir registers",
    ):
        build(attention_type="distance")


@pytest.mark.parametrize(
    ("name", "seam", "sentence"),
    [
        ("mae", "gate", "attention type 'mae' is registered already"),
        ("plain", "gate", "'plain' is registered already"),
        ("a+b", "gate", "take a name of letters, digits and _"),
        ("other", "scale", "for the seam 'scale'; it must be one of gate, mask"),
        ("far", "mask", "option distance_slope of attention type far must start with far_"),
    ],
)
def test_a_registration_that_cannot_work_is_refused(distance, name, seam, sentence):
    with pytest.raises(ValueError, match=sentence.replace("+", "[+]")):
        register_attention(name, seam, distance.DistanceOptions)
    assert name in ("mae", "plain") or name not in MECHANISMS


@pytest.mark.parametrize(
    "defaults", [{"modular_transformer_ml": {"far_slope": 1.0}}, {"modular_transformer": {"dropout": 0.5}}]
)
def test_defaults_of_another_family_or_mechanism_are_refused(registries, defaults):
    options = make_dataclass(
        "FarOptions",
        [("far_slope", float, field(default=0.5, metadata={"help": "h"}))],
        bases=(FairseqDataclass,),
    )
    register = register_attention("far", "mask", options, family_defaults=defaults)
    with pytest.raises(
        ValueError,
        match="far sets defaults of .* in the model family modular_transformer.*; the family must exist",
    ):
        register(lambda options, place: None)
    assert "far" not in MECHANISMS


@pytest.mark.parametrize(("loss", "other"), [("kl", "dma"), ("nll_loss", "fairseq")])
def test_a_loss_that_is_logged_already_is_refused(registries, loss, other):
    losses = type(
        "FarLosses", (AuxiliaryLosses,), {"signs": {"far": 1, loss: 1}, "options": FairseqDataclass}
    )
    register = register_attention("far", "mask", losses=losses)
    with pytest.raises(ValueError, match=f"far logs a loss '{loss}', as {other} does; give it another name"):
        register(lambda options, place: None)
    assert "far" not in MECHANISMS


class Tempered(MultiheadAttention):
    """Attention with a temperature for each head, which neither seam can express."""

    def attend(self, q, *more):
        return super().attend(q * self.log_factor.exp(), *more)


def temper(model, options):
    for module in model.modules():
        if type(module) is MultiheadAttention:
            module.__class__ = Tempered
            module.log_factor = torch.nn.Parameter(torch.zeros(module.num_heads, 1, 1))


@pytest.mark.parametrize("holds", PROPERTIES)
@pytest.mark.parametrize("attention_type", ["tempered", "mae+tempered"])
def test_a_plugin_may_replace_the_class_of_attention_modules(registries, attention_type, holds):
    register_attention("tempered", "mask", after_build=temper)(lambda options, place: None)
    model = ready(attention_type=attention_type)
    plain = ready(attention_type=attention_type.removesuffix("tempered").removesuffix("+") or "plain")
    assert not torch.allclose(logits(model, batch(LENGTHS)), logits(plain, batch(LENGTHS)))
    holds(model)


def test_two_mechanisms_for_one_part_of_the_model_are_refused(registries):
    """Both are always on: one arranges encoder layers, as streams do, one replaces residual connections."""
    always = {"options": FairseqDataclass, "is_used": lambda options: True}
    register_encoder("ring", needs="--ring", **always)(lambda options: None)
    with pytest.raises(
        UsageError, match="--streams 2 or more and --ring both arrange the layers of the encoder"
    ):
        build(streams=2, encoder_layers=4)
    del MECHANISMS["ring"]
    parts = LayerParts(residual=lambda update, x: update)
    register_layer("half", needs="--half", **always)(lambda options, place: parts)
    with pytest.raises(UsageError, match="--no-residual and --half both change the residual of a layer"):
        build(no_residual=True)


def test_the_help_of_attention_types_knows_all(distance):
    words = ["--arch", "mae_transformer", "--lr", "1", "--max-update", "1"]
    actions = {action.dest: action.help for action in parse(words)[0]._actions}
    for sentence in ("mae: a mixture of attentive", "dma: disentangled mask", "distance: weights fall with"):
        assert sentence in actions["attention_type"]


def test_a_gate_without_options_is_registered_in_the_same_way(registries):
    """The gate scales all heads by 0, so attention returns the bias of its output projection."""

    class Silence(torch.nn.Module):
        def forward(self, x, padding_mask, incremental_state=None, rows=None):
            return torch.zeros(1, 1, 1, 1)

    families = dict(FAMILIES)
    register_attention("silence", "gate")(lambda options, place: Silence())
    assert families == FAMILIES and MECHANISMS["silence"].options is FairseqDataclass
    attention = build(attention_type="silence").eval().encoder.layers[0].self_attn
    x = torch.randn(3, 2, 32)
    torch.testing.assert_close(attention(x, x, x)[0], attention.out_proj.bias.expand(3, 2, 32))
    with pytest.raises(UsageError, match="mae and silence both scale the heads, and only one part can"):
        build(attention_type="mae+silence")


@pytest.fixture(scope="module")
def trained(reversal_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("distance")
    args = ["--arch", ARCH, "--distance-slope", "0.25", "--max-epoch", "2", "--save-dir", folder]
    done = call("fairseq_cli.train", reversal_data, "--user-dir", EXAMPLE, *TINY, *OPTIMIZE, *QUIET, *args)
    assert done.returncode == 0, done.stderr
    return folder / "checkpoint_last.pt"


def test_it_trains_and_its_checkpoint_keeps_the_option(trained):
    checkpoint = load_checkpoint(trained)
    assert (
        checkpoint["cfg"]["model"]["distance_slope"] == 0.25
        and checkpoint["cfg"]["model"]["attention_type"] == "distance"
    )
    slopes = checkpoint["model"]["encoder.layers.0.self_attn.mask.slope"].flatten()
    assert len(slopes) == 4 and (slopes != 0.25).all() and ((slopes - 0.25).abs() < 0.5).all()


def test_it_translates(trained, reversal_data):
    args = [reversal_data, "--user-dir", EXAMPLE, "--path", trained, "--beam", 5, "--num-workers", 0]
    done = call("fairseq_cli.generate", *args)
    assert done.returncode == 0 and sum(line.startswith("H-") for line in done.stdout.splitlines()) == 12, (
        done.stderr
    )


def test_it_is_analysed(trained, reversal_data, tmp_path):
    args = ["distance", reversal_data, "--path", trained, "--user-dir", EXAMPLE, "--out", tmp_path / "out"]
    done = call("modular_fairseq_cli", "analyze", *args)
    assert done.returncode == 0, done.stderr
    header, *rows = (
        line.split("\t") for line in (tmp_path / "out" / "distance.tsv").read_text().splitlines()
    )
    assert header == ["module", "head", "slope", "mean distance"]
    slopes = load_checkpoint(trained)["model"]["encoder.layers.0.self_attn.mask.slope"].flatten().tolist()
    assert [float(row[2]) for row in rows if row[0] == "encoder.layers.0.self_attn"] == pytest.approx(
        slopes, abs=1e-3
    )
    assert "decoder.layers.0.self_attn" in done.stdout


def test_it_is_benched(tmp_path):
    """A busy machine may refuse the ratios, but the file still says what was compared."""
    sizes = {
        "rounds": 1,
        "sentences": 3,
        "length": 8,
        "search-sentences": 3,
        "beam": 2,
        "steps": 5,
        "source-types": 40,
        "target-types": 30,
    }
    model = f"{ARCH} {' '.join(TINY)} --distance-slope 0"
    done = call(
        "modular_fairseq_cli",
        "bench",
        "--user-dir",
        EXAMPLE,
        *(f"--{name}={n}" for name, n in sizes.items()),
        "--json",
        tmp_path / "times.json",
        model,
    )
    assert done.returncode == 0 or "copies of fairseq's Transformer" in done.stderr, done.stderr
    [comparison] = json.loads((tmp_path / "times.json").read_text())["comparisons"]
    assert comparison["equal_hypotheses"] == [6, 6]
    assert comparison["stock"].endswith("(width 32+32, feed-forward 32+32, heads 4+4, layers 1+1)")
    assert {row["work"] for row in comparison["rows"] if row["model"] == model} == {
        "training step",
        "beam search",
    }
