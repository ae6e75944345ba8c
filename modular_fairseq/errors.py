"""One exception for everything a user can mend, and one way to show it."""

import pickle
import re
import sys
import traceback

TORCH_REFUSAL = "Weights only load failed"  # the first words of torch.load about a file that it will not read


class UsageError(ValueError):
    """A wrong option, file or combination; the message is one sentence: what is wrong, and what would be right."""


def unreadable_checkpoint(error: BaseException, file: str) -> UsageError:
    """Why ``torch.load`` gave up on ``file``, without its page of advice on how to load it all the same."""
    text = str(error)
    named = re.search(r"GLOBAL (\S+) (?:was not an allowed|whose module)", text)
    if named:
        return UsageError(
            f"{file}: refused, because it contains the Python object {named[1]}, which no fairseq checkpoint needs and "
            "which could run a program on this machine; use a checkpoint that fairseq wrote"
        )
    reason = text
    if text.startswith(TORCH_REFUSAL):
        reason = text.rpartition("WeightsUnpickler error:")[2].partition("Check the documentation")[0].strip()
        if not reason.startswith("Unsupported operand"):  # a well-formed pickle that asks for something else
            return UsageError(f"{file}: refused, because it was not written as fairseq writes a checkpoint ({_first_line(reason)})")
    return UsageError(
        f"{file}: cannot be read as a checkpoint, because it is cut short, damaged or of another kind "
        f"({type(error).__name__}: {_first_line(reason)}); copy it again or use another"
    )


def find_usage_error(error: BaseException | None) -> UsageError | None:
    """The `UsageError` in a chain of causes, if any: fairseq re-raises what it catches in words of its own.

    A checkpoint that ``torch.load`` refused inside one of fairseq's commands counts as one.
    """
    while error is not None:
        if isinstance(error, UsageError):
            return error
        if isinstance(error, pickle.UnpicklingError) and str(error).startswith(TORCH_REFUSAL):
            return unreadable_checkpoint(error, _file_being_loaded(error))
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


def _file_being_loaded(error: BaseException) -> str:
    """The argument of the ``torch.load`` that raised ``error``: its message does not say it, but the traceback knows."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "load" and frame.f_globals.get("__name__") == "torch.serialization":
            file = frame.f_locals.get("f")
            return str(getattr(file, "name", file))
    return "the checkpoint"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip(".") or "no reason given"
