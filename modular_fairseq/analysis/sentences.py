"""Choose the sentences that the analysis `samples` shows. They come from the data, or from a user."""

from argparse import Namespace
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from fairseq.tasks.masked_lm import MaskedLMTask
from torch import Tensor, nn

from modular_fairseq.analysis.places import SOURCE, TARGET, dictionary_of
from modular_fairseq.models.family import is_masked
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

LONGEST = 64  # maximum number of tokens on each side, with </s>; a larger map is not legible on a screen


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


def sentences_of_data(
    model: BaseFairseqModel, task: FairseqTask, subset: str, count: int
) -> Iterator[Tokens]:
    """Yield the first `count` sentences of a part of the data that are short enough to be shown.

    For a language model, masked or not, these are the beginnings of the first `count` blocks. A masked one is
    shown no block without a word.
    """
    dataset = task.dataset(subset)
    if is_masked(model):
        dataset.set_epoch(1)  # in this epoch fairseq-validate masks the words of the data
        has_masks = isinstance(task, MaskedLMTask)
        shortest = 3 if has_masks else 1  # <s>, a word and </s>; a classification has no empty inputs
        found = (index for index in range(len(dataset)) if dataset.num_tokens(index) >= shortest)
        for index in islice(found, count):
            yield _of_encoder(model, dataset[index], f"{subset} {index + 1}", has_masks)
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


def _of_encoder(model: BaseFairseqModel, item: dict[str, Any], origin: str, has_masks: bool) -> Tokens:
    """Return the beginning of a block with masks, or of an input of a classification, which has none."""
    longest = _longest(model, SOURCE)
    source = item["net_input.src_tokens"][:longest]
    target, nothing = source, source.new_empty(0)
    if has_masks:
        words = item["target"][:longest]  # padding where no word is masked
        target = torch.where(words.eq(dictionary_of(SOURCE, model).pad()), source, words)
    return Tokens(origin, source, nothing, target)


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
    generator = task.build_generator(
        [model], Namespace(beam=5, max_len_a=0, max_len_b=_longest(model, TARGET) - 2)
    )
    [[best, *_]] = task.inference_step(generator, [model], {"net_input": net_input(model, tokens, None)})
    translation = best["tokens"].cpu()
    return Tokens(option, tokens, _shifted(model, translation), translation, translated=True)


def _filled(model: BaseFairseqModel, tokens: Tensor, option: str) -> Tokens:
    """Return a sentence, with the most likely words of the model in place of masks."""
    places = tokens.eq(dictionary_of(SOURCE, model).index("<mask>"))
    if not places.any():
        return Tokens(option, tokens, tokens.new_empty(0), tokens)
    with torch.no_grad():
        scores = model(**net_input(model, tokens, None))[0][0].cpu()
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
    unknown = [word for word in text.split() if dictionary.index(word) == dictionary.unk()]
    if unknown:
        say(
            f"{option}: not in the dictionary: {', '.join(dict.fromkeys(unknown))} ({len(unknown)} of "
            f"{len(text.split())} tokens); give tokens as in the training text"
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


def net_input(model: nn.Module, source: Tensor | None, target_in: Tensor | None) -> dict[str, Tensor]:
    """Return the arguments of the model for a batch of one sentence; an encoder alone has no `target_in`."""
    device = next(model.parameters()).device
    first = target_in if source is None else source
    assert first is not None  # each sentence has at least one side
    arguments = {
        "src_tokens": first[None].to(device),
        "src_lengths": torch.tensor([len(first)], device=device),
    }
    if source is None or target_in is None:
        return arguments
    return {**arguments, "prev_output_tokens": target_in[None].to(device)}
