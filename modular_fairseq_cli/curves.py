"""Draw learning curves, averaged over seeds, from the logs of fairseq-train alone.

    modular-fairseq curves --system base base/seed-*/train.log --system MAE-7 mae-7/seed-*/train.log
    modular-fairseq curves --system MAE-7 mae-7/seed-*/train.log --number gate_entropy --out gates

Each --system has a name and the logs of its seeds, in fairseq's format json or simple. A curve is the mean
over seeds of a number of the log, at the updates that all seeds have logged. Its band is the 95 % interval of
the mean, by Student's t over the seeds. A system with a single log has no band. The axis of perplexities is
logarithmic.

The command writes OUT.tsv (system, update, mean, low, high, number of seeds) and draws OUT.svg and OUT.png.
"""

import argparse
import io
import os
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file
from modular_fairseq_cli.scoring.intervals import over_seeds
from modular_fairseq_cli.training_log import CURVES, read_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBERS = {curve.key: curve for curve in CURVES}
COLOURS = 10  # of matplotlib; further curves have other styles of line
STYLES = ("-", "--", ":", "-.")


class Point(NamedTuple):
    """A point of a curve: the mean over seeds at an update, with its 95 % interval if there are several."""

    update: int
    mean: float
    low: float | None
    high: float | None
    seeds: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "modular-fairseq curves --system NAME LOG [LOG ...] [--system ...] [options]"
    parser.add_argument(
        "--system",
        nargs="+",
        action="append",
        required=True,
        metavar="WORD",
        help="name of a system, and the log of each of its seeds; may be given several times",
    )
    parser.add_argument(
        "--number", default="ppl", choices=NUMBERS, help="number of the log to draw (default: ppl)"
    )
    parser.add_argument(
        "--split",
        default="valid",
        metavar="NAME",
        help="valid or another validation set, train (means of epochs) or train_inner (default: valid)",
    )
    parser.add_argument(
        "--out",
        default="curves",
        metavar="PATH",
        help="beginning of the names of the files (default: curves)",
    )


def run(args: argparse.Namespace) -> None:
    systems = {}
    if os.path.basename(args.out) == "":
        raise UsageError(f"--out {args.out}: give the beginning of the names of the files, such as curves")
    for name, *logs in args.system:
        if os.path.isfile(name):
            raise UsageError(f"--system {name}: the first word is the name of the system, and this is a file")
        if not logs or name in systems:
            why = "is given twice" if name in systems else "has no log"
            raise UsageError(f"--system {name} {why}; give each system once, with the logs of its seeds")
        places = [os.path.realpath(log) for log in logs]
        for log, place in zip(logs, places, strict=True):
            if places.count(place) > 1:
                raise UsageError(f"--system {name}: {log} is given twice; give the log of each seed once")
        systems[name] = average([_curve(log, args.split, args.number) for log in logs])
        if not systems[name]:
            raise UsageError(
                f"--system {name}: its logs have no update in common; give logs of trainings that differ in "
                "their seed only"
            )
    lines = ["system\tupdate\tmean\tlow\thigh\tseeds"]
    for name, points in systems.items():
        for point in points:
            lines.append("\t".join([name, *("" if each is None else str(each) for each in point)]))
    title = f"{args.split}: mean over seeds (their number in brackets), 95 % interval"
    label = NUMBERS[args.number].label
    figures = [Path(f"{args.out}.{kind}") for kind in ("svg", "png")]
    try:
        write_file(f"{args.out}.tsv", "\n".join(lines) + "\n")
        draw(systems, label, title, *figures, log=args.number == "ppl")
    except OSError as error:
        raise UsageError(
            f"--out {args.out}: the files cannot be written ({error.strerror}); give another path"
        ) from None
    print(f"{args.out}.tsv, {args.out}.svg, {args.out}.png")


def average(curves: list[dict[int, float]]) -> list[Point]:
    """Return the mean of curves at the updates that all of them have.

    Args:
        curves: for each seed the values by update.
    """
    shared = sorted(set.intersection(*map(set, curves)))
    points = []
    for update in shared:
        values = [curve[update] for curve in curves]
        interval = over_seeds(values)
        low, high = (interval.low, interval.high) if interval else (None, None)
        points.append(Point(update, fmean(values), low, high, len(values)))
    return points


def _curve(log: str, split: str, number: str) -> dict[int, float]:
    """Return a curve of a log, its values by update.

    Raises:
        UsageError: the log cannot be read, or has no such number.
    """
    curves = read_log(Path(log))
    if number not in curves.get(split, {}):
        known = [f"{name} {key}" for name, keys in curves.items() for key in keys]
        raise UsageError(
            f"{log} has no {number} of {split}; it has {', '.join(known)}: give these by --split and --number"
        )
    return dict(curves[split][number])


def draw(systems: dict[str, list[Point]], label: str, title: str, *paths: Path, log: bool = False) -> None:
    """Draw the curves of systems into files, whose endings are .svg or .png.

    Args:
        systems: the points of each curve.
        label: what the values are, with their unit.
        title: the title of the figure.
        paths: the files.
        log: whether the axis of the values is logarithmic.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "the figure needs matplotlib; install it with pip install matplotlib, or run scripts/setup.sh"
        ) from None
    from modular_fairseq_cli.report.figure_parts import literal  # needs matplotlib, too

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    for number_of_line, (name, points) in enumerate(systems.items()):
        updates = [point.update for point in points]
        style = STYLES[number_of_line // COLOURS % len(STYLES)]
        legend = f"{literal(name)} ({points[0].seeds})"
        (line,) = axes.plot(updates, [point.mean for point in points], style, label=legend)
        bands = [(each.update, each.low, each.high) for each in points if each.low is not None]
        if bands:
            x, lows, highs = zip(*bands, strict=True)
            axes.fill_between(x, lows, highs, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="update", ylabel=label)
    axes.set_title(title, fontsize="medium")
    if log:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend()
    for path in paths:
        save(figure, path)


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as .svg or .png, atomically. The same numbers give the same file.

    Raises:
        OSError: the file cannot be written.
    """
    import matplotlib

    picture = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "modular_fairseq"}):
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(picture, format=path.suffix[1:], dpi=160, metadata=metadata)
    write_file(path, picture.getvalue())
