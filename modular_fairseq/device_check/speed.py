"""Measure the speed of training and search on a device: ratios to stock, tokens per second, memory."""

import argparse
from dataclasses import dataclass
from statistics import median

import torch
from fairseq.tasks.translation import TranslationTask
from torch.utils.flop_counter import FlopCounterMode

from modular_fairseq.benchmark.comparison import F_STEP, TRAINING, Comparison
from modular_fairseq.benchmark.configs import Configs
from modular_fairseq.benchmark.jobs import random_batch, training_jobs
from modular_fairseq.benchmark.timing import clock, compare

SIZE = 4096  # of the matrices that show what the device can do
TYPES = {"fp16": torch.float16, "amp": torch.float16, "bf16": torch.bfloat16, "amp-bf16": torch.bfloat16}


@dataclass(frozen=True)
class Speed:
    """The speed of one model in one number format.

    Attributes:
        comparison: times and ratios to stock.
        tokens_per_second: target tokens of a training step (F step) by its median time.
        operations: floating-point operations of its products and attention, forward and backward.
        utilisation: how much of the device a training step uses, from 0 to 1. It is the number of
            `operations` per second of a step, divided by the number per second of a product of two 4,096 x
            4,096 matrices in the same number format. It is None on a CPU.
        memory: peak memory of training the model alone, in bytes; None on a CPU.
    """

    comparison: Comparison
    tokens_per_second: float
    operations: int
    utilisation: float | None
    memory: int | None

    def __str__(self) -> str:
        ratios = [
            f"{row.work} {'no ratio' if row.ratio is None else f'{row.ratio:.2f}'}"
            for row in self.comparison.rows
            if row.model == self.comparison.model
        ]
        parts = [f"{', '.join(ratios)}; {self.tokens_per_second:,.0f} target tokens/s"]
        if self.utilisation is not None:
            parts.append(f"{self.utilisation:.0%} of the speed of a large product")
        if self.memory is not None:
            parts.append(f"{self.memory / 2**30:.2f} GiB")
        return ", ".join(parts)


def measure_speed(
    model: str, configs: Configs, task: TranslationTask, number_format: str, args: argparse.Namespace
) -> Speed:
    """Time a model and its stock, and measure the memory and the operations of a training step.

    Args:
        model: an arch and options.
        configs: its configuration, and stock's.
        task: a task without data.
        number_format: a key of `PRECISIONS`.
        args: the options of `modular-fairseq bench`.
    """
    comparison = compare(model, configs, task, args)
    pairs = random_batch(task, args.sentences, args.length, args.seed)
    jobs, _ = training_jobs(model, configs.own, task, pairs)
    step = next(job for (_, work), job in jobs.items() if work in (TRAINING, F_STEP))
    step()  # makes the state of the optimizer
    memory = best = None
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        memory = torch.cuda.max_memory_allocated()
        best = _product_speed(TYPES.get(number_format, torch.float32))
    with FlopCounterMode(display=False) as counter:
        step()
    seconds = median(
        next(row.seconds for row in comparison.rows if row.model == model and row.work in (TRAINING, F_STEP))
    )
    operations = counter.get_total_flops()
    utilisation = None if best is None else operations / seconds / best
    return Speed(comparison, pairs["ntokens"] / seconds, operations, utilisation, memory)


def _product_speed(dtype: torch.dtype) -> float:
    """Return the floating-point operations per second of a large matrix product on the GPU."""
    a = torch.randn(SIZE, SIZE, device="cuda").to(dtype)
    times = []
    for _ in range(6):
        start = clock("cuda")
        a @ a
        times.append(clock("cuda") - start)
    return 2 * SIZE**3 / median(times[1:])
