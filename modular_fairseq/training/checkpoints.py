"""Checkpoints as data: read without running anything that is in them, and written whole or not at all.

``torch.load`` refuses programs; what else it reads than tensors and plain containers,
`patches/checkpoints.py` lists.
"""

import os
from contextlib import suppress
from typing import Any

import torch

from modular_fairseq_cli.errors import UsageError, unreadable_checkpoint


def load_checkpoint(path: str | os.PathLike) -> dict[str, Any]:
    """The contents of a fairseq checkpoint, tensors on the CPU, as saved: nothing is upgraded or overridden.

    Raises:
        UsageError: ``path`` is not a file, cannot be read, is cut short, contains anything but data, or has
            no "model".
    """
    path = os.fspath(path)
    try:
        open(path, "rb").close()
    except OSError as error:
        raise UsageError(f"{path}: cannot be opened ({error.strerror}); give a checkpoint file") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail in any way
        raise unreadable_checkpoint(error, path) from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise UsageError(
            f'{path}: is not a fairseq checkpoint, because it has no "model"; give a file that fairseq-train '
            "saved"
        )
    return state


def save_checkpoint(state: dict[str, Any], path: str | os.PathLike) -> None:
    """Write ``state`` to a temporary file beside ``path``, then rename it: an earlier ``path`` is replaced
    only by a whole file.

    Raises:
        UsageError: the file cannot be written, as on a full disk; the temporary file is gone and ``path`` is
            as it was.
    """
    target = os.path.realpath(path)
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except (
        OSError,
        RuntimeError,
    ) as error:  # torch raises a RuntimeError of its own while it handles the OSError
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        reason = getattr(cause, "strerror", None) or cause
        raise UsageError(
            f"{path}: was not written ({reason}), and what was there is as before; make room or write "
            "elsewhere"
        ) from error
    finally:
        with suppress(FileNotFoundError):
            os.remove(temporary)


def training_ended(state: dict[str, Any], max_update: int, max_epoch: int) -> bool:
    """Whether a checkpoint_last.pt is where ``--max-update`` or ``--max-epoch`` (0: no limit) ended a
    training.

    Not to be left to fairseq-train, which makes one update too many when it is started on a checkpoint of its
    --max-update.
    """
    updates, epoch = (
        state["optimizer_history"][-1]["num_updates"],
        state["extra_state"]["train_iterator"]["epoch"],
    )
    return 0 < max_update <= updates or 0 < max_epoch < epoch
