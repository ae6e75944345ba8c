"""Make hypotheses and references for the tests of `modular-fairseq score`, and call it."""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys

from sacremoses import MosesTokenizer

from modular_fairseq_cli.scoring import command as scoring
from modular_fairseq_cli.scoring.translations import read_output
from modular_fairseq_cli.toy_corpus.command import draw_splits

SEPARATORS = "a\u2028line\x85that is one\x0bline"


def sentences():
    """Return cased, untokenised English with hyphens, quotes and characters that Moses escapes."""
    pairs = draw_splits({"train": 60}, seed=3)["train"]
    lines = [
        english.replace(" .", ".").replace(" ?", "?").replace(" ,", ",").capitalize() for _, english in pairs
    ]
    lines[3] = 'The "well-known" R&D man\'s dog [sic] ran 3-4 miles.'
    lines[5] = SEPARATORS
    return lines


REFERENCE = sentences()


def noisy(lines, seed, rate=0.2):
    """Return the lines as a poor system would translate them: some words are lost, doubled or in capitals."""
    rng = random.Random(seed)

    def change(word):
        return word if rng.random() > rate else rng.choice(["", f"{word} {word}", word.upper(), "the"])

    return [" ".join(" ".join(map(change, line.split(" "))).split(" ")) for line in lines]


def write_lines(path, lines, end="\n"):
    data = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def tokenize(lines):
    moses = MosesTokenizer("en")
    return [moses.tokenize(line, return_str=True, aggressive_dash_splits=False) for line in lines]


def generated(hypotheses, targets=None, order=None):
    """Return the lines that fairseq-generate prints for tokenised hypotheses and targets."""
    lines = ["2024-01-01 10:00:00 | INFO | fairseq_cli.generate | loading model(s) from checkpoint_best.pt"]
    for number in order or range(len(hypotheses)):
        lines.append(f"S-{number}\tein satz")
        lines += [f"T-{number}\t{targets[number]}"] if targets else []
        lines += [f"{kind}-{number}\t-0.5287480354309082\t{hypotheses[number]}" for kind in "HD"]
        lines.append(f"P-{number}\t-1.0321 -0.2244")
    return [
        *lines,
        "Generate test with beam=5: BLEU4 = 24.64, 53.7/31.6/18.9/11.5 (BP=1.000, ratio=1.152, syslen=14940, "
        "reflen=12968)",
    ]


def run(*args):
    parser = argparse.ArgumentParser()
    scoring.add_arguments(parser)
    scoring.run(parser.parse_args(list(map(str, args))))


def run_json(tmp_path, *args):
    run(*args, "--json", tmp_path / "scores.json")
    return json.loads((tmp_path / "scores.json").read_text())


def sacrebleu(*args, **environment):
    """Return what the sacrebleu command prints for BLEU, chrF and TER, with 14 digits."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SACREBLEU")
    } | environment
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        *map(str, args),
        "-m",
        "bleu",
        "chrf",
        "ter",
        "-w",
        "14",
        "--no-color",
    ]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def write_systems(folder):
    """Write a reference and the outputs of two systems with three seeds each.

    An output is written as fairseq-generate prints it, in random order, and as plain text.
    """
    write_lines(folder / "test.en", REFERENCE)
    targets = tokenize(REFERENCE)
    for name, seed, rate in (
        ("a1", 1, 0.2),
        ("a2", 2, 0.2),
        ("a3", 3, 0.25),
        ("b1", 4, 0.2),
        ("b2", 5, 0.2),
        ("b3", 6, 0.25),
    ):
        tokens = tokenize(noisy(REFERENCE, seed, rate))
        order = random.Random(seed).sample(range(len(tokens)), len(tokens))
        out = write_lines(folder / f"{name}.out", generated(tokens, targets, order))
        write_lines(folder / f"{name}.txt", read_output(out, "en").hypotheses)
    return folder
