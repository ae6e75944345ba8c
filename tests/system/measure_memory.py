"""Measure the peak memory of processes that train a model and stock fairseq's Transformer of its size.

    python tests/system/measure_memory.py SENTENCES LENGTH 'ARCH --option value' ['ARCH ...']

Each process takes three training steps with one batch of random sentences on one thread of a CPU. For each
model a line shows the peaks of both processes, and their ratio.
"""

import argparse
import multiprocessing
import resource
import sys

import torch
from fairseq.tasks.translation import TranslationTask

import modular_fairseq  # noqa: F401
from modular_fairseq.benchmark import jobs
from modular_fairseq.benchmark.command import add_arguments, complete_arguments
from modular_fairseq.benchmark.comparison import STOCK
from modular_fairseq.benchmark.configs import parse_model

STEPS = 3


def peak(model: str, sentences: int, length: int, stock: bool) -> int:
    """Return the peak memory of this process in MiB after it has trained a model, or its baseline."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([model, "--sentences", str(sentences), "--length", str(length)])
    complete_arguments(args)
    task: TranslationTask = jobs.random_task(args.source_types, args.target_types)
    configs = parse_model(model, task, args)
    batch = jobs.random_batch(task, sentences, length, args.seed)
    name, cfg = (next(iter(STOCK)), configs.stock) if stock else (model, configs.own)
    made, _ = jobs.training_jobs(name, cfg, task, batch)
    for _ in range(STEPS):
        for job in made.values():
            job()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    sentences, length, models = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    for model in models:
        peaks = []
        for stock in (False, True):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                peaks.append(pool.apply(peak, (model, sentences, length, stock)))
        print(f"{model}: {peaks[0]} MiB, stock {peaks[1]} MiB, ratio {peaks[0] / peaks[1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
