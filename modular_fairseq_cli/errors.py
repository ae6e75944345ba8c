"""One exception for everything a user can mend, and one way to show it."""

import os
import re
import traceback


class UsageError(ValueError):
    """A wrong option, file or combination. Its message is one sentence: what is wrong, and what would be
    right.
    """


def unreadable_checkpoint(error: Exception, file: str) -> UsageError:
    """Return why ``torch.load`` gave up on ``file``, without its page of advice on how to load it all the
    same.
    """
    text = str(error)
    named = re.search(r"GLOBAL (\S+) (?:was not an allowed|whose module)", text)
    if named:
        return UsageError(
            f"{file}: refused, because it contains the Python object {named[1]}, which no fairseq checkpoint "
            "needs and which could run a program on this machine; use a checkpoint that fairseq wrote"
        )
    reason = text.rpartition("WeightsUnpickler error:")[2].strip()
    reason = re.split(r"\.? *\n|\. ", reason)[0].rstrip(".")
    # Whole, but not plain data.
    if text.startswith("Weights only load failed") and not reason.startswith("Unsupported operand"):
        return UsageError(
            f"{file}: refused, because it is not what fairseq writes ({reason}); use a checkpoint that "
            "fairseq wrote"
        )
    if " " not in reason:
        reason = f"{type(error).__name__} {reason}".strip()
    return UsageError(
        f"{file}: is no checkpoint, or is cut short or damaged ({reason}); copy it again or use another"
    )


def find_usage_error(error: BaseException | None) -> UsageError | None:
    """Return the `UsageError` in a chain of causes, or None: fairseq re-raises what it catches in words of
    its own.

    A file that ``torch.load`` could not read inside one of fairseq's commands counts as one.
    """
    while error is not None:
        if isinstance(error, UsageError):
            return error
        file = _file_being_loaded(error)
        if file is not None and isinstance(error, Exception) and not isinstance(error, MemoryError):
            return unreadable_checkpoint(error, file)
        # What fairseq raises in place of another error is a plain Exception; any other error that came up
        # meanwhile is news.
        error = error.__cause__ or (error.__context__ if type(error) is Exception else None)
    return None


def _file_being_loaded(error: BaseException) -> str | None:
    """Return the file that ``torch.load`` was reading when it raised ``error``: the message does not say, but
    the traceback knows.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "load" and frame.f_globals.get("__name__") == "torch.serialization":
            file = frame.f_locals.get("f")
            name = os.fspath(file) if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
            return name if isinstance(name, str) else None
    return None
