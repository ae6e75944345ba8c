"""`modular-fairseq COMMAND ...`: what fairseq's own commands do not do.

A command is a module with `add_arguments(parser)` and `run(args)`; it is imported only when it is called.
"""

import argparse
import importlib
import sys

from modular_fairseq_cli.errors import UsageError

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
}


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    listing = "\n".join(f"  {name:<12}{summary}" for name, (_, summary) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="modular-fairseq",
        description=f"commands:\n{listing}\n\n`modular-fairseq COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="modular-fairseq COMMAND ...",
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the above")
    command = parser.parse_args(argv[:1]).command

    module = importlib.import_module(COMMANDS[command][0])
    parser = argparse.ArgumentParser(
        prog=f"modular-fairseq {command}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    try:
        module.run(parser.parse_args(argv[1:]))
    except UsageError as error:
        sys.exit(f"modular-fairseq {command}: error: {error}")
