"""The option --user-dir of the `modular-fairseq` commands, which imports another plugin beside this one."""

import argparse
import os

from fairseq import utils

from modular_fairseq_cli.errors import UsageError

PLUGIN = os.path.dirname(os.path.abspath(__file__))  # the folder of this plugin


def add_user_dir(parser: argparse.ArgumentParser) -> None:
    """Add --user-dir to the options of a command."""
    parser.add_argument(
        "--user-dir",
        metavar="DIR",
        help="folder of another fairseq plugin to import, so that the command knows its models and analyses "
        "(modular_fairseq itself is always imported)",
    )


def import_user_dir(args: argparse.Namespace) -> None:
    """Import the plugin that --user-dir names, if it names one.

    Raises:
        UsageError: --user-dir is not a folder.
    """
    if args.user_dir and not os.path.isdir(args.user_dir):
        raise UsageError(
            f"--user-dir {args.user_dir}: there is no such folder; give the folder of a plugin, such as "
            "examples/distance"
        )
    utils.import_user_module(args)
