"""The option --user-dir of our own commands: a plugin beside this one."""

import argparse
import os

from fairseq import utils

from modular_fairseq_cli.errors import UsageError


def add_user_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--user-dir",
        metavar="DIR",
        help="of a plugin beside this one, whose models and analyses are to be known",
    )


def import_user_dir(args: argparse.Namespace) -> None:
    """Imports the plugin that --user-dir names, if there is one.

    Raises:
        UsageError: there is no such folder.
    """
    if args.user_dir and not os.path.isdir(args.user_dir):
        raise UsageError(
            f"--user-dir {args.user_dir}: there is no such folder; give that of a plugin, such as "
            "examples/distance"
        )
    utils.import_user_module(args)
