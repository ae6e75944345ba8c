"""Average the weights of checkpoints of one training run, as most papers do before they translate.

    modular-fairseq average --inputs checkpoints --num-epoch-checkpoints 5 --output checkpoints/average.pt
    modular-fairseq average --inputs checkpoints --num-best-checkpoints 5 --output checkpoints/average.pt
    modular-fairseq average --inputs a.pt b.pt c.pt --output average.pt

The options are those of fairseq's script average_checkpoints.py, which its package leaves out. The output is
a checkpoint for fairseq-generate and for --finetune-from-model: means of all floating-point weights and
buffers, everything else (options of the model, counters) from the last file, and no optimizer state, as with
--no-save-optimizer-state.
"""

import argparse
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from modular_fairseq.models.assembly import must_agree
from modular_fairseq.training.checkpoints import load_checkpoint, save_checkpoint
from modular_fairseq_cli.errors import UsageError

# What fairseq calls the checkpoints it keeps, by the word that the option for it has.
FILE_NAMES = {
    "epoch": re.compile(r"checkpoint(?P<number>\d+)\.pt"),
    "update": re.compile(r"checkpoint_\d+_(?P<number>\d+)\.pt"),
    "best": re.compile(r"checkpoint\.best_(?P<metric>.+)_(?P<number>\d+\.?\d*)\.pt"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--inputs",
        nargs="+",
        required=True,
        metavar="PATH",
        help="checkpoints; or one folder and a --num option",
    )
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="replaced, if it exists, once all has gone well"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--num-epoch-checkpoints",
        type=int,
        metavar="N",
        help="the last N of checkpoint1.pt, checkpoint2.pt, ...",
    )
    which.add_argument(
        "--num-update-checkpoints", type=int, metavar="N", help="the last N of checkpoint_EPOCH_UPDATE.pt"
    )
    which.add_argument(
        "--num-best-checkpoints",
        type=int,
        metavar="N",
        help="the best N of checkpoint.best_METRIC_VALUE.pt, which --keep-best-checkpoints keeps; without "
        "those, 1 is checkpoint_best.pt",
    )
    parser.add_argument(
        "--checkpoint-upper-bound", type=int, metavar="M", help="leave out epochs (or updates) after M"
    )


def run(args: argparse.Namespace) -> None:
    paths = _chosen(args)
    output = os.path.realpath(args.output)
    if os.path.isdir(output) or not os.path.isdir(os.path.dirname(output)):
        raise UsageError(
            f"--output {args.output}: is a folder or in a folder that does not exist; give a file in one "
            "that does"
        )
    if output in map(os.path.realpath, paths):
        raise UsageError(
            f"--output {args.output}: is one of the inputs, and would be lost; give another file"
        )
    save_checkpoint(average_checkpoints(paths, verbose=True), args.output)
    print(f"wrote {args.output}, the average of {len(paths)}")


def find_checkpoints(
    folder: str | os.PathLike, kind: str, count: int, upper_bound: int | None = None
) -> list[str]:
    """The ``count`` latest ("epoch", "update") or best ("best") checkpoints of ``folder``, the latest or best
    one last.

    Raises:
        UsageError: ``count`` is not positive; there are fewer of that kind, up to ``upper_bound``; the best
            are the best by different metrics, or do not say whether more is better.
    """
    option = f"--num-{kind}-checkpoints {count}"
    if count < 1:
        raise UsageError(f"{option}: must be at least 1")
    matches = [match for name in os.listdir(folder) if (match := FILE_NAMES[kind].fullmatch(name))]
    matches = [match for match in matches if upper_bound is None or float(match["number"]) <= upper_bound]
    matches.sort(key=lambda match: float(match["number"]))
    names = [match[0] for match in matches]
    if (
        kind == "best"
        and not names
        and count == 1
        and os.path.exists(os.path.join(folder, "checkpoint_best.pt"))
    ):
        names = ["checkpoint_best.pt"]
    elif kind == "best" and names:
        metrics = sorted({match["metric"] for match in matches})
        more_is_better = _option(
            load_checkpoint(os.path.join(folder, names[0])), "checkpoint", "maximize_best_checkpoint_metric"
        )
        if len(metrics) > 1 or more_is_better is None:
            raise UsageError(
                f"{option}: cannot tell which in {folder} are best by {' and by '.join(metrics)}; give the "
                "files to --inputs"
            )
        names = names if more_is_better else names[::-1]
    if len(names) < count:
        raise UsageError(
            f"{option}: there are only {len(names)} of them in {folder}; ask for fewer, or give files to "
            "--inputs"
        )
    return [os.path.join(folder, name) for name in names[-count:]]


def average_checkpoints(paths: Iterable[str | os.PathLike], verbose: bool = False) -> dict[str, Any]:
    """The last checkpoint, without optimizer state and EMA, its floating-point weights and buffers replaced
    by means over all of them.

    Sums are in float64, and a mean is rounded once, to the type it has in the last file: up to float32, the
    mean of equal numbers is that number. Integer and boolean tensors (``num_batches_tracked``) are those of
    the last file. Weights that share memory in every file share it in the result. Beside the sums, one file
    at a time is in memory.

    Raises:
        UsageError: no paths, the same one twice, a file that `load_checkpoint` refuses, or two files that
            differ in their architecture or in a name, shape or kind of a weight.
    """
    paths = [os.fspath(path) for path in paths]
    if not paths:
        raise UsageError("there are no checkpoints to average; give at least one")
    for path in paths:
        if [os.path.realpath(other) for other in paths].count(os.path.realpath(path)) > 1:
            raise UsageError(f"{path}: is given twice; give every checkpoint once")

    first = None
    for number, path in enumerate(paths, 1):
        state = model = None  # lets go of the file before
        state = load_checkpoint(path)
        state.pop("last_optimizer_state", None)
        for key in ("ema", "ema_fp32_params"):  # would belong to other weights than the result
            state.get("extra_state", {}).pop(key, None)
        model = state["model"]
        described = _describe(path, state)
        if first is None:
            first = described
            floats = [name for name, (_, kind) in described.weights.items() if kind == "floating-point"]
            same_as = _shared({name: model[name] for name in floats})
            sums = {
                name: torch.zeros_like(model[name], dtype=torch.float64)
                for name in floats
                if name not in same_as
            }
        _refuse_difference(first, described)
        for name, other in list(same_as.items()):
            if not torch.equal(model[name], model[other]):
                sums[name] = sums[other].clone()  # shared up to here, but not in this file
                del same_as[name]
        for name in sums:
            sums[name] += model[name]
        if verbose:
            print(f"read {path} ({number} of {len(paths)})", flush=True)

    for name in list(sums):
        model[name] = (sums.pop(name) / len(paths)).to(model[name].dtype)
    for name, other in same_as.items():
        model[name] = model[other]
    return state


class _Description(NamedTuple):
    """What checkpoints must have in common to be averaged."""

    path: str
    arch: str | None
    weights: dict[str, tuple[tuple[int, ...], str]]  # shape and kind by name
    agreeing: dict[str, torch.Tensor]  # weights that must be equal (`assembly.must_agree`)


def _describe(path: str, state: Mapping[str, Any]) -> _Description:
    weights = {
        name: (tuple(tensor.shape), "floating-point" if tensor.is_floating_point() else "integer")
        for name, tensor in state["model"].items()
        if torch.is_tensor(tensor)
    }
    agreeing = {name: tensor for name, tensor in state["model"].items() if name.endswith(tuple(must_agree()))}
    return _Description(
        path, _option(state, "model", "arch") or _option(state, "model", "_name"), weights, agreeing
    )


def _refuse_difference(first: _Description, second: _Description) -> None:
    both = f"{first.path} and {second.path} cannot be averaged"
    advice = "give checkpoints of one model"
    if first.arch != second.arch and None not in (first.arch, second.arch):
        raise UsageError(
            f"{both}: --arch is {first.arch} in the one and {second.arch} in the other; {advice}"
        )
    for name in [*first.weights, *second.weights]:
        if name not in first.weights or name not in second.weights:
            owner = first.path if name in first.weights else second.path
            raise UsageError(f"{both}: only {owner} has {name}; {advice}")
        if first.weights[name] != second.weights[name]:
            (shape, kind), (other_shape, other_kind) = first.weights[name], second.weights[name]
            raise UsageError(
                f"{both}: {name} is {kind} {shape} in the one and {other_kind} {other_shape} in the other; "
                f"{advice}"
            )
    for name, value in first.agreeing.items():
        if not torch.equal(second.agreeing[name], value):
            reason = next(reason for ending, reason in must_agree().items() if name.endswith(ending))
            raise UsageError(f"{both}: {reason}; give checkpoints from after that")


def _shared(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """For each tensor that is the same memory as an earlier one: the name of that one."""
    earlier: dict[Any, str] = {}
    same_as = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if earlier.setdefault(place, name) != name:
            same_as[name] = earlier[place]
    return same_as


def _option(state: Mapping[str, Any], group: str, name: str) -> Any:
    """An option that the checkpoint was trained with, ``None`` if it does not say; files of before 2021 have
    them in "args".
    """
    config = state.get("cfg")
    options = config.get(group) if isinstance(config, Mapping) else state.get("args")
    return options.get(name) if isinstance(options, Mapping) else getattr(options, name, None)


def _chosen(args: argparse.Namespace) -> list[str]:
    counts = {kind: getattr(args, f"num_{kind}_checkpoints") for kind in FILE_NAMES}
    kind = next((kind for kind, count in counts.items() if count is not None), None)
    if args.checkpoint_upper_bound is not None and kind not in ("epoch", "update"):
        raise UsageError(
            "--checkpoint-upper-bound: needs --num-epoch-checkpoints or --num-update-checkpoints; add one or "
            "leave it out"
        )
    folders = [path for path in args.inputs if os.path.isdir(path)]
    if kind is None and folders:
        raise UsageError(
            f"--inputs {folders[0]}: is a folder; add --num-epoch-checkpoints N or its like, or give the "
            "files in it"
        )
    if kind is None:
        return args.inputs
    if args.inputs != folders or len(folders) > 1:
        raise UsageError(
            f"--num-{kind}-checkpoints: chooses from one folder, not from {' '.join(args.inputs)}; leave it "
            "out or give a folder"
        )
    return find_checkpoints(folders[0], kind, counts[kind], args.checkpoint_upper_bound)
