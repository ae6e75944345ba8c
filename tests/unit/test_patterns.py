"""Test analysis/patterns.py on maps of known classes and maps that do not count, and with the reference."""

import pytest
import torch

from modular_fairseq.analysis.attention_maps import CROSS, DECODER, ENCODER, AttentionMap
from modular_fairseq.analysis.one_pass import one_pass
from modular_fairseq.analysis.patterns import CLASSES, Patterns, Templates
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, build_stock
from tests.language_models import build as build_language_model
from tests.reference import analyses as reference

LONG = [(9, 8), (12, 12), (6, 11), (15, 7), (5, 5)]


def built_map(name, queries, keys, kind, generator):
    """Return an attention map of a class.

    Most of the attention lies where the class has it. The rest lies anywhere that the query may see.
    """
    noise = torch.rand(queries, keys, generator=generator, dtype=torch.float64) + 0.05
    strength = 0.65 + 0.3 * torch.rand(queries, 1, generator=generator, dtype=torch.float64)
    shape = torch.zeros(queries, keys, dtype=torch.float64)
    columns = torch.randperm(max(keys // 3, 1), generator=generator)[
        : 1 + int(torch.randint(2, (), generator=generator))
    ]
    for t in range(queries):
        center = round(t * (keys - 1) / (queries - 1)) if kind == CROSS else t
        last = t if kind == DECODER else keys - 1
        place = {"diagonal": center, "shift forward": center + 1, "shift backward": center - 1}.get(name)
        if name == "vertical":
            shape[t, columns[columns <= last]] = 1
        elif name == "soft diagonal":
            near = [s for s in range(center - 2, center + 3) if 0 <= s <= last]
            shape[t, near] = 0.8 + 0.4 * torch.rand(len(near), generator=generator, dtype=torch.float64)
        elif place is not None and 0 <= place <= last:
            shape[t, place] = 1
    if kind == DECODER:
        noise = noise.tril()
    noise, total = noise / noise.sum(dim=1, keepdim=True), shape.sum(dim=1, keepdim=True)
    mixed = strength * shape / total.clamp(min=1e-9) + (1 - strength) * noise
    return torch.where(total > 0, mixed, noise)


def attention_map(weights, kind):
    hidden = torch.ones(weights.shape[-2:], dtype=torch.bool).triu(1) if kind == DECODER else None
    return AttentionMap("", kind, weights, hidden=hidden)


def classify(attention):
    return [
        [CLASSES[c] if c < len(CLASSES) else None for c in head]
        for head in Templates.of(attention).classify(attention.weights).tolist()
    ]


@pytest.mark.parametrize(
    "name, kind",
    [
        (name, kind)
        for name in CLASSES
        for kind in (ENCODER, DECODER, CROSS)
        if (name, kind) != ("shift forward", DECODER)
    ],
)
def test_maps_built_to_be_of_a_class_are_of_it(name, kind):
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(100):
        queries = int(torch.randint(8, 40, (), generator=generator))
        keys = int(torch.randint(8, 40, (), generator=generator)) if kind == CROSS else queries
        weights = built_map(name, queries, keys, kind, generator)
        [[result]] = classify(attention_map(weights[None, None], kind))
        assert result == reference.pattern(weights.tolist(), causal=kind == DECODER, cross=kind == CROSS)
        found.append(result)
    assert found.count(name) >= 95, found


def test_uniform_attention_is_heterogeneous_at_any_length():
    for length in range(5, 30):
        for kind in (ENCODER, DECODER, CROSS):
            weights = torch.ones(length, length, dtype=torch.float64)
            weights = weights.tril() if kind == DECODER else weights
            assert classify(
                attention_map((weights / weights.sum(dim=1, keepdim=True))[None, None], kind)
            ) == [["heterogeneous"]]


@pytest.mark.parametrize("make", [build, build_stock])
@pytest.mark.parametrize("sharpness", [1.0, 60.0])
def test_counts_of_a_model_are_those_of_the_reference_sentence_by_sentence(make, sharpness):
    model, sample = make().eval(), batch(LONG + LENGTHS)
    for module in model.modules():
        if hasattr(module, "q_proj"):
            module.q_proj.weight.data *= sharpness  # or all maps are nearly uniform
    expected, found_classes = {}, set()
    for i, (source, target) in enumerate(LONG + LENGTHS):
        net_input = sample["net_input"]
        alone = {
            "src_tokens": net_input["src_tokens"][i : i + 1, -source:],
            "src_lengths": torch.tensor([source]),
            "prev_output_tokens": net_input["prev_output_tokens"][i : i + 1, :target],
        }
        seen = []

        class Keep(Patterns):
            def see(self, batch, maps, seen=seen):
                seen += [(each.module, each.kind, each.weights[:, 0].tolist()) for each in maps]
                super().see(batch, maps)

        one_pass(model, [{"net_input": alone, "nsentences": 1}], [Keep(model)])
        for module, kind, heads in seen:
            counts = expected.setdefault(module, [[0] * len(CLASSES) for _ in heads])
            for head, weights in enumerate(heads):
                name = reference.pattern(weights, causal=kind == DECODER, cross=kind == CROSS)
                if name is not None:
                    counts[head][CLASSES.index(name)] += 1
                    found_classes.add(name)
    both = expected | {
        name: [[2 * count for count in head] for head in heads] for name, heads in expected.items()
    }
    [report] = one_pass(model, [sample, sample], [Patterns(model)])
    assert {each.module: [head.counts for head in each.heads] for each in report.modules} == both
    assert len(found_classes) >= (3 if sharpness > 1 else 1)
    assert report.sentences == 2 * len(LONG + LENGTHS)


def test_heads_that_saw_no_long_sentence_have_no_class():
    model = build()
    [report] = one_pass(model, [batch([(3, 12)])], [Patterns(model)])
    classes = {each.kind: {head.most_frequent for head in each.heads} for each in report.modules}
    assert classes[ENCODER] == {""} and "" not in classes[DECODER]


def test_layers_and_streams_are_named():
    model = build("multistream_transformer", encoder_layers=6, streams=2)
    [report] = one_pass(model, [batch(LONG)], [Patterns(model)])
    places = {each.module: (each.layer, each.stream) for each in report.modules if each.kind == ENCODER}
    assert places == {
        "encoder.layers.0.self_attn": (1, None),
        "encoder.streams.0.0.self_attn": (2, 1),
        "encoder.streams.0.1.self_attn": (3, 1),
        "encoder.streams.1.0.self_attn": (2, 2),
        "encoder.streams.1.1.self_attn": (3, 2),
        "encoder.layers.1.self_attn": (4, None),
    }
    assert [row["stream"] for row in report.tables()["patterns"][:8]] == [None] * 4 + [1] * 4
    first = report.data()["modules"][0]
    assert (
        first["heads"][0]["class"]
        == CLASSES[first["heads"][0]["counts"].index(max(first["heads"][0]["counts"]))]
    )
    assert sum(first["shares"]) == pytest.approx(1)


def test_language_models_have_patterns_of_their_decoder():
    model = build_language_model("modular_transformer_lm")
    tokens = torch.randint(4, 44, (2, 9))
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([9, 9])}, "nsentences": 2}
    [report] = one_pass(model, [sample], [Patterns(model)])
    assert {each.kind for each in report.modules} == {DECODER}
    assert all(sum(head.counts) == 2 for each in report.modules for head in each.heads)


def test_data_of_short_sentences_is_refused():
    model = build()
    [error] = one_pass(model, [batch([(4, 4), (3, 4)])], [Patterns(model)])
    assert isinstance(error, UsageError) and "sentences of 5 tokens or more" in str(error)


def test_a_pad_that_attends_to_nothing_changes_nothing():
    """With fairseq's --left-pad-target, the rows of pads are NaN."""
    weights = torch.softmax(
        torch.randn(3, 2, 9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3, dim=-1
    )
    pads = torch.zeros(2, 9, dtype=torch.bool)
    pads[1, :2] = True
    weights[:, 1, :, :2] = 0
    clean = Templates.of(AttentionMap("", ENCODER, weights, pads, pads)).classify(weights)
    weights[:, 1, :2] = float("nan")
    assert torch.equal(Templates.of(AttentionMap("", ENCODER, weights, pads, pads)).classify(weights), clean)


def test_two_keys_that_are_seen_one_after_the_other_are_vertical():
    weights = torch.zeros(10, 10, dtype=torch.float64)
    weights[:5, 0], weights[5:, 1] = 1, 1
    attention = attention_map(weights[None, None], DECODER)
    templates = Templates.of(attention)
    assert classify(attention) == [["vertical"]]
    # The first two queries see fewer than three keys.
    assert templates._vertical(weights[2:].sum(dim=0)[None, None]) == pytest.approx(1)
