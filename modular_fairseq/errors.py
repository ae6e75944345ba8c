"""One exception for everything a user can mend, and one way to show it."""

import sys


class UsageError(ValueError):
    """A wrong option, file or combination; the message is one sentence: what is wrong, and what would be right."""


def find_usage_error(error: BaseException | None) -> UsageError | None:
    """The `UsageError` in a chain of causes, if any: fairseq re-raises what it catches in words of its own."""
    while error is not None:
        if isinstance(error, UsageError):
            return error
        error = error.__cause__ or error.__context__
    return None


def show_usage_errors_as_sentences() -> None:
    """Let an uncaught `UsageError` end a command with its sentence instead of a traceback (exit status 1, as ever)."""
    previous = sys.excepthook

    def excepthook(kind, error, traceback):
        usage_error = find_usage_error(error)
        if usage_error is None:
            previous(kind, error, traceback)
        else:
            print(f"modular_fairseq: error: {usage_error}", file=sys.stderr)

    sys.excepthook = excepthook
