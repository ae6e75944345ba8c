"""The numbers in what fairseq-train prints, with --log-format json or simple (which tqdm becomes where its
output is no terminal). These are such lines, cut at the end:

    2026-01-01 10:00:00 | INFO | train_inner | {"epoch": 1, "loss": "7.59", "num_updates": "50", ...}
    2026-01-01 10:00:00 | INFO | train_inner | epoch 001:     50 / 178 loss=7.59, num_updates=50, ...
    2026-01-01 10:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 2.55 | num_updates 178
"""

import json
import re

LOGGED = re.compile(r"\| (\w+) \| (\{.*\})$")  # a line of --log-format json
SIMPLE = re.compile(r"\| (\w+) \| epoch (\d+)(?::\s+\d+ / \d+ | \| )(.*)$")
FIELD = re.compile(r"(?:^|, |\| )(\w+)[= ]([^\s,|]+)(?=,| \||$)")


def parse(line: str) -> tuple[str, dict[str, float]]:
    """Return the split of a line of the log ("train_inner", "train", "valid", ...) and its numbers by name.

    The names have no prefix of the split: "ppl", not "valid_ppl". A line without numbers has the split "".
    """
    if logged := LOGGED.search(line):
        split = logged[1]
        try:
            fields = json.loads(logged[2]).items()
        except ValueError:  # cut by a kill
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
    """Return what a user wants to see of a line of the log of fairseq-train, or None."""
    split, numbers = parse(line)
    kind = {"train_inner": "training", "valid": "validation"}.get(split)
    if kind is None or not {"epoch", "num_updates"} <= numbers.keys():
        return None
    epoch, update = (int(numbers[key]) for key in ("epoch", "num_updates"))
    return f"  epoch {epoch}, update {update}: {kind} perplexity {numbers.get('ppl')}"
