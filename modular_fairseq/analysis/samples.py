"""Collect what a model computes on sample sentences, for a report that shows them one by one.

For each sentence these are the attention weights, and if the model has them, the semantic masks and clusters
(DMA), the gates (MAE) and the competition (TIM). Each sentence is read by itself, teacher-forced. The values
are NumPy arrays in float16.
"""

import io
import math
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from modular_fairseq.analysis.attention_maps import AttentionMap, attention_maps, attention_modules, kind_of
from modular_fairseq.analysis.clusters import posteriors
from modular_fairseq.analysis.competition import competitions
from modular_fairseq.analysis.gates import gate_networks
from modular_fairseq.analysis.places import SOURCE, TARGET, dictionary_of, in_order, place
from modular_fairseq.analysis.recording import pop, recorded
from modular_fairseq.analysis.sentences import LONGEST, Tokens, net_input
from modular_fairseq.models.dma_losses import semantic_masks
from modular_fairseq.models.family import is_masked
from modular_fairseq.models.mae import expert_mixtures
from modular_fairseq.modules.semantic_mask import SemanticMask
from modular_fairseq_cli.errors import UsageError


@dataclass
class Sentence:
    """One sentence with its arrays.

    Attributes:
        origin: where the sentence is from, such as "valid 1" or "--sentence 1".
        source: tokens of the source; None for a language model. Those of a masked language model have masks.
        target_in: tokens that the decoder reads; empty if the model has none.
        target: tokens that the decoder predicts, or the source without masks.
        translated: whether the target is the model's own translation, or has its words in place of masks.
        arrays: float16 arrays, keyed by "KIND/MODULE". The kinds are attention [H, T, S], mask [H, T, S],
            gates [T or 1, E], clusters [H, T, C] and competition [T, n].
    """

    origin: str
    source: list[str] | None
    target_in: list[str]
    target: list[str]
    translated: bool
    arrays: dict[str, np.ndarray] = field(default_factory=dict, repr=False)


@dataclass
class Samples:
    """The sample sentences of a model.

    Attributes:
        modules: for each attention module, its "module" (name), "kind", "layer", "stream" and "heads".
        competition_layers: names of the layers with a competition.
        sentences: the sentences.
    """

    modules: list[dict]
    competition_layers: list[str]
    sentences: list[Sentence]

    def data(self) -> dict:
        """Return everything but the arrays, for JSON."""
        sentences = [
            {key: value for key, value in vars(sentence).items() if key != "arrays"}
            for sentence in self.sentences
        ]
        return {
            "modules": self.modules,
            "competition_layers": self.competition_layers,
            "sentences": sentences,
        }

    def npz(self) -> bytes:
        """Return the arrays as the content of an .npz file, keyed by "KIND/INDEX OF THE SENTENCE/MODULE"."""
        arrays: dict[str, Any] = {}
        for number, sentence in enumerate(self.sentences):
            for name, array in sentence.arrays.items():
                kind, _, module = name.partition("/")
                arrays[f"{kind}/{number}/{module}"] = array
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()


def check(model: nn.Module) -> None:
    """Raise UsageError if a model neither translates nor predicts words, or has no attention."""
    if not (hasattr(model, "decoder") or is_masked(model)) or not attention_modules(model):
        raise UsageError(
            "the model cannot show samples; analyse a translation model, a language model or a masked "
            "language model with attention"
        )


def collect(model: BaseFairseqModel, sentences: Iterable[Tokens]) -> Samples:
    """Run the model on each sentence by itself, and return the sentences with everything that it computed.

    Raises:
        UsageError: there is no sentence.
    """
    modules, gates, masks = in_order(attention_modules(model)), expert_mixtures(model), semantic_masks(model)
    collected = []
    with ExitStack() as stack, torch.no_grad():
        maps = stack.enter_context(attention_maps(model))
        others = {
            "gates": stack.enter_context(recorded(gate_networks(gates), _gates)),
            "clusters": stack.enter_context(recorded(masks, _clusters)),
            "competition": stack.enter_context(recorded(competitions(model), _competition)),
        }
        biases = stack.enter_context(recorded(masks))
        for origin, source, target_in, target, translated in sentences:
            dictionary = dictionary_of(SOURCE if is_masked(model) else TARGET, model)
            model(**net_input(model, source, target_in if len(target_in) else None))
            arrays = {f"attention/{each.module}": each.weights[:, 0] for each in maps}
            for kind, outputs in others.items():
                arrays |= {f"{kind}/{name}": output for name, output in pop(outputs).items()}
            of_masks = {name: bias for name, bias in pop(biases).items() if bias is not None}
            arrays |= {
                f"mask/{each.module}": _mask(of_masks[each.module], each)
                for each in maps
                if each.module in of_masks
            }
            maps.clear()
            collected.append(
                Sentence(
                    origin,
                    None if source is None else _symbols(dictionary_of(SOURCE, model), source),
                    _symbols(dictionary, target_in),
                    _symbols(dictionary, target),
                    translated,
                    {name: array.cpu().to(torch.float16).numpy() for name, array in arrays.items()},
                )
            )
    if not collected:
        raise UsageError(
            f"there is no sentence of at most {LONGEST} tokens to show; add --sentence, or give --samples 0 "
            "to do without samples"
        )
    descriptions = []
    for name, module in modules.items():
        layer, stream = place(name, modules)
        descriptions.append(
            {
                "module": name,
                "kind": kind_of(name, module),
                "layer": layer,
                "stream": stream,
                "heads": module.num_heads,
            }
        )
    return Samples(descriptions, list(competitions(model)), collected)


def _symbols(dictionary: Dictionary, tokens: Tensor) -> list[str]:
    return [dictionary[token] for token in tokens.tolist()]


# The following functions return the values of one part of a model, for a batch of one sentence. Those for
# `recorded` get the module, the arguments of its call and its output.


def _gates(module: nn.Module, args: tuple, logits: Tensor) -> Tensor:
    """Return the gates, [T or 1, E]."""
    return torch.softmax(logits[0], dim=-1)


def _clusters(mask: SemanticMask, args: tuple, bias: Tensor | None) -> Tensor:
    """Return the posteriors of the clusters, [H, T, C]."""
    return posteriors(mask, args, bias)[0].transpose(1, 2)


def _mask(bias: Tensor, attention: AttentionMap) -> Tensor:
    """Return the mask M of DMA (Eq. 5), [H, T, S], over the keys that each query sees. The bias is log G."""
    return torch.softmax(bias[0].masked_fill(~attention.seen(), -math.inf), dim=-1)


def _competition(module: nn.Module, args: tuple, c: Tensor) -> Tensor:
    """Return the values of the competition, [T, n]."""
    return c[:, 0]
