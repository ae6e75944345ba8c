"""The greedy protocol of "Ensemble Mechanisms in the Transformer" (section 4, table 1): which models to
train, in which order.

Start without any mechanism. In each iteration, train the model with each mechanism that it lacks and keep the
one of least perplexity, even if the model was better without it. After the last iteration all are on. N
mechanisms take N (N + 1) / 2 + 1 models. Here a mechanism is a switch: it is turned on and off by options.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterator
from typing import NamedTuple

import yaml

from modular_fairseq_cli.errors import UsageError

Model = tuple[str, ...]  # the switches that are on, in the order in which they were turned on


class Switch(NamedTuple):
    """A mechanism of the Transformer by name, and options of fairseq-train that turn it off and on."""

    name: str
    off: list[str]
    on: list[str]

    @property
    def file_name(self) -> str:
        return self.name.replace(" ", "_")


HEADS = "--encoder-attention-heads {0} --decoder-attention-heads {0}"
SWITCHES = [  # the paper's, in the order of its table
    Switch("residual connections", ["--no-residual"], []),
    Switch("attention dropout", ["--attention-dropout", "0"], ["--attention-dropout", "0.1"]),
    Switch("hidden dropout", ["--dropout", "0"], ["--dropout", "0.1"]),
    Switch("multihead", HEADS.format(1).split(), HEADS.format(8).split()),
]


def read_switches(path: str) -> list[Switch]:
    """Read the switches of a YAML file: a list of `name`, `off` and `on`.

    Raises:
        UsageError: the file cannot be read, is not such a list, or has two switches of one name.
    """
    try:
        with open(path, encoding="utf-8") as file:
            # Every word is a string to this loader; others take `on` and `off` for true and false.
            entries = yaml.load(file, Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise UsageError(
            f"--mechanisms {path}: cannot be read ({reason}); give a file like that in `ablate --help`"
        ) from None
    try:
        switches = [
            Switch(each.pop("name"), *(shlex.split(each.pop(state, "")) for state in ("off", "on")))
            for each in entries
        ]
        well_formed = all(
            re.fullmatch(r"[\w.-][\w. -]*", each.name) and each.off != each.on for each in switches
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        well_formed = False
    if not well_formed or not switches or any(entries):
        raise UsageError(
            f"--mechanisms {path}: must be a list in which each has a `name` (letters, digits, spaces, dots, "
            "hyphens) and options, `off` and `on`, that differ, and nothing else; `ablate --help` shows one"
        )
    names = ["baseline", *(each.file_name for each in switches)]
    if len(set(names)) < len(names):
        raise UsageError(
            f"--mechanisms {path}: the name {max(names, key=names.count)} is taken already; give each its "
            "own, and none baseline"
        )
    return switches


def iterations(
    names: list[str], perplexity: Callable[[Model], float | None]
) -> Iterator[tuple[Model, list[Model]]]:
    """Yield every iteration as far as it is known: the model that it starts from, and that model with one
    more switch on, for each that is off.

    Args:
        names: of the switches; of equal perplexities, that of the earlier one counts as less.
        perplexity: that of a model on the validation set, or None: then this iteration is the last that is
            known. It is asked for the models of an iteration when the next one is wanted, so they may be
            trained in between. What is not finite counts as worst.
    """
    base: Model = ()
    while len(base) < len(names):
        candidates = [(*base, name) for name in names if name not in base]
        yield base, candidates
        perplexities = {model: perplexity(model) for model in candidates}
        if None in perplexities.values():
            return
        base = min(
            candidates,
            key=lambda model: perplexities[model] if math.isfinite(perplexities[model]) else math.inf,
        )


def models(names: list[str], perplexity: Callable[[Model], float | None]) -> Iterator[Model]:
    """Yield the models of `iterations`, each once."""
    for base, candidates in iterations(names, perplexity):
        yield from candidates if base else [base, *candidates]
