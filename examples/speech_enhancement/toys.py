"""Write toy recordings for a first try: harmonic sounds in place of spoken digits, and three noises."""

import argparse
from pathlib import Path

import numpy as np
import torch

from modular_fairseq_cli.errors import UsageError

from .audio import write

RATE, NOISE_RATE = 8000, 16000
SPEAKERS = {"anna": 220.0, "bert": 110.0, "carl": 140.0}  # the pitch of each voice in Hz
TAKES = 8
NOISE_SECONDS = 10
FORMANTS = ((300, 900), (500, 1500), (700, 1100), (400, 2000), (600, 1700))  # Hz, of the vowels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `toys`."""
    parser.add_argument("out", type=Path, metavar="TOYS", help="folder to write")


def run(args: argparse.Namespace) -> None:
    """Write TOYS/digits/DIGIT_SPEAKER_TAKE.wav and TOYS/noises/NAME.wav.

    Raises:
        UsageError: the folders cannot be made.
    """
    random = np.random.default_rng(1)
    digits, noises = args.out / "digits", args.out / "noises"
    try:
        for folder in (digits, noises):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{args.out} cannot be written ({error.strerror}); give another folder") from None
    for speaker, pitch in SPEAKERS.items():
        for digit in range(10):
            for take in range(TAKES):
                vowels = FORMANTS[digit // 2], FORMANTS[digit % 5]
                wave = np.concatenate([vowel(pitch, each, random) for each in vowels])
                write(digits / f"{digit}_{speaker}_{take}.wav", torch.from_numpy(wave).float(), RATE)
    for name, wave in make_noises(random).items():
        write(noises / f"{name}.wav", torch.from_numpy(wave).float(), NOISE_RATE)
    print(f"{digits}: {10 * TAKES * len(SPEAKERS)} recordings; {noises}: 3 noises")


def vowel(pitch: float, formants: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Return the harmonics of a pitch that are near two formants, for .15 to .25 s [samples]."""
    time = np.arange(int(RATE * random.uniform(0.15, 0.25))) / RATE
    pitch *= random.uniform(0.95, 1.05)
    wave = np.zeros_like(time)
    for harmonic in np.arange(pitch, RATE / 2, pitch):
        strength = sum(np.exp(-(((harmonic - formant) / 150) ** 2)) for formant in formants) + 0.01
        wave += strength * np.sin(2 * np.pi * (harmonic * time + random.random()))
    return 0.1 * wave * np.hanning(len(wave))


def make_noises(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return three noises [samples]: a hiss, a hum, and clicks."""
    samples = NOISE_SECONDS * NOISE_RATE
    time = np.arange(samples) / NOISE_RATE
    hum = sum(np.sin(2 * np.pi * 50 * k * time) / k for k in (1, 2, 3, 5, 7))
    clicks = random.normal(size=samples) * np.repeat(random.random(samples // 400) > 0.9, 400)
    return {"hiss": 0.1 * random.normal(size=samples), "hum": 0.1 * hum, "clicks": 0.2 * clicks}
