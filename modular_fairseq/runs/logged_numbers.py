"""The numbers of a training that stand in its log: how many parameters it has, and its best perplexity."""

import math
import re
from contextlib import suppress
from typing import Any

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import PARAMETERS, parse

OUTSIDE = re.compile(r"num\. params trained outside the main optimizer: ([\d,]+)")  # logged by the plugin


def numbers_of(log: str) -> dict[str, Any]:
    """Return "parameters", "trained_parameters" and, if the task has a perplexity, "valid_perplexity".

    "valid_perplexity" is the validation perplexity of the epoch in which it is lowest.

    Args:
        log: path of the train.log of a training that has ended.

    Raises:
        UsageError: the log does not show them.
    """
    lines: list[str] = []
    with suppress(FileNotFoundError), open(log, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    counts = next((found for line in lines if (found := PARAMETERS.search(line))), None)
    outside = next((found for line in lines if (found := OUTSIDE.search(line))), None)
    valid = [numbers for split, numbers in map(parse, lines) if split == "valid"]
    if counts is None or not valid:
        raise UsageError(
            f"{log} does not show the number of parameters and a validation; restore the file, or remove the "
            "folder to train again"
        )
    perplexities = [numbers["ppl"] for numbers in valid if "ppl" in numbers]
    return {
        "parameters": _number(counts[1]),
        "trained_parameters": _number(counts[2]) + (_number(outside[1]) if outside else 0),
        **(
            {"valid_perplexity": min(perplexities, key=lambda each: (math.isnan(each), each))}
            if perplexities
            else {}
        ),
    }


def _number(text: str) -> int:
    """Return the number of a text such as "1,500"."""
    return int(text.replace(",", ""))
