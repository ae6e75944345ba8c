"""Test modules/expert_mixture.py against the paper's equations, one expert at a time."""

import itertools
import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modular_fairseq.modules import gate_inputs
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.expert_mixture import (
    ExpertMixture,
    dropped_heads_of_experts,
    expert_scale,
    mixture_scale,
)
from modular_fairseq.modules.gate_inputs import RunningMean, sentence_mean
from modular_fairseq.modules.gate_statistics import GateStatistics
from modular_fairseq.modules.gates import GateNetwork, GateNorm
from modular_fairseq.training.running_statistics import RunningStatistics
from tests.helpers import LENGTHS, batch, build
from tests.reference.mixture import mean_of_recent, mixture_of_experts

T, B, C = 6, 4, 16


class Fixed(nn.Module):
    """Return given logits [B, T or 1, E], in place of a gate network."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x, valid):
        return self.logits


def gate_network(experts, norm="batch", init="linear", dropout=0.0):
    torch.manual_seed(7)
    return GateNetwork(C, 12, experts, dropout, norm, init).double()


def padding_mask(left=True):
    mask = torch.zeros(B, T, dtype=torch.bool)
    for b, pads in enumerate((0, 2, 5, 1)):
        mask[b, slice(0, pads) if left else slice(T - pads, T)] = True
    return mask


# Eq. 5 and 6


@pytest.mark.parametrize(("heads", "t", "experts"), [(8, 1, 8), (8, 2, 28), (4, 3, 4)])
def test_experts_are_all_ways_to_drop_t_heads_in_lexicographic_order(heads, t, experts):
    dropped = dropped_heads_of_experts(heads, t)
    assert [tuple(row.nonzero().flatten().tolist()) for row in dropped] == list(
        itertools.combinations(range(heads), t)
    )
    assert len(dropped) == experts


@pytest.mark.parametrize("t", [0, 8, 9, -1])
def test_an_expert_drops_some_heads_and_keeps_some(t):
    with pytest.raises(ValueError, match="between 1 and 7 of 8 heads"):
        dropped_heads_of_experts(8, t)


@pytest.mark.parametrize("heads", [2, 4, 8])
def test_a_uniform_gate_scales_by_exactly_one(heads):
    gates = torch.zeros(5, heads).softmax(dim=-1)
    assert torch.equal(mixture_scale(gates, dropped_heads_of_experts(heads, 1), 1), torch.ones(5, heads))


@pytest.mark.parametrize(("heads", "t"), [(2, 1), (4, 1), (6, 2), (8, 1), (8, 2), (8, 3)])
def test_scales_sum_to_the_number_of_heads(heads, t):
    dropped = dropped_heads_of_experts(heads, t).double()
    gates = torch.randn(50, len(dropped), dtype=torch.float64).softmax(dim=-1)
    torch.testing.assert_close(
        mixture_scale(gates, dropped, t).sum(dim=-1),
        torch.full((50,), float(heads), dtype=torch.float64),
        atol=1e-12,
        rtol=0,
    )
    torch.testing.assert_close(
        gates @ expert_scale(dropped, t), mixture_scale(gates, dropped, t), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("per_position", [False, True])
def test_mixture_equals_the_weighted_sum_of_experts(t, per_position):
    """Outputs and gradients are equal for 8 and 28 experts, within 1e-12 in float64."""
    torch.manual_seed(0)
    attention = MultiheadAttention(C, 8, self_attention=True).double()
    nn.init.normal_(attention.out_proj.bias)
    nn.init.normal_(attention.v_proj.bias)
    logits = torch.randn(B, T if per_position else 1, math.comb(8, t), dtype=torch.float64)
    attention.gate = ExpertMixture(
        8, t, Fixed(logits), RunningMean() if per_position else None, alternates=False
    ).double()
    mask = padding_mask(left=False)
    x = torch.randn(T, B, C, dtype=torch.float64, requires_grad=True)
    blocked = mask[:, None, :].expand(B, T, T)

    found, _ = attention(x, x, x, key_padding_mask=mask)
    gates = attention.gate.gate_network.logits.softmax(dim=-1)
    expected = mixture_of_experts(attention, x, x, gates, t, blocked)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)

    wanted = [x, *attention.parameters()]
    weight = torch.randn_like(found)
    for ours, theirs in zip(
        torch.autograd.grad((found * weight).sum(), wanted, retain_graph=True),
        torch.autograd.grad((expected * weight).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


# F steps


@pytest.mark.parametrize("t", [1, 2, 3])
def test_f_step_is_the_sampled_expert_and_leaves_dropped_heads_without_gradient(t):
    torch.manual_seed(0)
    attention = MultiheadAttention(C, 8, self_attention=True).double()
    experts = math.comb(8, t)
    attention.gate = (
        ExpertMixture(8, t, Fixed(torch.zeros(B, 1, experts, dtype=torch.float64))).double().train()
    )
    attention.gate.step = "F"
    x = torch.randn(T, B, C, dtype=torch.float64)
    scale = attention.gate(x, None, None, B)
    dropped = dropped_heads_of_experts(8, t)
    chosen = [(dropped == (row == 0)).all(dim=1).nonzero().item() for row in scale.view(B, 8)]
    attention.gate.gate_network.logits.data.fill_(-1e9)  # so only one expert can be drawn
    for b, expert in enumerate(chosen):
        attention.gate.gate_network.logits.data[b, 0, expert] = 1e9
    found, _ = attention(x, x, x)
    expected = mixture_of_experts(
        attention, x, x, F.one_hot(torch.tensor(chosen), experts).double()[:, None], t
    )
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    found[:, 0].sum().backward()
    assert attention.gate.gate_network.logits.grad is None
    lacking = dropped[chosen[0]].bool()
    gradient = attention.q_proj.weight.grad.view(8, C // 8, C).abs().sum(dim=(1, 2))
    assert torch.equal(gradient == 0, lacking)


@pytest.mark.parametrize("per_position", [False, True])
def test_f_steps_draw_experts_with_the_probability_of_their_gate(per_position):
    torch.manual_seed(0)
    draws = 40_000
    probabilities = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]])
    logits = (probabilities if per_position else probabilities[:1]).log().expand(draws, -1, -1)
    mixture = ExpertMixture(4, 1, Fixed(logits.clone()), RunningMean() if per_position else None).train()
    mixture.step = "F"
    scale = mixture(torch.zeros(logits.size(1), draws, 1), None, None, draws)
    frequency = (scale == 0).float().mean(dim=0).squeeze(-1).t()  # expert i lacks head i
    torch.testing.assert_close(frequency, probabilities[: logits.size(1)], atol=0.01, rtol=0)


@pytest.mark.parametrize("learned", [True, False])
def test_workers_draw_experts_of_their_own(monkeypatch, learned):
    """fairseq seeds them alike. Together they draw what a single worker draws for all of their sentences."""
    network = GateNetwork(6, 5, 4, 0.0, "none", "linear") if learned else None
    mixture = ExpertMixture(4, 1, network, None, alternates=learned).train()
    mixture.step = "F"
    x = torch.randn(3, 1, 6).expand(3, 8, 6)

    def drawn(sentences):
        torch.manual_seed(1)
        return mixture(x[:, :sentences], None, None, sentences).flatten(1).tolist()

    alone = drawn(8)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    found = []
    for rank in range(2):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        found += drawn(4)
    assert found == alone and found[:4] != found[4:]


def test_positions_keep_their_expert_while_their_gate_stays_the_same():
    torch.manual_seed(0)
    mixture = ExpertMixture(
        8, 1, Fixed(torch.randn(500, 1, 8).expand(-1, T, -1).clone()), RunningMean()
    ).train()
    mixture.step = "F"
    scale = mixture(torch.zeros(T, 500, 1), None, None, 500)
    assert torch.equal(scale, scale[:, :, :1].expand_as(scale))
    assert len(scale[:, :, 0].unique(dim=0)) == 8


def test_training_without_the_hook_is_refused():
    with pytest.raises(RuntimeError, match="set ExpertMixture.step"):
        ExpertMixture(8, 1, gate_network(8)).train()(torch.zeros(T, B, C), None, None, B)


# Gate network and its normalisation


@pytest.mark.parametrize("valid", [None, padding_mask().logical_not().t()])
def test_gate_norm_equals_batch_norm_of_the_valid_rows(valid):
    torch.manual_seed(0)
    ours, theirs = GateNorm(C, lagged=False).double(), nn.BatchNorm1d(C).double()
    for norm in (ours, theirs):
        torch.manual_seed(1)
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    statistics = RunningStatistics(ours)
    for _ in range(3):
        x = torch.randn(T, B, C, dtype=torch.float64, requires_grad=True)
        slope, shift = ours(x, valid)
        statistics.update()
        rows = x.flatten(0, 1) if valid is None else x[valid]
        expected = theirs(rows)
        found = rows * slope + shift
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
        weight = torch.randn_like(found)
        for a, b in zip(
            torch.autograd.grad((found * weight).sum(), [x, ours.weight, ours.bias], retain_graph=True),
            torch.autograd.grad((expected * weight).sum(), [x, theirs.weight, theirs.bias]),
            strict=True,
        ):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=1e-12, rtol=0)
    ours.eval(), theirs.eval()
    slope, shift = ours(x, valid)
    torch.testing.assert_close(rows * slope + shift, theirs(rows), atol=1e-12, rtol=0)


def test_gate_norm_of_one_row_uses_the_running_statistics():
    norm = GateNorm(C, lagged=False)
    norm.running_mean.fill_(3.0)
    slope, shift = norm.train()(torch.full((1, 1, C), 5.0), None)
    torch.testing.assert_close(5.0 * slope + shift, torch.full((C,), 2 / (1 + norm.eps) ** 0.5))


def norm_after(passes):
    """Return a norm after one update of several passes: pairs of inputs [n, C] and valid rows, or None."""
    norm = GateNorm(C, lagged=False).double().train()
    statistics = RunningStatistics(norm)
    for x, valid in passes:
        norm(x, valid)
        statistics.end_pass()
    assert not norm.running_mean.any() and torch.equal(norm.running_var, torch.ones(C).double())
    statistics.update()
    return norm


@pytest.mark.parametrize("rows", [(40,), (40, 40), (40, 3), (40, 0), (3, 0, 7), (1, 1)])
def test_an_update_of_several_passes_is_one_batch_with_all_inputs(rows):
    """The passes see inputs with other means, and other numbers of them; 0 rows are a dummy batch."""
    torch.manual_seed(0)
    inputs = [torch.randn(n, C, dtype=torch.float64) * (k + 1) + k for k, n in enumerate(rows)]
    dummy = torch.randn(5, C, dtype=torch.float64), torch.zeros(5).bool()
    alone = nn.BatchNorm1d(C).double().train()
    alone(torch.cat(inputs))
    norm = norm_after([(x, None) if len(x) else dummy for x in inputs])
    torch.testing.assert_close(norm.running_mean, alone.running_mean, atol=1e-12, rtol=0)
    torch.testing.assert_close(norm.running_var, alone.running_var, atol=1e-12, rtol=0)


def test_all_passes_of_a_batch_count():
    """A criterion may call the model several times, as sentence_ranking does for each choice."""
    inputs = [torch.randn(9, C, dtype=torch.float64) + k for k in range(3)]
    norm = GateNorm(C, lagged=True).double().train()
    statistics = RunningStatistics(norm)
    for x in inputs:
        norm(x, None)
    assert statistics.end_pass() == 3 == statistics.end_pass()
    statistics.update()
    torch.testing.assert_close(norm.running_mean, 0.1 * torch.cat(inputs).mean(dim=0), atol=1e-12, rtol=0)


def test_an_update_without_two_rows_keeps_the_running_statistics():
    dummy = torch.randn(5, C, dtype=torch.float64), torch.zeros(5).bool()
    one = torch.randn(1, C, dtype=torch.float64), None
    for passes in ([], [dummy], [one], [one, dummy]):
        norm = norm_after(passes)
        assert not norm.running_mean.any() and torch.equal(norm.running_var, torch.ones(C).double())


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("lagged", [False, True])
def test_a_pass_that_overflows_keeps_the_running_statistics(value, lagged):
    norm = GateNorm(C, lagged=lagged).train()
    statistics = RunningStatistics(norm)
    x = torch.randn(T, B, C)
    x[0, 0, 0] = value
    norm(x, None)
    statistics.update()
    assert not norm.running_mean.any() and torch.equal(norm.running_var, torch.ones(C))
    x[0, 0, 0] = 0.0
    norm(x, None)
    statistics.update()
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean(dim=(0, 1)))


def test_a_pass_that_is_tried_again_counts_once():
    norm = GateNorm(C, lagged=True).train()
    statistics = RunningStatistics(norm)
    first, failed, last = (torch.randn(T, B, C) + k for k in range(3))
    norm(first, None)
    kept = statistics.end_pass()
    norm(failed, None)
    statistics.forget(kept)
    norm(last, None)
    statistics.update()
    torch.testing.assert_close(norm.running_mean, 0.1 * torch.cat([first, last]).mean(dim=(0, 1)))


def test_lagged_norm_does_not_look_at_the_batch_but_learns_from_it():
    norm = GateNorm(C, lagged=True).train()
    statistics = RunningStatistics(norm)
    x = torch.randn(T, B, C) + 2
    slope, shift = norm(x, None)
    torch.testing.assert_close(slope, torch.full((C,), (1 + norm.eps) ** -0.5))
    torch.testing.assert_close(shift, torch.zeros(C))
    assert not norm.running_mean.any()
    statistics.update()
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean(dim=(0, 1)))


@pytest.mark.parametrize("norm", ["batch", "lagged", "layer", "none"])
def test_gate_network_is_norm_linear_tanh_linear(norm):
    network = gate_network(8, norm).train()
    x = torch.randn(1, B, C, dtype=torch.float64)
    normed = {
        "batch": lambda: F.batch_norm(x[0], None, None, training=True)[None],
        "lagged": lambda: x / (1 + 1e-5) ** 0.5,
        "layer": lambda: F.layer_norm(x, (C,)),
        "none": lambda: x,
    }[norm]()
    torch.testing.assert_close(
        network(x, None), network.fc2(torch.tanh(network.fc1(normed))), atol=1e-12, rtol=0
    )


def test_gate_network_drops_hidden_units_in_training_only():
    network = gate_network(8, "none", dropout=0.5)
    x = torch.randn(1, B, C, dtype=torch.float64)
    assert not torch.equal(network.train()(x, None), network(x, None))
    assert torch.equal(network.eval()(x, None), network(x, None))


@pytest.mark.parametrize(("embed_dim", "experts", "parameters"), [(512, 8, 134_408), (512, 28, 139_548)])
def test_gate_network_has_the_papers_number_of_parameters(embed_dim, experts, parameters):
    assert (
        sum(p.numel() for p in GateNetwork(embed_dim, 256, experts, 0.1, "batch", "zero").parameters())
        == parameters
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gates_stay_in_float32_under_half_precision(dtype):
    attention = MultiheadAttention(
        C, 8, gate=ExpertMixture(8, 1, GateNetwork(C, 12, 8, 0.1, "batch", "linear"))
    )
    before = {name: value.clone() for name, value in attention.gate.gate_network.state_dict().items()}
    attention.to(dtype)
    assert attention.q_proj.weight.dtype == dtype
    assert all(
        torch.equal(value, before[name]) and value.dtype == before[name].dtype
        for name, value in attention.gate.gate_network.state_dict().items()
    )
    output, _ = attention.eval()(*[torch.randn(T, B, C, dtype=dtype)] * 3)
    assert output.dtype == dtype and output.isfinite().all()


# Inputs of gates


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("mask", [None, padding_mask(left=True), padding_mask(left=False)])
def test_running_mean_equals_the_mean_one_by_one(window, mask):
    x = torch.randn(T, B, C, dtype=torch.float64)
    expected = mean_of_recent(x, mask, window).transpose(0, 1)
    torch.testing.assert_close(RunningMean(window)(x, mask, None), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("window", [None, 1, 3, 5, 6, 100])
@pytest.mark.parametrize("mask", [None, padding_mask(left=True), padding_mask(left=False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_of_long_inputs_equal_the_mean_one_by_one(monkeypatch, window, mask, dtype):
    """Outputs and gradients are equal. The limit is set so that the inputs count as long."""
    monkeypatch.setattr(gate_inputs, "LARGEST_MATRIX", 4)
    x = (torch.randn(T, B, C, dtype=dtype) + 10).requires_grad_(True)
    found = RunningMean(window)(x, mask, None)
    expected = mean_of_recent(x.double(), mask, window).transpose(0, 1)
    tolerance = {"atol": 1e-12 if dtype == torch.float64 else 2e-6, "rtol": 0}
    torch.testing.assert_close(found.double(), expected, **tolerance)
    weight = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad((found * weight).sum(), x)[0],
        torch.autograd.grad((expected * weight).sum(), x)[0],
        **tolerance,
    )


@pytest.mark.parametrize("window", [None, 100, 1000])
def test_both_ways_to_average_long_inputs_agree(monkeypatch, window):
    """They differ by 1e-6 in float32 at most over 700 inputs, in outputs and gradients."""
    x = torch.randn(700, 2, C, requires_grad=True)
    mask = torch.zeros(2, 700, dtype=torch.bool)
    mask[0, :300] = mask[1, 650:] = True
    weight, results = torch.randn(2, 700, C), []
    for largest in (0, 700 * 700):
        monkeypatch.setattr(gate_inputs, "LARGEST_MATRIX", largest)
        means = RunningMean(window)(x, mask, None)
        results.append((means, *torch.autograd.grad((means * weight).sum(), x)))
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("convert", [torch.nn.Module.half, torch.nn.Module.bfloat16])
def test_the_scales_of_experts_stay_exact_in_half_precision(convert):
    mixture = convert(ExpertMixture(8, 1, None))
    assert mixture.scale_of_expert.dtype == torch.float32
    assert torch.equal(mixture.scale_of_expert, expert_scale(dropped_heads_of_experts(8, 1), 1))


@pytest.mark.parametrize("length", [256, 257, 700])
def test_long_inputs_have_no_square_matrix(length):
    """A matrix of [T, T] for each sentence would be the largest tensor."""
    largest = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest.append(result.numel())
            return result

    with Watch():
        RunningMean(100)(torch.randn(length, 2, C), None, None)
    assert (max(largest) >= length**2) == (length == 256)


@pytest.mark.parametrize("largest", [0, 256 * 256])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("chunks", [[1] * T, [2, 1, 3], [T]])
def test_running_mean_step_by_step_with_reordering(monkeypatch, window, chunks, largest):
    monkeypatch.setattr(gate_inputs, "LARGEST_MATRIX", largest)
    x = torch.randn(T, B, C, dtype=torch.float64)
    mask = padding_mask(left=False)
    running, state, done, order = RunningMean(window), {}, 0, torch.arange(B)
    for chunk in chunks:
        step = slice(done, done + chunk)
        expected = mean_of_recent(x[:, order], mask[order], window)[step].transpose(0, 1)
        step_mask = mask[order][:, step]
        found = running(x[step, order], step_mask if step_mask.any() else None, state)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
        new_order = torch.tensor([1, 0, 3, 3])
        running.reorder_incremental_state(state, new_order)
        order, done = order[new_order], done + chunk
        if window:
            kept = running.get_incremental_state(state, "mean_state")["inputs"]
            assert kept.size(1) == min(done, window - 1)


@pytest.mark.parametrize("chunk", [1, 1024])
def test_the_mean_of_many_steps_stays_exact(chunk):
    """Each step rounds to float32, and the errors do not add up beyond those of a sum."""
    x = torch.randn(3072, 1, C) + 1
    expected = x.double().cumsum(dim=0).transpose(0, 1) / torch.arange(1, 3073).view(1, -1, 1)
    running, state = RunningMean(), {}
    found = torch.cat([running(part, None, state) for part in x.split(chunk)], dim=1)
    torch.testing.assert_close(found.double(), expected, atol=5e-6, rtol=0)


def test_sentence_mean_ignores_padding_and_survives_an_empty_sentence():
    x, mask = torch.randn(T, B, C, dtype=torch.float64), padding_mask()
    mask[0] = True
    found = sentence_mean(x, mask)
    assert found.shape == (B, 1, C)
    assert torch.equal(found[0, 0], torch.zeros(C, dtype=torch.float64))
    for b in range(1, B):
        torch.testing.assert_close(found[b, 0], x[~mask[b], b].mean(dim=0), atol=1e-12, rtol=0)
    torch.testing.assert_close(sentence_mean(x, None)[:, 0], x.mean(dim=0), atol=1e-12, rtol=0)


# Evaluation


def test_uniform_mixture_draws_one_expert_a_sentence_in_training_and_is_plain_attention_after():
    torch.manual_seed(0)
    mixture = ExpertMixture(8, 2, None).train()
    scale = mixture(torch.zeros(T, 20_000, 1), None, None, 20_000)
    assert set(scale.unique().tolist()) == {0.0, torch.tensor(8 / 6).item()}
    assert torch.equal((scale == 0).sum(dim=1).flatten(), torch.full((20_000,), 2))
    torch.testing.assert_close(
        (scale == 0).float().mean(dim=0).flatten(), torch.full((8,), 0.25), atol=0.02, rtol=0
    )
    assert mixture.eval()(torch.zeros(T, B, 1), None, None, B) is None


@pytest.mark.parametrize("alternates", [True, False])
def test_the_gradient_of_a_mixture_in_evaluation_includes_the_gate(alternates):
    model = build(attention_type="mae", mae_training="bcd" if alternates else "joint").double().eval()
    embedding, sample = model.encoder.embed_tokens.weight, batch(LENGTHS)
    direction = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = []

    def output():
        return model(**sample["net_input"])[0].square().mean()

    for sign in (1, -1):
        embedding.data += sign * 1e-6 * direction
        gradients.append(output().item())
        embedding.data -= sign * 1e-6 * direction
    output().backward()
    assert float((embedding.grad * direction).sum()) == pytest.approx(
        (gradients[0] - gradients[1]) / 2e-6, rel=1e-5
    )


def test_specialised_inference_takes_the_expert_with_the_largest_gate():
    logits = torch.tensor([[0.0, 2.0, 1.0, 0.0], [3.0, 0.0, 0.0, 0.0]])[:, None]
    mixture = ExpertMixture(4, 1, Fixed(logits), inference="specialised").eval()
    scale = mixture(torch.zeros(T, 2, 1), None, None, 2).view(2, 4)
    assert torch.equal(scale, expert_scale(torch.eye(4), 1)[[1, 0]])


@pytest.mark.parametrize("network", [None, Fixed(torch.zeros(B, 1, 8))])
def test_random_inference_keeps_one_expert_that_the_seed_decides(network):
    def drawn(seed):
        mixture = ExpertMixture(8, 1, network, inference="random").eval()
        mixture.draw_expert(torch.Generator().manual_seed(seed))
        scales = [mixture(torch.zeros(T, B, 1), None, None, B) for _ in range(2)]
        assert torch.equal(*scales)
        return tuple((scales[0].expand(B, 8, 1, 1) == 0).view(B, 8).nonzero()[:, 1].tolist())

    with pytest.raises(RuntimeError, match="draw_expert"):
        ExpertMixture(8, 1, network, inference="random").eval()(torch.zeros(T, B, 1), None, None, B)
    assert drawn(1) == drawn(1)
    experts = {drawn(seed) for seed in range(20)}
    assert len(experts) > 3 and all(len(set(expert)) == 1 for expert in experts)


def test_statistics_count_valid_instances_only():
    log_gates = torch.tensor([[[0.5, 0.5], [0.9, 0.1]], [[0.2, 0.8], [0.5, 0.5]]]).log()
    valid = torch.tensor([[True, True], [True, False]])
    statistics = GateStatistics()
    statistics.add(log_gates, valid)
    statistics.add(log_gates[:1], None)
    entropy = [-(p * math.log(p) + (1 - p) * math.log(1 - p)) for p in (0.5, 0.9, 0.8)]
    found = statistics.take()
    expected = torch.tensor([2 * entropy[0] + 2 * entropy[1] + entropy[2], 4.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert statistics.take() is None
    for valid in ([[True, False]], [[True, True]]):  # passes of one shape
        statistics.add(log_gates[1:], torch.tensor(valid))
    assert statistics.take()[1:].tolist() == [1, 2]
    for valid in (None, torch.tensor([[True]])):  # the gates after an overflow do not count
        statistics.add(torch.tensor([[[math.nan, math.nan]]]), valid)
        statistics.add(log_gates[:1, :1], valid)
        expected = torch.tensor([entropy[0], 1.0, 0.0], dtype=torch.float64)
        torch.testing.assert_close(statistics.take(), expected, atol=1e-6, rtol=0)
