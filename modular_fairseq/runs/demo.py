"""Train one architecture on a small synthetic corpus, translate, score, and show what the model has learnt.

    modular-fairseq demo                     # a mixture of attentive experts
    modular-fairseq demo tim_transformer     # any other architecture of the papers, in its size _tiny_cpu
    modular-fairseq demo mae_transformer --encoder-layers 4 --streams 2 --stream-skip    # mechanisms combined

This takes two to four minutes on two cores. All files are written to demo/ARCH-OPTIONS; an earlier folder of
this name is replaced. OPTIONS are options of fairseq-train, but for those that the demo sets itself, the same
for all architectures: optimizer, learning rate, loss, dropout and epochs. For your data and larger models,
see `modular-fairseq train-and-score`.
"""

import argparse
import io
import os
import re
import shlex
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from itertools import islice
from typing import Any

from modular_fairseq.models.tasks import archs_that_translate
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.fixed_options import refuse_fewer_checkpoints, refuse_fixed
from modular_fairseq.runs.progress import StepProgress
from modular_fairseq.runs.run import Run
from modular_fairseq.runs.train_and_score import LONGEST_NAME
from modular_fairseq.runs.translation import translate
from modular_fairseq.training.command_line import short_training
from modular_fairseq_cli import main
from modular_fairseq_cli.analysis_folder import INDEX
from modular_fairseq_cli.arguments import by_option, refuse_user_dir
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import parse
from modular_fairseq_cli.fairseq_log import progress as summary
from modular_fairseq_cli.files import lock, make_folder, read_json, write_file, write_json
from modular_fairseq_cli.scoring import read_lines, read_output, score

SIZE = "_tiny_cpu"
UPDATES, EPOCHS = 890, 5
RECIPE = (
    "--optimizer torch_adam --adam-betas (0.9,0.98) --lr 4e-3 --lr-scheduler polynomial_decay "
    f"--warmup-updates 200 --total-num-update {UPDATES} --criterion modular_cross_entropy "
    f"--label-smoothing 0.1 --dropout 0 --max-tokens 1024 --max-epoch {EPOCHS} --keep-last-epochs 5 "
    "--num-workers 0 --no-progress-bar --log-interval 50"
).split()
# The expected time of each step on two cores, in seconds.
STEPS = {"corpus": 9, "training": 150, "translating": 10, "looking inside": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "arch",
        nargs="?",
        default="mae_transformer",
        metavar="ARCH",
        help="architecture, with or without _tiny_cpu (default: %(default)s)",
    )
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, metavar="OPTIONS", help="options of fairseq-train"
    )


def run(args: argparse.Namespace) -> None:
    refuse_user_dir(args.options)
    arch = f"{args.arch.removesuffix(SIZE)}{SIZE}"
    if arch.removesuffix(SIZE) not in (known := archs_that_translate()):
        raise UsageError(f"there is no arch {args.arch} with a size {SIZE}; give {', '.join(known)}")
    refuse_fixed(args.options, "among OPTIONS")
    refuse_fewer_checkpoints(args.options, "among OPTIONS")
    own = {*by_option(RECIPE), "--arch", "-a", "--seed", "--max-update"}
    fixed = [option for option in by_option(args.options) if option and option in own]
    if fixed:
        raise UsageError(
            f"the demo itself sets {', '.join(fixed)}, the same for all architectures; leave them out, or "
            "train on text of your own by modular-fairseq train-and-score"
        )
    short = short_training(["--arch", arch, *args.options, *RECIPE], warmup_updates=400)
    label = re.sub("[^a-zA-Z0-9_.]+", "-", " ".join([arch, *args.options])).strip("-")
    if len(label) > LONGEST_NAME:
        raise UsageError(
            f"the options make a name of {len(label)} characters for the folder in demo; give options whose "
            f"name has at most {LONGEST_NAME}"
        )
    make_folder("demo", "folder")
    out = os.path.join("demo", label)
    refusal = f"{out}: another demo of the same model is at work; wait for it"
    with lock(os.path.join("demo", f".{label}.lock"), refusal, seconds=1):
        show(arch, out, short, args)


def show(arch: str, out: str, short: list[str], args: argparse.Namespace) -> None:
    """Train, translate and analyse in a folder whose content is removed before, and print the results.

    Args:
        arch: the arch, with its size.
        out: the folder.
        short: options that the arch needs in so short a training.
        args: the arguments of the command.
    """
    shutil.rmtree(out, ignore_errors=True)
    words = ["--arch", arch, *short, *args.options, *RECIPE]
    corpus = Corpus(os.path.join(out, "data"), ("de", "en"))
    demo_run = Run(arch, out, corpus, words, seed=1, averaged=2, checkpoints="checkpoints")
    progress = StepProgress(STEPS)
    progress.begin("corpus", "a synthetic German-English corpus")
    for pair in make_corpus(demo_run):
        progress.bar.write("  de  {}\n  en  {}".format(*pair))
    asked = f", with {shlex.join(short)} because it is so short" if short else ""
    what = f"training {shlex.join([arch, *args.options])}{asked} (log: {demo_run.path('train.log')})"
    progress.begin("training", what)
    demo_run.fit(ignore, lambda line: show_training(line, progress))
    progress.begin("translating", "translating the test set with the average of the last epochs")
    scores = translate_and_score(demo_run)
    progress.begin("looking inside", "analysing what the model does on the validation set")
    gates = look_inside(demo_run)
    progress.end("done")
    results = {
        "BLEU": f"{scores['bleu']:.2f}   ({scores['bleu_signature']})",
        **gates,
        "parameters": f"{demo_run.statistics()['parameters']:,}",
        "report": f"{demo_run.path('report.html')}: open it in a browser; its numbers are in "
        f"{demo_run.path('inside')}",
        "files": f"in {out}: corpus (text), data (binarized), checkpoints, averaged.pt, test.hyp, "
        "score.json, train.log",
    }
    for name, text in results.items():
        print(f"{name:<24}{text}")
    show_next(demo_run, args.arch.removesuffix(SIZE), bool(gates))


def make_corpus(demo_run: Run) -> list[tuple[str, str]]:
    """Write and binarize the corpus, and return three pairs of sentences of the test set."""
    text = demo_run.path("corpus")
    output_of("toy-corpus", text)
    parts = [word for part in ("train", "valid", "test") for word in (f"--{part}pref", f"{text}/{part}")]
    languages = ["--source-lang", "de", "--target-lang", "en"]
    command = ["fairseq-preprocess", *languages, "--destdir", demo_run.corpus.binarized, *parts]
    demo_run.execute(command, "preprocess.log", ignore)
    sides = (read_lines(f"{text}/test.{side}") for side in demo_run.corpus.languages)
    return list(islice(zip(*sides, strict=True), 3))


def show_training(line: str, progress: StepProgress) -> None:
    """Show the statistics of a line of fairseq-train's log, if it has any."""
    split, numbers = parse(line)
    if "num_updates" in numbers:
        progress.at(numbers["num_updates"] / UPDATES)
    if text := summary(line):
        entropy = numbers.get("gate_entropy")
        of_gates = f", gate entropy {entropy} nats" if entropy and split == "valid" else ""
        progress.say(text + of_gates, passing=split == "train_inner")


def translate_and_score(demo_run: Run) -> dict[str, Any]:
    """Write generate.out, test.hyp and score.json, and return BLEU and its signature."""
    output = read_output(translate(demo_run, ["--beam", "5"], ignore), "en", "none")
    write_file(demo_run.path("test.hyp"), "".join(f"{line}\n" for line in output.hypotheses))
    references = read_lines(demo_run.path("corpus", "test.en"))
    scores = score(output, references, names=["bleu"], tokenize="none", language="en")
    write_json(demo_run.path("score.json"), scores)
    return scores


def look_inside(demo_run: Run) -> dict[str, str]:
    """Write the analyses of the model to the folder inside/ and to report.html.

    Returns:
        A line about the gates after the first epoch and one about the gates at the end, each with its
        heading; empty if the model has no gates.
    """
    data, inside = demo_run.corpus.binarized, demo_run.path("inside")
    output_of("analyze", "all", data, "--path", demo_run.checkpoint, "--out", inside)
    output_of("report", inside, "--log", demo_run.path("train.log"), "--out", demo_run.path("report.html"))
    found = read_json(os.path.join(inside, INDEX))
    assert found is not None  # `analyze` has written it
    if "gates" not in found["analyses"]:
        return {}
    first = f"{demo_run.save_dir}checkpoint1.pt"
    checkpoints = {"gates before learning": first, "gates after": demo_run.checkpoint}
    return {
        when: output_of("analyze", "gates", data, "--path", path).splitlines()[-1]
        for when, path in checkpoints.items()
    }


def show_next(demo_run: Run, arch: str, has_gates: bool) -> None:
    """Print commands that a user may want to try next."""
    program = os.path.relpath(sys.argv[0]) if sys.argv[0].endswith("modular-fairseq") else "modular-fairseq"
    if has_gates:
        print("next                    translate with the most specialised expert of each layer alone:")
        print(f"    {program} analyze single-expert {demo_run.corpus.binarized} --path {demo_run.checkpoint}")
    print("next                    train on your own text:")
    print(f"    {program} train-and-score FOLDER de en work/mine {arch}")


def output_of(*words: str) -> str:
    """Run a command of modular-fairseq in this process, and return its standard output."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()):
        main.main(list(words))
    return output.getvalue()


def ignore(text: str) -> None:
    """Do nothing, in place of showing text to the user."""
    pass
