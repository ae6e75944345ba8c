"""The greedy protocol, which decides which models are trained and in which order.

It is the protocol of "Ensemble Mechanisms in the Transformer" (section 4, table 1). It starts without any
mechanism. In each iteration it trains the model with each mechanism that the model lacks and keeps the one
with the lowest perplexity, even if the model was better without it. After the last iteration all mechanisms
are on. N mechanisms take N (N + 1) / 2 + 1 models. Here a mechanism is a switch, which options turn on and
off.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import yaml

from modular_fairseq.runs.yaml_files import read_yaml
from modular_fairseq_cli.errors import UsageError

Model = tuple[str, ...]  # the switches that are on, in the order in which they were turned on


class Switch(NamedTuple):
    """A mechanism of the Transformer that options turn on and off.

    Args:
        name: its name in tables.
        off: words of fairseq-train's command line that turn it off.
        on: words that turn it on.
    """

    name: str
    off: list[str]
    on: list[str]

    @property
    def file_name(self) -> str:
        """The name in file names, which has no spaces."""
        return self.name.replace(" ", "_")


STACKS = ("encoder", "decoder")


def switches_for(stacks: Sequence[str] = STACKS) -> list[Switch]:
    """Return the mechanisms of the paper, in the order of its table.

    Args:
        stacks: the stacks of layers that the model has, of "encoder" and "decoder".
    """

    def heads(number: int) -> list[str]:
        return [word for stack in stacks for word in (f"--{stack}-attention-heads", str(number))]

    return [
        Switch("residual connections", ["--no-residual"], []),
        Switch("attention dropout", ["--attention-dropout", "0"], ["--attention-dropout", "0.1"]),
        Switch("hidden dropout", ["--dropout", "0"], ["--dropout", "0.1"]),
        Switch("multihead", heads(1), heads(8)),
    ]


def read_switches(path: str) -> list[Switch]:
    """Read switches from a YAML file, which is a list of dictionaries with `name`, `off` and `on`.

    Raises:
        UsageError: the file cannot be read, is not such a list, or has two switches of the same name.
    """
    entries = read_yaml(
        path,
        "give a file like the one in `ablate --help`",
        "--mechanisms",
        # This loader reads every word as a string. Others read `on` and `off` as true and false.
        lambda text: yaml.load(text, Loader=yaml.BaseLoader),
    )
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
            f"--mechanisms {path}: the file must be a list of mechanisms, each with a `name` (letters, "
            "digits, spaces, dots, hyphens) and different options `off` and `on`, and nothing else; `ablate "
            "--help` shows an example"
        )
    names = ["baseline", *(each.file_name for each in switches)]
    if len(set(names)) < len(names):
        raise UsageError(
            f"--mechanisms {path}: the name {max(names, key=names.count)} is taken already; give each "
            "mechanism a name of its own, other than baseline"
        )
    return switches


def iterations(
    names: list[str], perplexity: Callable[[Model], float | None]
) -> Iterator[tuple[Model, list[Model]]]:
    """Yield the iterations of the protocol, as far as they are known.

    Each iteration consists of the model that it starts from and its candidates: this model with one more
    switch on, for each switch that is off.

    Args:
        names: names of the switches. Of two switches with equal perplexities, the earlier one wins.
        perplexity: returns the perplexity of a model on the validation set, or None if it is not known yet;
            then no further iteration is known. It is called for the candidates of an iteration only when the
            next iteration is requested, so they may be trained in between. A perplexity that is not finite
            counts as the highest.
    """
    base: Model = ()
    while len(base) < len(names):
        candidates = [(*base, name) for name in names if name not in base]
        yield base, candidates
        ranks: dict[Model, float] = {}
        for model in candidates:
            value = perplexity(model)
            if value is None:
                return
            ranks[model] = value if math.isfinite(value) else math.inf
        base = min(candidates, key=ranks.__getitem__)


def models(names: list[str], perplexity: Callable[[Model], float | None]) -> Iterator[Model]:
    """Yield the models of `iterations`, each of them once."""
    for base, candidates in iterations(names, perplexity):
        yield from candidates if base else [base, *candidates]
