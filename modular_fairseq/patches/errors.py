"""Change how the process shows an error that nothing catches, and how it logs when nobody reads."""

import atexit
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from modular_fairseq.patches.registry import change, replace
from modular_fairseq_cli.errors import find_usage_error
from modular_fairseq_cli.processes import discard_unread, nobody_reads


@change("sys.excepthook")
def show_usage_errors_as_sentences() -> None:
    """Show the sentence of a `UsageError` that nothing catches, instead of a traceback.

    A lack of memory, a file that is no checkpoint, and a disk that is full or read-only are shown as
    sentences, too. A command whose output is no longer read (`fairseq-generate ... | head`) ends without a
    message. The exit status is 1, as for every error. fairseq's commands (fairseq_cli/train.py:555-575 and
    the others) catch no errors, so a user who mistyped an option would have to read a traceback.
    """
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        usage_error = find_usage_error(error)
        if usage_error is not None:
            print(f"modular_fairseq: error: {usage_error}", file=sys.stderr)
        elif isinstance(error, BrokenPipeError) and nobody_reads(sys.stdout):
            discard_unread()
        else:
            previous(kind, error, traceback)

    sys.excepthook = excepthook


@replace("logging.StreamHandler.handleError")
def log_to_nobody_in_silence(
    handle_error: Callable, handler: logging.StreamHandler, record: logging.LogRecord
) -> None:
    """Stop logging to a pipe that its reader has closed, say so once, and go on.

    fairseq's commands log to the standard output (fairseq_cli/train.py:19-24). If its reader ends before
    them, as `tee` or a terminal's program may, a training goes on, but Python shows a traceback for every
    line of the log from then on.
    """
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        handle_error(handler, record)
        return
    atexit.register(discard_unread)  # Python would try to write the rest once more
    handler.setLevel(sys.maxsize)
    with suppress(OSError, ValueError):  # standard error may be the same pipe
        print("modular_fairseq: warning: nobody reads the log any more; the command goes on", file=sys.stderr)
