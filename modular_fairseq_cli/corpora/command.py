"""Prepare a data set for fairseq-train: fetch it, tokenize it, split it into sub-words, and binarize it.

    modular-fairseq prepare RECIPE --help     describes the data set of a recipe, and its options

A recipe writes everything into one folder, which is data/NAME unless --out names another one. The same
command continues a run that was stopped, and does not repeat finished stages. The exit status is 1 if
something is wrong with the data, 2 if something is wrong with the options, and 130 after an interrupt.
"""

import argparse
import sys
from typing import NoReturn

from modular_fairseq_cli.corpora import options, recipe, runner
from modular_fairseq_cli.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the recipe, and all that follows it, which `options.parse` reads."""
    listing = "\n".join(f"  {name:<15}{recipe.load(name).summary}" for name in recipe.names())
    parser.epilog = f"recipes:\n{listing}"
    parser.add_argument("recipe", metavar="RECIPE", choices=recipe.names(), help="one of the list below")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help="the recipe's own options")
    # The scripts data-prep/prepare-*.sh give their name, so that messages and --help show it.
    parser.add_argument("--script", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    """Prepare the data set; an error ends the process with a sentence after the name of the command."""
    name, command = "modular-fairseq prepare", f"modular-fairseq prepare {args.recipe}"
    if args.script:
        name, command = args.script, f"bash data-prep/{args.script}.sh"
    chosen = recipe.load(args.recipe)
    user = options.parse(chosen, args.options, name, command)
    try:
        runner.run(chosen, user)
    except UsageError as error:
        _stop(1, f"{name}: error: {error}")
    except OSError as error:
        _stop(1, f"{name}: error: {error.filename or 'a file'}: {error.strerror or error}")
    except KeyboardInterrupt:
        _stop(130, f"{name}: interrupted; the same command continues")


def _stop(status: int, sentence: str) -> NoReturn:
    sys.stderr.write(f"{sentence}\n")
    sys.exit(status)
