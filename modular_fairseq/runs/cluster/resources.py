"""The resources that jobs ask for, read from a YAML file and from options."""

import argparse
import math
import re
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any

from modular_fairseq.runs.yaml_files import Kind, check_values, read_yaml
from modular_fairseq_cli.errors import UsageError

NUMBER: Kind = (int,), "a whole number"
MOST_HOURS = 24.0 * 365 * 100
OPTION = re.compile("[a-z][a-z-]*")  # an option of sbatch without its leading hyphens
# The options of sbatch that jobs have already, from other keys or because the launcher depends on them.
TAKEN = {
    *("partition", "account", "time", "nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node"),
    *("gpus-per-task", "gres", "cpus-per-task", "cpus-per-gpu", "mem", "mem-per-cpu", "mem-per-gpu"),
    *("job-name", "output", "error", "open-mode", "dependency", "requeue", "no-requeue"),
    *("kill-on-invalid-dep", "array", "wrap", "parsable", "wait", "chdir", "export"),
}
KINDS: dict[str, Kind] = {
    "partition": ((str, NoneType), "text"),
    "account": ((str, NoneType), "text"),
    "gpus": NUMBER,
    "nodes": NUMBER,
    "cpus": NUMBER,
    "memory": ((int, float, NoneType), "a number of GiB"),
    "hours": ((int, float), "a number"),
    "setup": ((list,), "a list of lines of shell"),
    "slurm": ((dict,), "options of sbatch with values"),
}


@dataclass(frozen=True)
class Resources:
    """What a job asks for.

    Attributes:
        partition, account: Slurm's; None: the user's default.
        gpus: GPUs on all nodes together. 0: it runs on processors.
        nodes: number of machines.
        cpus: processors for each GPU, or of a job without GPUs.
        memory: GiB on each node; None: the default of the cluster.
        hours: time limit, after which the job is queued again.
        setup: lines of shell before the command of the job.
        slurm: further options of sbatch, without the leading hyphens.

    Raises:
        UsageError: a number is too small, or the GPUs cannot be divided among the nodes.
    """

    partition: str | None = None
    account: str | None = None
    gpus: int = 1
    nodes: int = 1
    cpus: int = 4
    memory: float | None = None
    hours: float = 24.0
    setup: list[str] = field(default_factory=list)
    slurm: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("gpus", 0), ("nodes", 1), ("cpus", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("hours", "memory"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name} is {value:g}; it must be more than 0, and finite")
        if self.hours > MOST_HOURS:
            raise UsageError(
                f"hours is {self.hours:g}; it must be at most {MOST_HOURS:g}, which is a century"
            )
        if not self.gpus and self.nodes > 1:
            raise UsageError(f"nodes is {self.nodes}; a job without GPUs has one node, so give nodes 1")
        if self.workers % self.nodes:
            raise UsageError(
                f"{self.gpus} GPUs cannot be divided among {self.nodes} nodes; give a multiple as gpus"
            )

    @property
    def workers(self) -> int:
        """The number of processes that train together: one for each GPU."""
        return max(self.gpus, 1)

    @property
    def gpus_option(self) -> list[str]:
        """The option that gives a command the number of GPUs; none for one worker, which is the default."""
        return ["--gpus", str(self.workers)] if self.workers > 1 else []

    @property
    def srun(self) -> list[str]:
        """The option by which the command of a job starts several workers, by srun; none for one worker."""
        return ["--srun"] if self.workers > 1 else []

    def changed(self, values: Any) -> "Resources":
        """Return these resources with other values.

        Args:
            values: a dictionary, as it was read from a file.

        Raises:
            UsageError: a key is unknown, or a value is of another type or out of range.
        """
        if not isinstance(values, dict):
            raise UsageError(f"{values!r} should be keys with values")
        for name in values:
            if name not in KINDS:
                raise UsageError(
                    f"the key {name} is unknown; give some of {', '.join([*KINDS, 'evaluation'])}"
                )
        check_values("", values, KINDS)
        if not all(isinstance(line, str) for line in values.get("setup", [])):
            raise UsageError(f"setup is {values['setup']!r}; it must be a list of lines of shell")
        _check_options(values.get("slurm", {}))
        return replace(self, **values)


def _check_options(options: dict[Any, Any]) -> None:
    """Raise a UsageError unless jobs can have these further options of sbatch."""
    for name, value in options.items():
        plain = str(name).replace("_", "-")
        if not OPTION.fullmatch(plain):
            raise UsageError(f"slurm has the key {name!r}; give the name of an option of sbatch")
        if plain in TAKEN:
            raise UsageError(
                f"slurm sets {plain}, which jobs have already; leave it out, or use another key, such as "
                f"{', '.join(name for name in KINDS if name != 'slurm')}"
            )
        if plain == "signal" and not re.fullmatch(r"B:USR2@\d+", str(value)):
            raise UsageError(
                f"slurm: signal is {value!r}; it must be B:USR2@ and the seconds before the time limit at "
                "which a job is told to be started again"
            )
        if value is not True and (isinstance(value, bool) or not isinstance(value, str | int | float)):
            raise UsageError(
                f"slurm: {name} is {value!r}; it must be text or a number, or true for an option that "
                "takes no value"
            )


def of_evaluations(training: Resources) -> Resources:
    """Return what evaluations ask for if nothing is said of them: as trainings, but at most one GPU."""
    return replace(training, gpus=min(training.gpus, 1), nodes=1)


def read_resources(args: argparse.Namespace) -> tuple[Resources, Resources]:
    """Return what trainings and what evaluations ask for.

    Args:
        args: `resources`, the path of a YAML file or None; and `gpus`, `hours`, `partition` and `account`,
            which replace the values of the file unless they are None.

    Raises:
        UsageError: the file cannot be read, or a value is wrong.
    """
    given: Any = {}
    if args.resources is not None:
        given = read_yaml(args.resources, "docs/clusters.md has an example", "--resources") or {}
    flags = {
        name: value
        for name in ("gpus", "hours", "partition", "account")
        if (value := getattr(args, name)) is not None
    }
    try:
        of_evaluation = given.pop("evaluation", {}) if isinstance(given, dict) else {}
        training = Resources().changed(given).changed(flags)
        evaluation = of_evaluations(training).changed(of_evaluation)
    except UsageError as error:
        where = f"--resources {args.resources}: " if args.resources is not None else ""
        raise UsageError(f"{where}{error}") from None
    return training, evaluation
