"""Collect what a model computes on sample sentences, for a report that shows them one by one.

For each sentence these are the attention weights, and if the model has them, the semantic masks and clusters
(DMA), the gates (MAE) and the competition (TIM). Each sentence is read by itself, teacher-forced. The values
are NumPy arrays in float16.
"""

import io
import math
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import RobertaModel
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from modular_fairseq.analysis.attention_maps import AttentionMap, attention_maps, attention_modules, kind_of
from modular_fairseq.analysis.clusters import posteriors
from modular_fairseq.analysis.competition import competitions
from modular_fairseq.analysis.gates import gate_networks
from modular_fairseq.analysis.places import SOURCE, TARGET, dictionary_of, in_order, place
from modular_fairseq.analysis.recording import pop, recorded
from modular_fairseq.models.dma_losses import semantic_masks
from modular_fairseq.models.mae import expert_mixtures
from modular_fairseq.modules.semantic_mask import SemanticMask
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

LONGEST = 64  # maximum number of tokens on each side, with </s>; a larger map is not legible on a screen


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


class Tokens(NamedTuple):
    """A sentence that the model has not read yet.

    Attributes:
        origin: where the sentence is from.
        source: tokens of the source, int64 [S]; None for a language model.
        target_in: tokens that the decoder reads, int64 [T]; empty if the model has none.
        target: tokens that the decoder predicts, int64 [T], or the source without masks, int64 [S].
        translated: see `Sentence`.
    """

    origin: str
    source: Tensor | None
    target_in: Tensor
    target: Tensor
    translated: bool = False


def check(model: nn.Module) -> None:
    """Raise UsageError if a model neither translates nor predicts words, or has no attention."""
    if not (hasattr(model, "decoder") or is_masked(model)) or not attention_modules(model):
        raise UsageError(
            "the model cannot show samples; analyse a translation model, a language model or a masked "
            "language model with attention"
        )


def sentences_of_data(
    model: BaseFairseqModel, task: FairseqTask, subset: str, count: int
) -> Iterator[Tokens]:
    """Yield the first `count` sentences of a part of the data that are short enough to be shown.

    For a language model, masked or not, these are the beginnings of the first `count` blocks.
    """
    dataset = task.dataset(subset)
    if is_masked(model):
        dataset.set_epoch(1)  # the masks are those of fairseq-validate
        for index in range(min(count, len(dataset))):
            yield _masked(model, dataset[index], f"{subset} {index + 1}")
        return
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


def _masked(model: BaseFairseqModel, item: dict[str, Tensor], origin: str) -> Tokens:
    """Return the beginning of a block with masks, or of an input of a classification."""
    source = item["net_input.src_tokens"][: _longest(model, SOURCE)]
    target, nothing = item.get("target", source)[: len(source)], source.new_empty(0)
    if len(target) != len(source):  # the target is a class
        return Tokens(origin, source, nothing, source)
    padding = dictionary_of(SOURCE, model).pad()
    return Tokens(origin, source, nothing, torch.where(target.eq(padding), source, target))


def sentence_of_text(model: BaseFairseqModel, task: FairseqTask, text: str, option: str) -> Tokens:
    """Return the tokens of a sentence that a user typed.

    Args:
        text: tokens as in the training text, which may be followed by a tab and their translation. Without a
            translation, the model translates the sentence by beam search with fairseq's default options. A
            masked language model fills in each <mask>.
        option: name of the sentence, for messages.

    Raises:
        UsageError: the sentence is empty, contains padding, or is longer than `LONGEST` or the maximum
            positions of the model; or it has a translation, and the model does not translate.
    """
    source, _, target = (part.strip() for part in text.partition("\t"))
    if not source:
        raise UsageError(
            f"{option} is empty; give tokens as in the training text, which may be followed by a tab and "
            "their translation"
        )
    if (is_language_model(model) or is_masked(model)) and target:
        raise UsageError(
            f"{option} has a translation after a tab, which a language model cannot read; leave it out"
        )
    if is_masked(model):
        tokens = _encode(model, SOURCE, source, option, begins=True)
        return _filled(model, tokens, option)
    if is_language_model(model):
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


def _filled(model: BaseFairseqModel, tokens: Tensor, option: str) -> Tokens:
    """Return a sentence, with the most likely words of the model in place of masks."""
    places = tokens.eq(dictionary_of(SOURCE, model).index("<mask>"))
    if not places.any():
        return Tokens(option, tokens, tokens.new_empty(0), tokens)
    with torch.no_grad():
        scores = model(**_net_input(model, tokens, None))[0][0].cpu()
    filled = torch.where(places, scores.argmax(-1), tokens)
    return Tokens(option, tokens, tokens.new_empty(0), filled, translated=True)


def _encode(model: BaseFairseqModel, side: str, text: str, option: str, begins: bool = False) -> Tensor:
    """Return the tokens of a text with </s>, int64 [T], or raise UsageError if they cannot be shown.

    With `begins`, <s> stands before them.
    """
    dictionary = dictionary_of(side, model)
    tokens = dictionary.encode_line(text, line_tokenizer=str.split, add_if_not_exist=False).long()
    if begins:
        tokens = torch.cat([tokens.new_tensor([dictionary.bos()]), tokens])
    longest = _longest(model, side)
    unknown = int(tokens.eq(dictionary.unk()).sum())
    if unknown:
        say(
            f"{option}: {unknown} of {len(tokens) - 1} tokens are not in the dictionary; give tokens as in "
            "the training text"
        )
    if dictionary.pad() in tokens:
        raise UsageError(
            f"{option} contains {dictionary[dictionary.pad()]}, which is padding and not a word; leave it out"
        )
    if len(tokens) > longest:
        raise UsageError(
            f"{option} has {len(tokens)} tokens with </s>, but at most {longest} can be shown; give a "
            "shorter sentence"
        )
    return tokens


def _longest(model: BaseFairseqModel, side: str) -> int:
    """Return the maximum number of tokens that can be shown and for which the model has positions."""
    return min(LONGEST, (model.decoder if side == TARGET else model.encoder).max_positions())


def _shifted(model: BaseFairseqModel, target: Tensor) -> Tensor:
    """Return the tokens that a decoder reads to predict the target, both [T].

    As in fairseq, the input begins with </s>, which ends the previous sentence.
    """
    return torch.cat([target.new_tensor([dictionary_of(TARGET, model).eos()]), target[:-1]])


def is_language_model(model: nn.Module) -> bool:
    """Return whether a model with a decoder has no encoder."""
    return not hasattr(model, "encoder")


def is_masked(model: nn.Module) -> bool:
    """Return whether a model is a masked language model, or a classifier made from one: RoBERTa's encoder."""
    return isinstance(model, RobertaModel)


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
            model(**_net_input(model, source, target_in if len(target_in) else None))
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


def _net_input(model: nn.Module, source: Tensor | None, target_in: Tensor | None) -> dict[str, Tensor]:
    """Return the arguments of the model for a batch of one sentence; an encoder alone has no `target_in`."""
    device = next(model.parameters()).device
    first = target_in if source is None else source
    assert first is not None  # each sentence has at least one side
    net_input = {
        "src_tokens": first[None].to(device),
        "src_lengths": torch.tensor([len(first)], device=device),
    }
    if source is None or target_in is None:
        return net_input
    return {**net_input, "prev_output_tokens": target_in[None].to(device)}


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
