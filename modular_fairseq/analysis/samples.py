"""Some sentences with everything that a model computes on them: what a report lets people step through.

Attention weights, and where the model has them semantic masks and clusters (DMA), gates (MAE) and competition (TIM), of each sentence by
itself, teacher-forced, as NumPy arrays in float16.
"""

import io
import math
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from modular_fairseq.analysis.attention_maps import AttentionMap, attention_maps, attention_modules, kind_of
from modular_fairseq.analysis.clusters import posteriors
from modular_fairseq.analysis.competition import competitions
from modular_fairseq.analysis.recording import SOURCE, TARGET, dictionary_of, in_order, place, pop, recorded
from modular_fairseq.errors import UsageError
from modular_fairseq.models.masks import semantic_masks
from modular_fairseq.models.mixture import mixtures
from modular_fairseq.modules.semantic_mask import SemanticMask

LONGEST = 64  # tokens a side, end of sentence included: a map of more cannot be read on a screen


@dataclass
class Sentence:
    """One sentence as tokens: `source` (None in a language model), what the decoder reads and what it predicts.

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
    """`modules` describes attention modules, `competition_layers` names layers, `sentences` have their arrays by "KIND/MODULE"."""

    modules: list[dict]
    competition_layers: list[str]
    sentences: list[Sentence]

    def data(self) -> dict:
        """All but the arrays."""
        sentences = [{key: value for key, value in vars(sentence).items() if key != "arrays"} for sentence in self.sentences]
        return {"format": 1, "modules": self.modules, "competition_layers": self.competition_layers, "sentences": sentences}

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


def sentences_of_data(model: nn.Module, task: FairseqTask, subset: str, count: int) -> Iterator[tuple[str, Tensor | None, Tensor]]:
    """The first `count` sentences that are short enough, as origin, source and target; of a language model the beginnings of its blocks."""
    dataset = task.dataset(subset)
    for index in range(len(dataset)):
        if count <= 0:
            return
        source, target = dataset[index]["source"], dataset[index]["target"]
        if is_language_model(model):
            source, target = None, target[:LONGEST]
        elif max(len(source), len(target)) > LONGEST:
            continue
        count -= 1
        yield f"{subset} {index + 1}", source, target


def sentence_of_text(model: nn.Module, task: FairseqTask, text: str, option: str) -> tuple[str, Tensor | None, Tensor, bool]:
    """One that a user typed, of tokens as in the training text, and after a tab its translation; else the model translates it, by beam
    search with fairseq's defaults. Returns origin, source, target, and whether the model translated.

    Raises:
        UsageError: it is empty, or longer than `LONGEST` or the model's positions.
    """
    source, _, target = (part.strip() for part in text.partition("\t"))
    if not source:
        raise UsageError(f"{option}: is empty; give tokens as in the training text, and after a tab the translation if it is known")
    if is_language_model(model):
        return option, None, _encode(model, TARGET, source, option), False
    tokens = _encode(model, SOURCE, source, option)
    if target:
        return option, tokens, _encode(model, TARGET, target, option), False
    device = next(model.parameters()).device
    net_input = {"src_tokens": tokens[None].to(device), "src_lengths": torch.tensor([len(tokens)], device=device)}
    generator = task.build_generator([model], Namespace(beam=5, max_len_a=0, max_len_b=LONGEST - 2))
    [[best, *_]] = task.inference_step(generator, [model], {"net_input": net_input})
    return option, tokens, best["tokens"].cpu(), True


def _encode(model: nn.Module, side: str, text: str, option: str) -> Tensor:
    dictionary = dictionary_of(side, model)
    tokens = dictionary.encode_line(text, line_tokenizer=str.split, add_if_not_exist=False).long()
    longest = min(LONGEST, (model.decoder if side == TARGET else model.encoder).max_positions())
    if len(tokens) > longest:
        raise UsageError(f"{option}: has {len(tokens)} tokens with </s>, and {longest} can be shown; give a shorter sentence")
    return tokens


def is_language_model(model: nn.Module) -> bool:
    return not hasattr(model, "encoder")


def collect(model: nn.Module, sentences: Iterable[tuple]) -> Samples:
    """Run the model on each sentence by itself, as `sentences_of_data` and `sentence_of_text` give them.

    Raises:
        UsageError: there is none.
    """
    modules, gates, masks = in_order(attention_modules(model)), mixtures(model), semantic_masks(model)
    collected = []
    with ExitStack() as stack, torch.no_grad():
        maps = stack.enter_context(attention_maps(model))
        others = {
            "gates": stack.enter_context(recorded({name: mixture.gate_network for name, mixture in gates.items()}, _gates)),
            "clusters": stack.enter_context(recorded(masks, _clusters)),
            "competition": stack.enter_context(recorded(competitions(model), _competition)),
        }
        biases = stack.enter_context(recorded(masks))
        for origin, source, target, *translated in sentences:
            dictionary = dictionary_of(TARGET, model)
            target_in = torch.cat([target.new_tensor([dictionary.eos()]), target[:-1]])
            model(**_net_input(model, source, target_in))
            arrays = {f"attention/{each.module}": each.weights[:, 0] for each in maps}
            for kind, outputs in others.items():
                arrays |= {f"{kind}/{name}": output for name, output in pop(outputs).items()}
            of_masks = {name: bias for name, bias in pop(biases).items() if bias is not None}
            arrays |= {f"mask/{each.module}": _mask(of_masks[each.module], each) for each in maps if each.module in of_masks}
            maps.clear()
            collected.append(
                Sentence(
                    origin,
                    None if source is None else _symbols(dictionary_of(SOURCE, model), source),
                    _symbols(dictionary, target_in),
                    _symbols(dictionary, target),
                    bool(translated and translated[0]),
                    {name: array.cpu().to(torch.float16).numpy() for name, array in arrays.items()},
                )
            )
    if not collected:
        raise UsageError(f"there is no sentence of at most {LONGEST} tokens to show; give --sentence, or --samples 0")
    descriptions = []
    for name, module in modules.items():
        layer, stream = place(name, modules)
        descriptions.append({"module": name, "kind": kind_of(name, module), "layer": layer, "stream": stream, "heads": module.num_heads})
    return Samples(descriptions, list(competitions(model)), collected)


def _net_input(model: nn.Module, source: Tensor | None, target_in: Tensor) -> dict[str, Tensor]:
    device = next(model.parameters()).device
    first = target_in if source is None else source
    net_input = {"src_tokens": first[None].to(device), "src_lengths": torch.tensor([len(first)], device=device)}
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
