"""Mixture of attentive experts, MAE ("A Mixture of h - 1 Heads is Better than h Heads", Peng et al. 2020).

An expert consists of all h heads except a dropped set S of t heads, rescaled: f_S = h/(h-t) * sum_{j not in
S} H_j (Eq. 5, and its generalisation at the end of section 3). The mixture sum_S g_S f_S (Eq. 6) is linear in
the heads, so it equals a scale per head:

    sum_S g_S f_S = sum_j s_j H_j,    s_j = h/(h-t) * (1 - m_j),    m_j = sum_{S contains j} g_S

Everything in this file therefore returns head scales [rows, H, T or 1, 1] for `MultiheadAttention.gate`. The
following cases differ only in g: the mixture (G step, inference), one sampled expert (F step, Algorithm 2),
the expert with the largest gate, and one random expert.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from modular_fairseq.modules.autocasting import no_autocast
from modular_fairseq.modules.gate_inputs import RunningMean, sentence_mean, valid_positions
from modular_fairseq.modules.gate_statistics import GateStatistics
from modular_fairseq.modules.gates import GateNetwork
from modular_fairseq.modules.incremental import IncrementalModule
from modular_fairseq.modules.recomputation import is_recomputation

INFERENCE_MODES = ("mixture", "specialised", "random")


def dropped_heads_of_experts(num_heads: int, dropped_heads: int) -> Tensor:
    """Return which heads each expert lacks: float [E, H] of 0 and 1, 1 = dropped.

    There are E = C(H, t) experts, in the lexicographic order of their dropped sets.

    Args:
        num_heads: H.
        dropped_heads: t, the number of heads that an expert lacks.

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
    """Compute the scale s of each head [..., H] in a mixture of experts.

    The formula is written around the uniform gate, for which m_j = t/h. There it gives exactly 1 for t = 1,
    and 1 within rounding for other t. A uniform mixture of experts with t = 1 is therefore plain attention,
    bit for bit.

    Args:
        gates: responsibilities g of the experts [..., E], which sum to 1.
        dropped: which heads each expert lacks, [E, H] (`dropped_heads_of_experts`).
        dropped_heads: t.
    """
    num_heads = dropped.size(1)
    less = _less_than_uniform(num_heads, dropped_heads, gates.dtype, gates.device)
    away = F.linear(gates, dropped.t(), less)  # m_j - t/h
    return torch.rsub(away, 1, alpha=num_heads / (num_heads - dropped_heads))


@functools.lru_cache(maxsize=16)
def _less_than_uniform(
    num_heads: int, dropped_heads: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return -t/h for each head, [H]."""
    return torch.full((num_heads,), -dropped_heads / num_heads, dtype=dtype, device=device)


def expert_scale(lacks: Tensor, dropped_heads: int) -> Tensor:
    """Compute the scale of each head [..., H] when one expert has all the responsibility.

    The scale is 0 for the heads that the expert lacks and h/(h-t) for the others.

    Args:
        lacks: the heads that the expert lacks, [..., H] of 0 and 1.
        dropped_heads: t.
    """
    num_heads = lacks.size(-1)
    return (1 - lacks) * (num_heads / (num_heads - dropped_heads))


def own_rows(rows: int) -> tuple[int, slice]:
    """Return how many rows of random numbers all workers need together, and which of them are this one's.

    fairseq seeds all workers alike. If each drew numbers for its own sentences only, the first sentence of
    every worker would have the same experts, and so on. Workers whose batches have different numbers of
    sentences may still share some of the random numbers.

    Args:
        rows: the number of sentences of this worker.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return rows, slice(rows)
    first = dist.get_rank() * rows
    return dist.get_world_size() * rows, slice(first, first + rows)


class ExpertMixture(IncrementalModule):
    """The `MultiheadAttention.gate` of MAE, which computes the head scales of one attention module.

    The responsibilities g depend on the mode:

        training, `alternates`                 F step (`step` = "F"): one expert is drawn from the gate, which
                                               gets no gradient. G step (`step` = "G"): the mixture. The
                                               trainer's hook sets `step`.
        training, not `alternates` (NOBCD)     the mixture; gates learn together with everything else
        training, no gate network (UNI-MAE)    one expert, drawn uniformly for each sentence
        evaluation                             `inference` "mixture": the mixture (UNI-MAE: plain attention);
                                               "specialised": the expert with the largest gate; "random": one
                                               expert, which `draw_expert` draws (--mae-inference-seed)

    An F step draws one Gumbel vector for each sentence and module, which all positions share: argmax(log g_t
    + Gumbel) has the distribution g_t at every position. The expert stays the same wherever the gate does, as
    the paper's one expert per instance does.

    Args:
        num_heads, dropped_heads: h and t. MAE-7 has 8 and 1, MAE-6 has 8 and 2.
        gate_network: computes logits over the C(h, t) experts; None for UNI-MAE.
        running_mean: computes the input of a gate per position; None for one gate per sentence, which
            averages the whole input.
        alternates: whether training takes F and G steps in turn (block coordinate descent).
        inference: one of `INFERENCE_MODES`.
        looks_at_source: whether the attention module passes the encoder output to the gate instead of the
            query.

    Attributes:
        step: "F" or "G", to be set before training by block coordinate descent.
        statistics: records gate statistics if it is set; None records nothing.
        random_expert: number of the expert that `inference` "random" uses; None before `draw_expert`.
        is_discarded: True while the trainer passes a dummy batch, whose results do not count. It enters
            neither the gate statistics nor the running statistics of the gate's norm.
    """

    dropped: Tensor

    def __init__(
        self,
        num_heads: int,
        dropped_heads: int,
        gate_network: GateNetwork | None,
        running_mean: RunningMean | None = None,
        alternates: bool = True,
        inference: str = "mixture",
        looks_at_source: bool = False,
    ):
        super().__init__()
        dropped = dropped_heads_of_experts(num_heads, dropped_heads)
        self.dropped_heads = dropped_heads
        self.num_experts = dropped.size(0)
        self.register_buffer("dropped", dropped, persistent=False)
        self.scale_of_expert = expert_scale(dropped, dropped_heads)  # E x H
        self.gate_network = gate_network
        self.running_mean = running_mean
        self.alternates = alternates
        self.inference = inference
        self.looks_at_source = looks_at_source
        self.random_expert: int | None = None
        self.is_discarded = False
        self.step: str | None = None
        self.statistics: GateStatistics | None = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert or move the module as `nn.Module` does, and keep `scale_of_expert` exact in its type."""
        super()._apply(fn, recurse)
        dtype = torch.promote_types(self.dropped.dtype, torch.float32)
        self.scale_of_expert = expert_scale(self.dropped.to(dtype), self.dropped_heads)
        return self

    def draw_expert(self, generator: torch.Generator) -> None:
        """Draw the expert that `inference` "random" uses from now on."""
        self.random_expert = int(torch.randint(self.num_experts, (), generator=generator))

    def forward(
        self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None, rows: int
    ) -> Tensor | None:
        """Return the head scales [rows, H, T or 1, 1], or None if all of them are 1.

        Args:
            x: input of the gate [T, B, d].
            padding_mask: bool [B, T], True = pad, or None.
            incremental_state: fairseq's dictionary for step-by-step decoding, which keeps what a gate has
                seen.
            rows: number of query rows of the attention module, B or B x beam.
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
        """Return the head scales of UNI-MAE, [B or 1, 1, H], or None if all of them are 1.

        In training an expert is drawn for each sentence. In evaluation `inference` "random" uses its one
        expert, and the other modes use the uniform mixture, which is plain attention.
        """
        if self.training:
            number, rows = own_rows(x.size(1))
            expert = torch.randint(self.num_experts, (number, 1), device=x.device)[rows]
        elif self.inference == "random":
            expert = torch.full((1, 1), self._drawn_expert(), device=x.device)
        else:
            return None
        return self.scale_of_expert[expert]

    def _cached_sentence_scale(
        self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None, rows: int
    ) -> Tensor:
        """Return the head scales [rows, 1, H] of a gate per sentence, a row for each hypothesis.

        They do not change while a translation is written, so they are computed at the first step only.
        """
        state = self.get_incremental_state(incremental_state, "gate_state")
        if not state:
            beam = rows // x.size(1)
            scale = self._scale(x, padding_mask, None).repeat_interleave(beam, dim=0)
            if incremental_state is None:
                return scale
            state = {"scale": scale, "beam": beam}
            self.set_incremental_state(incremental_state, "gate_state", state)
        return state["scale"]

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        """Reorder the cached scales as the beam was reordered.

        The hypotheses of a sentence have the same scale, so nothing moves unless a sentence leaves the batch.
        """
        state = self.get_incremental_state(incremental_state, "gate_state")
        if state and (state["beam"] == 1 or new_order.numel() != state["scale"].size(0)):
            scale = state["scale"].index_select(0, new_order)
            self.set_incremental_state(incremental_state, "gate_state", {**state, "scale": scale})

    def _scale(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None) -> Tensor:
        """Compute the head scales [B, T or 1, H] that the gate gives in the present mode, in float32."""
        assert self.gate_network is not None
        learning = self.training and (not self.alternates or self._bcd_step() == "G")
        has_gradient = learning or not self.training
        with torch.set_grad_enabled(has_gradient and torch.is_grad_enabled()), no_autocast(x):
            if self.running_mean is None:
                context, valid = sentence_mean(x, padding_mask), None
            else:
                context = self.running_mean(x, padding_mask, incremental_state)
                valid = None if padding_mask is None else valid_positions(padding_mask)
            if self.is_discarded:
                valid = torch.zeros(context.shape[:2], dtype=torch.bool, device=context.device)
            logits = self.gate_network(context, valid)
            # The recomputation in a backward pass does not count an input again, nor do the hypotheses of a
            # search (--eval-bleu). Gates of encoder layers count the inputs of a search, all of them once
            # more, which changes no mean.
            if self.statistics is not None and incremental_state is None and not is_recomputation():
                self.statistics.add(F.log_softmax(logits.detach(), dim=-1), valid)
            if learning or (not self.training and self.inference == "mixture"):
                gates = torch.softmax(logits, dim=-1)
                return mixture_scale(gates, self.dropped.to(gates.dtype), self.dropped_heads)
            if self.training:
                # log g + Gumbel, as a Gumbel number is -log of an exponential one. log g may lack a constant.
                number, rows = own_rows(len(logits))
                exponential = logits.new_empty(number, 1, self.num_experts).exponential_()[rows]
                expert = (logits - exponential.log()).argmax(dim=-1)
            elif self.inference == "specialised":
                expert = logits.argmax(dim=-1)
            else:
                expert = torch.full(logits.shape[:-1], self._drawn_expert(), device=x.device)
            return self.scale_of_expert.to(logits.dtype)[expert]

    def _drawn_expert(self) -> int:
        if self.random_expert is None:
            raise RuntimeError("call ExpertMixture.draw_expert before inference with random experts")
        return self.random_expert

    def _bcd_step(self) -> str:
        if self.step is None:
            raise RuntimeError(
                "set ExpertMixture.step to 'F' or 'G' before training by block coordinate descent; "
                "fairseq-train --user-dir modular_fairseq does so in modular_fairseq/training/gate_trainer.py"
            )
        return self.step
