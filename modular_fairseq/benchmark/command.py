"""Time training steps and beam search against fairseq's own Transformer of the same size.

    modular-fairseq bench
    modular-fairseq bench --rounds 15 --json times.json 'mae_transformer_iwslt_de_en --mae-dropped-heads 2'
    modular-fairseq bench --layers 'modular_transformer_iwslt_de_en --tim-layers all' tim_transformer
    modular-fairseq bench --kernels mae_transformer_iwslt_de_en
    modular-fairseq bench --device cuda --sentences 128 'mae_transformer_wmt_en_de --fp16'
    modular-fairseq bench --user-dir examples/distance distance_transformer_tiny_cpu
    modular-fairseq bench --task language_modeling --sentences 4 --length 256 mae_transformer_lm
    modular-fairseq bench --task masked_lm --sentences 4 --length 256 tim_roberta

A MODEL is an arch, followed by any options of fairseq-train, all in quotes. The arch is one of this package
or of the --user-dir, and determines the size. Every model has --dropout 0.3 and Adam. With a decoder it has
--share-decoder-input-output-embed, unless its input or softmax is adaptive, and --criterion
modular_cross_entropy, for translation with label smoothing 0.1; a masked language model has --criterion
modular_masked_lm. Its options may say otherwise. No data is needed, because batches consist of random tokens.

Each model is compared with "stock": fairseq's own Transformer with the same options, except those that only
this package has, and with a criterion of fairseq: the label-smoothed cross-entropy, for an adaptive softmax
the adaptive loss, and for masked language models masked_lm. Stock is timed as two identical copies.
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

With --kernels, nothing is timed. The rows show how many kernels a model launches, by phase: forward pass,
backward pass, and update, which is all the rest (norm of the gradient, optimizer, log). On a GPU most of the
time of a small model goes into launches. They are counted as calls of aten operations that are no views, on
any machine. On a CPU torch uses other operations than on a GPU for dropout (5 instead of 1) and for
attention. "Waits" are the moments in which the CPU needs a result of the device before it can go on. With
--device cuda, "launches" is the number of kernels that the GPU ran. It is the larger number if one operation
launches several kernels, as an optimizer for all parameters does.

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
import logging
from dataclasses import asdict
from importlib.metadata import distributions
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from modular_fairseq.benchmark.comparison import Comparison, format_comparison
from modular_fairseq.benchmark.configs import parse_model
from modular_fairseq.benchmark.counts import Row, count_kernels, format_rows
from modular_fairseq.benchmark.jobs import random_task
from modular_fairseq.benchmark.tasks import KINDS
from modular_fairseq.benchmark.timing import compare
from modular_fairseq.models.registry import MECHANISMS
from modular_fairseq.user_dir import add_user_dir, import_user_dir
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import check_file, write_json
from modular_fairseq_cli.processes import processor_name

COUNTS: dict[str, tuple[int | None, int, str]] = {  # option: (default, smallest value, help)
    "rounds": (9, 1, "number of timed rounds"),
    "sentences": (34, 1, "number of sentences, or pairs of them, in a training batch"),
    "length": (30, 2, "number of tokens in the longest sentences; the shortest have 4/5 of it"),
    "search-sentences": (16, 1, "number of sentences that are translated or continued at a time"),
    "beam": (5, 1, "beam size"),
    "steps": (30, 2, "number of tokens in every hypothesis"),
    "source-types": (8848, 10, "size of the source dictionary"),
    "target-types": (6632, 10, "size of the target dictionary"),
    "threads": (None, 1, "number of threads of torch (default: 1 on a CPU, torch's own choice on a GPU)"),
}
# A count needs no more than this to meet all operations.
SIZES_TO_COUNT = {"sentences": 4, "length": 10, "search-sentences": 4, "steps": 10}
PRECISIONS = {"float32": "", "fp16": "--fp16", "amp": "--amp", "bf16": "--bf16", "amp-bf16": "--amp --bf16"}
PRECISIONS_TO_COUNT = ("float32", "fp16", "amp")


def default_models(task: str = "translation") -> list[str]:
    """Return the models that are timed by default: the plain Transformer and those that mechanisms name."""
    kind = KINDS[task]
    named = [model for mechanism in MECHANISMS.values() for model in mechanism.benched]
    return [
        kind.plain,
        *(model for model in named if issubclass(ARCH_MODEL_REGISTRY[model.split()[0]], kind.model)),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="an arch and options of fairseq-train, in quotes (default: "
        f"{', '.join(map(repr, default_models()))}, and the models that the --user-dir names)",
    )
    for name, (default, _, text) in COUNTS.items():
        counting = f"; with --kernels: {SIZES_TO_COUNT[name]}" if name in SIZES_TO_COUNT else ""
        parser.add_argument(
            f"--{name}",
            type=int,
            metavar="N",
            help=f"{text} (default: {default}{counting})" if default else text,
        )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="count kernels and waits for the device instead of measuring times",
    )
    parser.add_argument(
        "--task",
        choices=KINDS,
        default="translation",
        help="what the models do; language models are timed with blocks of text, and masked ones without a "
        "search (default: translation)",
    )
    parser.add_argument(
        "--precisions",
        metavar="NAMES",
        help="number formats in which every model is measured, separated by commas: "
        f"{', '.join(PRECISIONS)}. fp16, for example, adds --fp16 to the options of the model. As in "
        "fairseq-generate, bf16 has no beam search of its own, which is timed in float32 (default: "
        f"float32; with --kernels: {','.join(PRECISIONS_TO_COUNT)})",
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
    complete_arguments(args)
    if args.threads or args.device == "cpu":
        torch.set_num_threads(args.threads or 1)
    import_user_dir(args)
    flags = [PRECISIONS[name] for name in args.precisions]
    args.models = [
        f"{model} {flag}".rstrip()
        for flag in flags
        for model in dict.fromkeys(args.models or default_models(args.task))
    ]
    task = random_task(args.source_types, args.target_types, args.task)
    configs = {model: parse_model(model, task, args) for model in args.models}
    report = {
        "device": device_name(args.device),
        "threads": torch.get_num_threads(),
        "versions": package_versions(),
        "settings": vars(args),
    }
    print(format_header(report), flush=True)
    comparisons: list[Comparison] = []
    counts: list[list[Row]] = []
    for model, pair in configs.items():
        if args.kernels:
            counts.append(count_kernels(model, pair, task, args))
            print(f"\n{format_rows(counts[-1])}", flush=True)
        else:
            comparisons.append(compare(model, pair, task, args))
            print(f"\n{format_comparison(comparisons[-1])}", flush=True)
    if args.json:
        report |= (
            {"counts": [[row.as_json() for row in rows] for rows in counts]}
            if args.kernels
            else {"comparisons": [asdict(comparison) for comparison in comparisons]}
        )
        try:
            write_json(args.json, report)
        except OSError as error:
            raise UsageError(
                f"--json {args.json} cannot be written ({error.strerror}); give another file"
            ) from None
    refusals = [refusal for comparison in comparisons for refusal in comparison.refusals]
    if refusals:
        raise UsageError(f"{'; '.join(refusals)}; close other programs, or increase --rounds")


def unused(task: str) -> list[str]:
    """Return the options of `COUNTS` that have no effect with a task."""
    kind = KINDS[task]
    found = ["source-types"] if len(kind.stacks) == 1 else []
    return found if kind.searches else [*found, "search-sentences", "beam", "steps"]


def complete_arguments(args: argparse.Namespace) -> None:
    """Fill in the defaults, which depend on what is measured, and check all values.

    Raises:
        UsageError: with a value, nothing can be measured or written.
    """
    for name in ("layers", "rounds"):
        if args.kernels and getattr(args, name):
            raise UsageError(f"--{name} has no effect with --kernels; leave one of them out")
    for name in unused(args.task):
        if getattr(args, name.replace("-", "_")) is not None:
            raise UsageError(f"--{name} has no effect with --task {args.task}; leave it out")
    for name, (default, smallest, _) in COUNTS.items():
        attribute = name.replace("-", "_")
        value = getattr(args, attribute)
        if value is None:
            setattr(args, attribute, SIZES_TO_COUNT.get(name, default) if args.kernels else default)
        elif value < smallest:
            raise UsageError(f"--{name} must be at least {smallest}, not {value}")
    if args.precisions is None:
        args.precisions = list(PRECISIONS_TO_COUNT) if args.kernels else ["float32"]
    else:
        args.precisions = list(dict.fromkeys(args.precisions.split(",")))
    for name in args.precisions:
        if name not in PRECISIONS:
            raise UsageError(f"--precisions has {name!r}; use some of {', '.join(PRECISIONS)}")
    if KINDS[args.task].searches and 2 * args.beam >= args.target_types:
        raise UsageError(
            f"--beam must be less than half of --target-types {args.target_types}, not {args.beam}"
        )
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "--device cuda needs a GPU, but torch finds none; use --device cpu, or install a torch that is "
            "built for your GPU"
        )
    if args.json:
        check_file(args.json, "--json")


def format_header(report: dict[str, Any]) -> str:
    """Describe the machine, the versions of packages, the unit of times, and the sizes of batches."""
    settings, versions = (
        report["settings"],
        ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version),
    )
    kind = "wall time" if settings["device"] == "cuda" else "process CPU time"
    unit = "kernels, ratios to stock" if settings["kernels"] else f"{kind} in seconds, ratios to stock"
    left_out = {"threads", *unused(settings["task"]), *(["rounds"] if settings["kernels"] else [])}
    sizes = ", ".join(
        f"--{name} {settings[name.replace('-', '_')]}" for name in COUNTS if name not in left_out
    )
    threads = f"{report['threads']} thread(s)"
    return f"{report['device']}, {threads}, {versions}; {unit}\n{sizes}"


def package_versions() -> dict[str, str | None]:
    """Return the versions of torch, fairseq and this package, None for what is not installed."""
    return {
        name: next((d.version for d in distributions(name=name)), None)
        for name in ("torch", "fairseq-fixed", "modular_fairseq")
    }


def device_name(device: str) -> str:
    """Return the name of the GPU or of the processor."""
    return torch.cuda.get_device_name() if device == "cuda" else processor_name()
