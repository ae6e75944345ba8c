"""Load checkpoints without running any code that they contain, and save them so that no partial file remains.

``torch.load`` refuses pickled programs. It reads tensors, plain containers and the further classes that
`patches/checkpoints.py` allows.
"""

import functools
import hashlib
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from modular_fairseq_cli.errors import UsageError, disk_error, unreadable_checkpoint
from modular_fairseq_cli.files import temporary_beside


def load_checkpoint(path: str | os.PathLike) -> dict[str, Any]:
    """Return the contents of a fairseq checkpoint exactly as saved, with its tensors on the CPU.

    Unlike fairseq's own function, it neither upgrades old formats nor overrides options.

    Raises:
        UsageError: ``path`` is not a readable file, is truncated, contains anything but data, or has no
            "model", or a weight that is no tensor of real numbers. See also `refuse_compressed`.
    """
    path = os.fspath(path)
    try:
        open(path, "rb").close()
    except OSError as error:
        raise UsageError(f"{path} cannot be opened ({error.strerror}); give a checkpoint file") from None
    refuse_compressed(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise any exception
        raise unreadable_checkpoint(error, path) from None
    check_weights(state, path)
    return state


def refuse_compressed(path: str) -> None:
    """Refuse a file whose content is larger than the file. It could fill the memory while it is read.

    torch writes a zip archive and compresses nothing in it, but also reads compressed archives.

    Raises:
        UsageError: ``path`` is a zip archive whose members are compressed, or share their bytes.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            content = sum(each.file_size for each in archive.infolist())
    except Exception:  # a checkpoint of an old torch, or a damaged file, which torch.load names
        return
    if content > (size := os.path.getsize(path)):
        raise UsageError(
            f"{path} is no checkpoint that fairseq wrote, as its {size:,} bytes unpack to {content:,}; "
            "copy it again, or use another"
        )


def check_weights(state: Any, path: str) -> None:
    """Refuse the contents of a checkpoint without weights, and weights that are not tensors of real numbers.

    Raises:
        UsageError: ``state`` has no "model", or a weight in it is no such tensor. The message names it and
            ``path``, the checkpoint.
    """
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise UsageError(
            f'{path} is not a fairseq checkpoint, because it has no "model"; give a file that fairseq-train '
            "saved"
        )
    for name, value in state["model"].items():
        if name.endswith("_extra_state"):  # what a module of torch returns from get_extra_state
            continue
        if not isinstance(value, torch.Tensor):
            found = type(value).__name__
        elif value.layout != torch.strided or value.is_complex():
            found = f"{str(value.dtype).removeprefix('torch.')}, {str(value.layout).removeprefix('torch.')}"
        else:
            continue
        raise UsageError(
            f"{path} is no checkpoint that fairseq wrote, because its weight {name} is no dense tensor of "
            f"real numbers ({found}); copy it again, or use another"
        )


def options_of(state: Mapping[str, Any], group: str) -> Mapping[str, Any]:
    """Return the options of a group, such as "model", that a checkpoint was trained with; it may have none.

    fairseq saves the options of each group as a mapping or a namespace. A checkpoint from before 2021 has the
    options of all groups in one namespace, under the key "args".
    """
    options = (state.get("cfg") or {}).get(group) or state.get("args") or {}
    return options if isinstance(options, Mapping) else vars(options)


def weights_digest(path: str | os.PathLike) -> str:
    """Return a digest of the names and values of the weights in a checkpoint: 16 hexadecimal digits.

    The checkpoint itself has another digest each time that it is made, because it has times in it. The digest
    is kept until the file changes.

    Raises:
        UsageError: see `load_checkpoint`.
    """
    status = os.stat(path)
    return _weights_digest(os.fspath(path), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=64)
def _weights_digest(path: str, *_changes: int) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(load_checkpoint(path)["model"].items()):
        found.update(name.encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def save_checkpoint(state: dict[str, Any], path: str | os.PathLike) -> None:
    """Write a checkpoint to a temporary file in the folder of ``path``, then rename that file to ``path``.

    An existing ``path`` is therefore replaced only by a complete file.

    Raises:
        UsageError: the file cannot be written, for example because the disk is full. The temporary file is
            removed, and ``path`` is unchanged.
    """
    target = os.path.realpath(path)
    temporary = temporary_beside(target)
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except (OSError, RuntimeError) as error:
        reason = getattr(disk_error(error), "strerror", None) or error
        raise UsageError(
            f"{path} was not written ({reason}), and an existing file is unchanged; free some space, or "
            "write to another folder"
        ) from error
    finally:
        with suppress(FileNotFoundError):
            os.remove(temporary)


def training_ended(state: dict[str, Any], max_update: int, max_epoch: int, patience: int) -> bool:
    """Return whether a checkpoint_last.pt is from the end of its training.

    A training ends at --max-update or --max-epoch, or after --patience validations in a row without
    improvement, whose number `patches/stopping.py` saves. 0 or less means no limit. fairseq-train cannot
    decide this itself: started on a checkpoint that has reached --max-update, it makes one more update.
    """
    updates, epoch = (
        state["optimizer_history"][-1]["num_updates"],
        state["extra_state"]["train_iterator"]["epoch"],
    )
    in_vain = state["extra_state"].get("early_stopping", {}).get("num_runs", 0)
    return 0 < max_update <= updates or 0 < max_epoch < epoch or 0 < patience <= in_vain
