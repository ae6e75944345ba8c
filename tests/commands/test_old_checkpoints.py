"""Test that checkpoints of earlier versions give the logits and translations that those versions computed.

tests/fixtures/make.py made the files, and explains how.
"""

import json

import numpy as np
import pytest
import torch

import modular_fairseq  # noqa: F401
from tests.fixtures.make import OLD, RECIPES, VARIANTS, hypotheses, load, logits

OUTPUTS = np.load(OLD / "outputs.npz")
HYPOTHESES = json.loads((OLD / "hypotheses.json").read_text())
BATCH = {name: torch.from_numpy(OUTPUTS[name]) for name in ("source", "target")}
# At padded positions, version 0.1 did not let padding see padding. Their logits do not count.
REAL = BATCH["target"].ne(1).numpy()


@pytest.fixture(params=VARIANTS)
def variant(request):
    return request.param


def test_logits_in_double_precision_are_those_of_the_old_version(variant):
    model, _ = load(OLD, *VARIANTS[variant])
    found, expected = logits(model.double(), BATCH), OUTPUTS[f"{variant}.float64"]
    np.testing.assert_allclose(found[REAL], expected[REAL], rtol=0, atol=1e-10)


def test_logits_in_single_precision_are_those_of_the_old_version(variant):
    """Another processor rounds differently, by about the rounding error of single precision in the old
    version.
    """
    model, _ = load(OLD, *VARIANTS[variant])
    single, double = (OUTPUTS[f"{variant}.float{bits}"][REAL] for bits in (32, 64))
    rounding = abs(single - double).max()
    np.testing.assert_allclose(logits(model, BATCH)[REAL], single, rtol=0, atol=1e-6 + 4 * rounding)


def test_translations_are_those_of_the_old_version(variant):
    model, task = load(OLD, *VARIANTS[variant])
    for found, expected in zip(hypotheses(model, task, BATCH), HYPOTHESES[variant], strict=True):
        assert found["tokens"] == expected["tokens"]
        assert found["score"] == pytest.approx(expected["score"], abs=1e-5)


def test_translations_depend_on_the_sentence():
    """If every sentence had the same hypothesis, equal translations would prove little."""
    for variant, found in HYPOTHESES.items():
        assert len({tuple(hypothesis["tokens"]) for hypothesis in found}) > len(found) / 2, variant


@pytest.mark.parametrize("name", RECIPES)
def test_weights_have_the_names_and_values_of_the_file(name):
    """Logits do not show all weights: some weights of semantic masks have an effect on losses only."""
    saved = torch.load(OLD / f"{name}.pt", weights_only=True)["model"]
    loaded = load(OLD, name, {})[0].state_dict()
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[key], value) for key, value in saved.items())
