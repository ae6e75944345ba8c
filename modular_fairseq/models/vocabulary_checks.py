"""Refuse widths, cut-offs and shared weights of embeddings and softmax that do not fit together."""

import re
from argparse import Namespace
from typing import Any

from fairseq.data import Dictionary

from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.options import flag
from modular_fairseq_cli.errors import UsageError


def check_widths(options: Namespace, has_encoder: bool) -> None:
    """Check the widths of the input and the output of a decoder.

    Args:
        options: all options of the model (`fairseq_options.resolved`).
        has_encoder: whether the decoder belongs to a translation model, and not to a language model.

    Raises:
        UsageError: a width would have no effect, or does not fit embeddings or softmax weights that are
            shared; or a shared embedding is adaptive.
    """
    into, inside, out = (getattr(options, f"decoder_{name}_dim") for name in ("input", "embed", "output"))
    if has_encoder and into != inside:
        raise UsageError(
            f"--decoder-input-dim {into} has no effect in translation, where embeddings have the width "
            f"--decoder-embed-dim {inside}; leave it out"
        )
    names = ("share_all_embeddings", "share_decoder_input_output_embed")
    if getattr(options, "character_embeddings", False):
        for name in ("share_decoder_input_output_embed", "adaptive_input"):
            if getattr(options, name):
                raise UsageError(
                    f"{flag(name)} does not work with --character-embeddings, which make the embedding of a "
                    "word of its characters; leave one of them out"
                )
        if into != inside:
            raise UsageError(
                f"--decoder-input-dim {into} has no effect with --character-embeddings, whose width is "
                f"--decoder-embed-dim {inside}; leave it out"
            )
    for option in [flag(name) for name in names if getattr(options, name, False)]:
        if out != into:
            raise UsageError(
                f"--decoder-output-dim {out} does not work with {option}, as embeddings have the width "
                f"{into}; leave one of them out"
            )
        if getattr(options, "adaptive_input", False):
            raise UsageError(
                f"{option} does not work with --adaptive-input; use --tie-adaptive-weights with "
                "--adaptive-softmax-cutoff"
            )
    if getattr(options, "tie_adaptive_weights", False) and out != inside:
        raise UsageError(
            f"--decoder-output-dim {out} does not work with --tie-adaptive-weights, which needs the width "
            f"--decoder-embed-dim {inside}; leave one of them out"
        )


def check_adaptive(options: Options, dictionary: Dictionary) -> None:
    """Check the options of an adaptive input and an adaptive softmax.

    Raises:
        UsageError: a cut-off is no number, is not above the one before it, or is beyond the dictionary; an
            option lacks another one that it needs, or has no effect; or input and softmax share weights and
            have different cut-offs or factors.
    """
    cutoffs = {
        "--adaptive-softmax-cutoff": options.adaptive_softmax_cutoff,
        "--adaptive-input-cutoff": getattr(options, "adaptive_input_cutoff", None),
    }
    has_softmax = cutoffs["--adaptive-softmax-cutoff"] is not None
    has_input = bool(getattr(options, "adaptive_input", False))
    tied = getattr(options, "tie_adaptive_weights", False)
    if has_input != (cutoffs["--adaptive-input-cutoff"] is not None):
        raise UsageError(
            "--adaptive-input and --adaptive-input-cutoff need each other; give both, as in --adaptive-input "
            "--adaptive-input-cutoff 20000,60000, or leave both out"
        )
    if tied and not hasattr(options, "adaptive_input"):
        raise UsageError(
            "--tie-adaptive-weights needs an adaptive input, which only language models have; leave it out"
        )
    if tied and not (has_input and has_softmax):
        raise UsageError(
            "--tie-adaptive-weights needs --adaptive-input and --adaptive-softmax-cutoff; add them, or leave "
            "it out"
        )
    if getattr(options, "tie_adaptive_proj", False) and not tied:
        raise UsageError("--tie-adaptive-proj has no effect without --tie-adaptive-weights; leave it out")
    if getattr(options, "adaptive_softmax_dropout", 0) and not has_softmax:
        raise UsageError(
            "--adaptive-softmax-dropout has no effect without --adaptive-softmax-cutoff; leave it out"
        )
    factors = {
        f"--adaptive-{part}-factor": getattr(options, f"adaptive_{part}_factor", None)
        for part in ("softmax", "input")
    }
    for values in (cutoffs, factors) if tied else ():
        if len({re.sub(r"[\s()\[\]]", "", str(value)) for value in values.values()}) > 1:
            raise UsageError(
                " and ".join(f"{option} {value}" for option, value in values.items())
                + ": they must be equal with --tie-adaptive-weights"
            )
    widths = {"softmax": options.decoder_output_dim, "input": getattr(options, "decoder_input_dim", 0)}
    for (option, value), (part, width) in zip(cutoffs.items(), widths.items(), strict=True):
        if value is not None:
            numbers = _check_cutoff(option, value, dictionary)
            bands = len(numbers) + (numbers[-1] < len(dictionary))
            _check_factor(part, getattr(options, f"adaptive_{part}_factor"), width, bands)


def _check_factor(part: str, factor: float, width: int, bands: int) -> None:
    """Raise a UsageError unless all bands of an adaptive input or softmax have a width of 1 or more."""
    option = f"--adaptive-{part}-factor {factor}"
    if factor < 1:
        raise UsageError(f"{option}: each band of words is by this factor narrower; give 1 or more")
    if width // factor ** (bands - 1) < 1:
        raise UsageError(
            f"{option}: the last of {bands} bands would have no width, as the first has {width}; give fewer "
            "cut-offs or a smaller factor"
        )


def _check_cutoff(option: str, value: Any, dictionary: Dictionary) -> list[int]:
    """Return the cut-offs of an option. Raises UsageError unless they fit the dictionary."""
    parts = str(value).strip("[]()").split(",")
    numbers = [int(part) for part in parts if part.strip().isdecimal()]
    if len(numbers) < len(parts) or numbers != sorted(set(numbers)) or numbers[0] < 1:
        raise UsageError(f"{option} {value}: give growing whole numbers with commas between them")
    if numbers[-1] > len(dictionary):
        raise UsageError(
            f"{option} {value}: the dictionary has only {len(dictionary):,} types, and no cut-off may exceed "
            "that; give smaller ones"
        )
    return numbers
