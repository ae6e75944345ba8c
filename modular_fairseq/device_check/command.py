"""Check that a GPU computes what a CPU computes, in every number format, and measure how fast it is.

    modular-fairseq check-gpu
    modular-fairseq check-gpu --out gpu-check tim_transformer_tiny_cpu

The check needs no data and no network. It has four parts, for each MODEL:

    outputs   loss, logits and gradients in float32 (without TF32) and in float64 on the GPU against the CPU
    formats   --updates updates in every number format, and with compiled layers (--compile); losses are
              compared with those in float32, and the difference with the difference that stock fairseq shows
              in the same format
    demo      `modular-fairseq demo` on the GPU: the BLEU of a model that was trained there
    speed     training steps and searches in all of these ways, as `modular-fairseq bench` times them:
              ratios to stock, target tokens per second, utilisation and peak memory

DIR gets check.json, and check.txt, a page that can be pasted into an issue. A step that ends in an error, or
for which the GPU has too little memory, counts as failed; the page says why, and the other steps go on. The
exit status is 1 if a step failed.
"""

import argparse
import logging
from typing import Any

import torch

from modular_fairseq.benchmark.command import COUNTS as BENCH
from modular_fairseq.device_check.check import Check
from modular_fairseq.user_dir import add_user_dir, import_user_dir
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import make_folder

# Options of `modular-fairseq bench` that this command does not have keep their default values.
SIZES: dict[str, Any] = {
    name.replace("-", "_"): BENCH[name][0]
    for name in ("search-sentences", "beam", "steps", "source-types", "target-types")
} | {"seed": 1, "layers": False}
COUNTS = {  # option: (default, smallest value, help)
    "updates": (60, 20, "number of updates in every number format, and with compiled layers"),
    "rounds": (3, *BENCH["rounds"][1:]),
    "sentences": (128, *BENCH["sentences"][1:]),
    "length": (32, *BENCH["length"][1:]),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a model to check: an arch and options of fairseq-train, in quotes (default: the models that "
        "`modular-fairseq bench` times)",
    )
    parser.add_argument(
        "--out", default="gpu-check", metavar="DIR", help="folder for the results (default: %(default)s)"
    )
    parser.add_argument(
        "--device",
        choices=["cuda", "cpu"],
        default="cuda",
        help="cpu tries the command on a machine without a GPU (default: %(default)s)",
    )
    for name, (default, _, text) in COUNTS.items():
        parser.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: %(default)s)"
        )
    parser.add_argument("--no-demo", action="store_true", help="leave out the demo, which takes minutes")
    add_user_dir(parser)


def run(args: argparse.Namespace) -> None:
    for name, (_, smallest, _) in COUNTS.items():
        if getattr(args, name) < smallest:
            raise UsageError(f"--{name} must be at least {smallest}, not {getattr(args, name)}")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "check-gpu needs a GPU, but torch finds none; install a torch that is built for your GPU, or try "
            "the command with --device cpu"
        )
    logging.disable(logging.INFO)  # silences the log of trainers and models that are built
    import_user_dir(args)
    vars(args).update(SIZES)
    check = Check(args)
    make_folder(args.out)
    check.run()
    if check.failures:
        raise UsageError(f"{len(check.failures)} of the checks failed: {'; '.join(check.failures)}")
