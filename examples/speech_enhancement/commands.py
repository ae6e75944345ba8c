"""The commands of `python examples/speech_enhancement`: toys, digits, evaluate and clean."""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from fairseq import checkpoint_utils
from tabulate import tabulate
from torch import Tensor, nn

from modular_fairseq.loading import refuse_diverged
from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq_cli.errors import UsageError, find_usage_error
from modular_fairseq_cli.files import write_file

from . import digits, toys
from .audio import Frames, check_ending, log_magnitude, look, read, with_magnitude, write
from .scores import NAMES, score
from .training import SpeechEnhancement


def main(about: str | None) -> None:
    """Run a command. An error that the user can put right is one line on standard error, and exit code 1.

    Args:
        about: the text of --help.
    """
    parser = argparse.ArgumentParser(
        prog="speech_enhancement", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (add_arguments, run, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        add_arguments(command)
        command.set_defaults(run=run)
    args = parser.parse_args()
    try:
        args.run(args)
    except Exception as error:
        known = find_usage_error(error)
        if known is None:
            raise
        sys.exit(f"speech_enhancement: error: {known}")


def load(path: Path, data: str = "") -> tuple[nn.Module, SpeechEnhancement]:
    """Return a trained model in evaluation mode, and its task.

    Raises:
        UsageError: there is no such checkpoint, its model has another task, or its weights are not finite.
    """
    state = load_checkpoint(path)
    if (state.get("cfg") or {}).get("task", {}).get("_name") != "speech_enhancement":
        raise UsageError(f"{path} has a model of another task; give one of --task speech_enhancement")
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides={"data": data})
    refuse_diverged(models[0], path)
    return models[0].eval(), task


def check_out(path: Path) -> None:
    """Raise UsageError if a file that is to be written is a folder, or its folder does not exist."""
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder; give a file")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--out {path}: {path.parent} is no folder; give a file in one that exists")


@torch.no_grad()
def enhance(model: nn.Module, noisy: Tensor, frames: Frames) -> Tensor:
    """Return a wave [samples] without its noise: estimated magnitudes, and the phases of the noisy wave.

    Silence is appended up to the middle of another window. Without it, the last samples would lie under the
    end of one window alone, and the inverse transform would divide by its weights, which are nearly 0 there.
    """
    spectrum = frames.spectrum(torch.nn.functional.pad(noisy, (0, -len(noisy) % frames.hop)))
    there = torch.ones(1, len(spectrum), dtype=torch.bool)
    estimate = model(log_magnitude(spectrum).unsqueeze(0), there)[0]
    return frames.wave(with_magnitude(spectrum, estimate), len(noisy))


def clean(args: argparse.Namespace) -> None:
    """Remove the noise from an audio file."""
    check_out(args.out)
    check_ending(args.out)
    if args.out.resolve() == args.file.resolve():
        raise UsageError(f"--out {args.out}: this is the recording that is cleaned; give another file")
    sound = look(args.file)
    model, task = load(args.path)
    rate = task.cfg.sample_rate
    if sound.rate != rate:
        print(f"{args.file} is resampled from {sound.rate:,} to {rate:,} Hz", file=sys.stderr)
    wave = enhance(model, read(args.file, rate), Frames(rate))
    if cut := int((wave.abs() > 1).sum()):
        print(f"{args.out}: {cut:,} of {len(wave):,} samples are too loud and are cut at 1", file=sys.stderr)
    write(args.out, wave, rate)
    print(f"{args.out}: {len(wave) / rate:.1f} s at {rate:,} Hz")


def _clean_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="WAV or FLAC file")
    parser.add_argument("--path", type=Path, required=True, metavar="CHECKPOINT", help="trained model")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="WAV or FLAC file to write")


def evaluate(args: argparse.Namespace) -> None:
    """Measure PESQ, SI-SDR (dB) and STOI of noisy speech, and of what a model makes of it."""
    if args.out:
        check_out(args.out)
    model, task = load(args.path, args.data)
    task.load_dataset(args.gen_subset)
    dataset, rate = task.dataset(args.gen_subset), task.cfg.sample_rate
    rows, left_out = [], []
    for index, recording in enumerate(dataset.recordings):
        noisy, reference = dataset.waves(index)
        found = [score(each, reference, rate) for each in (noisy, enhance(model, noisy, dataset.frames))]
        row: dict[str, Any] = {"recording": recording.clean.name}
        for which, scores in zip(("noisy", "model"), found, strict=True):
            if isinstance(scores, str):
                left_out.append(f"{recording.clean.name} ({which}: {scores})")
                row["unscored"] = f"{which}: {scores}"
                break
            row |= {f"{which} {name}": value for name, value in scores.items()}
        rows.append(row)
    scored = [row for row in rows if "unscored" not in row]
    names = [f"{which} {name}" for which in ("noisy", "model") for name in NAMES] if scored else []
    means = {name: fmean(row[name] for row in scored) for name in names}
    if args.out:
        write_file(args.out, json.dumps({"means": means, "recordings": rows}, indent=1) + "\n")
    if not scored:
        raise UsageError(f"no recording of {args.gen_subset} can be scored: {', '.join(left_out[:3])}")
    table = [[which, *(means[f"{which} {name}"] for name in NAMES)] for which in ("noisy", "model")]
    print(tabulate(table, ["", *NAMES], floatfmt=".3f", tablefmt="plain"))
    print(f"{len(scored):,} recordings" + (f"; left out: {', '.join(left_out)}" if left_out else ""))


def _evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="folder with a folder for each part of the data")
    parser.add_argument("--path", type=Path, required=True, metavar="CHECKPOINT", help="trained model")
    parser.add_argument(
        "--gen-subset", default="valid", metavar="PART", help="part of the data (default: valid)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write the scores of each recording there, as JSON"
    )


# For each command: a function that adds its options, the function that runs it, and a line for the help.
COMMANDS = {
    "toys": (toys.add_arguments, toys.run, "write toy recordings and noises, for a first try"),
    "digits": (digits.add_arguments, digits.run, "prepare spoken digits and noises as data"),
    "evaluate": (_evaluate_arguments, evaluate, "measure PESQ, SI-SDR and STOI on a part of the data"),
    "clean": (_clean_arguments, clean, "remove the noise from an audio file"),
}
