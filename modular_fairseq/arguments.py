"""Arguments that several commands take."""

import argparse

from modular_fairseq.errors import UsageError


def take_options_after_dashes(parser: argparse.ArgumentParser) -> None:
    """What follows a `--` goes to `args.options` as it is; argparse would refuse it where an option stands before a positional argument."""
    parse_args = parser.parse_args

    def parse_around_dashes(argv: list[str]) -> argparse.Namespace:
        end = argv.index("--") if "--" in argv else len(argv)
        return parse_args(argv[:end], argparse.Namespace(options=argv[end + 1 :]))

    parser.parse_args = parse_around_dashes


def read_seeds(text: str) -> list[int]:
    """ "1,2,3" as numbers.

    Raises:
        UsageError: they are no numbers, or not different ones.
    """
    words = text.split(",")
    seeds = [int(word) for word in words if word.isdecimal()]
    if len(set(seeds)) < len(words):
        raise UsageError(f"--seeds {text}: must be different whole numbers, as in 1,2,3")
    return seeds
