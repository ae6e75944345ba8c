"""The exception for everything that a user can put right, and how it is told from other errors.

`modular_fairseq_cli.main.EXIT_CODES` explains the exit codes of `modular-fairseq`. A command's parser
(`argparse`) exits with 2, and a `UsageError` that is raised later exits with 1.
"""

import errno
import io
import os
import re
import traceback
from typing import Any

# What a user can put right about a disk, and how.
DISK = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of the quota",
    errno.EROFS: "make it writable, or choose another folder",
    errno.EIO: "look at the disk",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f)",
}


class UsageError(ValueError):
    """An option, a file or a combination of options that cannot work.

    Its message is one sentence that says what is wrong and what would be right. It ends a command with exit
    code 1.
    """


class NoEffectError(UsageError):
    """An option that the user has set, and that would have no effect."""


def why(error: Exception) -> str:
    """Return the reason of an error about a file, in a few words, and of an error of YAML the line, too."""
    if mark := getattr(error, "problem_mark", None):
        return f"line {mark.line + 1}: {getattr(error, 'problem', error)}"
    return getattr(error, "strerror", None) or str(error).splitlines()[0]


def unreadable_checkpoint(error: Exception, file: str) -> UsageError:
    """Return a `UsageError` that says why ``torch.load`` refused ``file``.

    The message of ``error`` ends with a page of advice on how to load the file without a check. It is left
    out. If the memory or the disk is the reason and not the file, the message says so.
    """
    if lack := out_of_memory(error):
        return lack
    if isinstance(error, OSError) and error.errno in DISK:  # torch raises an OSError for a short file, too
        return UsageError(f"{file} could not be read ({why(error)}); look at its disk, or use another file")
    text = str(error)
    named = re.search(r"GLOBAL (\S+) (?:was not an allowed|whose module)", text)
    if named:
        return UsageError(
            f"{file} is refused, because it contains the Python object {named[1]}, which no fairseq "
            "checkpoint needs and which could run a program on this machine; use a checkpoint that fairseq "
            "wrote"
        )
    reason = text.rpartition("WeightsUnpickler error:")[2].strip()
    reason = re.split(r"\.? *\n|\. ", reason)[0].rstrip(".")
    # The file is complete, but contains more than plain data.
    if text.startswith("Weights only load failed") and not reason.startswith("Unsupported operand"):
        return UsageError(
            f"{file} is refused, because fairseq does not write such content ({reason}); use a checkpoint "
            "that fairseq wrote"
        )
    if " " not in reason:
        reason = f"{type(error).__name__} {reason}".strip()
    return UsageError(
        f"{file} is no checkpoint, or is cut short or damaged ({reason}); copy it again, or use another"
    )


def out_of_memory(error: BaseException) -> UsageError | None:
    """Return a `UsageError` if ``error`` means that a device or the machine has not enough memory."""
    text = str(error)
    told = isinstance(error, RuntimeError) and re.search("can't allocate memory|out of memory", text)
    if not told and not isinstance(error, MemoryError):
        return None
    asked = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", text)
    return UsageError(
        f"there is not enough memory{f' for {asked[1]} more' if asked else ''}; give smaller batches "
        "(--max-tokens, --batch-size), or a smaller model"
    )


def disk_error(error: BaseException) -> OSError | None:
    """Return the `OSError` that ``error`` is, or that ``torch.save`` turned into a RuntimeError, or None."""
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        return error.__context__
    return error if isinstance(error, OSError) else None


def unwritable(error: BaseException) -> UsageError | None:
    """Return a `UsageError` if ``error`` means that a disk is full, is read-only or fails."""
    found = disk_error(error)
    if found is None or found.errno not in DISK:
        return None
    file = found.filename2 or found.filename or _file_being_written(error) or "a file"
    what = "read or written" if found.errno == errno.EIO else "written"
    return UsageError(
        f"{file} could not be {what} ({found.strerror}); {DISK[found.errno]}, and give the command again"
    )


def _file_being_written(error: BaseException) -> str | None:
    """Return the path of the file that a function in the traceback was writing, or None.

    An error of `write`, unlike one of `open`, does not name the file.
    """
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        for value in frame.f_locals.values():
            opened = isinstance(value, io.IOBase) and isinstance(getattr(value, "name", None), str)
            if opened and set(str(getattr(value, "mode", ""))) & set("wax+"):
                return value.name
    return None


def no_model(error: BaseException) -> UsageError | None:
    """Return a `UsageError` if ``error`` means that fairseq found no model where an option says."""
    text = str(error)
    if isinstance(error, ValueError) and re.match("--finetune-from-model .* does not exist$", text):
        return UsageError(f"{text}; give a checkpoint that fairseq-train saved")
    if isinstance(error, OSError) and text.startswith("Model file not found: "):
        reason = "does not exist"
    elif isinstance(error, RuntimeError) and text.startswith("Neither args nor cfg exist in state keys"):
        reason = "has no options of a model (cfg)"
    else:
        return None
    file = _local(error, "load_model_ensemble_and_task", "fairseq.checkpoint_utils", "filename")
    return UsageError(f"{file or 'a checkpoint'} {reason}; give a checkpoint that fairseq-train saved")


def unregistered(error: BaseException) -> UsageError | None:
    """Return a `UsageError` if ``error`` means that fairseq does not know a task or an architecture.

    fairseq's own message is a page with all that it knows, or a KeyError.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    if not isinstance(error, AssertionError | KeyError) or not frames:
        return None
    frame = frames[-1][0]
    place = frame.f_globals.get("__name__"), frame.f_code.co_name
    if place == ("fairseq.tasks", "setup_task"):
        kind, name = "task", frame.f_locals["task_name"] or frame.f_locals["cfg"]
    elif place == ("fairseq.models", "build_model"):
        kind, name = "model", frame.f_locals["model_type"]
    else:
        return None
    file = _local(error, "load_model_ensemble_and_task", "fairseq.checkpoint_utils", "filename")
    return UsageError(
        f"{file or 'the command'} names the {kind} {name}, which is neither in fairseq nor in --user-dir; "
        f"{'use another checkpoint' if file else 'name another'}, or give the --user-dir that has it"
    )


def of_workers(error: BaseException) -> UsageError | None:
    """Return a `UsageError` if ``error`` means that another worker has ended, or that workers cannot meet.

    If ``torch.multiprocessing.spawn`` has passed on a `UsageError` of a worker as text, it is returned. Other
    errors of torch's communication are left as they are, because their whole text tells what is wrong.
    """
    text, kind = str(error), type(error).__name__
    if kind == "ProcessRaisedException":
        told = re.search(r"\n[\w.]*(?:UsageError|NoEffectError): (.+)\s*$", text)
        return UsageError(told[1]) if told else None
    if kind == "DistNetworkError" and "EADDRINUSE" in text:
        port = re.search(r"port: (\d+)", text)
        return UsageError(
            f"the port {port[1] if port else 'at which the workers meet'} is used by another program, for "
            "example a training; give another one with --distributed-init-method or --distributed-port"
        )
    communication = kind in ("DistBackendError", "DistNetworkError") or (
        isinstance(error, RuntimeError) and re.search(r"\bgloo\b", text)
    )
    lost = re.search(r"by peer|Broken pipe|[Tt]imed? ?out|got 0 bytes|remote process exited", text)
    if kind != "ProcessExitedException" and not (communication and lost):
        return None
    reason = re.sub(r"^\[\S+\] ", "", re.split(r"\. |\n", text.strip())[0])
    return UsageError(
        f"another worker of this training has ended, or cannot be reached ({reason}); see its log, and start "
        "all workers again, which continue from the last checkpoint"
    )


def find_usage_error(error: BaseException | None) -> UsageError | None:
    """Return the `UsageError` in the chain of causes of `error`, or None if there is none.

    The chain matters because fairseq catches some errors and raises others in their place. An error that
    ``torch.load`` raised about a file inside one of fairseq's commands is returned as a `UsageError`, too,
    and so are a lack of memory, a disk that is full, read-only or defective, a checkpoint that does not
    exist, a task or architecture that is not registered, and the loss of a worker.
    """
    while error is not None:
        if isinstance(error, UsageError):
            return error
        for known in (out_of_memory, unwritable, no_model, unregistered, of_workers):
            if found := known(error):
                return found
        file = _file_being_loaded(error)
        if file is not None and isinstance(error, Exception) and not isinstance(error, MemoryError):
            return unreadable_checkpoint(error, file)
        # fairseq raises a plain Exception in place of the error that it caught. An error of any other class
        # that was raised while another one was handled is a new problem and must be shown itself.
        error = error.__cause__ or (error.__context__ if type(error) is Exception else None)
    return None


def _file_being_loaded(error: BaseException) -> str | None:
    """Return the file that ``torch.load`` was reading when it raised ``error``, or None.

    The error's message does not name the file.
    """
    file = _local(error, "load", "torch.serialization", "f")
    name = os.fspath(file) if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    return name if isinstance(name, str) else None


def _local(error: BaseException, function: str, module: str, name: str) -> Any:
    """Return the local variable ``name`` of a function of ``module`` from the traceback, or None.

    It is found only if ``error`` passed through the function.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == function and frame.f_globals.get("__name__") == module:
            return frame.f_locals.get(name)
    return None
