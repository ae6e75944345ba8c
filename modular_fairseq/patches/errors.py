"""Change how the process shows an error that nothing catches."""

import sys
from types import TracebackType

from modular_fairseq.patches.registry import change
from modular_fairseq_cli.errors import find_usage_error


@change("sys.excepthook")
def show_usage_errors_as_sentences() -> None:
    """Show the sentence of a `UsageError` that nothing catches, instead of a traceback.

    A lack of memory, and a file that is no checkpoint, are shown as sentences, too. The exit status is 1, as
    for every error. fairseq's commands (fairseq_cli/train.py:555-575 and the others) catch no errors, so a
    user who mistyped an option would have to read a traceback.
    """
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        usage_error = find_usage_error(error)
        if usage_error is None:
            previous(kind, error, traceback)
        else:
            print(f"modular_fairseq: error: {usage_error}", file=sys.stderr)

    sys.excepthook = excepthook
