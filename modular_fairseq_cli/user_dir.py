"""Print the folder of the plugin, so that fairseq's commands find it wherever it is installed.

    fairseq-train DATA --user-dir "$(modular-fairseq user-dir)" --arch mae_transformer OPTIONS

DATA is a folder of fairseq-preprocess, and OPTIONS are further options of fairseq-train.
"""

import argparse
import importlib.util

from modular_fairseq_cli.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> None:
    spec = importlib.util.find_spec("modular_fairseq")  # does not import it, and so neither torch nor fairseq
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "the package modular_fairseq is not installed; install it in the same way as modular_fairseq_cli"
        )
    print(spec.submodule_search_locations[0])
