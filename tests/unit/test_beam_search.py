"""Test search/beam_search.py: it finds what fairseq's own search finds, and is used where it can be."""

import math

import pytest
import torch
from fairseq import search
from fairseq.sequence_generator import SequenceGenerator

from modular_fairseq.benchmark.kernels import counting
from modular_fairseq.patches import search as patch
from modular_fairseq.search.beam_search import beam_search, can_search
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, build_stock, task
from tests.properties import ready

# Options of a model, and how much more often its hypotheses shall end, so that they do at different steps.
MODELS = [
    ({}, 3.0),
    ({"attention_type": "mae"}, 0.0),
    ({"attention_type": "mae", "mae_gate_context": "source"}, 0.0),
    ({"attention_type": "dma"}, 1.0),
    ({"tim_layers": "all"}, 1.0),
]
SETTINGS = [
    {"beam_size": 5, "max_len_b": 12},
    {"beam_size": 1, "max_len_b": 12},
    {"beam_size": 3, "max_len_a": 0.5, "max_len_b": 2, "min_len": 3},
    {"beam_size": 4, "max_len_b": 9, "len_penalty": 0.4, "unk_penalty": 1.0, "temperature": 0.7},
    {"beam_size": 3, "max_len_b": 12, "max_len": 6},  # the positions of the model
    {"beam_size": 2, "max_len_b": 40, "min_len": 36},  # the memory of keys and values grows
    {"beam_size": 4, "max_len_b": 15, "normalize_scores": False, "unk_penalty": -2.0},
]


def decided(end_more=3.0, **changes):
    """Return a model whose hypotheses end at different steps, as a trained model's do."""
    model = ready(**changes)
    torch.manual_seed(3)
    for p in model.decoder.parameters():
        p.data += 0.3 * torch.randn_like(p)
    end = model.decoder.layers[-1].final_layer_norm.bias.detach().flatten()
    model.decoder.output_projection.weight.data[2] += end_more * end / end.norm()
    return model


def generator_of(models, **settings):
    return SequenceGenerator(models, task().target_dictionary, **settings)


def by_fairseq(generator, sample, **kwargs):
    return SequenceGenerator._generate.__wrapped__(generator, sample, **kwargs)


def same(found, expected):
    assert [len(hypotheses) for hypotheses in found] == [len(hypotheses) for hypotheses in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one["tokens"], other["tokens"])
            for name in ("score", "positional_scores", "attention"):
                torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("changes", "end_more"), MODELS, ids=str)
def test_it_finds_the_hypotheses_of_fairseqs_search(changes, end_more, settings):
    sample = batch([*LENGTHS, (7, 4), (3, 4)])
    with torch.no_grad():
        generator = generator_of([decided(end_more, **changes)], **settings)
        found, expected = beam_search(generator, sample), by_fairseq(generator, sample)
    same(found, expected)
    lengths = {len(hypothesis["tokens"]) for hypotheses in expected for hypothesis in hypotheses}
    assert len(lengths) > 1  # hypotheses end at different steps


def test_it_searches_with_an_ensemble_and_another_first_token():
    models = [decided(), decided(attention_type="mae")]
    with torch.no_grad():
        generator = generator_of(models, beam_size=4, max_len_b=12)
        for bos_token in (None, 7):
            found = beam_search(generator, batch(LENGTHS), bos_token)
            same(found, by_fairseq(generator, batch(LENGTHS), bos_token=bos_token))


@pytest.mark.parametrize(("changes", "end_more"), MODELS, ids=str)
def test_a_step_does_nothing_that_only_training_needs(changes, end_more, monkeypatch):
    """On a GPU a step of a small model takes as long as Python needs to start its kernels."""

    def refuse(*args, **kwargs):
        raise AssertionError("this is for training, or for autocast")

    looked = []
    with torch.no_grad():
        model = decided(end_more, **changes)
        generator = generator_of([model], beam_size=3, max_len_b=12)
        expected = beam_search(generator, batch(LENGTHS))
        modules = model.decoder.modules
        monkeypatch.setattr(model.decoder, "modules", lambda: looked.append(True) or modules())
        monkeypatch.setattr(torch, "autocast", refuse)
        monkeypatch.setattr(torch.autograd.Function, "apply", refuse)
        same(beam_search(generator, batch(LENGTHS)), expected)
    assert len(looked) == 1  # and not once in each step


def test_it_needs_no_lengths_of_the_sources():
    sample = batch(LENGTHS)
    with torch.no_grad():
        generator = generator_of([decided()], beam_size=3, max_len_b=12)
        expected = beam_search(generator, sample)
        del sample["net_input"]["src_lengths"]
        same(beam_search(generator, sample), expected)


def test_a_prepared_model_returns_no_attention_and_the_same_hypotheses():
    model = decided()
    generator = generator_of([model], beam_size=4, max_len_b=12)
    with torch.no_grad():
        before = beam_search(generator, batch(LENGTHS))
        model.make_generation_fast_(beamable_mm_beam_size=4, need_attn=False)
        after = beam_search(generator, batch(LENGTHS))
    for ours, theirs in zip(after, before, strict=True):
        assert [each["tokens"].tolist() for each in ours] == [each["tokens"].tolist() for each in theirs]
        assert all(each["attention"].numel() == 0 for each in ours)
        assert all(each["attention"].numel() > 0 for each in theirs)


def test_log_probabilities_that_are_no_numbers_are_never_chosen(monkeypatch):
    model = decided()
    generator = generator_of([model], beam_size=3, max_len_b=6)
    forward = generator.model.forward_decoder

    def with_nan(*args):
        log_probs, attn = forward(*args)
        log_probs[:, 5:9] = math.nan
        return log_probs, attn

    monkeypatch.setattr(generator.model, "forward_decoder", with_nan)
    with torch.no_grad():
        found = beam_search(generator, batch(LENGTHS))
        same(found, by_fairseq(generator, batch(LENGTHS)))
    tokens = torch.cat([each["tokens"] for hypotheses in found for each in hypotheses])
    assert not ((tokens >= 5) & (tokens < 9)).any()


def test_generators_use_it_where_it_can_search(monkeypatch):
    used, sample = [], batch(LENGTHS)
    monkeypatch.setattr(patch, "beam_search", lambda *args: used.append(args) or beam_search(*args))
    ours = generator_of([decided()], beam_size=2, max_len_b=5)
    others = [
        generator_of([build_stock(seed=3)], beam_size=2, max_len_b=5),
        generator_of([ready()], beam_size=2, max_len_b=5, no_repeat_ngram_size=2),
        generator_of(
            [ready()],
            beam_size=2,
            max_len_b=5,
            search_strategy=search.DiverseSiblingsSearch(task().target_dictionary, 0.5),
        ),
    ]
    with torch.no_grad():
        for generator in (ours, *others):
            for bos_token in (None, 7):
                found = generator.generate([], sample, bos_token=bos_token)
                same(found, by_fairseq(generator, sample, bos_token=bos_token))
        prefix = torch.full((len(LENGTHS), 1), 5)
        found = ours.generate([], sample, prefix_tokens=prefix)
        same(found, by_fairseq(ours, sample, prefix_tokens=prefix))
    with pytest.raises(NotImplementedError, match="search method doesn't support them"):
        ours.generate([], sample, constraints=torch.zeros(len(LENGTHS), 1, dtype=torch.int64))
    assert used == [(ours, sample, None), (ours, sample, 7)]


def test_a_step_waits_for_nothing_until_hypotheses_may_end():
    generator = generator_of([build()], beam_size=3, max_len_b=9, min_len=9)
    waits = []
    for steps in (5, 9):
        generator.min_len = generator.max_len_b = steps
        with counting() as count, torch.no_grad():
            beam_search(generator, batch(LENGTHS))
        waits.append(count.total_waits())
    assert waits[0] == waits[1]


def test_a_smallest_length_that_cannot_be_reached_is_refused():
    generator = generator_of([build()], beam_size=2, max_len_b=9, min_len=10)
    with pytest.raises(UsageError, match="--min-len 10 is more than the 9 tokens that --max-len-a, --max"):
        beam_search(generator, batch(LENGTHS))


class OtherGenerator(SequenceGenerator):
    """A search of a user's own."""


def test_it_leaves_other_searches_to_fairseq():
    model, dictionary = build(), task().target_dictionary
    generator = generator_of([model], beam_size=5)
    assert can_search(generator, None, None)
    assert not can_search(generator, torch.full((2, 1), 5), None)
    assert not can_search(generator, None, torch.zeros(2, 1, dtype=torch.int64))
    assert not can_search(OtherGenerator([model], dictionary, beam_size=5), None, None)
    for settings in (
        {"beam_size": 30},  # half of the vocabulary
        {"match_source_len": True},
        {"symbols_to_strip_from_output": None, "tokens_to_suppress": (dictionary[7],)},
        {"no_repeat_ngram_size": 2},
        {"lm_model": build(seed=2)},
        {"search_strategy": search.DiverseSiblingsSearch(dictionary, 0.5)},
    ):
        assert not can_search(generator_of([model], **settings), None, None), settings


# The beam of 21 has so many candidates that the end of the sentence is among them, without a probability.
WITHOUT_PROBABILITIES = pytest.mark.parametrize(
    "settings", [{"beam_size": 2}, {"beam_size": 21, "min_len": 0}], ids=str
)


@WITHOUT_PROBABILITIES
def test_a_model_of_nan_is_refused_after_the_search(settings):
    model = decided()
    next(model.decoder.parameters()).data.fill_(math.nan)
    with pytest.raises(UsageError, match="the probability 0 or NaN"):
        generator_of([model], max_len_b=3, **settings).generate([model], batch(LENGTHS))


@WITHOUT_PROBABILITIES
def test_a_sentence_of_nan_beside_others_is_refused_after_the_search(settings, monkeypatch):
    """The other sentences end in the last step, and this one never does."""
    generator = generator_of([decided()], max_len_b=3, **settings)
    forward = generator.model.forward_decoder

    def with_nan(*args):
        log_probs, attn = forward(*args)
        log_probs[:2] = math.nan
        return log_probs, attn

    monkeypatch.setattr(generator.model, "forward_decoder", with_nan)
    with pytest.raises(UsageError, match="the probability 0 or NaN"):
        beam_search(generator, batch(LENGTHS))
