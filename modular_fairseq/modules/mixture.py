"""Mixture of attentive experts, MAE ("A Mixture of h - 1 Heads is Better than h Heads", Peng et al. 2020).

An expert is all heads but a dropped set S of t heads, rescaled: f_S = h/(h-t) * sum_{j not in S} H_j  (Eq. 5, and its
generalisation at the end of section 3). The mixture sum_S g_S f_S (Eq. 6) is linear in the heads, so it is a scale per head:

    sum_S g_S f_S = sum_j s_j H_j,    s_j = h/(h-t) * (1 - m_j),    m_j = sum_{S contains j} g_S

Everything here therefore returns head scales [rows, H, T or 1, 1] for `MultiheadAttention.gate`: the mixture (G step, inference), one
sampled expert (F step, Algorithm 2), the expert of the largest gate, or one random expert differ only in g.
"""

import itertools

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import with_incremental_state
from torch import Tensor, nn

from modular_fairseq.errors import UsageError

NORMS = ("batch", "lagged", "layer", "none")
INFERENCE_MODES = ("mixture", "specialised", "random")


def dropped_heads_of_experts(num_heads: int, dropped_heads: int) -> Tensor:
    """Which heads each expert lacks: float [E, H] of 0 and 1, E = C(H, t), in lexicographic order of the dropped sets.

    Raises:
        ValueError: `dropped_heads` is not between 1 and `num_heads` - 1.
    """
    if not 0 < dropped_heads < num_heads:
        raise ValueError(f"an expert must drop between 1 and {num_heads - 1} of {num_heads} heads, not {dropped_heads}")
    sets = torch.tensor(list(itertools.combinations(range(num_heads), dropped_heads)))
    return torch.zeros(len(sets), num_heads).scatter_(1, sets, 1.0)


def mixture_scale(gates: Tensor, dropped: Tensor, dropped_heads: int) -> Tensor:
    """The scale s of each head under responsibilities `gates` [..., E], t = `dropped_heads`. Returns [..., H].

    Written around the uniform gate, m_j = t/h, so that it gives exactly 1 there: a uniform mixture is plain attention to the bit.
    """
    num_heads = dropped.size(1)
    return 1 - num_heads / (num_heads - dropped_heads) * (gates @ dropped - dropped_heads / num_heads)


def expert_scale(lacks: Tensor, dropped_heads: int) -> Tensor:
    """The scale when one expert has all the responsibility: 0 for the heads that it lacks, h/(h-t) for the others; `lacks` [..., H]."""
    num_heads = lacks.size(-1)
    return (1 - lacks) * (num_heads / (num_heads - dropped_heads))


class GateNorm(nn.Module):
    """Normalises gate inputs x [..., d] over the instances that `valid` [...] marks; returns slope and shift, each [d].

    `norm(x) = x * slope + shift`; the caller folds both into its linear layer, which saves a pass over x. Statistics are those of
    BatchNorm1d on the valid rows alone: sentences, or positions that are not padding, so padding never counts. With fewer than two
    valid rows the running statistics are used and left as they are. `lagged` normalises by the running statistics in training
    too, and updates them afterwards: then no position sees another one even in training. (No `num_batches_tracked`: it counts for nothing
    with a fixed momentum, and averaging and EMA of checkpoints want floats.)
    """

    eps = 1e-5
    momentum = 0.1

    def __init__(self, dim: int, lagged: bool = False):
        super().__init__()
        self.lagged = lagged
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, var = self.running_mean, self.running_var
        if self.training:
            batch_mean, batch_var, n = masked_mean_and_variance(x, valid)
            enough = n > 1
            if not self.lagged:
                mean = torch.where(enough, batch_mean, mean)
                var = torch.where(enough, batch_var, var)
            with torch.no_grad():
                unbiased = batch_var * n / (n - 1).clamp(min=1)
                weight = self.momentum * enough.to(mean.dtype)
                # Out of place: mean and var above may be these very tensors, and the backward pass needs their values.
                self.running_mean = self.running_mean.lerp(batch_mean, weight)
                self.running_var = self.running_var.lerp(unbiased, weight)
        slope = self.weight * torch.rsqrt(var + self.eps)
        return slope, self.bias - mean * slope


def masked_mean_and_variance(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [d], biased variance [d] and count [] of the valid rows of x [..., d]; `valid` bool [...], None = all."""
    x = x.flatten(0, -2)
    if valid is None:
        var, mean = torch.var_mean(x, dim=0, correction=0)
        return mean, var, x.new_tensor(float(x.size(0)))
    weight = valid.flatten().to(x.dtype)
    n = weight.sum()
    weight = weight / n.clamp(min=1)
    mean = weight @ x
    return mean, weight @ (x - mean).square(), n


class GateNetwork(nn.Module):
    """g(.; phi): norm -> Linear -> tanh -> dropout -> Linear; logits over experts in float32 (section 2.3, appendix A).

    Kept in float32 under fp16 and bf16: a plain SGD update of a half-precision gate would be rounded away.

    Args:
        norm: batch (BatchNorm over valid instances), lagged (see `GateNorm`), layer (LayerNorm) or none.
        init: zero (last layer zero: the gate starts uniform) or linear (nn.Linear's own: input-dependent from the start).
    """

    def __init__(self, embed_dim: int, hidden_dim: int, num_experts: int, dropout: float, norm: str, init: str):
        super().__init__()
        self.norm = {"batch": GateNorm(embed_dim), "lagged": GateNorm(embed_dim, lagged=True), "layer": nn.LayerNorm(embed_dim), "none": None}[norm]
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden_dim, num_experts)
        nn.init.xavier_uniform_(self.fc1.weight)
        nn.init.zeros_(self.fc1.bias)
        if init == "zero":
            nn.init.zeros_(self.fc2.weight)
            nn.init.zeros_(self.fc2.bias)

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """x float32 [..., d], valid bool [...] or None -> logits [..., E]."""
        weight, bias = self.fc1.weight, self.fc1.bias
        if isinstance(self.norm, GateNorm):
            slope, shift = self.norm(x, valid)
            weight, bias = weight * slope, bias + weight @ shift
        elif self.norm is not None:
            x = self.norm(x)
        return self.fc2(self.dropout(torch.tanh(F.linear(x, weight, bias))))

    def _apply(self, fn, recurse=True):
        def keep_precision(t: Tensor) -> Tensor:
            moved = fn(t)
            return t.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

        return super()._apply(keep_precision, recurse)


@with_incremental_state
class RunningMean(nn.Module):
    """Mean of the inputs so far: all of them (prefix), or the `window` most recent ones. No future input enters.

    Both are one matrix product with a [T, T] matrix of 0 and 1: exact, and with no drift of a cumulative sum. Appendix A averages "all
    the input vectors" for translation; in a decoder that would show it the words to predict, hence the prefix.
    """

    def __init__(self, window: int | None = None):
        super().__init__()
        self.window = window

    def forward(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None) -> Tensor:
        """x [T, B, d] (new inputs only, when decoding step by step), padding_mask [B, T] -> means float32 [T, B, d]; 0 where there is
        nothing to average."""
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        new = x.size(0)
        counted = None
        if padding_mask is not None:
            counted = padding_mask.logical_not().t().to(x.dtype)  # T x B
            x = x * counted.unsqueeze(-1)
        if incremental_state is None:
            return self._means(x, counted)[-new:]
        if counted is None:
            counted = x.new_ones(x.shape[:2])
        return self._continue(x, counted, incremental_state)

    def _means(self, x: Tensor, counted: Tensor | None) -> Tensor:
        length = x.size(0)
        band = x.new_ones(length, length).tril_()
        if self.window is not None:
            band = band.triu_(1 - self.window)
        if counted is None:
            return ((band / band.sum(dim=1, keepdim=True)) @ x.flatten(1)).view_as(x)
        sums = (band @ x.flatten(1)).view_as(x)
        return sums / (band @ counted).clamp_(min=1).unsqueeze(-1)

    def _continue(self, x: Tensor, counted: Tensor, incremental_state: dict) -> Tensor:
        """The same for the next inputs. State, batch first for reordering: the sum so far, or the inputs still in the window."""
        state = self.get_incremental_state(incremental_state, "mean_state") or {}
        if self.window is None:
            sums, counts = x.cumsum(dim=0), counted.cumsum(dim=0)
            if state:
                sums, counts = sums + state["sum"], counts + state["count"]
            self.set_incremental_state(incremental_state, "mean_state", {"sum": sums[-1], "count": counts[-1]})
            return sums / counts.clamp(min=1).unsqueeze(-1)
        new = x.size(0)
        if state:
            x = torch.cat([state["inputs"].transpose(0, 1), x])
            counted = torch.cat([state["counted"].transpose(0, 1), counted])
        keep = max(x.size(0) - self.window + 1, 0)
        kept = {"inputs": x[keep:].transpose(0, 1), "counted": counted[keep:].transpose(0, 1)}
        self.set_incremental_state(incremental_state, "mean_state", kept)
        return self._means(x, counted)[-new:]

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        state = self.get_incremental_state(incremental_state, "mean_state")
        if state:
            state = {name: t.index_select(0, new_order) for name, t in state.items()}
            self.set_incremental_state(incremental_state, "mean_state", state)


def sentence_mean(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Mean over the positions that are not padding: x [T, B, d], padding_mask [B, T] -> float32 [1, B, d]."""
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    if padding_mask is None:
        return x.mean(dim=0, keepdim=True)
    counted = padding_mask.logical_not().to(x.dtype)
    weight = counted / counted.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.bmm(weight.unsqueeze(1), x.transpose(0, 1)).transpose(0, 1)


class GateStatistics:
    """Sums over instances (sentences, or positions of a prefix or window gate) since the last `take`."""

    def __init__(self):
        self.sums: Tensor | None = None

    def add(self, log_gates: Tensor, valid: Tensor | None) -> None:
        """log_gates [T or 1, B, E], valid bool [T or 1, B]."""
        log_gates = log_gates.detach()
        weight = log_gates.new_ones(log_gates.shape[:-1]) if valid is None else valid.to(log_gates.dtype)
        entropy = -(log_gates.exp() * log_gates).sum(dim=-1)
        chosen = F.one_hot(log_gates.argmax(dim=-1), log_gates.size(-1)).to(weight.dtype)
        sums = torch.cat([(entropy * weight).sum().view(1), weight.flatten() @ chosen.flatten(0, 1)])
        self.sums = sums if self.sums is None else self.sums + sums

    def take(self) -> Tensor | None:
        """[1 + E]: summed entropy in nats, then how many instances have their largest gate at each expert; None when nothing came."""
        sums, self.sums = self.sums, None
        return sums


def entropy_and_shares(sums: Tensor) -> tuple[float, Tensor]:
    """From summed `GateStatistics`: the mean entropy in nats, and the share of instances whose largest gate is each expert's [E]."""
    instances = sums[1:].sum()
    return float(sums[0] / instances), sums[1:] / instances


@with_incremental_state
class ExpertMixture(nn.Module):
    """The head scale of one attention module: `MultiheadAttention.gate`.

    What g is:
      training, `training_scheme` bcd     F step (`step` = "F"): one expert drawn from the gate, no gradient to the gate;
                                          G step (`step` = "G"): the mixture. The BCD trainer hook sets `step`.
      training, joint (NOBCD)             the mixture, gates learned with everything else
      training, no gate network (UNI-MAE) one expert drawn uniformly per sentence
      evaluation                          `inference`: mixture (UNI-MAE: plain attention), the expert with the largest gate, or one
                                          expert drawn once for this module when it is built (seeded by --seed)

    F steps draw one Gumbel vector per sentence and module, shared by all its positions: argmax(log g_t + Gumbel) has distribution
    g_t at every position, and the expert stays the same wherever the gate does, as the paper's one expert per instance does.

    Args:
        num_heads, dropped_heads: h and t; MAE-7 is 8 and 1, MAE-6 is 8 and 2.
        gate_network: logits over the C(h, t) experts, or None for UNI-MAE.
        running_mean: what a gate per position looks at; None for one gate per sentence (mean of the whole input).
    """

    def __init__(
        self,
        num_heads: int,
        dropped_heads: int,
        gate_network: GateNetwork | None,
        running_mean: RunningMean | None = None,
        training_scheme: str = "bcd",
        inference: str = "mixture",
    ):
        super().__init__()
        dropped = dropped_heads_of_experts(num_heads, dropped_heads)
        self.dropped_heads = dropped_heads
        self.num_experts = dropped.size(0)
        self.register_buffer("dropped", dropped, persistent=False)
        self.gate_network = gate_network
        self.running_mean = running_mean
        self.training_scheme = training_scheme
        self.inference = inference
        self.random_expert = int(torch.randint(self.num_experts, ())) if inference == "random" else None
        self.step: str | None = None
        self.statistics: GateStatistics | None = None  # set to record

    def forward(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None, rows: int) -> Tensor | None:
        """x [T, B, d] is what the gate looks at, padding_mask bool [B, T] or None; `rows` queries rows, B or B x beam.

        Returns the head scale [rows, H, T or 1, 1], or None for all ones.
        """
        if self.gate_network is None:
            scale = self._uniform_scale(x)
        elif self.running_mean is None:
            scale = self._cached_sentence_scale(x, padding_mask, incremental_state, rows)
        else:
            scale = self._scale(x, padding_mask, incremental_state)
        # T x B x H -> B x H x T x 1
        return None if scale is None else scale.permute(1, 2, 0).unsqueeze(-1)

    def _uniform_scale(self, x: Tensor) -> Tensor | None:
        """UNI-MAE: an expert per sentence [1, B, H] in training; None where the uniform mixture is plain attention."""
        if self.training:
            expert = torch.randint(self.num_experts, (1, x.size(1)), device=x.device)
        elif self.random_expert is not None:
            expert = torch.full((1, 1), self.random_expert, device=x.device)
        else:
            return None
        return expert_scale(self.dropped[expert], self.dropped_heads)

    def _cached_sentence_scale(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None, rows: int) -> Tensor:
        """One gate per sentence does not change while its translation is written: computed at the first step, a row per hypothesis."""
        state = self.get_incremental_state(incremental_state, "gate_state")
        if not state:
            scale = self._scale(x, padding_mask, None).repeat_interleave(rows // x.size(1), dim=1)
            if incremental_state is None:
                return scale
            state = {"scale": scale.transpose(0, 1)}
            self.set_incremental_state(incremental_state, "gate_state", state)
        return state["scale"].transpose(0, 1)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        state = self.get_incremental_state(incremental_state, "gate_state")
        if state:
            self.set_incremental_state(incremental_state, "gate_state", {"scale": state["scale"].index_select(0, new_order)})

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """A checkpoint without this gate, say of a plain Transformer, leaves it as it was initialised; half a gate is an error."""
        own = {f"{name}.{key}": value for key, value in self.state_dict().items()}
        if not own.keys() & state_dict.keys():
            state_dict.update(own)

    def _scale(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None) -> Tensor:
        """The head scale [T or 1, B, H] that the gate network gives in the present mode, in float32."""
        learning = self.training and (self.training_scheme == "joint" or self._bcd_step() == "G")
        with torch.set_grad_enabled(learning and torch.is_grad_enabled()), torch.autocast(x.device.type, enabled=False):
            if self.running_mean is None:
                context, valid = sentence_mean(x, padding_mask), None
            else:
                context = self.running_mean(x, padding_mask, incremental_state)
                valid = None if padding_mask is None else padding_mask.logical_not().t()
            log_gates = F.log_softmax(self.gate_network(context, valid), dim=-1)
            if self.statistics is not None:
                self.statistics.add(log_gates, valid)
            dropped = self.dropped.to(log_gates.dtype)
            if learning or (not self.training and self.inference == "mixture"):
                return mixture_scale(log_gates.exp(), dropped, self.dropped_heads)
            if self.training:
                gumbel = -torch.empty_like(log_gates[:1]).exponential_().log()
                expert = (log_gates + gumbel).argmax(dim=-1)
            elif self.inference == "specialised":
                expert = log_gates.argmax(dim=-1)
            else:
                expert = torch.full(log_gates.shape[:-1], self.random_expert, device=x.device)
            return expert_scale(dropped[expert], self.dropped_heads)

    def _bcd_step(self) -> str:
        if self.step is None:
            raise UsageError(
                "a mixture of attentive experts learns by block coordinate descent, whose G and F steps the hook in modular_fairseq.training.bcd takes: "
                "train with fairseq-train --user-dir modular_fairseq, set `step` of each ExpertMixture yourself, or choose --mae-training joint"
            )
        return self.step
