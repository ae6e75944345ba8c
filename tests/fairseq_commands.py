"""Run fairseq's commands in this process, which saves seconds for the start-up of each."""

import contextlib
import io
import logging
import os
import random
import subprocess
import sys

import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq_cli import generate, preprocess, train

import modular_fairseq  # noqa: F401
from modular_fairseq.training.checkpoints import load_checkpoint
from tests.places import ROOT
from tests.processes import PATIENCE

TINY = [
    *[
        "--encoder-layers",
        "1",
        "--decoder-layers",
        "1",
        "--encoder-embed-dim",
        "32",
        "--encoder-ffn-embed-dim",
        "32",
    ],
    *["--encoder-attention-heads", "4", "--decoder-attention-heads", "4"],
]
OPTIMIZE = [
    *[
        "--optimizer",
        "adam",
        "--lr",
        "5e-3",
        "--criterion",
        "label_smoothed_cross_entropy",
        "--label-smoothing",
        "0.1",
    ],
    *["--dropout", "0.1", "--max-tokens", "150"],
]
QUIET = [
    "--no-progress-bar",
    "--num-workers",
    "0",
    "--update-epoch-batch-itr",
    "True",
    "--log-interval",
    "1000",
]


def write_reversal_corpus(folder, train_pairs=60, seed=0, types=12, longest=7):
    """Write sentences of 2 to `longest` random words, which are of `types` different ones. Their translations
    have the words in reverse order.
    """
    rng = random.Random(seed)
    for split, pairs in (("train", train_pairs), ("valid", 12), ("test", 12)):
        sources = [[f"w{rng.randrange(types)}" for _ in range(rng.randint(2, longest))] for _ in range(pairs)]
        (folder / f"{split}.de").write_text("".join(" ".join(words) + "\n" for words in sources))
        (folder / f"{split}.en").write_text("".join(" ".join(reversed(words)) + "\n" for words in sources))


def binarize(folder, out, *words):
    prefixes = [part for split in ("train", "valid", "test") for part in (f"--{split}pref", folder / split)]
    run_preprocess("-s", "de", "-t", "en", "--destdir", out, "--joined-dictionary", *prefixes, *words)


def run_preprocess(*words):
    """Run fairseq-preprocess, and close its log, into which later calls would write, too."""
    logger = logging.getLogger("fairseq_cli.preprocess")
    before = list(logger.handlers)
    try:
        preprocess.main(options.get_preprocessing_parser().parse_args(list(map(str, words))))
    finally:
        for handler in [each for each in logger.handlers if each not in before]:
            logger.removeHandler(handler)
            handler.close()


def train_config(data, *args, common=(*TINY, *OPTIMIZE)):
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(
        options.parse_args_and_arch(parser, [str(data), *common, *QUIET, *map(str, args)])
    )


def run_train(data, *args, **kwargs):
    metrics.reset()
    train.main(train_config(data, *args, **kwargs))


def weights(checkpoint):
    """Return the state dict of the model in a checkpoint."""
    return load_checkpoint(checkpoint)["model"]


def differing_weights(checkpoint, other):
    """Return the names of the weights that two checkpoints do not have in common, bit for bit."""
    ours, theirs = weights(checkpoint), weights(other)
    common = ours.keys() & theirs.keys()
    return sorted(ours.keys() ^ theirs.keys()) + [
        name for name in sorted(common) if not torch.equal(ours[name], theirs[name])
    ]


@contextlib.contextmanager
def going_on(folder, after_kill=False):
    """Check that a training goes on from what is in a folder: it writes no checkpoint of an epoch again.

    One that starts again, with the same seed, would end with the same weights. A killed training may not have
    written checkpoint_last.pt yet, and then repeats its last epoch.
    """
    times = {path: path.stat().st_mtime_ns for path in folder.glob("checkpoint[0-9]*.pt")}
    kept = sorted(times, key=times.get)[: -1 if after_kill else None]
    assert kept, f"{folder} has no checkpoint of an epoch that should stay"
    yield
    assert [path.stat().st_mtime_ns for path in kept] == [times[path] for path in kept]


def run_generate(data, checkpoint, *args):
    """Run fairseq-generate, and return the hypotheses in the order of the test set, and its whole output."""
    parser = options.get_generation_parser()
    args = [str(data), "--path", str(checkpoint), "--beam", "5", "--num-workers", "0", *map(str, args)]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        generate.main(convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, args)))
    lines = [line.split("\t") for line in out.getvalue().splitlines() if line.startswith("H-")]
    return [words for _, words in sorted((int(name[2:]), words) for name, _, words in lines)], out.getvalue()


def start(command, *args, **kwargs):
    """Start a fairseq command in a process of its own. Its module is run, so that no script must be
    installed.
    """
    argv = [sys.executable, "-m", f"fairseq_cli.{command}", *map(str, args), "--user-dir", "modular_fairseq"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs
    )


def call(command, *args):
    process = start(command, *args)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err
