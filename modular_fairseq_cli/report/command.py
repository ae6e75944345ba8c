"""Make one HTML file of the results of `modular-fairseq analyze` and of training logs.

It shows curves of the training, gates, competition, attention maps and more.

    modular-fairseq report analysis --out report.html
    modular-fairseq report before after --label before after --log train.log train.log \\
        --out report.html --pictures figures
    modular-fairseq report --log base/train.log mae/train.log --out report.html --pictures figures

ANALYSIS is a folder that `modular-fairseq analyze WHAT DATA --path CHECKPOINT --out ANALYSIS` wrote. The page
shows several of them side by side, and shows a section only if an analysis has data for it. Without any
ANALYSIS it shows the trainings whose logs are given: learning curves, and gates and losses of mechanisms over
the updates. Any browser opens the file; it needs neither network nor server.
"""

import argparse
import os
import re
from pathlib import Path
from types import ModuleType

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file
from modular_fairseq_cli.report.checkpoint import Checkpoint, read_analysis, read_training
from modular_fairseq_cli.report.page import build_page
from modular_fairseq_cli.training_log import read_log

FORMATS = ("svg", "png")
MOST = 6  # checkpoints side by side, as page and pictures have six colours for them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folders, their labels and logs, and the files to write."""
    parser.add_argument(
        "analyses",
        nargs="*",
        type=Path,
        metavar="ANALYSIS",
        help="folder that `analyze --out` wrote; several are shown side by side",
    )
    parser.add_argument(
        "--label",
        nargs="+",
        metavar="NAME",
        help="name of each ANALYSIS, or of each log; default: its arch, or its folder if archs repeat",
    )
    parser.add_argument(
        "--log",
        nargs="+",
        type=Path,
        default=[],
        metavar="TRAINLOG",
        help="output of fairseq-train for each ANALYSIS, in the same order, or of each training to show if "
        "there is no ANALYSIS",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the HTML file to write")
    parser.add_argument(
        "--pictures", type=Path, metavar="FOLDER", help="also write the figures there; needs matplotlib"
    )
    parser.add_argument(
        "--format", type=_formats, metavar="svg,png", help="formats of the pictures; default: both"
    )


def run(args: argparse.Namespace) -> None:
    """Write the page, and the pictures if they are asked for.

    Raises UsageError, before anything is written, if an option makes no sense or a folder cannot be used.
    """
    if args.format and not args.pictures:
        raise UsageError("--format has no effect without --pictures; add --pictures FOLDER")
    for option, path in (("--out", args.out), ("--pictures", args.pictures)):
        if path is not None:
            _check_writable(option, path)
    read = [*args.log, *(path for folder in args.analyses for path in sorted(folder.glob("*")))]
    if args.out.resolve() in [path.resolve() for path in read]:
        raise UsageError(f"--out {args.out} is a file that the report is made of; give another file")
    checkpoints = _read(args)
    page = build_page(checkpoints)
    drawn = _pictures().draw(checkpoints, args.format or FORMATS) if args.pictures else {}
    _write("--out", args.out, page)
    if args.pictures:
        _write_pictures(args.pictures, drawn)
    sentences = max((len(checkpoint.sentences) for checkpoint in checkpoints), default=0)
    print(
        f"{args.out}: {len(page.encode()) / 1e6:.1f} MB, {len(checkpoints)} "
        + (f"checkpoint(s), {sentences} sentence(s) to step through" if args.analyses else "training(s)")
    )
    if args.pictures:
        print(f"{args.pictures}: {len(drawn)} files")


def _read(args: argparse.Namespace) -> list[Checkpoint]:
    """Return the checkpoints of all folders, with their logs and labels; or the trainings of the logs.

    Raises UsageError if a folder or log cannot be read, or if the numbers of folders, logs and labels differ.
    """
    given, what = (args.analyses, "ANALYSIS folder") if args.analyses else (args.log, "log")
    if not given:
        raise UsageError("there is nothing to show; give ANALYSIS folders, or the logs of trainings by --log")
    if len(given) > MOST:
        raise UsageError(f"{len(given)} {what}s are too many to tell apart; give at most {MOST}")
    if args.label and len(args.label) != len(given):
        raise UsageError(f"--label: {len(args.label)} name(s) for {len(given)} {what}(s); give one for each")
    if len(args.log) > len(given):
        raise UsageError(
            f"--log: {len(args.log)} files for {len(given)} {what}(s); give at most one for each"
        )
    if args.analyses:
        checkpoints = [read_analysis(folder) for folder in given]
        for checkpoint, log in zip(checkpoints, args.log, strict=False):
            checkpoint.log = read_log(log)
    else:
        checkpoints = [read_training(log) for log in given]
    archs = [checkpoint.label for checkpoint in checkpoints]
    labels = args.label or (archs if _differ(archs) else _folder_names(given))
    if not _differ(labels):
        raise UsageError(
            "--label: two checkpoints have the same name, or one has none; give each a name of its own"
        )
    for checkpoint, label in zip(checkpoints, labels, strict=True):
        checkpoint.label = label
    return checkpoints


def _differ(labels: list[str]) -> bool:
    """Return whether there are no two equal labels, and no empty one."""
    return len(set(labels)) == len(labels) and all(labels)


def _folder_names(paths: list[Path]) -> list[str]:
    """Return a name for each folder, or for the folder of each file: the end of its path that tells it apart.

    Files of one folder have their own names.
    """
    folders = [path.resolve().parent if path.is_file() else path.resolve() for path in paths]
    if len(set(folders)) < len(folders):
        folders = [path.resolve() for path in paths]
    names = [folder.name for folder in folders]
    if _differ(names):
        return names
    top = os.path.commonpath(folders)
    return [os.path.relpath(folder, top) for folder in folders]


def _formats(text: str) -> tuple[str, ...]:
    """Return the formats in a text such as "svg,png", for argparse."""
    names = tuple(dict.fromkeys(re.split(r"[,\s]+", text.strip())))
    if not set(names) <= set(FORMATS):
        raise argparse.ArgumentTypeError(f"{text}: use svg, png or svg,png")
    return names


def _check_writable(option: str, path: Path) -> None:
    """Raise UsageError if the path of an option cannot be written.

    This comes before reading and drawing, which take seconds.
    """
    folder = path if option == "--pictures" and path.is_dir() else path.absolute().parent
    if option == "--out" and path.is_dir():
        raise UsageError(f"--out {path} is a folder; give the name of a file, such as {path / 'report.html'}")
    if option == "--pictures" and path.exists() and not path.is_dir():
        raise UsageError(f"--pictures {path} is a file; give a folder")
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: the folder {folder} does not exist; make it, or give another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {path} cannot be written (no permission in {folder}); give another place")


def _pictures() -> ModuleType:
    """Import the module of the pictures. Raises UsageError if matplotlib is missing."""
    try:
        from modular_fairseq_cli.report import pictures
    except ImportError as error:
        raise UsageError(
            f"--pictures needs matplotlib ({error}); install it with `pip install matplotlib`"
        ) from None
    return pictures


def _write_pictures(folder: Path, pictures: dict[str, bytes]) -> None:
    """Write pictures to the files of their names in a folder, which is made if necessary."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--pictures {folder} cannot be made ({error.strerror}); give another folder"
        ) from None
    for name, content in pictures.items():
        _write("--pictures", folder / name, content)


def _write(option: str, file: Path, content: str | bytes) -> None:
    """Write a file. Raises UsageError, which names the option, if that fails."""
    try:
        write_file(file, content)
    except OSError as error:
        raise UsageError(
            f"{option} {file} cannot be written ({error.strerror}); give another place"
        ) from None
