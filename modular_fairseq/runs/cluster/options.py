"""The options of commands that can make their runs as jobs."""

import argparse

import torch

from modular_fairseq.runs.cluster.resources import Resources, read_resources
from modular_fairseq_cli.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser, what: argparse._MutuallyExclusiveGroup) -> None:
    """Add the options to a command.

    Args:
        parser: the parser of the command.
        what: the group of the options that choose what the command does; it gets --status.
    """
    what.add_argument(
        "--status",
        action="store_true",
        help="show what each run does: waits, is trained (with epoch and perplexity), is done, or has "
        "failed; on a terminal the display is refreshed until nothing runs",
    )
    group = parser.add_argument_group("jobs (docs/clusters.md)")
    group.add_argument(
        "--launcher",
        choices=("slurm", "local"),
        help="make the runs as jobs, and return at once: by Slurm (a job for each run, or for "
        "its training and its evaluation); or in the background of this machine (local). Without it the "
        "command makes the runs itself, and ends with them",
    )
    group.add_argument(
        "--resources",
        metavar="FILE",
        help="YAML file of what jobs of Slurm ask for; docs/clusters.md has an example",
    )
    group.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help="GPUs of each training, among which its batches are divided (default: 1)",
    )
    group.add_argument("--hours", type=float, metavar="H", help="time limit of jobs of training")
    group.add_argument("--partition", metavar="NAME", help="partition of Slurm for all jobs")
    group.add_argument("--account", metavar="NAME", help="account of Slurm for all jobs")


def check(
    args: argparse.Namespace, makes: bool, trains: bool, shows: bool = False
) -> tuple[Resources, Resources]:
    """Return what trainings and evaluations ask for, after checking that the options have an effect.

    Args:
        args: the arguments of the command.
        makes: whether the command makes all runs.
        trains: whether the command makes runs, makes one of them, or shows the commands of their trainings.
        shows: whether the command shows what it would do, which it can for jobs of Slurm.

    Raises:
        UsageError: an option has no effect, or the resources are wrong.
    """
    if args.launcher and not (makes or (shows and args.launcher == "slurm")):
        raise UsageError(f"--launcher {args.launcher} has no effect without making runs; leave it out")
    if args.launcher != "slurm":
        for name in ("resources", "hours", "partition", "account"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name} has no effect without --launcher slurm; leave it out")
    if args.gpus is not None and args.gpus < 1 and args.launcher != "slurm":
        raise UsageError(f"--gpus {args.gpus}: the number must be at least 1")
    if args.gpus is not None and not trains:
        raise UsageError(f"--gpus {args.gpus} has no effect without making runs; leave it out")
    present = torch.cuda.device_count()
    if makes and args.launcher != "slurm" and (args.gpus or 1) > max(present, 1):
        raise UsageError(f"--gpus {args.gpus}: torch sees {present} on this machine; give at most as many")
    return read_resources(args)
