"""Some sentences with everything that a model computes on them: what a report lets people step through.

Attention weights, and where the model has them semantic masks and clusters (DMA), gates (MAE) and competition
(TIM), of each sentence by itself, teacher-forced, as NumPy arrays in float16.
"""

import io
import math
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from modular_fairseq.analysis.attention_maps import AttentionMap, attention_maps, attention_modules, kind_of
from modular_fairseq.analysis.clusters import posteriors
from modular_fairseq.analysis.competition import competitions
from modular_fairseq.analysis.places import SOURCE, TARGET, dictionary_of, in_order, place
from modular_fairseq.analysis.recording import pop, recorded
from modular_fairseq.models.dma import semantic_masks
from modular_fairseq.models.mae import expert_mixtures
from modular_fairseq.modules.semantic_mask import SemanticMask
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

LONGEST = 64  # tokens a side, end of sentence included: a map of more cannot be read on a screen


@dataclass
class Sentence:
    """One sentence as tokens: `source` (None in a language model), what the decoder reads and what it
    predicts.

    `translated`: the target is the model's own translation.
    """

    origin: str
    source: list[str] | None
    target_in: list[str]
    target: list[str]
    translated: bool
    arrays: dict[str, np.ndarray] = field(default_factory=dict, repr=False)


@dataclass
class Samples:
    """`modules` describes attention modules, `competition_layers` names layers, `sentences` have their arrays
    by "KIND/MODULE".
    """

    modules: list[dict]
    competition_layers: list[str]
    sentences: list[Sentence]

    def data(self) -> dict:
        """All but the arrays."""
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
        """The arrays, under "KIND/SENTENCE INDEX/MODULE"."""
        arrays = {}
        for number, sentence in enumerate(self.sentences):
            for name, array in sentence.arrays.items():
                kind, _, module = name.partition("/")
                arrays[f"{kind}/{number}/{module}"] = array
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()


class Tokens(NamedTuple):
    """A sentence before it is read: where it is from, tokens of the source (None for a language model), int64
    [S], what the decoder reads and is to predict, both [T], and whether the model translated it."""

    origin: str
    source: Tensor | None
    target_in: Tensor
    target: Tensor
    translated: bool = False


def check(model: nn.Module) -> None:
    """Raises UsageError: the model neither translates nor predicts the next word, or has no attention."""
    if not hasattr(model, "decoder") or not attention_modules(model):
        raise UsageError(
            "the model has no samples to step through; they need a translation model or a language model "
            "with attention"
        )


def sentences_of_data(model: nn.Module, task: FairseqTask, subset: str, count: int) -> Iterator[Tokens]:
    """The first `count` sentences that are short enough; of a language model the beginnings of its blocks."""
    dataset = task.dataset(subset)
    for index in range(len(dataset)):
        if count <= 0:
            return
        source, target, origin = dataset[index]["source"], dataset[index]["target"], f"{subset} {index + 1}"
        if is_language_model(model):
            longest = _longest(model, TARGET)
            tokens = Tokens(origin, None, source[:longest], target[:longest])
        elif len(source) <= _longest(model, SOURCE) and len(target) <= _longest(model, TARGET):
            tokens = Tokens(origin, source, _shifted(model, target), target)
        else:
            continue
        count -= 1
        yield tokens


def sentence_of_text(model: nn.Module, task: FairseqTask, text: str, option: str) -> Tokens:
    """One that a user typed, of tokens as in the training text, and after a tab its translation; else the
    model translates it, by beam search with fairseq's defaults.

    Raises:
        UsageError: it is empty, or longer than `LONGEST` or the model's positions.
    """
    source, _, target = (part.strip() for part in text.partition("\t"))
    if not source:
        raise UsageError(
            f"{option}: is empty; give tokens as in the training text, and after a tab the translation if it "
            "is known"
        )
    if is_language_model(model):
        if target:
            raise UsageError(
                f"{option}: has a translation after a tab, which a language model does not read; leave it out"
            )
        tokens = _encode(model, TARGET, source, option)
        return Tokens(option, None, _shifted(model, tokens), tokens)
    tokens = _encode(model, SOURCE, source, option)
    if target:
        given = _encode(model, TARGET, target, option)
        return Tokens(option, tokens, _shifted(model, given), given)
    device = next(model.parameters()).device
    net_input = {
        "src_tokens": tokens[None].to(device),
        "src_lengths": torch.tensor([len(tokens)], device=device),
    }
    generator = task.build_generator(
        [model], Namespace(beam=5, max_len_a=0, max_len_b=_longest(model, TARGET) - 2)
    )
    [[best, *_]] = task.inference_step(generator, [model], {"net_input": net_input})
    translation = best["tokens"].cpu()
    return Tokens(option, tokens, _shifted(model, translation), translation, translated=True)


def _encode(model: nn.Module, side: str, text: str, option: str) -> Tensor:
    dictionary = dictionary_of(side, model)
    tokens = dictionary.encode_line(text, line_tokenizer=str.split, add_if_not_exist=False).long()
    longest = _longest(model, side)
    unknown = int(tokens.eq(dictionary.unk()).sum())
    if unknown:
        say(
            f"{option}: {unknown} of {len(tokens) - 1} tokens are not in the dictionary; give them as the "
            "training text has them"
        )
    if dictionary.pad() in tokens:
        raise UsageError(
            f"{option}: has {dictionary[dictionary.pad()]}, which stands for no word; leave it out"
        )
    if len(tokens) > longest:
        raise UsageError(
            f"{option}: has {len(tokens)} tokens with </s>, and {longest} can be shown; give a shorter "
            "sentence"
        )
    return tokens


def _longest(model: nn.Module, side: str) -> int:
    """Tokens that can be shown, and that the model has positions for."""
    return min(LONGEST, (model.decoder if side == TARGET else model.encoder).max_positions())


def _shifted(model: nn.Module, target: Tensor) -> Tensor:
    """What a decoder reads to predict the target, as fairseq has it: the end of the sentence before stands
    for its beginning.
    """
    return torch.cat([target.new_tensor([dictionary_of(TARGET, model).eos()]), target[:-1]])


def is_language_model(model: nn.Module) -> bool:
    """Whether it has a decoder and no encoder."""
    return not hasattr(model, "encoder")


def collect(model: nn.Module, sentences: Iterable[Tokens]) -> Samples:
    """Run the model on each sentence by itself.

    Raises:
        UsageError: there is none.
    """
    modules, gates, masks = in_order(attention_modules(model)), expert_mixtures(model), semantic_masks(model)
    collected = []
    with ExitStack() as stack, torch.no_grad():
        maps = stack.enter_context(attention_maps(model))
        others = {
            "gates": stack.enter_context(
                recorded({name: mixture.gate_network for name, mixture in gates.items()}, _gates)
            ),
            "clusters": stack.enter_context(recorded(masks, _clusters)),
            "competition": stack.enter_context(recorded(competitions(model), _competition)),
        }
        biases = stack.enter_context(recorded(masks))
        for origin, source, target_in, target, translated in sentences:
            dictionary = dictionary_of(TARGET, model)
            model(**_net_input(model, source, target_in))
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
            f"there is no sentence of at most {LONGEST} tokens to show; give --sentence, or --samples 0"
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


def _net_input(model: nn.Module, source: Tensor | None, target_in: Tensor) -> dict[str, Tensor]:
    device = next(model.parameters()).device
    first = target_in if source is None else source
    net_input = {
        "src_tokens": first[None].to(device),
        "src_lengths": torch.tensor([len(first)], device=device),
    }
    return net_input if source is None else {**net_input, "prev_output_tokens": target_in[None].to(device)}


def _symbols(dictionary: Dictionary, tokens: Tensor) -> list[str]:
    return [dictionary[token] for token in tokens.tolist()]


# What is taken of the parts of a model, for a batch of one sentence.


def _gates(module: nn.Module, args: tuple, logits: Tensor) -> Tensor:
    """[T or 1, E]."""
    return torch.softmax(logits[0], dim=-1)


def _clusters(mask: SemanticMask, args: tuple, bias: Tensor | None) -> Tensor:
    """[H, T, C]."""
    return posteriors(mask, args, bias)[0].transpose(1, 2)


def _mask(bias: Tensor, attention: AttentionMap) -> Tensor:
    """M of Eq. 5, [H, T, S], over the keys that a query sees: the bias is log G."""
    return torch.softmax(bias[0].masked_fill(~attention.seen(), -math.inf), dim=-1)


def _competition(module: nn.Module, args: tuple, c: Tensor) -> Tensor:
    """[T, n]."""
    return c[:, 0]
