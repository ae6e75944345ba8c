"""Test the evaluations of tables that take their numbers from `modular-fairseq analyze`."""

import math
from statistics import fmean

import pytest

from modular_fairseq.analysis import analyze
from modular_fairseq.analysis.attention_maps import ENCODER
from modular_fairseq.loading import SKIP_INVALID
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.evaluations.model_analyses import (
    CompetitionByDepth,
    CompetitionInPictures,
    ExpertInformation,
    GateEntropy,
    Redundancy,
)
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import run_train

TIM = ("--tim-layers", "all", "--encoder-layers", 3)
MAE = ("--attention-type", "mae")
THREE_LAYERS = (*MAE, "--encoder-layers", 3)


def train(data, folder, *options):
    run_train(data, *options, "--max-epoch", 1, "--save-dir", folder)


def measure(evaluation, data, folder, *options, words=()):
    """Train a model with these options, and return its evaluation and its checkpoint.

    Args:
        words: options of the run that the evaluation sees.
    """
    train(data, folder, "--arch", "modular_transformer", "--criterion", "modular_cross_entropy", *options)
    run = Run("run", str(folder), Corpus(str(data), ("de", "en")), list(words), 1)
    found = evaluation().measure(Measurement(run, subset="valid"), lambda line: None)
    return found, str(folder / "checkpoint_best.pt")


@pytest.mark.parametrize("context", ["prefix", "source"])
def test_the_information_of_experts_is_that_of_the_encoder(context, reversal_data, tmp_path):
    """With --mae-gate-context source, gates of the decoder read the source, too."""
    words = (*THREE_LAYERS, "--mae-gate-context", context)
    found, checkpoint = measure(ExpertInformation, reversal_data, tmp_path, *words)
    report = analyze(checkpoint, reversal_data, "valid", ["experts"])["experts"]
    encoder, decoder = report.modules[:3], report.modules[3:]
    assert all(each.module.startswith("encoder.") for each in encoder)
    assert {each.side for each in decoder} == {"source" if context == "source" else "target"}
    information = [each.information for each in encoder]
    assert found["expert_information"] == fmean(information) != report.information
    assert len({*information}) == 3
    assert [each["information"] for each in found["experts"]["modules"]] == [
        each.information for each in report.modules
    ]


def test_the_entropy_of_gates_is_that_of_the_encoder(reversal_data, tmp_path):
    found, checkpoint = measure(GateEntropy, reversal_data, tmp_path, *THREE_LAYERS)
    report = analyze(checkpoint, reversal_data, "valid", ["gates"])["gates"]
    entropy = [each.entropy for each in report.modules if each.kind == ENCODER]
    assert found["gate_entropy_encoder"] == pytest.approx(fmean(entropy)) and len({*entropy}) == 3
    assert [each["entropy"] for each in found["gates"]["modules"]] == [
        each.entropy for each in report.modules
    ]


def test_competition_by_depth_compares_the_last_encoder_layer_with_the_first(reversal_data, tmp_path):
    found, checkpoint = measure(CompetitionByDepth, reversal_data, tmp_path, *TIM)
    layers = analyze(checkpoint, reversal_data, "valid", ["competition"])["competition"].layers
    first, middle, last, *decoder = (layer.entropy / math.log(2) for layer in layers)
    assert [layer.module.split(".")[0] for layer in layers] == ["encoder"] * 3 + ["decoder"] * len(decoder)
    assert found["competition_by_depth"] == pytest.approx(last - first, abs=1e-12) and last != first


def test_an_analysis_leaves_out_what_the_training_leaves_out(reversal_data, tmp_path):
    """Some sentences are longer than the model's positions."""
    few = (*TIM, "--max-source-positions", 5, "--max-target-positions", 5, SKIP_INVALID)
    found, _ = measure(CompetitionByDepth, reversal_data, tmp_path, *few, words=[SKIP_INVALID])
    assert found["competition_by_depth"]
    with pytest.raises(UsageError, match="leave such samples out by --skip-invalid-size-inputs-valid-test"):
        measure(CompetitionByDepth, reversal_data, tmp_path / "again", *few)


@pytest.mark.parametrize(
    ("evaluation", "options"),
    [
        (ExpertInformation, TIM),
        (ExpertInformation, (*MAE, "--mae-gating", "uniform")),
        (CompetitionByDepth, MAE),
        (CompetitionByDepth, (*TIM, "--tim-no-competition")),
        (CompetitionByDepth, ("--tim-layers", "all")),  # a single encoder layer has no depth
    ],
)
def test_other_models_have_no_value(evaluation, options, reversal_data, tmp_path):
    found, _ = measure(evaluation, reversal_data, tmp_path, *options)
    assert {name: found[name] for name in evaluation.columns} == dict.fromkeys(evaluation.columns)


def test_another_plugins_or_fairseqs_model_has_no_value(reversal_data, tmp_path):
    train(reversal_data, tmp_path, "--arch", "transformer")
    measurement = Measurement(Run("run", str(tmp_path), Corpus(str(reversal_data)), [], 1))
    for evaluation in (ExpertInformation, CompetitionByDepth):
        assert evaluation().measure(measurement, print) == dict.fromkeys(evaluation.columns)


@pytest.mark.parametrize(("evaluation", "skips"), [(GateEntropy, True), (Redundancy, False)])
def test_commands_say_which_models_skip_them(evaluation, skips):
    run = Run("run", "folder", Corpus("data", ("de", "en")), [], 1)
    (line,) = evaluation().commands(Measurement(run))
    assert line.startswith(f"modular-fairseq analyze {evaluation.analysis} ")
    assert line.endswith("  # skipped for a model without such a part") == skips


def test_the_control_of_pictures_is_the_layer_whose_heads_divide_the_regions_best():
    heads = [{"eta_squared": value} for value in (0.2, None, 0.7, 0.4)]
    layers = [{"layer": number, "eta_squared": value} for number, value in ((3, 0.6), (2, 0.9))]
    report = {"layers": layers, "heads": heads, "brightness": 0.3}
    found = {"eta_squared": 0.6, "eta_squared_heads": 0.7, "eta_squared_brightness": 0.3}
    assert CompetitionInPictures().read(report) == found  # eta_squared: that of the last layer
    plain = {"layers": [], "heads": [{"eta_squared": None}], "brightness": None}
    assert CompetitionInPictures().read(plain) == dict.fromkeys(found)
