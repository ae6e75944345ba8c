"""What fairseq-train logs: lines of numbers, with --log-format json."""

import json
import re

LOGGED = re.compile(r"\| (\w+) \| (\{.*\})$")  # a line of fairseq's --log-format json


def progress(line: str) -> str | None:
    """What a user wants to see of a line of the log of fairseq-train."""
    logged = LOGGED.search(line)
    stats = json.loads(logged[2]) if logged else {}
    if logged and logged[1] == "train_inner":
        return (
            f"  epoch {stats['epoch']}, update {stats['num_updates']}: training perplexity {stats.get('ppl')}"
        )
    if logged and logged[1] == "valid" and "epoch" in stats:
        return f"  epoch {stats['epoch']}, update {stats['valid_num_updates']}: validation perplexity {stats.get('valid_ppl')}"
    return None
