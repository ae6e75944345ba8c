"""Print the folder of the plugin, so that fairseq's commands find it wherever it is installed.

fairseq-train DATA --user-dir "$(modular-fairseq user-dir)" --arch mae_transformer ...
"""

import argparse
import importlib.util

from modular_fairseq_cli.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> None:
    spec = importlib.util.find_spec("modular_fairseq")  # it is not imported: that takes torch and fairseq
    if spec is None:
        raise UsageError(
            "the package modular_fairseq is not installed; install it as modular_fairseq_cli was"
        )
    print(spec.submodule_search_locations[0])
