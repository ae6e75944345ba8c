"""The recordings of a folder as a data set of fairseq.

A part of the data, such as train, is a folder in one of two forms:

    clean/ noisy/    pairs of the same speech, which have the same file name. In the corpora of the Deep Noise
                     Suppression challenge (DNS) the names of a pair have the same "fileid_" and number
    clean/ noise/    speech and noise, which are mixed. The training data get new mixtures in every epoch. In
                     other parts each recording always gets the same noise
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from fairseq.data import FairseqDataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from modular_fairseq_cli.errors import UsageError

from .audio import Frames, Sound, files_in, log_magnitude, look, mix, part_of, read

logger = logging.getLogger(__name__)
SAME_LENGTH = 1e-3  # seconds
FILE_ID = re.compile(r"fileid_\d+$")


class Recording(NamedTuple):
    """A recording of clean speech, and of the same with noise; `noisy` is None if noise is to be added."""

    clean: Path
    noisy: Path | None
    seconds: float


class Recordings(NamedTuple):
    """The recordings of a part of the data, and noises to add to them; no noises if they come in pairs."""

    recordings: list[Recording]
    noises: list[Path]


def find(folder: Path, rate: int) -> Recordings:
    """Find the recordings of a part of the data.

    Args:
        folder: the folder of the part, see the top of this file.
        rate: the sample rate of the model. A line of the log tells how many files have another one.

    Raises:
        UsageError: there is no such folder, it has neither form or both, a file is damaged, or a recording
            lacks its partner.
    """
    if not folder.is_dir():
        parts = sorted(each.parent.name for each in folder.parent.glob("*/clean"))
        has = (
            f"{folder.parent} has the parts {', '.join(parts)}" if parts else "give the folder that holds it"
        )
        raise UsageError(f"{folder} is no folder; {has}")
    if not (folder / "clean").is_dir() or not any((folder / each).is_dir() for each in ("noisy", "noise")):
        raise UsageError(
            f"{folder} must have a folder clean/ with speech, and a folder noise/ with noises to mix with it "
            "or a folder noisy/ with the same speech and noise"
        )
    if (folder / "noisy").is_dir() and (folder / "noise").is_dir():
        raise UsageError(
            f"{folder} has noise/ and noisy/; keep noisy/ for pairs, or noise/ for noises to mix with clean/"
        )
    clean = files_in(folder / "clean")
    sounds = {path: look(path) for path in clean}
    if (folder / "noisy").is_dir():
        noises: list[Path] = []
        noisy = _by_name(folder / "noisy", files_in(folder / "noisy"))
        sounds |= {path: look(path) for path in noisy.values()}
        speech = _by_name(folder / "clean", clean)
        for files, others, place in ((speech, noisy, "noisy"), (noisy, speech, "clean")):
            for name in sorted(files.keys() - others.keys()):
                raise UsageError(
                    f"{files[name]} has no partner in {folder / place}; add it, or remove the file"
                )
        recordings = [Recording(path, noisy[name], sounds[path].seconds) for name, path in speech.items()]
        differences = [
            abs(sounds[each].seconds - sounds[other].seconds) for each, other, _ in recordings if other
        ]
        _say_lengths(folder, differences)
    else:
        noises = files_in(folder / "noise")
        sounds |= {path: look(path) for path in noises}
        recordings = [Recording(path, None, sounds[path].seconds) for path in clean]
    _say_rates(folder, sounds, rate)
    return Recordings(recordings, noises)


def _by_name(folder: Path, files: Sequence[Path]) -> dict[str, Path]:
    """Return the files by what the two files of a pair have in common: a "fileid_", or path and name.

    Raises:
        UsageError: two files have the same.
    """
    found: dict[str, Path] = {}
    for path in files:
        number = FILE_ID.search(path.stem)
        name = number[0] if number else str(path.relative_to(folder).with_suffix(""))
        if name in found:
            raise UsageError(f"{found[name]} and {path} have the same name, {name}; rename one pair")
        found[name] = path
    return found


def _say_lengths(folder: Path, differences: list[float]) -> None:
    """Say how many pairs differ in length, for the differences in seconds."""
    if count := sum(each > SAME_LENGTH for each in differences):
        logger.warning(
            f"{folder}: the two files of {count:,} of {len(differences):,} pairs differ in length, by up to "
            f"{max(differences):.3f} s; the end of the longer one is left out"
        )


def _say_rates(folder: Path, sounds: dict[Path, Sound], rate: int) -> None:
    """Say how many files will be resampled."""
    for other, count in sorted(Counter(sound.rate for sound in sounds.values()).items()):
        if other != rate:
            logger.info(f"{folder}: {count:,} files are resampled from {other:,} to {rate:,} Hz")


@cache
def _say_silent(path: Path) -> None:
    """Say, once in a process, that a noise has no sound."""
    logger.warning(f"{path} is silent, so speech that is mixed with it stays without noise; remove it")


class SpeechData(FairseqDataset):
    """Pairs of noisy and clean speech.

    Args:
        found: the recordings and noises.
        rate: samples a second.
        snr: the lowest and the highest signal-to-noise ratio of mixtures, in dB.
        seed: the seed of the noises.
        is_training: whether each epoch has new noises.
        longest: seconds after which a recording is cut, from a random place on. 0: none is cut.
    """

    def __init__(
        self,
        found: Recordings,
        rate: int,
        snr: tuple[float, float],
        seed: int,
        is_training: bool,
        longest: float = 0.0,
    ):
        self.recordings, self.noises = found
        self.frames, self.snr, self.seed, self.is_training = Frames(rate), snr, seed, is_training
        self.longest = longest
        self.epoch = 0
        lengths = [each.seconds for each in self.recordings]
        seconds = np.minimum(lengths, longest) if longest else np.asarray(lengths)
        self.sizes = self.frames.count((seconds * rate).astype(np.int64))

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False in training: a process that reads data would keep the noises of the first epoch."""
        return not self.is_training

    def ordered_indices(self) -> np.ndarray:
        """Return the order in which batches are filled: in training a new random one in each epoch."""
        order = np.arange(len(self))
        return (
            np.random.default_rng((self.seed, self.epoch)).permutation(order) if self.is_training else order
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the noises of an epoch; fairseq calls this before each one."""
        if self.is_training:
            self.epoch = epoch

    def waves(self, index: int) -> tuple[Tensor, Tensor]:
        """Return a recording, noisy and clean, each [samples]."""
        recording, rate = self.recordings[index], self.frames.rate
        random = np.random.default_rng((self.seed, self.epoch, index))
        clean = read(recording.clean, rate)
        if recording.noisy is None:
            path = self.noises[random.integers(len(self.noises))]
            if not (noise := read(path, rate)).any():
                _say_silent(path)
            noisy = mix(clean, part_of(noise, len(clean), random), random.uniform(*self.snr))
        else:
            noisy = read(recording.noisy, rate)
        samples = min(len(clean), len(noisy))
        if self.longest and (kept := int(self.longest * rate)) < samples:
            begin = int(random.integers(samples - kept + 1))
            return noisy[begin : begin + kept], clean[begin : begin + kept]
        return noisy[:samples], clean[:samples]

    def __getitem__(self, index: int) -> dict:
        noisy, clean = map(log_magnitude, map(self.frames.spectrum, self.waves(index)))
        return {"id": index, "noisy": noisy, "clean": clean}

    def __len__(self) -> int:
        return len(self.recordings)

    def collater(self, samples: Sequence[dict]) -> dict:
        """Return a batch: log magnitudes [B, T, bins], with zeros for padding, and frames, bool [B, T]."""
        if not samples:
            return {}
        lengths = torch.tensor([len(each["noisy"]) for each in samples])
        frames = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        return {
            "id": torch.tensor([each["id"] for each in samples]),
            "net_input": {
                "noisy": pad_sequence([each["noisy"] for each in samples], batch_first=True),
                "frames": frames,
            },
            "target": pad_sequence([each["clean"] for each in samples], batch_first=True),
            "ntokens": int(lengths.sum()),
            "nsentences": len(samples),
        }

    def num_tokens(self, index: int) -> int:
        """Return the number of frames."""
        return int(self.sizes[index])

    size = num_tokens

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Return the numbers of frames."""
        return self.sizes[indices]
