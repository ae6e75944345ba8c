"""Test the cross-entropy of adaptive softmaxes, in both criteria that have it."""

import pytest
import torch
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from omegaconf import OmegaConf

from modular_fairseq.criterions.modular_cross_entropy import ModularCrossEntropyCriterion
from modular_fairseq.models.registry import CRITERIA
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, dictionary, task
from tests.reference.adaptive_softmax import log_probabilities

CUTOFFS = [10, 25]
ADAPTIVE = {"adaptive_softmax_cutoff": "10,25", "share_decoder_input_output_embed": False}
PAD = 1


def ours(**changes):
    settings = {**vars(CRITERIA["modular_cross_entropy"]()), "label_smoothing": 0.0, "sentence_avg": False}
    settings |= changes
    return ModularCrossEntropyCriterion.build_criterion(OmegaConf.create(settings), task())


def fairseqs(backend="c10d"):
    return AdaptiveLoss.build_criterion(
        OmegaConf.create({"sentence_avg": False, "ddp_backend": backend}), task()
    )


@pytest.fixture
def model():
    return build(**ADAPTIVE).double().train()


def with_every_word():
    """Return a batch whose targets are all words in turn, with padding at the ends of sentences."""
    sample = batch(LENGTHS * 4)
    words = torch.tensor([word for word in range(len(dictionary())) if word != PAD])
    counted = sample["target"].ne(PAD)
    sample["target"][counted] = words.repeat(10)[: counted.sum()]
    return sample


def losses(model, sample):
    """Return the negative log-probability of each target [B, T] by the reference."""
    features, _ = model(**sample["net_input"])
    found = log_probabilities(model.decoder.adaptive_softmax, features)
    with torch.no_grad():
        by_fairseq = model.decoder.adaptive_softmax.get_log_prob(features, None)
    torch.testing.assert_close(found, by_fairseq, atol=1e-9, rtol=0)
    return -found.gather(-1, sample["target"].unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("criterion", [ours, fairseqs])
def test_the_loss_is_the_negative_log_probability_of_every_word(model, criterion):
    sample = with_every_word()
    counted = sample["target"].ne(PAD)
    assert {*sample["target"][counted].tolist()} == {*range(len(dictionary()))} - {PAD}
    expected = losses(model, sample)
    loss, size, logged = criterion()(model, sample)
    assert size == logged["ntokens"] == int(counted.sum()) < counted.numel()
    torch.testing.assert_close(loss, expected[counted].sum(), atol=1e-9, rtol=0)
    loss.backward()
    gradient = [p.grad.clone() for p in model.decoder.parameters()]
    model.zero_grad()
    losses(model, sample)[counted].sum().backward()
    for found, parameter in zip(gradient, model.decoder.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad, atol=1e-9, rtol=0)


@pytest.mark.parametrize("criterion", [ours, fairseqs])
def test_without_reduce_each_word_has_its_loss(model, criterion):
    sample = with_every_word()
    expected = losses(model, sample) * sample["target"].ne(PAD)
    loss, _, _ = criterion()(model, sample, reduce=False)
    torch.testing.assert_close(loss, expected.flatten(), atol=1e-12, rtol=0)


def test_a_prefix_is_ignored(model):
    sample = with_every_word()
    expected = (losses(model, sample) * sample["target"].ne(PAD))[:, 2:].sum()
    loss, *_ = ours(ignore_prefix_size=2)(model, sample)
    torch.testing.assert_close(loss, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("criterion", [ours, fairseqs])
def test_a_tail_without_a_target_has_a_gradient_of_zero(model, criterion):
    sample = batch(LENGTHS)
    sample["target"] = sample["target"].clamp(max=20)  # the last tail has no word
    loss, *_ = criterion()(model, sample)
    loss.backward()
    first, last = model.decoder.adaptive_softmax.tail
    assert all(parameter.grad.abs().sum() > 0 for parameter in first.parameters())
    assert all(parameter.grad.abs().sum() == 0 for parameter in last.parameters())


def test_the_loss_of_a_half_precision_model_is_in_float32(model):
    sample = batch(LENGTHS)
    sample["target"] = sample["target"].clamp(max=20)  # the last tail has no word
    for parameter in model.decoder.adaptive_softmax.tail[-1].parameters():
        parameter.data.fill_(3e38)  # their sum is infinite
    loss, *_ = ours()(model.float().bfloat16(), sample)
    assert loss.dtype == torch.float32 and loss.isfinite()


@pytest.mark.parametrize("backend", ["c10d", "pytorch_ddp", "legacy_ddp"])
def test_fairseqs_adaptive_loss_takes_every_backend(backend):
    assert isinstance(fairseqs(backend), AdaptiveLoss)


def test_a_criterion_that_is_derived_from_fairseqs_adaptive_loss_is_built():
    class Derived(AdaptiveLoss):
        pass

    given = task()
    made = Derived.build_criterion(
        OmegaConf.create({"sentence_avg": False, "ddp_backend": "legacy_ddp"}), given
    )
    assert type(made) is Derived


def test_fairseqs_adaptive_loss_names_the_option_that_is_missing():
    with pytest.raises(UsageError, match="--criterion adaptive_loss needs an adaptive softmax; add --adapt"):
        fairseqs()(build(), batch(LENGTHS))
