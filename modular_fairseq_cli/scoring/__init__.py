"""Scores of translations, by sacrebleu, and whether a difference is significant.

`command` is `modular-fairseq score`.
"""

from modular_fairseq_cli.scoring.metrics import score, summarize
from modular_fairseq_cli.scoring.reading import Output, read_lines, read_output, read_test_set
from modular_fairseq_cli.scoring.significance import compare_seeds, paired_bootstrap

__all__ = [
    "Output",
    "compare_seeds",
    "paired_bootstrap",
    "read_lines",
    "read_output",
    "read_test_set",
    "score",
    "summarize",
]
