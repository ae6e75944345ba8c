"""Test analysis/redundancy.py, attention_maps.py and one_pass.py: LR and HR of known heads and of every kind
of model.
"""

import math

import pytest
import torch
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from scipy.spatial.distance import jensenshannon

from modular_fairseq.analysis import divergences
from modular_fairseq.analysis.attention_maps import CROSS, DECODER, ENCODER, AttentionMap, attention_maps
from modular_fairseq.analysis.divergences import summed_differences
from modular_fairseq.analysis.gates import Gates
from modular_fairseq.analysis.one_pass import one_pass
from modular_fairseq.analysis.redundancy import HeadDifferences, Redundancy
from modular_fairseq.models.options import nested_config
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, build_stock, options, randomize_parts, task
from tests.language_models import build as build_language_model
from tests.properties import logits
from tests.reference import redundancy as reference

TOTALS = ("LR_distance", "HR_distance", "LR_divergence", "HR_divergence")


def summed_distances(heads):
    """Return the summed distances of heads of one module."""
    return summed_differences(heads, [len(heads)]).distances


def random_heads(heads, rows, keys, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(
        2 * torch.randn(heads, rows, keys, generator=generator, dtype=torch.float64), dim=-1
    ).to(dtype)


def sentences_of(sample):
    """Return the `net_input` of each sentence of a batch alone, without padding."""
    net_input, alone = sample["net_input"], []
    for i, length in enumerate(net_input["src_lengths"].tolist()):
        source = net_input["src_tokens"][i]
        one = {"src_tokens": source[source.ne(1)][None], "src_lengths": torch.tensor([length])}
        if "prev_output_tokens" in net_input:
            previous = net_input["prev_output_tokens"][i]
            one["prev_output_tokens"] = previous[previous.ne(1)][None]
        alone.append({"net_input": one, "nsentences": 1})
    return alone


def report(model, *batches):
    [found] = one_pass(model, batches, [Redundancy(model)])
    if isinstance(found, UsageError):
        raise found
    return found


def close(found, expected, tolerance):
    return found == pytest.approx(expected, abs=tolerance)


def numbers(found):
    """Return all numbers of a report except counts."""
    modules = [
        getattr(module, name)
        for kind in found.types
        for module in kind.modules
        for name in ("LR_distance", "LR_divergence")
    ]
    pairs = [value for kind in found.types for row in kind.pairs_distance for value in row]
    model = [getattr(found, f"{name}_{maps}") for name in TOTALS for maps in ("all", "encoder")]
    return [*model, *(getattr(kind, name) for kind in found.types for name in TOTALS), *modules, *pairs]


# Distances


@pytest.mark.parametrize("chunk", [1, 60, 10_000])
def test_distances_equal_scipys_and_the_reference(monkeypatch, chunk):
    monkeypatch.setattr(divergences, "CHUNK", chunk)
    heads = random_heads(5, 7, 6)
    heads[2, :, 3:] = 0  # keys that one head does not look at, or none does
    heads[:, 4, 0] = 0
    heads /= heads.sum(dim=-1, keepdim=True)
    found = summed_differences(heads, [2, 3])
    sums = found.distances
    for module, part in zip(found.generalised, (heads[:2], heads[2:]), strict=True):
        rows = zip(*part.tolist(), strict=True)
        assert float(module) == pytest.approx(sum(reference.divergence(*row) for row in rows), abs=1e-12)
    for a in range(5):
        for b in range(5):
            expected = sum(
                reference.distance(*rows) for rows in zip(heads[a].tolist(), heads[b].tolist(), strict=True)
            )
            assert expected == pytest.approx(
                float(jensenshannon(heads[a], heads[b], base=2, axis=1).sum()), abs=1e-7
            )
            assert float(sums[a, b]) == pytest.approx(expected if a < b else 0.0, abs=1e-12)
            squared = sum(
                reference.divergence(*rows) for rows in zip(heads[a].tolist(), heads[b].tolist(), strict=True)
            )
            assert float(found.divergences[a, b]) == pytest.approx(squared if a < b else 0.0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_heads_are_redundant_and_disjoint_ones_are_not(dtype):
    head = random_heads(1, 50, 9, dtype=dtype)
    assert summed_distances(head.expand(3, -1, -1)).max() == 0
    assert float(summed_distances(torch.eye(4, dtype=dtype)[:, None]).triu(1).sum()) == pytest.approx(
        6, abs=1e-6
    )
    equal = summed_differences(head.expand(3, -1, -1), [3])
    assert equal.divergences.max() == 0
    assert float(equal.generalised) == pytest.approx(0, abs=1e-5)
    disjoint = summed_differences(torch.eye(4, dtype=dtype)[:, None], [4])
    assert float(disjoint.divergences.triu(1).sum()) == pytest.approx(6, abs=1e-6)
    assert float(disjoint.generalised) == pytest.approx(2, abs=1e-6)  # log2 4


def test_heads_that_hardly_differ_in_float32():
    """The distances are about 1e-5. Entropies in float32 would be off by 1e-7, and their roots by 3e-4."""
    a = random_heads(1, 40, 12, dtype=torch.float32)
    b = a * (1 + 2e-5 * torch.sin(torch.arange(480.0)).view(a.shape))
    b /= b.sum(dim=-1, keepdim=True)
    found = float(summed_distances(torch.cat([a, b]))[0, 1]) / 40
    expected = sum(reference.distance(*rows) for rows in zip(a[0].tolist(), b[0].tolist(), strict=True)) / 40
    assert 1e-6 < expected < 1e-4
    assert found == pytest.approx(expected, abs=1e-7)


def test_distances_stay_within_0_and_1_where_rounding_would_leave_it():
    """The divergence of heads that differ in the last digit may come out below 0.

    The sums of disjoint heads are slightly above 1.
    """
    a = random_heads(1, 500, 12)
    assert 0 <= float(summed_distances(torch.cat([a, torch.nextafter(a, a + 1)]))[0, 1]) < 500 * 1e-7
    parts = random_heads(2, 500, 12, dtype=torch.float32)
    nothing = torch.zeros_like(parts[0])
    disjoint = (1 + 1e-6) * torch.stack(
        [torch.cat([parts[0], nothing], dim=1), torch.cat([nothing, parts[1]], dim=1)]
    )
    assert float(summed_distances(disjoint)[0, 1]) == 500


def test_layer_and_head_redundancy_of_known_heads():
    """Each of two modules has two heads: equal ones in the first module, disjoint ones in the second.

    The first head of the second module equals the heads of the first module.
    """
    one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    first, second = torch.stack([one, one])[:, None], torch.stack([one, other])[:, None]
    heads = HeadDifferences()
    heads.add([AttentionMap("first", ENCODER, first), AttentionMap("second", ENCODER, second)])
    found = heads.report(ENCODER)
    for name in ("LR_distance", "LR_divergence"):
        assert [getattr(module, name) for module in found.modules] == pytest.approx([1.0, 0.0], abs=1e-6)
        assert getattr(found, name) == pytest.approx(0.5, abs=1e-6)
    assert found.HR_distance == pytest.approx(3 / 6, abs=1e-6)
    assert found.HR_divergence == pytest.approx(
        10 / 16, abs=1e-6
    )  # of 16 ordered pairs, 4 are a head with itself
    pairs = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    for row, expected in zip(found.pairs_distance, pairs, strict=True):
        assert row == pytest.approx(expected, abs=1e-6)


def test_the_two_definitions_differ_between_equal_and_disjoint_heads():
    """The divergence of (1, 0) and (1/2, 1/2) is 0.3113 bits, and their distance 0.5579."""
    weights = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]], dtype=torch.float64)[:, None]
    heads = HeadDifferences()
    heads.add([AttentionMap("a", ENCODER, weights)])
    found = heads.report(ENCODER)
    bits = 1.5 - 0.75 * math.log2(3)
    assert bits == pytest.approx(0.3113, abs=5e-5)
    assert [found.LR_distance, found.HR_distance] == pytest.approx([1 - math.sqrt(bits)] * 2, abs=1e-12)
    assert found.LR_divergence == pytest.approx(1 - bits, abs=1e-12)
    assert found.HR_divergence == pytest.approx(1 - bits / 2, abs=1e-12)


def test_words_count_once_and_pads_and_rows_of_one_key_do_not():
    """Two heads are equal where a word sees two words.

    They are disjoint at pads, and in a row where a key is hidden.
    """
    even, left, right = [0.5, 0.5], [1.0, 0.0], [0.0, 1.0]
    # H x B x T x S.
    weights = torch.tensor(
        [[[even, even, left], [left, left, left]], [[even, even, right], [left, left, right]]]
    )
    query_padding = torch.tensor([[False, False, True], [False, False, True]])
    key_padding = torch.tensor([[False, False], [False, True]])
    hidden = torch.tensor([[False, False], [True, False], [False, False]])
    heads = HeadDifferences()
    heads.add([AttentionMap("a", CROSS, weights, query_padding, key_padding, hidden)])
    assert (heads.rows, heads.report(CROSS).HR_distance) == (1, 1.0)
    heads.add([AttentionMap("a", CROSS, weights, None, key_padding, hidden)])
    assert (heads.rows, heads.report(CROSS).HR_distance) == (3, pytest.approx(2 / 3))


# Models

STREAMS = {"streams": 2, "encoder_layers": 4}
MODELS = [
    {},
    {"arch": "mae_transformer"},
    {"arch": "dma_transformer"},
    {"arch": "dma_transformer", "dma_decoder_eval_mask": True},
    {"attention_type": "mae+dma", "encoder_normalize_before": True, "decoder_normalize_before": True},
    {"tim_layers": "all", "tim_mechanisms": 2},
    STREAMS,
    {**STREAMS, "stream_skip": True, "attention_type": "mae+dma", "tim_layers": "all", "tim_mechanisms": 4},
    {**STREAMS, "stream_batched": True},
]


def of_the_reference(model, sample):
    model.eval()
    heads = reference.heads_of_sentences(model, [one["net_input"] for one in sentences_of(sample)])
    return {
        kind: (
            reference.layer_and_head_redundancy(modules),
            reference.layer_and_head_redundancy_by_divergence(modules),
        )
        for kind, modules in heads.items()
    }


def equals_the_reference(model, sample, tolerance):
    expected = of_the_reference(model, sample)
    found = report(model.train(), sample)
    assert [kind.type for kind in found.types] == list(expected)
    for number, definition in enumerate(("distance", "divergence")):
        lr, hr, model = f"LR_{definition}", f"HR_{definition}", []
        for kind in found.types:
            *values, by_module = expected[kind.type][number]
            assert close([getattr(kind, lr), getattr(kind, hr)], values, tolerance)
            assert close(
                {module.module: getattr(module, lr) for module in kind.modules}, by_module, tolerance
            )
            model.append(values)
        means = [sum(values) / len(model) for values in zip(*model, strict=True)]
        assert close([getattr(found, f"{name}_all") for name in (lr, hr)], means, tolerance)
        encoder = expected[ENCODER][number][:2] if ENCODER in expected else (None, None)
        assert close([getattr(found, f"{name}_encoder") for name in (lr, hr)], list(encoder), tolerance)
    return found


@pytest.mark.parametrize(
    "changes", MODELS, ids=lambda changes: ",".join(map(str, changes.values())) or "plain"
)
def test_every_model_equals_the_reference(changes):
    model = build(**changes).double()
    randomize_parts(model)
    found = equals_the_reference(model, batch(LENGTHS), 1e-12)
    assert [kind.type for kind in found.types] == [ENCODER, DECODER, CROSS]
    assert [kind.rows for kind in found.types] == [7 + 3 + 6 + 9, 4 + 7 + 1 + 6, 5 + 8 + 2 + 7]
    layers = 4 if changes.get("streams") else 2
    assert [len(kind.pairs_distance) for kind in found.types] == [4 * layers, 8, 8]
    assert found.sentences == 5


@pytest.mark.parametrize("stock", [False, True])
def test_language_models_equal_the_reference(stock):
    model = build_language_model(
        "modular_transformer_lm_tiny_cpu", *([TransformerLanguageModel] if stock else [])
    ).double()
    tokens = torch.tensor([[2, 7, 9, 4, 30, 12, 5], [2, 8, 8, 21, 1, 1, 1]])
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([7, 4])}, "nsentences": 2}
    found = equals_the_reference(model, sample, 1e-6 if stock else 1e-12)  # fairseq's softmax is in float32
    assert [(kind.type, kind.rows) for kind in found.types] == [(DECODER, 6 + 3)]


@pytest.mark.parametrize(
    "changes", [{}, {"encoder_normalize_before": True, "decoder_normalize_before": True}]
)
def test_fairseqs_transformer_and_ours_of_the_same_weights_are_equally_redundant(changes):
    stock, ours = build_stock(seed=3, **changes), build(**changes)
    ours.load_state_dict(stock.state_dict())
    equals_the_reference(stock, batch(LENGTHS), 2e-6)
    assert close(numbers(report(stock, batch(LENGTHS))), numbers(report(ours, batch(LENGTHS))), 1e-5)


@pytest.mark.parametrize("changes", [{}, {"arch": "dma_transformer"}, STREAMS])
def test_batches_and_padding_change_nothing(changes):
    model = build(**changes).double()
    randomize_parts(model)
    sample = batch(LENGTHS)
    together, alone = report(model, sample), report(model, *sentences_of(sample))
    assert close(numbers(together), numbers(alone), 1e-12)
    assert (together.sentences, [kind.rows for kind in together.types]) == (
        alone.sentences,
        [kind.rows for kind in alone.types],
    )


@pytest.mark.parametrize("decoder_mask", [False, True])
def test_the_weights_of_dma_are_the_masked_ones(decoder_mask):
    """In evaluation, the decoder's self-attention has a mask only if the option asks for it.

    The inputs of first layers equal the plain model's.
    """
    changes = {"encoder_layers": 1, "decoder_layers": 1}
    plain, masked = build(**changes), build("dma_transformer", dma_decoder_eval_mask=decoder_mask, **changes)
    masked.load_state_dict(plain.state_dict())
    randomize_parts(masked)
    types = zip(report(plain, batch(LENGTHS)).types, report(masked, batch(LENGTHS)).types, strict=True)
    differs = [abs(a.LR_distance - b.LR_distance) > 0.01 for a, b in types]
    assert differs == [True, decoder_mask, True]


def test_types_of_one_head_have_no_layer_redundancy_and_types_of_no_pair_have_none():
    model = build(encoder_attention_heads=1, decoder_layers=1)
    found = report(model, batch(LENGTHS))
    encoder, decoder, cross = found.types
    for lr, hr in (TOTALS[:2], TOTALS[2:]):
        assert getattr(encoder, lr) is None and 0 < getattr(encoder, hr) < 1
        assert [getattr(module, lr) for module in encoder.modules] == [None, None]
        assert close(
            [getattr(found, f"{lr}_all"), getattr(found, f"{hr}_all")],
            [
                (getattr(decoder, lr) + getattr(cross, lr)) / 2,
                (getattr(encoder, hr) + getattr(decoder, hr) + getattr(cross, hr)) / 3,
            ],
            1e-12,
        )
        assert getattr(found, f"{lr}_encoder") is None
    assert found.text().splitlines()[2].split()[2:6] == [
        *("-", f"{encoder.HR_distance:.3f}", "-", f"{encoder.HR_divergence:.3f}"),
    ]

    found = report(build(encoder_attention_heads=1, encoder_layers=1), batch(LENGTHS))
    for name in TOTALS:
        assert getattr(found.types[0], name) is None and getattr(found, f"{name}_encoder") is None
    assert found.HR_distance_all == (found.types[1].HR_distance + found.types[2].HR_distance) / 2


def test_what_has_nothing_to_compare_is_refused():
    with pytest.raises(UsageError, match="no two attention heads of the same type"):
        report(
            build(encoder_attention_heads=1, decoder_attention_heads=1, encoder_layers=1, decoder_layers=1),
            batch(LENGTHS),
        )
    with pytest.raises(UsageError, match="no word of this data sees two words"):
        report(build(), batch([(1, 1), (1, 1)]))
    with pytest.raises(UsageError, match="there is no sentence to analyse"):
        report(build())
    broken = build()
    broken.encoder.layers[0].self_attn.q_proj.weight.data.fill_(math.nan)
    with pytest.raises(UsageError, match="are NaN"):
        report(broken, batch(LENGTHS))


# Attention maps


@pytest.mark.parametrize("make", [build, build_stock])
def test_maps_say_what_attends_to_what(make):
    model, sample = make().eval(), batch(LENGTHS)
    before = logits(model, sample)
    with attention_maps(model) as maps:
        found = model(**sample["net_input"])
        real = sample["target"].ne(1)
        torch.testing.assert_close(found[0][real], before[real], atol=1e-5, rtol=0)
        names = [(attention.module, attention.kind) for attention in maps]
        first = {attention.module: attention for attention in maps}
    layers = [
        (f"decoder.layers.{i}.{part}", kind)
        for i in (0, 1)
        for part, kind in (("self_attn", DECODER), ("encoder_attn", CROSS))
    ]
    assert names == [
        ("encoder.layers.0.self_attn", ENCODER),
        ("encoder.layers.1.self_attn", ENCODER),
        *layers,
    ]

    source, previous = (sample["net_input"][key] for key in ("src_tokens", "prev_output_tokens"))
    encoder, decoder, cross = (
        first[name] for name in ("encoder.layers.0.self_attn", "decoder.layers.0.self_attn", layers[1][0])
    )
    assert torch.equal(encoder.query_padding, source.eq(1)) and torch.equal(encoder.key_padding, source.eq(1))
    assert torch.equal(decoder.query_padding, previous.eq(1)) and torch.equal(
        decoder.key_padding, previous.eq(1)
    )
    assert torch.equal(cross.query_padding, previous.eq(1)) and torch.equal(cross.key_padding, source.eq(1))
    assert encoder.hidden is None and cross.hidden is None
    assert torch.equal(decoder.hidden, torch.ones(8, 8, dtype=torch.bool).triu(1))
    for attention, (queries, keys) in zip((encoder, decoder, cross), ((9, 9), (8, 8), (8, 9)), strict=True):
        weights = attention.weights
        assert weights.shape == (4, 5, queries, keys)
        valid = weights[:, attention.valid_queries()]
        torch.testing.assert_close(valid.sum(dim=-1), torch.ones(valid.shape[:-1]))
        seen = valid.gt(0).sum(dim=-1)
        assert torch.equal(seen, attention.seen().sum(dim=-1)[attention.valid_queries()].expand_as(seen))
    assert not torch.allclose(cross.weights[0], cross.weights[1], atol=1e-3)
    # The model itself returns the mean over the heads of the last layer.
    torch.testing.assert_close(found[1]["attn"][0], first[layers[-1][0]].weights.mean(dim=0))


def test_without_padding_maps_have_no_masks():
    with attention_maps(build_stock().eval()) as maps:
        assert maps == []
    model = build_stock().eval()
    with attention_maps(model) as maps:
        logits(model, batch([(4, 3), (4, 3)]))
    for attention in maps:
        assert attention.query_padding is None
        assert (
            attention.valid_queries().all()
            and attention.valid_queries().shape == attention.weights.shape[1:3]
        )


def test_callers_get_what_they_asked_for():
    attention, x = build_stock().eval().encoder.layers[0].self_attn, torch.randn(5, 2, 32)
    for asked, shape in (
        ({"need_weights": False}, None),
        ({}, (2, 5, 5)),
        ({"need_head_weights": True}, (4, 2, 5, 5)),
    ):
        with attention_maps(torch.nn.ModuleDict({"decoder": attention})) as maps:
            _, weights = attention(x, x, x, None, None, **asked)
        assert (None if weights is None else weights.shape) == shape
        assert [(attention.module, attention.kind, attention.weights.shape) for attention in maps] == [
            ("decoder", DECODER, (4, 2, 5, 5))
        ]


def test_hooks_are_gone_afterwards_also_after_an_exception():
    model = build().eval()
    with pytest.raises(KeyError), attention_maps(model):
        raise KeyError
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with pytest.raises(UsageError, match="ModularTransformer does not read nothing alone .missing a req"):
        one_pass(model, [{"net_input": {"nothing": 1}}], [Redundancy(model)])
    with pytest.raises(AttributeError):
        one_pass(model, [{"net_input": dict.fromkeys(batch([(5, 4)])["net_input"])}], [Redundancy(model)])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("make", [build, build_stock])
def test_maps_of_decoding_step_by_step(make):
    model, sample = make().eval(), batch([(5, 4), (8, 4)])
    previous, state = sample["net_input"]["prev_output_tokens"], {}
    expected = logits(model, sample)
    with attention_maps(model) as maps:
        encoder_out = model.encoder(sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"])
        for t in range(4):
            maps.clear()
            found, _ = model.decoder(previous[:, : t + 1], encoder_out=encoder_out, incremental_state=state)
            torch.testing.assert_close(found[:, 0], expected[:, t], atol=1e-5, rtol=0)
    assert [tuple(attention.weights.shape) for attention in maps] == [(4, 2, 1, 4), (4, 2, 1, 8)] * 2


def test_keys_of_fairseqs_cross_self_attention_are_the_source_and_the_words():
    cfg, sample = nested_config(options()), batch(LENGTHS)
    cfg.cross_self_attention = cfg.no_cross_attention = True
    stock = TransformerModelBase.build_model(cfg, task()).eval()
    with attention_maps(stock) as maps:
        logits(stock, sample)
    assert [(attention.module, attention.kind) for attention in maps[2:]] == [
        (f"decoder.layers.{i}.self_attn", DECODER) for i in (0, 1)
    ]
    assert maps[2].weights.shape == (4, 5, 8, 9 + 8)
    assert torch.equal(maps[2].query_padding, sample["net_input"]["prev_output_tokens"].eq(1))
    # 6 words of the source; the target has 2, then pads.
    assert maps[2].seen().sum(dim=-1)[3].tolist() == [
        7,
        8,
        *[8] * 6,
    ]
    assert len(report(stock, sample).types) == 2


# The pass and the command


def test_one_pass_serves_several_analyses():
    model, sample = build("mae_transformer"), batch(LENGTHS)
    randomize_parts(model)
    gates, heads = one_pass(model, [sample], [Gates(model), Redundancy(model)])
    [alone] = one_pass(model, [sample], [Gates(model)])
    assert [gate.shares for gate in gates.modules] == [gate.shares for gate in alone.modules]
    assert close([gate.entropy for gate in gates.modules], [gate.entropy for gate in alone.modules], 1e-5)
    assert numbers(heads) == numbers(report(model, sample))
