"""Average the weights of several checkpoints of one training run, as most papers do before they translate.

    modular-fairseq average --inputs checkpoints --num-epoch-checkpoints 5 --output checkpoints/average.pt
    modular-fairseq average --inputs checkpoints --num-best-checkpoints 5 --output checkpoints/average.pt
    modular-fairseq average --inputs a.pt b.pt c.pt --output average.pt

The options come from fairseq's script average_checkpoints.py, which the fairseq package does not contain.
The output is a checkpoint for fairseq-generate and for --finetune-from-model. It contains the means of all
floating-point weights and buffers. Everything else, such as the options of the model and its counters, is
copied from the last file. The optimizer state is left out, as with --no-save-optimizer-state.
"""

import argparse
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from modular_fairseq.models.assembly import must_agree
from modular_fairseq.training.checkpoints import load_checkpoint, options_of, save_checkpoint
from modular_fairseq.user_dir import add_user_dir, import_user_dir
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import check_file

# The names that fairseq gives to the checkpoints it keeps, keyed by the word in --num-WORD-checkpoints.
FILE_NAMES = {
    "epoch": re.compile(r"checkpoint(?P<number>\d+)\.pt"),
    "update": re.compile(r"checkpoint_\d+_(?P<number>\d+)\.pt"),
    "best": re.compile(r"checkpoint\.best_(?P<metric>.+)_(?P<number>-?\d+\.?\d*)\.pt"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--inputs",
        nargs="+",
        required=True,
        metavar="PATH",
        help="the checkpoints to average; or one folder, together with one of the --num options",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="file for the average; an existing file is replaced only after the average has been written",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--num-epoch-checkpoints",
        type=int,
        metavar="N",
        help="average the last N of checkpoint1.pt, checkpoint2.pt, ...",
    )
    which.add_argument(
        "--num-update-checkpoints",
        type=int,
        metavar="N",
        help="average the last N of the files checkpoint_EPOCH_UPDATE.pt",
    )
    which.add_argument(
        "--num-best-checkpoints",
        type=int,
        metavar="N",
        help="average the best N of the files checkpoint.best_METRIC_VALUE.pt, which --keep-best-checkpoints "
        "keeps; if there are none, N = 1 takes checkpoint_best.pt",
    )
    parser.add_argument(
        "--checkpoint-upper-bound",
        type=int,
        metavar="M",
        help="ignore checkpoints of epochs (or updates) after M",
    )
    add_user_dir(parser)


def run(args: argparse.Namespace) -> None:
    import_user_dir(args)
    paths = _chosen_paths(args)
    output = os.path.realpath(args.output)
    check_file(args.output, "--output")
    if output in map(os.path.realpath, paths):
        raise UsageError(
            f"--output {args.output} is one of the inputs and would be overwritten; give another file"
        )
    save_checkpoint(average_checkpoints(paths, verbose=True), args.output)
    print(f"wrote {args.output}, the average of {len(paths)} checkpoints")


def checkpoints_of_updates(folder: str | os.PathLike) -> list[tuple[int, str]]:
    """Return the update and the path of each checkpoint of --save-interval-updates in a folder, in order."""
    return sorted(
        (int(match["number"]), os.path.join(folder, match.string)) for match in _kept(folder, "update")
    )


def _kept(folder: str | os.PathLike, kind: str) -> list[re.Match[str]]:
    """Return the names of the checkpoints of a kind in a folder, matched by `FILE_NAMES`."""
    return [match for name in os.listdir(folder) if (match := FILE_NAMES[kind].fullmatch(name))]


def find_checkpoints(
    folder: str | os.PathLike, kind: str, count: int, upper_bound: int | None = None
) -> list[str]:
    """Return the paths of the latest or best checkpoints in a folder, the latest or best one last.

    Args:
        kind: "epoch" or "update" for the latest checkpoints of that kind, "best" for the best ones.
        count: number of checkpoints.
        upper_bound: the last epoch or update that may be chosen.

    Raises:
        UsageError: ``count`` is not positive; there are fewer checkpoints of that kind; or the best ones
            cannot be ranked, because they were chosen by different metrics or the first one does not say
            whether a larger value is better.
    """
    option = f"--num-{kind}-checkpoints"
    if count < 1:
        raise UsageError(f"{option} must be at least 1, not {count}")
    matches = [
        match for match in _kept(folder, kind) if upper_bound is None or float(match["number"]) <= upper_bound
    ]
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
        options = options_of(load_checkpoint(os.path.join(folder, names[0])), "checkpoint")
        more_is_better = options.get("maximize_best_checkpoint_metric")
        if len(metrics) > 1 or more_is_better is None:
            raise UsageError(
                f"{option} {count} cannot tell which checkpoints in {folder} are best by "
                f"{' and by '.join(metrics)}; give the files to --inputs"
            )
        names = names if more_is_better else names[::-1]
    if len(names) < count:
        raise UsageError(
            f"{option} {count} needs more checkpoints than the {len(names)} in {folder}; ask for fewer, or "
            "give files to --inputs"
        )
    return [os.path.join(folder, name) for name in names[-count:]]


def average_checkpoints(paths: Iterable[str | os.PathLike], verbose: bool = False) -> dict[str, Any]:
    """Return the last checkpoint with floating-point weights and buffers replaced by means over all files.

    The optimizer state and the EMA weights are removed. Sums are in float64, and each mean is rounded once,
    to the type of the tensor in the last file. For types up to float32, the mean of equal numbers is
    therefore exactly that number. Integer and boolean tensors (such as ``num_batches_tracked``) come from the
    last file. Weights that share memory in every file also share it in the result. Apart from the sums, only
    one file at a time is in memory.

    Args:
        paths: the checkpoint files.
        verbose: print a line for each file that has been read.

    Raises:
        UsageError: there are no paths; a path is given twice; `load_checkpoint` refuses a file; or two files
            differ in their architecture, in the name, shape or kind of a weight, or in a weight that must be
            equal (`assembly.must_agree`); or a weight is not finite.
    """
    files = [os.fspath(path) for path in paths]
    if not files:
        raise UsageError("there are no checkpoints to average; give at least one")
    for path in files:
        if [os.path.realpath(other) for other in files].count(os.path.realpath(path)) > 1:
            raise UsageError(f"{path} is given twice; give every checkpoint once")

    first: _Description | None = None
    state: dict[str, Any] = {}
    model: dict[str, torch.Tensor] = {}
    for number, path in enumerate(files, 1):
        state, model = {}, {}  # frees the previous file before the next one is loaded
        state = load_checkpoint(path)
        state.pop("last_optimizer_state", None)
        for key in ("ema", "ema_fp32_params"):  # the EMA belongs to the last file's weights, not to the means
            (state.get("extra_state") or {}).pop(key, None)
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
                sums[name] = sums[other].clone()  # shared in all earlier files, but not in this one
                del same_as[name]
        for name in sums:
            if not torch.isfinite(model[name]).all():
                raise UsageError(
                    f"{path}: {name} has numbers that are not finite, so the training diverged; leave it out"
                )
            sums[name] += model[name]
        if verbose:
            print(f"read {path} ({number} of {len(files)})", flush=True)

    for name in list(sums):
        model[name] = (sums.pop(name) / len(files)).to(model[name].dtype)
    for name, other in same_as.items():
        model[name] = model[other]
    return state


class _Description(NamedTuple):
    """The properties that checkpoints must share to be averaged."""

    path: str
    arch: str | None
    weights: dict[str, tuple[tuple[int, ...], str]]  # (shape, kind) of each weight, keyed by its name
    agreeing: dict[str, torch.Tensor]  # the weights whose values must be equal (`assembly.must_agree`)


def _describe(path: str, state: Mapping[str, Any]) -> _Description:
    weights = {
        name: (tuple(tensor.shape), "floating-point" if tensor.is_floating_point() else "integer")
        for name, tensor in state["model"].items()
        if torch.is_tensor(tensor)
    }
    agreeing = {name: tensor for name, tensor in state["model"].items() if name.endswith(tuple(must_agree()))}
    options = options_of(state, "model")
    return _Description(path, options.get("arch") or options.get("_name"), weights, agreeing)


def _refuse_difference(first: _Description, second: _Description) -> None:
    """Raise UsageError with the first property in which two checkpoints differ."""
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
    """Return the names of the tensors that share the memory of an earlier one, mapped to its name."""
    earlier: dict[Any, str] = {}
    same_as = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if earlier.setdefault(place, name) != name:
            same_as[name] = earlier[place]
    return same_as


def _chosen_paths(args: argparse.Namespace) -> list[str]:
    """Return the paths of the checkpoints that the options of the command name."""
    counts = {kind: getattr(args, f"num_{kind}_checkpoints") for kind in FILE_NAMES}
    kind = next((kind for kind, count in counts.items() if count is not None), None)
    if args.checkpoint_upper_bound is not None and kind not in ("epoch", "update"):
        raise UsageError(
            "--checkpoint-upper-bound needs --num-epoch-checkpoints or --num-update-checkpoints; add one of "
            "them, or leave it out"
        )
    for path in args.inputs:
        if not os.path.exists(path):
            raise UsageError(
                f"--inputs {path} does not exist; give checkpoint files, or a folder of them and a --num "
                "option such as --num-epoch-checkpoints N"
            )
    folders = [path for path in args.inputs if os.path.isdir(path)]
    if kind is None and folders:
        raise UsageError(
            f"--inputs {folders[0]} is a folder; add a --num option such as --num-epoch-checkpoints N, or "
            "give the files in it"
        )
    if kind is None:
        return args.inputs
    if args.inputs != folders or len(folders) > 1:
        raise UsageError(
            f"--num-{kind}-checkpoints chooses from one folder, not from {' '.join(args.inputs)}; leave it "
            "out, or give one folder"
        )
    return find_checkpoints(folders[0], kind, counts[kind], args.checkpoint_upper_bound)
