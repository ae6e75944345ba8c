"""Parse the log that fairseq-train writes with --log-format json or simple.

If the output is no terminal, fairseq uses the format simple in place of tqdm. Examples of log lines, cut at
the end:

    2026-01-01 10:00:00 | INFO | train_inner | {"epoch": 1, "loss": "7.59", "num_updates": "50", ...}
    2026-01-01 10:00:00 | INFO | train_inner | epoch 001:     50 / 178 loss=7.59, num_updates=50, ...
    2026-01-01 10:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 2.55 | num_updates 178
"""

import json
import re

LOGGED = re.compile(r"\| ([\w.-]+) \| (\{.*\})$")  # a line of --log-format json
# A line of --log-format simple.
SIMPLE = re.compile(r"\| ([\w.-]+) \| epoch (\d+)(?::\s+\d+ / \d+ | \| )(.*)$")
# The numbers of parameters, of all and of those that the main optimizer trains.
PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+) \(num\. trained: ([\d,]+)\)")
# The numbers of which the first that is logged is shown as the progress, and what they are called.
SHOWN = {"ppl": "perplexity", "accuracy": "accuracy", "loss": "loss"}
FIELD = re.compile(r"(?:^|, |\| )(\w+)[= ]([^\s,|]+)(?=,| \||$)")


def parse(line: str) -> tuple[str, dict[str, float]]:
    """Return what a line of the log reports: a split and its numbers, keyed by their names.

    The split is "train_inner", "train", the name of a validation set such as "valid", or "" for a line
    without numbers. The names of the numbers lack the prefix of the split: "ppl", not "valid_ppl".
    """
    if logged := LOGGED.search(line):
        split = logged[1]
        try:
            fields = json.loads(logged[2]).items()
        except ValueError:  # the process was killed while it wrote this line
            return "", {}
        fields = [(key.removeprefix(f"{split}_"), value) for key, value in fields]
    elif simple := SIMPLE.search(line):
        split, fields = simple[1], [("epoch", simple[2]), *FIELD.findall(simple[3])]
    else:
        return "", {}
    numbers = {}
    for key, value in fields:
        try:
            numbers[key] = float(value)
        except (TypeError, ValueError):
            continue
    return split, numbers


def progress(line: str) -> str | None:
    """Return a short text about a line of training or validation statistics, or None for any other line.

    The text names the epoch, the update and the perplexity, or what else the criterion logs.
    """
    split, numbers = parse(line)
    kind = {"train_inner": "training", "valid": "validation"}.get(split)
    if kind is None or not {"epoch", "num_updates"} <= numbers.keys():
        return None
    epoch, update = (int(numbers[key]) for key in ("epoch", "num_updates"))
    key = next((key for key in SHOWN if key in numbers), "ppl")
    return f"  epoch {epoch}, update {update}: {kind} {SHOWN[key]} {numbers.get(key)}"
