"""How the process shows an uncaught error."""

import sys

from modular_fairseq.patches.registry import change
from modular_fairseq_cli.errors import find_usage_error


@change("sys.excepthook")
def show_usage_errors_as_sentences() -> None:
    """An uncaught `UsageError` ends a command with its sentence instead of a traceback (exit status 1, as
    ever).

    fairseq's commands (fairseq_cli/train.py:555-575 and its siblings) catch nothing, so a user who mistyped
    an option would have to read a traceback.
    """
    previous = sys.excepthook

    def excepthook(kind, error, traceback):
        usage_error = find_usage_error(error)
        if usage_error is None:
            previous(kind, error, traceback)
        else:
            print(f"modular_fairseq: error: {usage_error}", file=sys.stderr)

    sys.excepthook = excepthook
