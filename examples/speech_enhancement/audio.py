"""Read and write audio files, mix speech with noise, and compute spectra and waves from each other."""

from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import files_below

ENDINGS = (".wav", ".flac")
WINDOW, HOP = 32, 16  # milliseconds
FLOOR = 5e-4  # magnitudes far below it hardly matter; -66 dB of a sine of amplitude 1


class Frames(NamedTuple):
    """The short-time Fourier transform of waves of a sample rate.

    A window has 32 ms, which are 512 points at 16 kHz and 256 at 8 kHz. Frame t is around the sample t * hop.

    Args:
        rate: samples a second.
    """

    rate: int

    @property
    def window(self) -> int:
        """The number of samples of a window."""
        return WINDOW * self.rate // 1000

    @property
    def hop(self) -> int:
        """The number of samples from one frame to the next."""
        return HOP * self.rate // 1000

    @property
    def bins(self) -> int:
        """The number of frequencies: 257 at 16 kHz."""
        return self.window // 2 + 1

    def count(self, samples: Any) -> Any:
        """Return the number of frames of a wave; of many, if `samples` is an array."""
        return 1 + samples // self.hop

    def spectrum(self, wave: Tensor) -> Tensor:
        """Return the complex spectrum [frames, bins] of a wave [samples]; a sine of amplitude 1 has 1."""
        return torch.stft(
            wave, self.window, self.hop, window=self._weights, pad_mode="constant", return_complex=True
        ).T

    def wave(self, spectrum: Tensor, samples: int) -> Tensor:
        """Return the wave [samples] of a complex spectrum [frames, bins]."""
        return torch.istft(spectrum.T, self.window, self.hop, window=self._weights, length=samples)

    @property
    def _weights(self) -> Tensor:
        return torch.hann_window(self.window) / (self.window / 4)


def log_magnitude(spectrum: Tensor) -> Tensor:
    """Return log(1 + |x| / FLOOR) of a spectrum.

    The paper says "log-spectral magnitude". Without a floor the loss would be decided by silence, where
    log |x| falls without bound.
    """
    return (spectrum.abs() / FLOOR).log1p()


def with_magnitude(spectrum: Tensor, log_magnitudes: Tensor) -> Tensor:
    """Return a spectrum with the phases of `spectrum` and other magnitudes; both [frames, bins]."""
    return torch.polar(log_magnitudes.clamp(min=0).expm1() * FLOOR, spectrum.angle())


def soundfile() -> ModuleType:
    """Import soundfile. Raises UsageError if it is missing."""
    try:
        import soundfile
    except ModuleNotFoundError:
        raise UsageError(
            "audio files need the package soundfile; install it by: pip install 'modular_fairseq[speech]'"
        ) from None
    return soundfile


class Sound(NamedTuple):
    """What the header of an audio file says: its samples a second, and its length in seconds."""

    rate: int
    seconds: float


def look(path: Path) -> Sound:
    """Return what the header of an audio file says.

    Raises:
        UsageError: soundfile is missing, there is no such file, it is damaged, or it has no sample.
    """
    library = soundfile()
    if not path.is_file():
        raise UsageError(f"{path} is no file; give a WAV or FLAC file")
    try:
        found = library.info(path)
    except (library.LibsndfileError, OSError) as error:
        raise _damaged(path, error) from None
    if not found.frames:
        raise UsageError(f"{path} has no sound; remove it")
    return Sound(found.samplerate, found.frames / found.samplerate)


def read(path: Path, rate: int) -> Tensor:
    """Return the wave of an audio file [samples], float32, resampled to `rate`; channels are averaged.

    It computes in float64, so that processors that round differently have the same wave.

    Raises:
        UsageError: see `look`.
    """
    library = soundfile()
    look(path)
    try:
        samples, found = library.read(path, always_2d=True)  # float64
    except (library.LibsndfileError, OSError) as error:
        raise _damaged(path, error) from None
    if not np.isfinite(samples).all():
        raise UsageError(f"{path} has samples that are no numbers, or infinite; remove it, or get it again")
    wave = samples.mean(axis=1)
    if found != rate:
        from scipy.signal import resample_poly

        divisor = np.gcd(found, rate)
        wave = resample_poly(wave, rate // divisor, found // divisor)
    return torch.from_numpy(np.ascontiguousarray(wave, dtype=np.float32))


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} cannot be read as audio ({error}); remove it, or replace it by a WAV or FLAC")


def check_ending(path: Path) -> None:
    """Raise UsageError unless a file's name ends as one that `write` can write."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"{path}: give a file that ends in {' or '.join(ENDINGS)}")


def write(path: Path, wave: Tensor, rate: int) -> None:
    """Write a wave [samples] as 16-bit WAV or FLAC. Samples beyond -1 and 1 are cut.

    Raises:
        UsageError: soundfile is missing, the ending is neither of the two, or the file cannot be written.
    """
    library = soundfile()
    check_ending(path)
    try:
        library.write(path, wave.clamp(-1, 1).numpy(), rate, subtype="PCM_16")
    except (library.LibsndfileError, OSError) as error:
        raise UsageError(f"{path} cannot be written ({error}); give another path") from None


def files_in(folder: Path) -> list[Path]:
    """Return the audio files in a folder and the folders below it, in the order of their names.

    Raises:
        UsageError: there are none.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give one with audio files")
    found = [path for path in files_below(folder) if path.suffix.lower() in ENDINGS]
    if not found:
        raise UsageError(f"{folder} has no audio file ({' or '.join(ENDINGS)}); give another folder")
    return found


def mix(clean: Tensor, noise: Tensor, snr: float) -> Tensor:
    """Add noise to clean speech, so that the ratio of their powers is `snr` dB; all [samples].

    If the speech or the noise is silent, there is no such ratio, and the result is the speech.
    """
    speech_power, noise_power = clean.square().mean(), noise.square().mean()
    if min(speech_power, noise_power) <= 0:
        return clean
    return clean + noise * (speech_power / noise_power / 10 ** (snr / 10)).sqrt()


def part_of(noise: Tensor, samples: int, random: np.random.Generator) -> Tensor:
    """Return a random part of a noise; a noise that is too short is repeated."""
    noise = noise.repeat(-(-samples // len(noise)))
    begin = int(random.integers(len(noise) - samples + 1))
    return noise[begin : begin + samples]
