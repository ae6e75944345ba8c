"""Arguments that several commands take."""

import argparse
import re

from modular_fairseq_cli.errors import UsageError


def take_options_after_dashes(parser: argparse.ArgumentParser) -> None:
    """Let a parser put what follows a `--` into `args.options` as it is; argparse would refuse it where an
    option stands before a positional argument.
    """
    parse_args = parser.parse_args

    def parse_around_dashes(argv: list[str]) -> argparse.Namespace:
        end = argv.index("--") if "--" in argv else len(argv)
        return parse_args(argv[:end], argparse.Namespace(options=argv[end + 1 :]))

    parser.parse_args = parse_around_dashes


def refuse_user_dir(options: list[str]) -> None:
    """Raise UsageError for --user-dir among options of fairseq-train whose command trains with this plugin
    only.
    """
    if "--user-dir" in by_option(options):
        raise UsageError(
            "--user-dir: this command trains with its own plugin; leave it out, or use fairseq-train"
        )


def read_seeds(text: str) -> list[int]:
    """Return "1,2,3" as numbers.

    Raises:
        UsageError: they are no numbers, or not different ones.
    """
    words = text.split(",")
    seeds = [int(word) for word in words if word.isdecimal()]
    if len(set(seeds)) < len(words):
        raise UsageError(f"--seeds {text}: must be different whole numbers, as in 1,2,3")
    return seeds


def by_option(words: list[str]) -> dict[str, list[str]]:
    """Return the words of a command line by the option that they belong to; an option's last occurrence
    counts, as for argparse.
    """
    values: dict[str, list[str]] = {"": []}
    option = ""
    for word in words:
        if re.match("--?[A-Za-z]", word):  # and not a negative number
            option, _, value = word.partition("=")
            values[option] = [value] if value else []
        else:
            values[option].append(word)
    return values
