"""Prepare spoken digits and noises as data (Free Spoken Digit Dataset: DIGIT_SPEAKER_TAKE.wav).

Single digits have no pauses, so utterances of several digits of a speaker are made. One speaker and one noise
are kept for the test. The parts are:

    train        clean/ and noise/, which are mixed in training
    valid        pairs: known speakers and noises, other takes and other parts of the noises
    test         pairs: the speaker and the noise that the training does not have
    test-known   pairs: known speakers and noises, other takes and other parts of the noises

Waves are computed in float64. Processors and numbers of threads round sums differently, and in float32 about
one sample in two million of the written files, which have 16 bits, differed.
"""

import argparse
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from modular_fairseq_cli.errors import UsageError

from .audio import files_in, mix, part_of, read, write

RATE = 8000
NAME = re.compile(r"\d_([a-z]+)_(\d+)$")
LEVEL = 0.05  # root mean square of each digit
DIGITS = 5  # of an utterance
PAUSES = 0.1, 0.4  # the shortest and the longest, in seconds
RATIOS = (0, 5, 10, 15, 20)  # dB, of the pairs in turn
SHARES = {"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)}  # of a noise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `digits`."""
    parser.add_argument("digits", type=Path, metavar="DIGITS", help="folder of recordings")
    parser.add_argument("noises", type=Path, metavar="NOISES", help="folder of noises")
    parser.add_argument("--out", type=Path, required=True, metavar="DATA", help="folder for the data")
    parser.add_argument(
        "--test-speaker", default="yweweler", metavar="NAME", help="speaker of the test (default: yweweler)"
    )
    parser.add_argument(
        "--test-noise",
        default="running_tap",
        metavar="NAME",
        help="the beginning of the name of the test's noise (default: running_tap)",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=4,
        metavar="N",
        help="use each recording of the training in N utterances (default: 4)",
    )


def run(args: argparse.Namespace) -> None:
    """Write the data.

    Raises:
        UsageError: the folder for the data exists or cannot be made, the speaker or noise does not exist, or
            a part has too few recordings for an utterance.
    """
    if args.out.exists():
        raise UsageError(f"{args.out} exists; remove it, or give another folder")
    if args.repeat < 1:
        raise UsageError(f"--repeat {args.repeat}: give a number of at least 1")
    takes = _takes(args.digits)
    files = files_in(args.noises)
    noises = {path.stem: read(path, RATE).double() for path in files}
    if len(noises) < len(files):
        name = next(name for name in noises if sum(path.stem == name for path in files) > 1)
        raise UsageError(f"two files below {args.noises} are called {name}; rename one of them")
    unknown = [name for name in noises if name.startswith(args.test_noise)]
    speakers = {speaker for speaker, _ in takes}
    if speakers == {args.test_speaker}:
        raise UsageError(
            f"all recordings are of the speaker {args.test_speaker}; add recordings of another one"
        )
    if args.test_speaker not in speakers:
        raise UsageError(
            f"no recording is of the speaker {args.test_speaker}; give --test-speaker one of "
            f"{', '.join(sorted(speakers))}"
        )
    if len(unknown) == len(noises):
        raise UsageError(
            f"the names of all noises begin with {args.test_noise}; add a noise with another name"
        )
    if not unknown:
        raise UsageError(
            f"no noise is called {args.test_noise}; give --test-noise one of {', '.join(noises)}"
        )
    random = np.random.default_rng(1)
    known = {name: wave for name, wave in noises.items() if name not in unknown}
    parts = {
        part: {key: found for key, found in takes.items() if key[0] != args.test_speaker and key[1] == part}
        for part in SHARES
    }
    own = [path for (speaker, _), paths in takes.items() if speaker == args.test_speaker for path in paths]
    try:
        args.out.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {args.out} cannot be made ({error.strerror}); give another folder") from None
    with TemporaryDirectory(dir=args.out.absolute().parent) as unfinished:  # an error leaves nothing behind
        out = Path(unfinished) / "data"
        for number, wave in enumerate(_utterances(parts["train"], random, args.repeat)):
            _save(out / "train/clean" / f"{number:04}.wav", wave)
        for name, wave in known.items():
            _save(out / "train/noise" / f"{name}.wav", _share(wave, "train"))
        _pairs(out / "valid", parts["valid"], [_share(wave, "valid") for wave in known.values()], random)
        _pairs(out / "test-known", parts["test"], [_share(wave, "test") for wave in known.values()], random)
        _pairs(out / "test", {(args.test_speaker, "test"): own}, [noises[name] for name in unknown], random)
        used = parts | {"test-known": parts["test"], "test": {(args.test_speaker, "test"): own}}
        for part, found in used.items():
            if not (out / part / "clean").is_dir():
                raise UsageError(
                    f"{args.digits} has too few recordings for {part}, as an utterance needs {DIGITS} of one "
                    "speaker; add some: test uses all takes of --test-speaker, and for the other speakers "
                    "test-known uses takes 0 and 1, valid takes 2 to 4, and train all later takes"
                )
            told = f"{part}: {len(files_in(out / part / 'clean'))} utterances"
            if over := sum(len(paths) % DIGITS for paths in found.values()):
                total = sum(map(len, found.values()))
                rounds = f"in each of {args.repeat} rounds, " if part == "train" and args.repeat > 1 else ""
                told += f"; {rounds}{over} of {total} recordings are left over, as an utterance has {DIGITS}"
            print(told)
        out.rename(args.out)


def _takes(folder: Path) -> dict[tuple[str, str], list[Path]]:
    """Return the recordings by speaker and part; takes 0 and 1 are for tests, 2 to 4 for validation."""
    found: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(files_in(folder), key=lambda path: path.name):  # wherever the files lie
        name = NAME.fullmatch(path.stem)
        if name is None:
            raise UsageError(f"{path}: the name must be DIGIT_SPEAKER_TAKE.wav, as in 7_jackson_12.wav")
        take = int(name[2])
        part = "test" if take < 2 else "valid" if take < 5 else "train"
        found.setdefault((name[1], part), []).append(path)
    return found


def _utterances(
    takes: dict[tuple[str, str], list[Path]], random: np.random.Generator, repeat: int = 1
) -> list[Tensor]:
    """Return utterances [samples]; each has digits of one speaker in random order."""
    utterances = []
    for _ in range(repeat):
        for paths in takes.values():
            order = [paths[i] for i in random.permutation(len(paths))]
            for first in range(0, len(order) - DIGITS + 1, DIGITS):
                pieces = [_pause(random)]
                for path in order[first : first + DIGITS]:
                    wave = read(path, RATE).double()
                    if not wave.abs().max() > 0:
                        raise UsageError(f"{path} is silent; remove it")
                    pieces += [wave * (LEVEL / wave.square().mean().sqrt()), _pause(random)]
                utterances.append(torch.cat(pieces))
    return utterances


def _pause(random: np.random.Generator) -> Tensor:
    """Return silence [samples]."""
    return torch.zeros(int(RATE * random.uniform(*PAUSES)), dtype=torch.float64)


def _pairs(
    folder: Path, takes: dict[tuple[str, str], list[Path]], noises: list[Tensor], random: np.random.Generator
) -> None:
    """Write utterances, clean and with noise."""
    for number, wave in enumerate(_utterances(takes, random)):
        noise = part_of(noises[number % len(noises)], len(wave), random)
        noisy = mix(wave, noise, RATIOS[number % len(RATIOS)])
        loudest = max(1.0, float(noisy.abs().max()), float(wave.abs().max()))
        for kind, each in (("clean", wave), ("noisy", noisy)):
            _save(folder / kind / f"{number:04}.wav", each / loudest)


def _share(noise: Tensor, part: str) -> Tensor:
    """Return the share of a noise that is for a part of the data."""
    begin, end = (int(share * len(noise)) for share in SHARES[part])
    if begin == end:
        raise UsageError("a noise is too short to be divided; give noises of a second or more")
    return noise[begin:end]


def _save(path: Path, wave: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, wave, RATE)
