"""`modular-fairseq COMMAND ...` does what fairseq's own commands do not do.

A command is a module with the functions `add_arguments(parser)` and `run(args)`. Its docstring is the text of
its --help. `COMMANDS` names the modules, and `main` imports a module only when its command is called, so that
nothing here imports the plugin. `EXIT_CODES` explains the exit codes.
"""

import argparse
import difflib
import importlib
import sys

from modular_fairseq_cli import __version__
from modular_fairseq_cli.errors import find_usage_error
from modular_fairseq_cli.processes import discard_unread, wait_passively

# The module and the one-line summary of each command.
COMMANDS = {
    "ablate": (
        "modular_fairseq.runs.greedy.command",
        "measure what each mechanism of the Transformer contributes, by a greedy protocol",
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
    "check-gpu": (
        "modular_fairseq.device_check.command",
        "check that a GPU computes what a CPU computes, in every number format, and how fast it is",
    ),
    "curves": (
        "modular_fairseq_cli.curves",
        "draw learning curves, averaged over seeds, from the logs of fairseq-train",
    ),
    "demo": (
        "modular_fairseq.runs.demo",
        "train a small model on a synthetic corpus, translate, score and look inside, in minutes",
    ),
    "draw": (
        "modular_fairseq.drawing.command",
        "draw pictures with a language model of pixels, or complete given ones",
    ),
    "evidence": (
        "modular_fairseq.runs.evidence.command",
        "make the runs that registered claims need, and show what they say about the claims",
    ),
    "export": (
        "modular_fairseq.export.command",
        "write a trained model for another inference engine, and compare the translations of both",
    ),
    "patches": (
        "modular_fairseq.patches.command",
        "list what the plugin changes in fairseq, torch, numpy and the process, and why",
    ),
    "predict": (
        "modular_fairseq.prediction.command",
        "measure how well a model predicts masked words, or the classes of inputs",
    ),
    "prepare": (
        "modular_fairseq_cli.corpora.command",
        "fetch and prepare a data set for fairseq-train, or prepare your own text",
    ),
    "prepare-pixels": (
        "modular_fairseq_cli.pixels.command",
        "write pictures as text, a token for each pixel, for language models that draw",
    ),
    "report": (
        "modular_fairseq_cli.report.command",
        "make one HTML file of analyses and training logs, checkpoints side by side",
    ),
    "score": (
        "modular_fairseq_cli.scoring.command",
        "score translations by BLEU, chrF and TER, over seeds, and test differences for significance",
    ),
    "subset": ("modular_fairseq.runs.subsets", "draw nested subsets of binarized training data"),
    "table": (
        "modular_fairseq.runs.papers.command",
        "train the rows of a paper's table and show our numbers beside the paper's",
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
EXIT_CODES = """\
exit codes:
  0    the command has done everything that it was asked to do
  1    the command could not do it, or not all of it: its last line on standard error says why, or the
       reader of its output closed the pipe, which is no error of the command and gives no message
  2    the command line could not be parsed: an unknown command or option, a missing argument, or a value
       that the parser itself does not accept; nothing has been read or written
  130  you pressed Ctrl-C

`modular-fairseq COMMAND --help` says more about a command."""


def main(argv: list[str] | None = None) -> None:
    """Run a command, and exit with one of the `EXIT_CODES` unless it succeeds.

    Args:
        argv: the words after `modular-fairseq`; None: the arguments of this process.
    """
    wait_passively()
    argv = sys.argv[1:] if argv is None else argv
    command = _command(argv[:1])
    try:
        # The import is inside, because it takes seconds and refuses, for instance, a torch that is too old.
        module = importlib.import_module(COMMANDS[command][0])
        parser = argparse.ArgumentParser(
            prog=f"modular-fairseq {command}",
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(parser)
        module.run(parser.parse_args(argv[1:]))
        sys.stdout.flush()
    except SystemExit:
        try:
            sys.stdout.flush()  # here, as Python would report an error of its own later
        except BrokenPipeError:
            discard_unread()
            sys.exit(1)
        raise
    except BrokenPipeError:  # the reader of the output has closed it, as in `... | head`
        discard_unread()
        sys.exit(1)
    except Exception as error:
        usage_error = find_usage_error(error)
        if usage_error is None:
            raise
        sys.exit(f"modular-fairseq {command}: error: {usage_error}")  # the exit code is 1
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell reports Ctrl-C, but without a traceback


def _command(argv: list[str]) -> str:
    """Return the command that the first word names, or exit if it names none."""
    listing = "\n".join(f"  {name:<17}{summary}" for name, (_, summary) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="modular-fairseq",
        description=f"commands:\n{listing}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="modular-fairseq COMMAND ...",
    )
    parser.add_argument("--version", action="version", version=f"modular-fairseq {__version__}")
    parser.add_argument("command", metavar="COMMAND", help="one of the commands above")
    command = parser.parse_args(argv).command
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1) or COMMANDS
        right = f"give {', '.join(near)}, or see modular-fairseq --help"
        parser.exit(2, f"modular-fairseq: error: there is no command {command}; {right}\n")
    return command
