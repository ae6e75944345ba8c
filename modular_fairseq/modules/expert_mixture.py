"""Mixture of attentive experts, MAE ("A Mixture of h - 1 Heads is Better than h Heads", Peng et al. 2020).

An expert is all heads but a dropped set S of t heads, rescaled: f_S = h/(h-t) * sum_{j not in S} H_j  (Eq. 5,
and its generalisation at the end of section 3). The mixture sum_S g_S f_S (Eq. 6) is linear in the heads, so
it is a scale per head:

    sum_S g_S f_S = sum_j s_j H_j,    s_j = h/(h-t) * (1 - m_j),    m_j = sum_{S contains j} g_S

Everything here therefore returns head scales [rows, H, T or 1, 1] for `MultiheadAttention.gate`: the mixture
(G step, inference), one sampled expert (F step, Algorithm 2), the expert of the largest gate, or one random
expert differ only in g.
"""

import itertools

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import with_incremental_state
from torch import Tensor, nn

from modular_fairseq.modules.gates import GateNetwork, RunningMean, sentence_mean
from modular_fairseq.modules.recomputation import is_recomputation

RARE = 0.01  # share of instances below which an expert counts as rare
INFERENCE_MODES = ("mixture", "specialised", "random")


def dropped_heads_of_experts(num_heads: int, dropped_heads: int) -> Tensor:
    """Which heads each expert lacks: float [E, H] of 0 and 1, E = C(H, t), in lexicographic order of the
    dropped sets.

    Raises:
        ValueError: `dropped_heads` is not between 1 and `num_heads` - 1.
    """
    if not 0 < dropped_heads < num_heads:
        raise ValueError(
            f"an expert must drop between 1 and {num_heads - 1} of {num_heads} heads, not {dropped_heads}"
        )
    sets = torch.tensor(list(itertools.combinations(range(num_heads), dropped_heads)))
    return torch.zeros(len(sets), num_heads).scatter_(1, sets, 1.0)


def mixture_scale(gates: Tensor, dropped: Tensor, dropped_heads: int) -> Tensor:
    """The scale s of each head under responsibilities `gates` [..., E], t = `dropped_heads`. Returns [...,
    H].

    Written around the uniform gate, m_j = t/h, so that it gives exactly 1 there for t = 1 (and within
    rounding otherwise): a uniform mixture is plain attention to the bit.
    """
    num_heads = dropped.size(1)
    return 1 - num_heads / (num_heads - dropped_heads) * (gates @ dropped - dropped_heads / num_heads)


def expert_scale(lacks: Tensor, dropped_heads: int) -> Tensor:
    """The scale when one expert has all the responsibility: 0 for the heads that it lacks, h/(h-t) for the
    others; `lacks` [..., H].
    """
    num_heads = lacks.size(-1)
    return (1 - lacks) * (num_heads / (num_heads - dropped_heads))


class GateStatistics:
    """Sums over instances (sentences, or positions of a prefix or window gate) since the last `take`."""

    def __init__(self):
        self.sums: Tensor | None = None

    def add(self, log_gates: Tensor, valid: Tensor | None) -> None:
        """log_gates [B, T or 1, E], valid bool [B, T or 1]."""
        log_gates = log_gates.detach().double()  # sums of many float32 would drift
        weight = log_gates.new_ones(log_gates.shape[:-1]) if valid is None else valid.to(log_gates.dtype)
        entropy = -(log_gates.exp() * log_gates).sum(dim=-1)
        chosen = F.one_hot(log_gates.argmax(dim=-1), log_gates.size(-1)).to(weight.dtype)
        sums = torch.cat([(entropy * weight).sum().view(1), weight.flatten() @ chosen.flatten(0, 1)])
        self.sums = sums if self.sums is None else self.sums + sums

    def take(self) -> Tensor | None:
        """[1 + E]: summed entropy in nats, then how many instances have their largest gate at each expert;
        None when nothing came.
        """
        sums, self.sums = self.sums, None
        return sums


def entropy_and_shares(sums: Tensor) -> tuple[float, Tensor]:
    """From summed `GateStatistics`: the mean entropy in nats, and the share of instances whose largest gate
    is each expert's [E].
    """
    instances = sums[1:].sum()
    return float(sums[0] / instances), sums[1:] / instances


@with_incremental_state
class ExpertMixture(nn.Module):
    """The head scale of one attention module: `MultiheadAttention.gate`.

    What g is:

        training, `training_scheme` bcd      F step (`step` = "F"): one expert drawn from the gate, which gets
                                             no gradient; G step (`step` = "G"): the mixture. The trainer's
                                             hook sets `step`.
        training, joint (NOBCD)              the mixture; gates learn with everything else
        training, no gate network (UNI-MAE)  one expert drawn uniformly per sentence
        evaluation                           `inference`: the mixture (UNI-MAE: plain attention), the expert
                                             with the largest gate, or one expert that is drawn once for this
                                             module (--mae-inference-seed)

    F steps draw one Gumbel vector per sentence and module, shared by all its positions: argmax(log g_t +
    Gumbel) has distribution g_t at every position, and the expert stays the same wherever the gate does, as
    the paper's one expert per instance does.

    Args:
        num_heads, dropped_heads: h and t; MAE-7 is 8 and 1, MAE-6 is 8 and 2.
        gate_network: logits over the C(h, t) experts, or None for UNI-MAE.
        running_mean: what a gate per position looks at; None for one gate per sentence (mean of the whole
            input).
        looks_at_source: the attention module shows the gate the encoder output instead of the query.
    """

    def __init__(
        self,
        num_heads: int,
        dropped_heads: int,
        gate_network: GateNetwork | None,
        running_mean: RunningMean | None = None,
        training_scheme: str = "bcd",
        inference: str = "mixture",
        looks_at_source: bool = False,
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
        self.looks_at_source = looks_at_source
        self.random_expert = int(torch.randint(self.num_experts, ())) if inference == "random" else None
        self.step: str | None = None
        self.statistics: GateStatistics | None = None  # set to record

    def forward(
        self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None, rows: int
    ) -> Tensor | None:
        """x [T, B, d] is what the gate looks at, padding_mask bool [B, T] or None; `rows` queries rows, B or
        B x beam.

        Returns the head scale [rows, H, T or 1, 1], or None for all ones.
        """
        if self.gate_network is None:
            scale = self._uniform_scale(x)
        elif self.running_mean is None:
            scale = self._cached_sentence_scale(x, padding_mask, incremental_state, rows)
        else:
            scale = self._scale(x, padding_mask, incremental_state)
        # B x T x H -> B x H x T x 1
        return None if scale is None else scale.transpose(1, 2).unsqueeze(-1)

    def _uniform_scale(self, x: Tensor) -> Tensor | None:
        """UNI-MAE: an expert per sentence [B, 1, H] in training; None where the uniform mixture is plain
        attention.
        """
        if self.training:
            expert = torch.randint(self.num_experts, (x.size(1), 1), device=x.device)
        elif self.random_expert is not None:
            expert = torch.full((1, 1), self.random_expert, device=x.device)
        else:
            return None
        return expert_scale(self.dropped[expert], self.dropped_heads)

    def _cached_sentence_scale(
        self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None, rows: int
    ) -> Tensor:
        """One gate per sentence does not change while its translation is written: computed at the first step,
        a row per hypothesis.
        """
        state = self.get_incremental_state(incremental_state, "gate_state")
        if not state:
            scale = self._scale(x, padding_mask, None).repeat_interleave(rows // x.size(1), dim=0)
            if incremental_state is None:
                return scale
            state = {"scale": scale}
            self.set_incremental_state(incremental_state, "gate_state", state)
        return state["scale"]

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        state = self.get_incremental_state(incremental_state, "gate_state")
        if state:
            self.set_incremental_state(
                incremental_state, "gate_state", {"scale": state["scale"].index_select(0, new_order)}
            )

    def _scale(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None) -> Tensor:
        """The head scale [B, T or 1, H] that the gate network gives in the present mode, in float32."""
        learning = self.training and (self.training_scheme == "joint" or self._bcd_step() == "G")
        with (
            torch.set_grad_enabled(learning and torch.is_grad_enabled()),
            torch.autocast(x.device.type, enabled=False),
        ):
            if self.running_mean is None:
                context, valid = sentence_mean(x, padding_mask), None
            else:
                context = self.running_mean(x, padding_mask, incremental_state)
                valid = None if padding_mask is None else padding_mask.logical_not()
            log_gates = F.log_softmax(self.gate_network(context, valid), dim=-1)
            # Of every input once: not of the recomputation in a backward pass, nor of the hypotheses of a
            # search (--eval-bleu).
            if self.statistics is not None and incremental_state is None and not is_recomputation():
                self.statistics.add(log_gates, valid)
            dropped = self.dropped.to(log_gates.dtype)
            if learning or (not self.training and self.inference == "mixture"):
                return mixture_scale(log_gates.exp(), dropped, self.dropped_heads)
            if self.training:
                gumbel = -torch.empty_like(log_gates[:, :1]).exponential_().log()
                expert = (log_gates + gumbel).argmax(dim=-1)
            elif self.inference == "specialised":
                expert = log_gates.argmax(dim=-1)
            else:
                expert = torch.full(log_gates.shape[:-1], self.random_expert, device=x.device)
            return expert_scale(dropped[expert], self.dropped_heads)

    def _bcd_step(self) -> str:
        if self.step is None:
            raise RuntimeError(
                "set ExpertMixture.step to 'F' or 'G' before training by block coordinate descent; "
                "fairseq-train --user-dir modular_fairseq does, through modular_fairseq.training.bcd"
            )
        return self.step
