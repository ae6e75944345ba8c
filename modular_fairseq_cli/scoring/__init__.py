"""Score translations by sacrebleu, and test differences for significance.

The module `command` is `modular-fairseq score`.
"""

from modular_fairseq_cli.scoring.metrics import score, summarize
from modular_fairseq_cli.scoring.significance import compare_seeds, paired_bootstrap
from modular_fairseq_cli.scoring.translations import Output, read_lines, read_output, read_test_set

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
