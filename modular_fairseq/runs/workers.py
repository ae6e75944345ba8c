"""Divide the batches of an update among the workers of a training."""

import re
from collections.abc import Sequence

from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError

REORDERING = ("c10d", "pytorch_ddp")  # the values of --ddp-backend that stand for torch's own


def share_batches(words: Sequence[str], workers: int | None) -> list[str]:
    """Return the options with which several workers together take the batches that one would take.

    From three workers on, fairseq's default backend also gets --find-unused-parameters. Without it, torch
    moves gradients to other places of its messages after the first update of a process. The sum of three
    numbers depends on their order, so a training that was stopped and continued would differ by rounding.

    Args:
        words: words of fairseq-train's command line.
        workers: the number of workers. None: fairseq decides, and no options are returned.

    Raises:
        UsageError: the number of batches, --update-freq, is not a multiple of the number of workers.
    """
    if workers is None:
        return []
    given = (by_option(list(words)).get("--update-freq") or ["1"])[-1]
    parts = given.strip("[]()").split(",")
    numbers = [int(part) for part in parts if re.fullmatch(r"\s*[1-9]\d*\s*", part)]
    if len(numbers) < len(parts):
        raise UsageError(f"--update-freq {given}: give a whole number of batches, or several with commas")
    if any(number % workers for number in numbers):
        fitting = [n for n in range(1, min(numbers) + 1) if not any(number % n for number in numbers)]
        raise UsageError(
            f"{workers} GPUs cannot share --update-freq {given}, the batches of an update; give --gpus "
            f"{' or '.join(map(str, fitting))}"
        )
    world = ["--distributed-world-size", str(workers)]
    if workers == 1:
        return world
    backend = (by_option(list(words)).get("--ddp-backend") or ["c10d"])[-1]
    if workers > 2 and backend in REORDERING and "--find-unused-parameters" not in words:
        world.append("--find-unused-parameters")
    return [*world, "--update-freq", ",".join(str(number // workers) for number in numbers)]
