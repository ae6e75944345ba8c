"""Parse arguments that several commands share."""

import argparse
import re

from modular_fairseq_cli.errors import UsageError


def take_options_after_dashes(parser: argparse.ArgumentParser) -> None:
    """Make `parser` store the words after a `--` in `args.options`, unparsed.

    Without this, argparse refuses such words if an option stands before a positional argument.
    """
    parse_args = parser.parse_args

    def parse_around_dashes(argv: list[str]) -> argparse.Namespace:
        end = argv.index("--") if "--" in argv else len(argv)
        return parse_args(argv[:end], argparse.Namespace(options=argv[end + 1 :]))

    vars(parser)["parse_args"] = parse_around_dashes  # of this parser only


def refuse_user_dir(options: list[str]) -> None:
    """Refuse --user-dir among options for fairseq-train, for a command that trains with this plugin only.

    Raises:
        UsageError: `options` contain --user-dir.
    """
    if "--user-dir" in by_option(options):
        raise UsageError(
            "--user-dir cannot be given: this command always trains with its own plugin; leave it out, or "
            "use fairseq-train"
        )


def read_seeds(text: str) -> list[int]:
    """Return the numbers of a list of seeds such as "1,2,3".

    Raises:
        UsageError: a word is not a whole number, or two are equal.
    """
    words = text.split(",")
    seeds = [int(word) for word in words if word.isdecimal()]
    if len(set(seeds)) < len(words):
        raise UsageError(f"--seeds {text}: seeds must be different whole numbers, as in 1,2,3")
    return seeds


def by_option(words: list[str]) -> dict[str, list[str]]:
    """Return the values of a command line's `words`, keyed by the option that they follow.

    Words before the first option have the key "". If an option is given several times, the last occurrence
    counts, as for argparse.
    """
    values: dict[str, list[str]] = {"": []}
    option = ""
    for word in words:
        if re.match("--?[A-Za-z]", word):  # does not match a negative number
            option, _, value = word.partition("=")
            values[option] = [value] if value else []
        else:
            values[option].append(word)
    return values
