"""Time training and search of a model and of two copies of its stock."""

import argparse
import gc
import random
import sys
import time

import torch
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig

from modular_fairseq.benchmark.comparison import LAYERS, SEARCH, STOCK, Comparison, Times, evaluate
from modular_fairseq.benchmark.configs import Configs
from modular_fairseq.benchmark.jobs import (
    Jobs,
    build,
    count_equal,
    count_parameters,
    layers_job,
    random_batch,
    search_job,
    training_jobs,
)
from modular_fairseq.benchmark.tasks import kind_of
from modular_fairseq.models.fairseq_options import resolved
from modular_fairseq.models.options import FAMILIES


def compare(model: str, configs: Configs, task: FairseqTask, args: argparse.Namespace) -> Comparison:
    """Time a model and both copies of its stock.

    Training and search are measured one after the other. Each builds its own models, and frees them at the
    end, so that memory holds three models at a time.
    """
    title = f"fairseq's Transformer ({format_size(configs.stock)})"
    sides = {**dict.fromkeys(STOCK, configs.stock), model: configs.own}
    times, interval = _time_training(sides, task, args, title)
    gc.collect()  # trainers refer to themselves
    if args.layers:
        times |= _time_layers(sides, task, args, title)
        gc.collect()
    equal = None
    if kind_of(task).searches:
        found, equal = _time_search(sides, task, args, title)
        times |= found
        gc.collect()
    return evaluate(
        model,
        title,
        times,
        equal,
        interval,
        describe_other_size(model, configs, task),
    )


def _time_search(
    sides: dict[str, DictConfig], task: FairseqTask, args: argparse.Namespace, title: str
) -> tuple[Times, tuple[int, int] | None]:
    """Return the times of beam search, and the equal hypotheses (see `Comparison`) of the last model."""
    sources = random_batch(task, args.search_sentences, args.length, args.seed + 1)
    weights = build(STOCK[0], sides[STOCK[0]], task).state_dict()
    jobs: Jobs = {}
    for side, cfg in sides.items():
        jobs[side, SEARCH], fits = search_job(side, cfg, task, sources, weights)
    found, stocks = (jobs[each, SEARCH]() for each in (side, STOCK[0]))  # `side` is the last one, the model
    return measure(jobs, args, title), count_equal(found, stocks) if fits else None


def _time_training(
    sides: dict[str, DictConfig], task: FairseqTask, args: argparse.Namespace, title: str
) -> tuple[Times, int | None]:
    """Return the times of training steps, and the second value of `training_jobs` for the last model."""
    pairs = random_batch(task, args.sentences, args.length, args.seed)
    jobs: Jobs = {}
    for side, cfg in sides.items():
        of_model, interval = training_jobs(side, cfg, task, pairs)
        jobs |= of_model
    return measure(jobs, args, title), interval


def _time_layers(
    sides: dict[str, DictConfig], task: FairseqTask, args: argparse.Namespace, title: str
) -> Times:
    pairs = random_batch(task, args.sentences, args.length, args.seed)
    jobs = {(side, LAYERS): layers_job(side, cfg, task, pairs) for side, cfg in sides.items()}
    return measure(jobs, args, title)


def describe_other_size(model: str, configs: Configs, task: FairseqTask) -> str | None:
    """Describe the sizes of a model and its stock, or return None if they are equal."""
    if format_size(configs.own) == format_size(configs.stock):
        return None
    ours, theirs = (
        count_parameters(*kind, task) / 1e6 for kind in ((model, configs.own), (STOCK[0], configs.stock))
    )
    return f"{format_size(configs.own)}; {ours:.1f} million parameters, stock {theirs:.1f}"


def measure(jobs: Jobs, args: argparse.Namespace, title: str) -> Times:
    """Run every job once in each round, and return the times.

    Every round has a random order of its own. There are `args.rounds` + 1 rounds, and the first one is not
    counted.

    Args:
        args: the options of `modular-fairseq bench`.
        title: a description of the models, for messages about the progress.
    """
    order = random.Random(args.seed)
    times: Times = {key: [] for key in jobs}
    for number in range(args.rounds + 1):
        print(
            f"{title}: {f'round {number} of {args.rounds}' if number else 'warming up'}",
            file=sys.stderr,
            flush=True,
        )
        for key in order.sample(list(jobs), len(jobs)):
            start = clock(args.device)
            jobs[key]()
            if number:
                times[key].append(clock(args.device) - start)
    return times


def clock(device: str) -> float:
    """Return a time in seconds, of which only differences have a meaning.

    On a CPU it is the CPU time of all threads of this process. On a GPU it is the wall time after the GPU has
    finished all its work.
    """
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def format_size(cfg: DictConfig) -> str:
    """Describe the size of a model, each value for the encoder and the decoder: "width 512+512, ...".

    A language model has only a decoder, and a masked language model only an encoder.
    """
    names = {
        "width": "embed_dim",
        "feed-forward": "ffn_embed_dim",
        "heads": "attention_heads",
        "layers": "layers",
    }
    stacks = [stack for stack in ("encoder", "decoder") if f"{stack}_layers" in cfg.model]
    families = {"encoder": "modular_roberta", "decoder": "modular_transformer_lm"}
    family = "modular_transformer" if len(stacks) == 2 else families[stacks[0]]
    options = resolved(cfg.model, FAMILIES[family])
    return ", ".join(
        f"{name} {'+'.join(str(getattr(options, f'{stack}_{key}')) for stack in stacks)}"
        for name, key in names.items()
    )
