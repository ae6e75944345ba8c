"""Test analysis/: experts, clusters, competition and samples equal loops over sentences.

Other tests read the folder that the analyses are written to.
"""

import csv
import json
import math
import pickle

import numpy as np
import pytest
import torch

from modular_fairseq.analysis import ANALYSES, samples, tokens
from modular_fairseq.analysis.analyses import build as build_analyses
from modular_fairseq.analysis.attention_maps import ENCODER, KINDS, _hidden
from modular_fairseq.analysis.clusters import ClusterReport, Clusters, HeadClusters, ModuleClusters
from modular_fairseq.analysis.competition import (
    BINS,
    CompetitionOfMechanisms,
    CompetitionReport,
    Correlation,
    LayerReport,
    LayerSums,
)
from modular_fairseq.analysis.gates import ExpertReport, Experts, ExpertTokens, GateReports, Gates
from modular_fairseq.analysis.one_pass import one_pass
from modular_fairseq.analysis.places import place
from modular_fairseq.analysis.recording import recorded
from modular_fairseq.analysis.redundancy import ModuleRedundancy, RedundancyReport, TypeRedundancy
from modular_fairseq.analysis.sentences import Tokens
from modular_fairseq.loading import Loaded
from modular_fairseq.models.dma_losses import semantic_masks
from modular_fairseq.models.mae import expert_mixtures
from modular_fairseq.modules.gate_statistics import GateStatistics, entropy_and_shares
from modular_fairseq_cli import analysis_folder as folder
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, OF_TEXT, batch, build, randomize_parts, task
from tests.language_models import build as build_language_model
from tests.reference import analyses as reference

MANY = [(9, 8), (4, 6), (12, 12), (6, 11), (15, 7), (1, 1), (5, 5)] * 3
SYMBOLS = task().source_dictionary.symbols


def trained(arch="modular_transformer", **changes):
    model = build(arch, **changes).eval()
    randomize_parts(model)
    return model


def alone(sample):
    """Yield each sentence as a batch of its own, without padding."""
    net_input = sample["net_input"]
    for i in range(len(net_input["src_tokens"])):
        source, previous = net_input["src_tokens"][i], net_input["prev_output_tokens"][i]
        source, previous = source[source.ne(1)][None], previous[previous.ne(1)][None]
        yield {
            "src_tokens": source,
            "src_lengths": torch.tensor([source.size(1)]),
            "prev_output_tokens": previous,
        }


def halves(sample):
    """Yield the sentences in two batches of different size."""
    size = len(sample["net_input"]["src_tokens"])
    for rows in (slice(0, size // 3), slice(size // 3, size)):
        yield {
            "net_input": {key: value[rows] for key, value in sample["net_input"].items()},
            "nsentences": len(range(size)[rows]),
        }


def side_tokens(name, net_input):
    return net_input["prev_output_tokens" if "decoder" in name else "src_tokens"][0].tolist()


def assert_same_lists(found, expected):
    assert len(found) == len(expected)
    for entries, others in zip(found, expected, strict=True):
        assert [(entry["token"], entry["count"], entry["total"]) for entry in entries] == [
            (SYMBOLS[token], count, total) for token, _, count, total in others
        ]
        assert [entry["pmi"] for entry in entries] == pytest.approx(
            [pmi for _, pmi, _, _ in others], abs=1e-9
        )


# Tokens


def test_indicative_tokens_of_known_counts():
    counts = tokens.TokenCounts(4, 2)
    pairs = [(0, 0)] * 6 + [(0, 1)] * 2 + [(1, 0)] * 4 + [(2, 1)] * 5 + [(3, 1)] * 3
    for token, group in pairs:
        counts.add(torch.tensor([token]), torch.tensor([group]))
    lists = counts.indicative(list("abcd"))
    # b and d occur fewer than five times
    assert [[(entry["token"], entry["count"], entry["total"]) for entry in group] for group in lists] == [
        [("a", 6, 8)],
        [("c", 5, 5), ("a", 2, 8)],
    ]
    assert lists[0][0]["pmi"] == pytest.approx(math.log(6 / 20 / (8 / 20 * 10 / 20)))
    assert counts.of_groups().tolist() == [10, 10]


def test_information_is_the_mean_pmi_less_that_of_chance():
    """Token a is always in group 0, token b always in group 1, and token c is too rare to count."""
    certain = torch.tensor([[1000, 0], [0, 1000], [4, 0]])
    assert tokens.mean_pmi(certain[:2].numpy()) == pytest.approx(math.log(2))
    assert tokens.information(certain) == pytest.approx(math.log(2), abs=0.002)
    assert tokens.information(certain) == tokens.information(certain)  # its random numbers have fixed seeds
    assert tokens.information(torch.tensor([[4, 0]])) == 0.0


def test_information_of_independent_tokens_and_groups_is_about_zero():
    """Without the correction, 1,000 tokens that occur 6 times seem to have an information of 0.5 nats."""
    generator = torch.Generator().manual_seed(1)
    groups = torch.randint(8, (6000,), generator=generator)
    counts = tokens.TokenCounts(1000, 8)
    counts.add(torch.arange(6000) % 1000, groups)
    assert tokens.mean_pmi(counts.counts.view(1000, 8).numpy()) > 0.5
    assert abs(counts.information()) < 0.02


# Experts (MAE)


@pytest.mark.parametrize("context", ["prefix", "source"])
def test_tokens_of_experts_are_those_of_the_reference(context):
    model, sample = trained("mae_transformer", mae_gate_context=context), batch(MANY, types=16)
    pairs = {name: [] for name in expert_mixtures(model)}
    for net_input in alone(sample):
        with (
            recorded(
                {name: mixture.gate_network for name, mixture in expert_mixtures(model).items()}
            ) as logits,
            torch.no_grad(),
        ):
            model(**net_input)
        for name, [found] in logits.items():
            experts = found[0].argmax(dim=-1).tolist()  # one for the sentence, or one for each position
            words = side_tokens("encoder" if context == "source" else name, net_input)
            pairs[name] += list(zip(words, experts * (len(words) if len(experts) == 1 else 1), strict=True))
    [report] = one_pass(model, halves(sample), [Experts(model)])
    assert [each.module for each in report.modules] == list(expert_mixtures(model))
    for each in report.modules:
        assert_same_lists(each.experts, reference.indicative(pairs[each.module], 4))
        assert each.information == pytest.approx(reference.information(pairs[each.module], 4), abs=0.015)
    assert {each.side for each in report.modules} == (
        {"source"} if context == "source" else {"source", "target"}
    )
    assert report.information == pytest.approx(
        sum(each.information for each in report.modules) / len(report.modules)
    )
    assert any(len(expert) > 1 for expert in report.modules[0].experts)
    assert report.text().splitlines()[1].startswith("  expert 1: ")


def test_shares_of_gates_tell_sentences_from_positions():
    model, sample = trained("mae_transformer"), batch(MANY)
    [report] = one_pass(model, [sample], [Gates(model)])
    words = int(sample["net_input"]["prev_output_tokens"].ne(1).sum())
    assert {(each.instances, each.count) for each in report.modules} == {
        ("sentences", len(MANY)),
        ("positions", words),
    }
    assert report.min_share == min(min(each.shares) for each in report.modules)
    assert report.uniform == pytest.approx(math.log(4))


# Clusters (DMA)


def test_clusters_are_those_of_the_reference():
    model, sample = trained("dma_transformer"), batch(MANY, types=16)
    seen = {name: [] for name in semantic_masks(model)}  # (token, posteriors of the heads)
    for net_input in alone(sample):
        with (
            recorded(
                semantic_masks(model), lambda mask, args, output: mask.cluster(args[0]).posterior
            ) as posteriors,
            torch.no_grad(),
        ):
            model(**net_input)
        for name, [found] in posteriors.items():
            for t, word in enumerate(side_tokens(name, net_input)):
                seen[name].append((word, found[0, :, :, t].double().tolist()))
    [report] = one_pass(model, halves(sample), [Clusters(model)])
    assert [each.module for each in report.modules] == list(semantic_masks(model))
    for each in report.modules:
        rows = seen[each.module]
        for number, head in enumerate(each.heads):
            usage = [sum(p[number][c] for _, p in rows) / len(rows) for c in range(4)]
            largest = [max(range(4), key=p[number].__getitem__) for _, p in rows]
            assert head.usage == pytest.approx(usage, abs=1e-5)
            assert head.usage_entropy == pytest.approx(reference.entropy(usage), abs=1e-4)
            assert head.posterior_entropy == pytest.approx(
                sum(reference.entropy(p[number]) for _, p in rows) / len(rows), abs=1e-4
            )
            assert head.shares == pytest.approx([largest.count(c) / len(rows) for c in range(4)], abs=1e-9)
            assert_same_lists(
                head.tokens,
                reference.indicative([(word, c) for (word, _), c in zip(rows, largest, strict=True)], 4),
            )
    assert (
        0
        < report.modules[0].heads[0].posterior_entropy
        < report.modules[0].heads[0].usage_entropy
        < math.log(4)
    )
    header, first, *_ = report.text().splitlines()
    assert header.split()[-2:] == ["C4", "%"] and first.split()[0] == "encoder.layers.0.self_attn"


# Competition (TIM)


@pytest.mark.parametrize("mechanisms", [2, 4])
def test_competition_is_that_of_the_reference(mechanisms):
    model, sample = (
        trained("tim_transformer_tiny_cpu", tim_mechanisms=mechanisms, encoder_layers=3),
        batch(MANY, types=16),
    )
    for name, parameter in model.named_parameters():
        if ".competition." in name:
            parameter.data = 2 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(len(name))
            )
    analysis = CompetitionOfMechanisms(model)
    seen = {name: [] for name in analysis.parts}  # (token, c)
    for net_input in alone(sample):
        with recorded(analysis.parts) as outputs, torch.no_grad():
            model(**net_input)
        for name, [c] in outputs.items():
            seen[name] += list(zip(side_tokens(name, net_input), c[:, 0].double().tolist(), strict=True))
    [report] = one_pass(model, halves(sample), [analysis])
    assert [each.module for each in report.layers] == [
        *(f"encoder.layers.{i}" for i in range(3)),
        "decoder.layers.0",
        "decoder.layers.1",
    ]
    for each, of_layer in zip(report.layers, report.all_tokens, strict=True):
        rows = seen[each.module]
        entropies = [reference.entropy(c) for _, c in rows]
        assert each.entropy == pytest.approx(sum(entropies) / len(entropies), abs=1e-5)
        assert each.uniform == math.log(mechanisms)
        assert each.mean == pytest.approx(
            [sum(c[m] for _, c in rows) / len(rows) for m in range(mechanisms)], abs=1e-5
        )
        for p, value in each.percentiles.items():
            expected = np.percentile(entropies, int(p), method="inverted_cdf")
            assert value == pytest.approx(expected, abs=0.51 * math.log(mechanisms) / BINS + 1e-6)
        expected = {}
        for word, c in rows:
            expected.setdefault(SYMBOLS[word], []).append(c)
        assert {entry["token"]: entry["count"] for entry in of_layer["tokens"]} == {
            word: len(values) for word, values in expected.items() if len(values) >= 5
        }
        for entry in of_layer["tokens"]:
            values = np.array(expected[entry["token"]])
            assert entry["min"] == pytest.approx(values.min(0), abs=1e-5)
            assert entry["max"] == pytest.approx(values.max(0), abs=1e-5)
            assert entry["mean"] == pytest.approx(values.mean(0), abs=1e-5)
        counts = [entry["count"] for entry in of_layer["tokens"]]
        assert counts == sorted(counts, reverse=True) and counts[0] > 5
    for side in report.correlation:
        for i, one in enumerate(side["layers"]):
            for j, other in enumerate(side["layers"]):
                expected = [
                    reference.pearson([c[m] for _, c in seen[one]], [c[m] for _, c in seen[other]])
                    for m in range(mechanisms)
                ]
                assert side["matrix"][i][j] == pytest.approx(sum(expected) / mechanisms, abs=1e-5)
    assert [side["side"] for side in report.correlation] == ["source", "target"]


def test_an_undecided_competition_has_the_entropy_of_uniform_and_no_correlation():
    model = build("tim_transformer_tiny_cpu")
    for name, parameter in model.named_parameters():
        if ".competition." in name:
            parameter.data.zero_()
    [report] = one_pass(model, [batch(MANY)], [CompetitionOfMechanisms(model)])
    for each in report.layers:
        assert each.entropy == pytest.approx(math.log(2), abs=1e-6)
        assert each.percentiles["5"] == pytest.approx(math.log(2), abs=math.log(2) / BINS)
    assert report.correlation[0]["matrix"] == [[None, None], [None, None]]


def test_correlation_is_signed_and_of_layers_that_vary():
    c = torch.rand(50, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, flat = torch.cat([c, 1 - c], dim=1), torch.tensor([[0.7, 0.3]], dtype=torch.float64).expand(50, 2)
    correlation = Correlation()
    for rows in (slice(0, 20), slice(20, 50)):
        correlation.add(torch.stack([one, one.flip(1), flat])[:, rows])
    for _ in range(3000):
        # A head whose values never vary must stay constant, however often its values are summed.
        correlation.add(torch.stack([one, one.flip(1), flat]))
    matrix = correlation.matrix()
    assert matrix[0][:2] == pytest.approx([1, -1]) and matrix[1][0] == pytest.approx(-1)
    assert matrix[2] == [None] * 3 and matrix[0][2] is None


def test_one_mechanism_has_none_to_compete_with():
    with pytest.raises(UsageError, match="no mechanisms that compete"):
        CompetitionOfMechanisms(build("tim_transformer_tiny_cpu", tim_mechanisms=1))


def test_tables_say_what_the_reports_do():
    token = {"token": "a", "pmi": 1.0, "count": 2, "total": 3}
    lists = [[token], [{**token, "token": "b"}]]
    experts = ExpertReport(5, 0.25, [ExpertTokens("m", 1, None, "source", lists, 0.25)])
    assert experts.tables()["experts"] == [
        {"module": "m", "expert": 1, **token},
        {"module": "m", "expert": 2, **token, "token": "b"},
    ]
    assert experts.text().splitlines()[1:] == [
        "  expert 1: a",
        "  expert 2: b",
        "mutual information of tokens and experts: 0.250 nats (0 if independent)",
    ]
    head = HeadClusters([0.6, 0.4], [0.7, 0.3], 0.5, 0.2, [[token], []])
    tables = ClusterReport([ModuleClusters("m", "k", 1, None, [head])]).tables()
    assert [(row["head"], row["cluster"], row["usage"], row["share"]) for row in tables["clusters"]] == [
        (1, 1, 0.6, 0.7),
        (1, 2, 0.4, 0.3),
    ]
    assert tables["clusters-tokens"] == [{"module": "m", "head": 1, "cluster": 1, **token}]
    entry = {"token": "a", "count": 6, "min": [0.1, 0.2], "mean": [0.3, 0.4], "max": [0.5, 0.8]}
    layer = LayerReport("m", 2, None, "source", 0.5, 0.7, {"5": 0.1, "95": 0.6}, [0.3, 0.7])
    report = CompetitionReport(2, [layer], [], [{"module": "m", "tokens": [entry] * 40}])
    assert report.tables()["competition-tokens"][0] == {
        **{"module": "m", "token": "a", "count": 6},
        **{"min c1": 0.1, "mean c1": 0.3, "max c1": 0.5, "min c2": 0.2, "mean c2": 0.4, "max c2": 0.8},
    }
    assert (
        len(report.tables()["competition-tokens"]) == 40 and len(report.data()["tokens"][0]["tokens"]) == 30
    )
    types = [
        TypeRedundancy("k", 0.25, 0.5, 0.6, 0.7, 9, [ModuleRedundancy("m", 1, None, 4, 0.3, 0.8)], []),
        TypeRedundancy(ENCODER, 0.75, None, 0.9, None, 9, [], []),
    ]
    found = RedundancyReport.of_types(3, types)
    assert found.tables()["redundancy"] == [
        {"type": "k", "module": "m", "heads": 4, "LR_distance": 0.3, "LR_divergence": 0.8},
        {
            **{"type": "k", "module": "all", "heads": 4},
            **{"LR_distance": 0.25, "HR_distance": 0.5, "LR_divergence": 0.6, "HR_divergence": 0.7},
        },
        {
            **{"type": ENCODER, "module": "all", "heads": 0},
            **{"LR_distance": 0.75, "HR_distance": None, "LR_divergence": 0.9, "HR_divergence": None},
        },
        {
            "type": "all",
            **{"LR_distance": 0.5, "HR_distance": 0.5, "LR_divergence": 0.75, "HR_divergence": 0.7},
        },
    ]
    assert (found.LR_divergence_encoder, found.HR_divergence_encoder) == (0.9, None)
    assert (found.LR_distance_encoder, found.HR_distance_encoder) == (0.75, None)


def test_modules_come_in_the_order_in_which_a_word_passes_them():
    model = trained("mae_transformer", encoder_layers=4, streams=2)
    [report] = one_pass(model, [batch(LENGTHS)], [Gates(model)])
    assert [(each.module, each.layer, each.stream) for each in report.modules[:5]] == [
        ("encoder.layers.0.self_attn", 1, None),
        ("encoder.streams.0.0.self_attn", 2, 1),
        ("encoder.streams.1.0.self_attn", 2, 2),
        ("encoder.layers.1.self_attn", 3, None),
        ("decoder.layers.0.self_attn", 1, None),
    ]
    assert place("encoder.proj", {}) == (0, None)


def test_gates_of_modules_with_other_numbers_of_heads():
    model = trained("mae_transformer", decoder_attention_heads=8)
    [report] = one_pass(model, [batch(MANY)], [Gates(model)])
    assert report.uniform == pytest.approx((2 * math.log(4) + 4 * math.log(8)) / 6)
    of_kind = {kind: [each.entropy for each in report.modules if each.kind == kind] for kind in KINDS}
    assert report.kinds == pytest.approx(
        {kind: sum(values) / len(values) for kind, values in of_kind.items()}
    )
    assert "by kind: encoder self-attention " in report.text().splitlines()[-2]


def test_entropies_of_many_instances_do_not_drift():
    statistics = GateStatistics()
    for _ in range(300):
        statistics.add(torch.full((3000, 1, 28), -math.log(28)), None)
    assert entropy_and_shares(statistics.take())[0] == pytest.approx(math.log(28), abs=1e-6)


@pytest.mark.parametrize("hidden", [-math.inf, -1e8, -1e4])
def test_what_counts_as_hidden(hidden):
    assert _hidden(torch.tensor([0.0, hidden, -1.0])).tolist() == [False, True, False]
    assert _hidden(torch.tensor([False, True])).tolist() == [False, True]


def test_memory_of_layer_sums_does_not_depend_on_the_data(device):
    sums = LayerSums(10, 2, torch.device(device))
    before = len(pickle.dumps(sums))
    for _ in range(5):
        sums.add(torch.randint(10, (1000,)), torch.full((1000, 2), 0.5, dtype=torch.float64))
    assert len(pickle.dumps(sums)) == before


# Models without the parts that an analysis needs


@pytest.mark.parametrize("name", ["gates", "experts", "clusters", "competition"])
def test_a_model_without_the_mechanism_is_refused(name):
    with pytest.raises(UsageError, match="the model has no .*; analyse a model trained with --"):
        ANALYSES[name](build())


def test_all_leaves_out_what_is_not_there():
    analyses, refused = build_analyses(["all"], Loaded(build("dma_transformer"), task(), {}))
    assert {"clusters", "patterns", "redundancy"} <= analyses.keys()
    assert {"gates", "experts", "competition"} <= refused.keys()


def test_one_pass_of_all_gives_what_each_gives_alone():
    model = trained(
        "mae_transformer", attention_type="mae+dma", tim_layers="all", encoder_layers=4, streams=2
    )
    sample = batch(MANY, types=16)

    def hooks():
        return [list(module._forward_hooks) + list(module._forward_pre_hooks) for module in model.modules()]

    before = hooks()
    together = one_pass(model, [sample, batch(LENGTHS)], [ANALYSES[name](model) for name in OF_TEXT])
    for kind, report in zip((ANALYSES[name] for name in OF_TEXT), together, strict=True):
        [single] = one_pass(model, [sample, batch(LENGTHS)], [kind(model)])
        names, values = _leaves(report.data())
        expected_names, expected = _leaves(single.data())
        assert names == expected_names
        assert values == pytest.approx(expected, abs=1e-4)
    assert hooks() == before


def test_an_error_in_a_batch_ends_that_analysis_alone():
    class Strict(Gates):
        def see(self, batch, maps):
            raise UsageError("not this batch")

    model, sample = trained("mae_transformer"), batch(MANY)
    error, report = one_pass(model, [sample, sample], [Strict(model), Gates(model)])
    assert str(error) == "not this batch" and isinstance(report, GateReports)


def test_a_model_that_reads_more_than_a_batch_has_is_refused():
    model, sample = trained("mae_transformer"), batch(MANY)
    model.forward = lambda src_tokens, src_lengths, prev_output_tokens, tgt_tokens: None
    with pytest.raises(UsageError, match="missing a required argument: 'tgt_tokens'"):
        one_pass(model, [sample], [Gates(model)])


def _leaves(data):
    """Return all strings and all numbers of nested data, each in their order."""
    if isinstance(data, dict | list):
        parts = [_leaves(value) for value in (data.values() if isinstance(data, dict) else data)]
        return sum((names for names, _ in parts), []), sum((values for _, values in parts), [])
    return ([data], []) if isinstance(data, str | None) else ([], [data])


# Samples


def sentences(*pairs):
    generator = torch.Generator().manual_seed(3)
    for number, (source, target) in enumerate(pairs):
        words = [
            torch.cat([torch.randint(4, 44, (n - 1,), generator=generator), torch.tensor([2])])
            for n in (source, target)
        ]
        yield Tokens(f"test {number}", words[0], torch.cat([words[1][-1:], words[1][:-1]]), words[1])


def test_samples_have_all_that_the_model_computes():
    model = trained("mae_transformer", attention_type="mae+dma", tim_layers="all", dma_decoder_eval_mask=True)
    found = samples.collect(model, sentences((6, 4), (3, 9)))
    first, second = found.sentences
    assert (len(first.source), len(first.target_in), len(first.target), second.target_in[0]) == (
        6,
        4,
        4,
        "</s>",
    )
    assert first.target_in[1:] == first.target[:-1] and first.target[-1] == "</s>"
    arrays = first.arrays
    shapes = {name: array.shape for name, array in arrays.items() if "layers.0" in name}
    assert shapes == {
        "attention/encoder.layers.0.self_attn": (4, 6, 6),
        "attention/decoder.layers.0.self_attn": (4, 4, 4),
        "attention/decoder.layers.0.encoder_attn": (4, 4, 6),
        "gates/encoder.layers.0.self_attn": (1, 4),
        "gates/decoder.layers.0.self_attn": (4, 4),
        "gates/decoder.layers.0.encoder_attn": (4, 4),
        "clusters/encoder.layers.0.self_attn": (4, 6, 4),
        "clusters/decoder.layers.0.self_attn": (4, 4, 4),
        "clusters/decoder.layers.0.encoder_attn": (4, 4, 4),
        "mask/encoder.layers.0.self_attn": (4, 6, 6),
        "mask/decoder.layers.0.self_attn": (4, 4, 4),
        "mask/decoder.layers.0.encoder_attn": (4, 4, 6),
        "competition/encoder.layers.0": (6, 2),
        "competition/decoder.layers.0": (4, 2),
    }
    for name, array in arrays.items():
        assert array.dtype == np.float16
        assert array.astype(float).sum(-1) == pytest.approx(np.ones(array.shape[:-1]), abs=4e-3), name
        if name.endswith("decoder.layers.0.self_attn") and name.startswith(("attention", "mask")):
            assert (np.triu(array.astype(float), 1) == 0).all()
    # M of Eq. 5 from the posteriors: G_ij = sum_c p_ic p_jc, over its row
    p = arrays["clusters/encoder.layers.0.self_attn"].astype(float)
    overlap = np.maximum(p @ p.transpose(0, 2, 1), 1e-6)
    assert arrays["mask/encoder.layers.0.self_attn"].astype(float) == pytest.approx(
        overlap / overlap.sum(-1, keepdims=True), abs=5e-3
    )
    assert found.data()["modules"][0] == {
        "module": "encoder.layers.0.self_attn",
        "kind": "encoder self-attention",
        "layer": 1,
        "stream": None,
        "heads": 4,
    }
    assert found.data()["competition_layers"] == [
        f"{stack}.layers.{i}" for stack in ("encoder", "decoder") for i in (0, 1)
    ]


def test_a_decoders_mask_is_in_the_samples_only_where_it_is_used():
    found = samples.collect(trained("dma_transformer"), sentences((6, 4)))
    names = found.sentences[0].arrays
    assert "mask/encoder.layers.0.self_attn" in names and "mask/decoder.layers.0.self_attn" not in names
    assert "clusters/decoder.layers.0.self_attn" in names


def test_samples_of_a_language_model_have_no_source():
    model = build_language_model("mae_transformer_lm_tiny_cpu").eval()
    target = torch.tensor([5, 6, 7, 2])
    [sentence] = samples.collect(
        model, [Tokens("valid 1", None, torch.tensor([9, 5, 6, 7]), target)]
    ).sentences
    assert sentence.source is None and sentence.target_in == ["w5", "w1", "w2", "w3"]
    assert sentence.arrays["attention/decoder.layers.1.self_attn"].shape[1:] == (4, 4)


def test_there_must_be_a_sentence():
    with pytest.raises(UsageError, match="no sentence of at most 64 tokens"):
        samples.collect(build(), [])


# The folder


def test_tables_and_what_an_earlier_analysis_wrote(tmp_path):
    folder.write(tmp_path, {"arch": "a"}, {"x": {"a": 1}}, {"old": [{"a": 1}], "both": []}, None)
    (tmp_path / "mine.txt").write_text("kept")
    rows = [{"token": 'a\t"b', "pmi": 1.23456789, "none": None}, {"token": "c", "more": 2}]
    folder.write(tmp_path, {"arch": "b"}, {"y": {"a": 1}}, {"new": rows}, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["analysis.json", "mine.txt", "new.tsv"]
    index = json.loads((tmp_path / "analysis.json").read_text())
    assert index == {"format": 2, "arch": "b", "analyses": {"y": {"a": 1}}, "files": ["new.tsv"]}
    with open(tmp_path / "new.tsv", newline="") as file:
        assert list(csv.DictReader(file, delimiter="\t")) == [
            {"token": 'a\t"b', "pmi": "1.23457", "none": "", "more": ""},
            {"token": "c", "pmi": "", "none": "", "more": "2"},
        ]


def test_a_result_that_is_no_number_leaves_the_earlier_analysis(tmp_path):
    folder.write(tmp_path, {}, {"x": 1}, {"a": [{"x": 1}]}, None)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="is not written, because a result is infinite or NaN; use a ch"):
        folder.write(tmp_path, {}, {"x": math.nan}, {"a": [{"x": 2}]}, None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_outside_the_folder_are_never_removed(tmp_path):
    outside = tmp_path / "outside.tsv"
    outside.write_text("kept")
    inside = tmp_path / "in"
    inside.mkdir()
    for name in ("mine.csv", "m", "old.tsv", "new.tsv.123.tmp"):
        (inside / name).write_text("")
    for index in (
        {"files": ["mine.csv"], "tool": "another"},
        [3],
        3,
        {"format": 2, "analyses": {}, "files": None},
        {"format": 2, "analyses": {}, "files": "m"},
    ):
        (inside / "analysis.json").write_text(json.dumps(index))
        folder.remove(inside)
        assert sorted(path.name for path in inside.iterdir()) == ["analysis.json", "m", "mine.csv", "old.tsv"]
    index = {"format": 2, "analyses": {}, "files": ["../outside.tsv", "mine.csv", "old.tsv", 3]}
    (inside / "analysis.json").write_text(json.dumps(index))
    folder.remove(inside)
    assert outside.exists() and sorted(path.name for path in inside.iterdir()) == ["m", "mine.csv"]


def test_a_folder_without_an_index_is_not_complete(tmp_path, monkeypatch):
    folder.write(tmp_path, {}, {}, {"a": [{"x": 1}], "b": [{"x": 1}]}, None)
    write_file = folder.write_file

    def fail(path, content):
        if path.name == "b.tsv":
            raise OSError(28, "No space left on device")
        write_file(path, content)

    monkeypatch.setattr(folder, "write_file", fail)
    with pytest.raises(UsageError, match="cannot be written .No space left"):
        folder.write(tmp_path, {}, {}, {"a": [{"x": 2}], "b": [{"x": 2}]}, None)
    assert not (tmp_path / "analysis.json").exists()
