"""Time training steps and beam search against fairseq's own Transformer of the same size.

    modular-fairseq bench
    modular-fairseq bench --rounds 15 --json times.json 'mae_transformer_iwslt_de_en --mae-dropped-heads 2'
    modular-fairseq bench --layers 'modular_transformer_iwslt_de_en --tim-layers all' tim_transformer
    modular-fairseq bench --device cuda --sentences 128 'mae_transformer_wmt_en_de --fp16'
    modular-fairseq bench --user-dir examples/distance distance_transformer_tiny_cpu

A MODEL is an arch, followed by any options of fairseq-train, all in quotes. The arch is one of this package
or of the --user-dir, and determines the size. Every model has --dropout 0.3
--share-decoder-input-output-embed, Adam, and --criterion modular_cross_entropy with label smoothing 0.1,
unless its options say otherwise. No data is needed, because batches consist of random tokens.

Each model is compared with "stock": fairseq's own Transformer with the same options, except those that only
this package has, and with fairseq's own label-smoothed cross-entropy. Stock is timed as two identical copies.
For a multi-stream encoder, the encoder of stock has as many layers as all streams together. Some archs
(tim_transformer*, except _tiny_cpu) are wider than a plain arch with about as many parameters. Their stock
has the size of that plain arch, and the options after the arch apply to both. If the sizes differ, the line
of the model shows its size and the numbers of parameters. To compare TIM layers at equal width, add
--tim-layers to a plain arch.

Every round times each job once, in random order. A first round warms up and is not counted. The ratio of a
round is the time of the model divided by the mean time of the two copies of stock. The table shows the median
over rounds and [min..max]. If the times of the two copies differ by more than 3 %, other programs have
disturbed the measurement. The table then shows seconds but no ratios, and the exit status is 1. Times are CPU
time of the process, summed over threads, or wall time on a GPU.

The rows of the table are:

    training step  fairseq's Trainer.train_step: forward pass, loss, backward pass and Adam
    F step         the same in an epoch without G steps, for a model whose gates learn in G steps
    G step         the step before each F step in an epoch with G steps; its ratio is to stock's training step
    BCD average    F step + G step / --mae-gate-interval
    layers         with --layers: forward and backward pass of all encoder and decoder layers on the training
                   batch, in training mode, without embeddings, output projection, losses and Adam
    beam search    fairseq's SequenceGenerator with random weights; every sentence has exactly --steps tokens,
                   so that all models do the same work
"""

import argparse
import json
import logging
import os
import platform
import random
import re
import sys
import time
from dataclasses import asdict
from importlib.metadata import distributions
from typing import Any

import torch
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig

from modular_fairseq.benchmark.comparison import STOCK, Comparison, Times, evaluate, format_comparison
from modular_fairseq.benchmark.configs import Configs, group_by_stock, parse_model
from modular_fairseq.benchmark.jobs import Jobs, all_jobs, count_parameters, random_task
from modular_fairseq.models.options import nested_config
from modular_fairseq.models.registry import MECHANISMS
from modular_fairseq.user_dir import add_user_dir, import_user_dir
from modular_fairseq_cli.errors import UsageError

PLAIN = "modular_transformer_iwslt_de_en"
COUNTS: dict[str, tuple[int | None, int, str]] = {  # option: (default, smallest value, help)
    "rounds": (9, 1, "number of timed rounds"),
    "sentences": (34, 1, "number of sentence pairs in a training batch"),
    "length": (30, 2, "number of tokens in the longest sentences; the shortest have 4/5 of it"),
    "search-sentences": (16, 1, "number of sentences that are translated at a time"),
    "beam": (5, 1, "beam size"),
    "steps": (30, 1, "number of tokens in every translation"),
    "source-types": (8848, 10, "size of the source dictionary"),
    "target-types": (6632, 10, "size of the target dictionary"),
    "threads": (None, 1, "number of threads of torch (default: 1 on a CPU, torch's own choice on a GPU)"),
}


def default_models() -> list[str]:
    """Return the models that are timed by default: the plain Transformer and those that mechanisms name."""
    return [PLAIN, *(model for mechanism in MECHANISMS.values() for model in mechanism.benched)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="an arch and options of fairseq-train, in quotes (default: "
        f"{', '.join(map(repr, default_models()))}, and the models that the --user-dir names)",
    )
    for name, (default, _, text) in COUNTS.items():
        parser.add_argument(
            f"--{name}",
            type=int,
            default=default,
            metavar="N",
            help=f"{text} (default: {default})" if default else text,
        )
    parser.add_argument(
        "--layers",
        action="store_true",
        help="also time all layers by themselves, without embeddings and output projection",
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="where the models run (default: cpu)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="random seed of weights, batches and the order of jobs (default: 1)",
    )
    add_user_dir(parser)
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the settings, versions, times and reported ratios to this file",
    )


def run(args: argparse.Namespace) -> None:
    logging.disable(logging.INFO)  # silences the log of trainers and models that are built
    check_arguments(args)
    if args.threads or args.device == "cpu":
        torch.set_num_threads(args.threads or 1)
    import_user_dir(args)
    args.models = args.models or default_models()
    task = random_task(args.source_types, args.target_types)
    configs = {model: parse_model(model, task, args) for model in dict.fromkeys(args.models)}
    versions = {
        name: next((d.version for d in distributions(name=name)), None)
        for name in ("torch", "fairseq-fixed", "modular_fairseq")
    }
    report = {
        "device": device_name(args.device),
        "threads": torch.get_num_threads(),
        "versions": versions,
        "settings": vars(args),
    }
    print(format_header(report), flush=True)
    comparisons = []
    for group in group_by_stock(configs):
        comparisons.append(compare(group, task, args))
        print(f"\n{format_comparison(comparisons[-1])}", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(
                {**report, "comparisons": [asdict(comparison) for comparison in comparisons]}, file, indent=1
            )
    refusals = [refusal for comparison in comparisons for refusal in comparison.refusals]
    if refusals:
        raise UsageError(f"{'; '.join(refusals)}; close other programs, or increase --rounds")


def check_arguments(args: argparse.Namespace) -> None:
    """Raise UsageError for values of options with which nothing can be timed or written."""
    for name, (_, smallest, _) in COUNTS.items():
        value = getattr(args, name.replace("-", "_"))
        if value is not None and value < smallest:
            raise UsageError(f"--{name} must be at least {smallest}, not {value}")
    if 2 * args.beam >= args.target_types:
        raise UsageError(
            f"--beam must be less than half of --target-types {args.target_types}, not {args.beam}"
        )
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "--device cuda needs a GPU, but torch finds none; use --device cpu, or install a torch that is "
            "built for your GPU"
        )
    if args.json and (
        os.path.isdir(args.json) or not os.path.isdir(os.path.dirname(os.path.abspath(args.json)))
    ):
        raise UsageError(
            f"--json {args.json} is a folder, or its folder does not exist; give a file in an existing folder"
        )


def compare(group: dict[str, Configs], task: TranslationTask, args: argparse.Namespace) -> Comparison:
    """Time the models of a group of `group_by_stock`."""
    stock = next(iter(group.values())).stock
    jobs, intervals, equal = all_jobs(
        stock, {model: configs.own for model, configs in group.items()}, task, args
    )
    size, other_sizes = format_size(stock), {}
    for model, configs in group.items():
        if format_size(configs.own) != size:
            ours, theirs = (
                count_parameters(*kind, task) / 1e6 for kind in ((model, configs.own), (STOCK[0], stock))
            )
            other_sizes[model] = (
                f"{format_size(configs.own)}; {ours:.1f} million parameters, stock {theirs:.1f}"
            )
    title = f"fairseq's Transformer ({size})"
    return evaluate(title, equal, measure(jobs, args, title), intervals, other_sizes)


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
    """Describe the size of a model, each value for the encoder and the decoder: "width 512+512, ..."."""
    names = {
        "width": "embed_dim",
        "feed-forward": "ffn_embed_dim",
        "heads": "attention_heads",
        "layers": "layers",
    }
    config = nested_config(cfg.model)
    return ", ".join(
        f"{name} {getattr(config.encoder, key)}+{getattr(config.decoder, key)}" for name, key in names.items()
    )


def format_header(report: dict[str, Any]) -> str:
    """Describe the machine, the versions of packages, the unit of times, and the sizes of batches."""
    settings, versions = (
        report["settings"],
        ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version),
    )
    kind = "wall time" if settings["device"] == "cuda" else "process CPU time"
    sizes = ", ".join(f"--{name} {settings[name.replace('-', '_')]}" for name in COUNTS if name != "threads")
    threads = f"{report['threads']} thread(s)"
    return f"{report['device']}, {threads}, {versions}; {kind} in seconds, ratios to stock\n{sizes}"


def device_name(device: str) -> str:
    """Return the name of the GPU or of the processor."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    names = []
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            names = re.findall(r"^model name\s*: (.+)", file.read(), re.MULTILINE)
    return names[0] if names else platform.machine()
