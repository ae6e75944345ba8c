"""`modular-fairseq COMMAND ...`: what fairseq's own commands do not do.

A command is a module with `add_arguments(parser)` and `run(args)`. Its docstring is the text of its --help.
It is imported only when it is called, by its name in `COMMANDS`: so nothing here imports the plugin.
"""

import argparse
import difflib
import importlib
import os
import sys

from modular_fairseq_cli import __version__
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import wait_passively

COMMANDS = {
    "ablate": (
        "modular_fairseq.runs.greedy.command",
        "train without mechanisms of the Transformer, then add the best one, again and again",
    ),
    "analyze": (
        "modular_fairseq.analysis.command",
        "look inside a model: gates, experts, clusters, mechanisms, attention patterns, redundancy",
    ),
    "average": ("modular_fairseq.training.averaging", "average the weights of several checkpoints"),
    "bench": (
        "modular_fairseq.benchmark.command",
        "time training steps and beam search against stock fairseq",
    ),
    "demo": (
        "modular_fairseq.runs.demo",
        "train a small model on a synthetic corpus, translate, score and look inside, in minutes",
    ),
    "patches": (
        "modular_fairseq.patches.command",
        "list what the plugin changes in fairseq, torch, numpy and the process, and why",
    ),
    "prepare": (
        "modular_fairseq_cli.corpora.command",
        "fetch and prepare a data set for fairseq-train, or your own text",
    ),
    "report": (
        "modular_fairseq_cli.report.command",
        "make one HTML file of analyses and training logs, checkpoints side by side",
    ),
    "score": (
        "modular_fairseq_cli.scoring.command",
        "BLEU with its signature, chrF, TER, over seeds, and whether a difference is significant",
    ),
    "subset": ("modular_fairseq.runs.subsets", "draw nested subsets of binarized training data"),
    "table": (
        "modular_fairseq.runs.papers.command",
        "train the rows of a paper's table and show ours beside theirs",
    ),
    "toy-corpus": ("modular_fairseq_cli.toy_corpus.command", "write a synthetic German-English corpus"),
    "train-and-score": (
        "modular_fairseq.runs.train_and_score",
        "train one architecture on raw parallel text, from preparation to BLEU",
    ),
    "user-dir": (
        "modular_fairseq_cli.user_dir",
        "print the folder of the plugin, for --user-dir of fairseq's commands",
    ),
}


def main(argv: list[str] | None = None) -> None:
    """Run a command; `argv` are the words after `modular-fairseq`, by default those of this process."""
    wait_passively()
    argv = sys.argv[1:] if argv is None else argv
    command = _command(argv[:1])
    module = importlib.import_module(COMMANDS[command][0])
    parser = argparse.ArgumentParser(
        prog=f"modular-fairseq {command}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    try:
        module.run(parser.parse_args(argv[1:]))
        sys.stdout.flush()
    except BrokenPipeError:  # who reads the output has seen enough, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except UsageError as error:
        sys.exit(f"modular-fairseq {command}: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)  # without a traceback; the status is that of a shell


def _command(argv: list[str]) -> str:
    """Return the command that the first word names; exit if it names none."""
    listing = "\n".join(f"  {name:<17}{summary}" for name, (_, summary) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="modular-fairseq",
        description=f"commands:\n{listing}\n\n`modular-fairseq COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="modular-fairseq COMMAND ...",
    )
    parser.add_argument("--version", action="version", version=f"modular-fairseq {__version__}")
    parser.add_argument("command", metavar="COMMAND", help="one of the above")
    command = parser.parse_args(argv).command
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1) or COMMANDS
        right = f"give {', '.join(near)}, or see modular-fairseq --help"
        parser.exit(2, f"modular-fairseq: error: there is no command {command}; {right}\n")
    return command
