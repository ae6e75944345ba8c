"""Beam search as fairseq's `SequenceGenerator` does it, in fewer kernels and with fewer waits for the device.

Many steps of a search end no hypothesis. Then the best candidates are the new beam as they are, in their
order. fairseq's generator does all the work of ending hypotheses in every step.
"""

import math
from typing import Any

import torch
from fairseq import search
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from modular_fairseq.models.family import ModularModel
from modular_fairseq_cli.errors import UsageError


def can_search(
    generator: SequenceGenerator, prefix_tokens: Tensor | None, constraints: Tensor | None
) -> bool:
    """Tell whether `beam_search` can take the place of a generator's own search.

    It does plain beam search for models of this package, without prefixes, constraints, a language model and
    the like.
    """
    return (
        type(generator) is SequenceGenerator
        and type(generator.search) is search.BeamSearch
        and all(isinstance(model, ModularModel) for model in generator.model.models)
        and prefix_tokens is None
        and constraints is None
        and generator.repeat_ngram_blocker is None
        and generator.lm_model is None
        and generator.token_indices_to_suppress is None
        and not generator.match_source_len
        and 2 * generator.beam_size < generator.vocab_size
    )


def beam_search(
    generator: SequenceGenerator, sample: dict[str, Any], bos_token: int | None = None
) -> list[list[dict[str, Tensor]]]:
    """Return what `generator.generate` returns: for each sentence its hypotheses, the best one first.

    Args:
        generator: fairseq's generator, with the models and all settings of the search (`can_search`).
        sample: a batch of fairseq's datasets.
        bos_token: the token before the first one; by default </s>.

    Raises:
        UsageError: a sentence has no hypothesis, as the model's log-probabilities are NaN or -inf.
    """
    return _Search(generator, sample, bos_token).run()


class _Search:
    """One search. Tensors have a row for each hypothesis, and the hypotheses of a sentence are neighbours.

    Attributes:
        tokens: the tokens of every hypothesis, int64 [rows, max_len + 2].
        scores: the score of every hypothesis up to each token, [rows, max_len + 1].
        attn: the attention weights, [rows, S, max_len + 2], or None if the model returns none.
        last_scores: the score of every hypothesis so far, [sentences, beam].
    """

    def __init__(self, generator: SequenceGenerator, sample: dict[str, Any], bos_token: int | None):
        self.generator, self.model = generator, generator.model
        self.net_input = sample["net_input"]
        source = self.net_input["src_tokens"]
        self.device = source.device
        self.beam, self.sentences = generator.beam_size, source.size(0)
        self.max_len = min(
            int(generator.max_len_a * source.size(1) + generator.max_len_b), generator.max_len - 1
        )
        if generator.min_len > self.max_len:
            raise UsageError(
                f"--min-len {generator.min_len} is more than the {self.max_len} tokens that --max-len-a, "
                "--max-len-b and --max-target-positions allow; give a smaller one"
            )
        rows = self.sentences * self.beam
        self.tokens = torch.full((rows, self.max_len + 2), generator.pad, device=self.device)
        self.tokens[:, 0] = generator.eos if bos_token is None else bos_token
        self.scores = torch.zeros(rows, self.max_len + 1, device=self.device)
        self.attn: Tensor | None = None
        # Only `match_source_len` reads the lengths, which `can_search` leaves to fairseq.
        self.src_lengths = (source.ne(generator.eos) & source.ne(generator.pad)).long().sum(dim=1)
        self.finalized: list[list[dict[str, Tensor]]] = [[] for _ in range(self.sentences)]
        self.finished = [False] * self.sentences
        self.never = torch.tensor([generator.pad], device=self.device)
        self.not_yet = torch.tensor([generator.pad, generator.eos], device=self.device)
        # A decoder has hundreds of modules, and few of them keep states.
        self.stateful = [
            [module for module in model.decoder.modules() if hasattr(module, "reorder_incremental_state")]
            for model in generator.model.models
        ]
        self._number_rows()

    def _number_rows(self) -> None:
        """Make the numbers of the first hypothesis of each sentence [sentences, 1], and of candidates."""
        self.first_rows = torch.arange(self.sentences, device=self.device).unsqueeze(1) * self.beam
        self.candidates = torch.arange(2 * self.beam, device=self.device)

    def run(self) -> list[list[dict[str, Tensor]]]:
        states: list[dict] = [{} for _ in range(self.model.models_size)]
        encoder_outs = self.model.forward_encoder(self.net_input)
        order = torch.arange(self.sentences, device=self.device).repeat_interleave(self.beam)
        encoder_outs = self.model.reorder_encoder_out(encoder_outs, order)
        for step in range(self.max_len + 1):
            log_probs, attn = self.model.forward_decoder(
                self.tokens[:, : step + 1], encoder_outs, states, self.generator.temperature
            )
            parents = self._advance(step, log_probs, attn)
            if parents is None:
                break
            self._reorder_states(states, parents)
            encoder_outs = self.model.reorder_encoder_out(encoder_outs, parents)
        if not all(self.finalized):
            raise UsageError(
                "the model gives every translation of a sentence the probability 0 or NaN, so there is none "
                "to return; use a checkpoint from before the training diverged"
            )
        return [self._sorted(hypotheses) for hypotheses in self.finalized]

    def _reorder_states(self, states: list[dict], order: Tensor) -> None:
        """Do what the decoders' `reorder_incremental_state_scripting` does."""
        for modules, state in zip(self.stateful, states, strict=True):
            for module in modules:
                result = module.reorder_incremental_state(state, order)
                state = state if result is None else result

    def _advance(self, step: int, log_probs: Tensor, attn: Tensor | None) -> Tensor | None:
        """Choose the hypotheses of the next step.

        Returns:
            for each of them, its row in this step, or None if the search has ended.
        """
        if attn is not None:
            if self.attn is None:
                shape = len(self.tokens), attn.size(1), self.max_len + 2
                self.attn = torch.empty(shape, device=self.device, dtype=self.scores.dtype)
            self.attn[:, :, step + 1].copy_(attn)
        scores, words, rows = self._best_candidates(step, log_probs)
        if step >= self.generator.min_len:
            ends = words.eq(self.generator.eos) & scores.ne(-math.inf)
            if ends.any():
                return self._end_some(step, scores, words, rows, ends)
        parents, scores, words = (each[:, : self.beam] for each in (rows, scores, words))
        return self._extend(step, parents.reshape(-1), scores, words)

    def _best_candidates(self, step: int, log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, words and rows of the best candidates, [sentences, 2 x beam] each.

        Args:
            log_probs: [rows, vocabulary]. They are changed in place, because new memory of this size takes
                more time than the arithmetic.
        """
        self._forbid(step, log_probs)
        log_probs.nan_to_num_(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        log_probs = log_probs.view(self.sentences, self.beam, -1)
        # At first all hypotheses of a sentence are the same.
        log_probs = log_probs[:, :1] if step == 0 else log_probs.add_(self.last_scores.unsqueeze(2))
        log_probs = log_probs.flatten(1)
        scores, found = log_probs.topk(2 * self.beam)  # `can_search` has seen that there are more
        vocabulary = self.generator.vocab_size
        rows = torch.div(found, vocabulary, rounding_mode="trunc") + self.first_rows
        return scores, found.fmod(vocabulary), rows

    def _forbid(self, step: int, log_probs: Tensor) -> None:
        """Set the log-probabilities of words that cannot follow in this step to -inf, in place."""
        generator = self.generator
        log_probs.index_fill_(1, self.never if step >= generator.min_len else self.not_yet, -math.inf)
        if generator.unk_penalty:
            log_probs[:, generator.unk] -= generator.unk_penalty
        if step >= self.max_len:
            log_probs[:, : generator.eos] = -math.inf
            log_probs[:, generator.eos + 1 :] = -math.inf

    def _extend(self, step: int, parents: Tensor, scores: Tensor, words: Tensor) -> Tensor:
        """Let the hypotheses of the next step be continuations of the rows `parents`, and return these."""
        self.tokens = self.tokens.index_select(0, parents)
        self.scores = self.scores.index_select(0, parents)
        self.tokens.view(self.sentences, self.beam, -1)[:, :, step + 1] = words
        self.scores.view(self.sentences, self.beam, -1)[:, :, step] = scores
        if self.attn is not None:
            self.attn = self.attn.index_select(0, parents)
        self.last_scores = scores
        return parents

    def _end_some(
        self, step: int, scores: Tensor, words: Tensor, rows: Tensor, ends: Tensor
    ) -> Tensor | None:
        """Do what `_advance` does in a step in which hypotheses end.

        A hypothesis can end in one way only, so at least half of the candidates of a sentence go on.

        Args:
            scores, words, rows: the candidates, [sentences, 2 x beam].
            ends: which of them end. They count if they are in the first half.
        """
        beam = self.beam
        ending = rows[:, :beam].masked_select(ends[:, :beam])
        done: list[int] = []
        if ending.numel():
            done = self.generator.finalize_hypos(
                step,
                ending,
                scores[:, :beam].masked_select(ends[:, :beam]),
                self.tokens,
                self.scores,
                self.finalized,
                self.finished,
                beam,
                self.attn,
                self.src_lengths,
                self.max_len,
            )
        if all(self.finished) or step >= self.max_len:
            return None
        if done:
            left = torch.tensor([i for i in range(self.sentences) if i not in done], device=self.device)
            scores, words, rows, ends = (each[left] for each in (scores, words, rows, ends))
            self.src_lengths = self.src_lengths[left]
            self.sentences = len(left)
            self._number_rows()
        # The best candidates that go on, in the order of their scores.
        places = ends.to(self.candidates.dtype) * (2 * beam) + self.candidates
        active = places.topk(beam, dim=1, largest=False)[1]
        parents, scores, words = (each.gather(1, active) for each in (rows, scores, words))
        return self._extend(step, parents.reshape(-1), scores, words)

    @staticmethod
    def _sorted(hypotheses: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return hypotheses with the best score first."""
        scores = torch.tensor([float(each["score"]) for each in hypotheses])
        return [hypotheses[i] for i in scores.sort(descending=True)[1]]
