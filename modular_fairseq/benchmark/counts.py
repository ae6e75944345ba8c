"""Count the kernels of all kinds of work of a model and its stock, and print them as a table."""

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.tasks import FairseqTask
from torch.profiler import ProfilerActivity, profile

from modular_fairseq.benchmark.comparison import SEARCH, STOCK, TRAINING
from modular_fairseq.benchmark.configs import Configs, set_steps
from modular_fairseq.benchmark.jobs import Job, random_batch, search_job, training_jobs
from modular_fairseq.benchmark.kernels import PHASES, Count, counting
from modular_fairseq.benchmark.tasks import kind_of

STOCK_NAME = "stock"
A_STEP = f"{SEARCH}, a step"
SHOWN = 8  # number of operations that are listed below a row


@dataclass(frozen=True)
class Row:
    """The kernels of one model for one kind of work.

    Attributes:
        model: an arch and its options, or `STOCK_NAME`.
        work: the kind of work. `A_STEP` is a step of a beam search, which makes one token.
        count: the calls of operations.
        launches: number of kernels that the GPU ran, or None on a CPU. A call of an operation on many
            tensors, such as a fused optimizer, counts once in `count` but launches several kernels.
    """

    model: str
    work: str
    count: Count
    launches: int | None

    def as_json(self) -> dict[str, Any]:
        """Return the row for the JSON report."""
        return {
            "model": self.model,
            "work": self.work,
            "kernels": self.count.total(),
            "waits": self.count.total_waits(),
            "launches": self.launches,
            "operations": {phase: dict(self.count.kernels[phase]) for phase in PHASES},
            "waiting": {phase: dict(self.count.waits[phase]) for phase in PHASES},
        }


def count_kernels(model: str, configs: Configs, task: FairseqTask, args: argparse.Namespace) -> list[Row]:
    """Count the kernels of stock and of a model, one after the other."""
    rows = []
    for side, kind, cfg in ((STOCK_NAME, STOCK[0], configs.stock), (model, model, configs.own)):
        pairs = random_batch(task, args.sentences, args.length, args.seed)
        jobs, _ = training_jobs(kind, cfg, task, pairs)
        for (_, work), job in jobs.items():
            job()  # the first step makes the state of the optimizer
            rows.append(Row(side, work, count(job), launches(job, args.device)))
        jobs.clear()
        if not kind_of(task).searches:
            continue
        sources = random_batch(task, args.search_sentences, args.length, args.seed + 1)
        short, long = args.steps // 2, args.steps
        searches, numbers = [], []
        for steps in (short, long):
            set_steps(cfg, steps)
            job, _ = search_job(kind, cfg, task, sources)
            searches.append(count(job))
            numbers.append(launches(job, args.device))
        steps = long - short
        rows.append(Row(side, A_STEP, searches[1].beyond(searches[0], steps), _mean(numbers, steps)))
    return rows


def count(job: Job) -> Count:
    """Count the kernels of a job."""
    with counting() as counted:
        job()
    return counted


def launches(job: Job, device: str) -> int | None:
    """Return how many kernels a GPU runs for a job, by torch's profiler; None on a CPU."""
    if device == "cpu":
        return None
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        job()
        torch.cuda.synchronize()
    events = profiled.events() or []
    on_device = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in on_device)


def _mean(numbers: list[int | None], steps: int) -> int | None:
    first, second = numbers
    return None if first is None or second is None else round((second - first) / steps)


def format_rows(rows: list[Row]) -> str:
    """Return the table as text. Each ratio is to stock's training step, or to stock's step of a search."""
    on_gpu = any(row.launches is not None for row in rows)
    columns = ["kernels", "ratio", *PHASES, "waits", *(["launches"] if on_gpu else [])]
    lines = [rows[-1].model, f"{'':<32}" + "".join(f"{name:>10}" for name in columns)]
    stock = {row.work: row.count.total() for row in rows if row.model == STOCK_NAME}
    for row in rows:
        total = row.count.total()
        phases = ["" if row.work == A_STEP else _number(row.count.total(phase)) for phase in PHASES]
        ratio = total / stock[row.work if row.work in stock else TRAINING]
        numbers = [_number(total), f"{ratio:.2f}", *phases, _number(row.count.total_waits())]
        if on_gpu:
            numbers.append(str(row.launches))
        side = STOCK_NAME if row.model == STOCK_NAME else "model"
        lines.append(f"    {side}, {row.work:<{26 - len(side)}}" + "".join(f"{x:>10}" for x in numbers))
        for what, calls in (("most calls", row.count.most_common(SHOWN)), ("waits", row.count.most_waits())):
            named = ", ".join(f"{name} {_number(number)}" for name, number in calls)
            lines.append(f"        {what}: {named or 'none'}")
    return "\n".join(lines)


def _number(x: float) -> str:
    return f"{x:g}" if abs(x - round(x)) > 1e-9 else str(round(x))
