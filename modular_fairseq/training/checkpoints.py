"""Checkpoints as data: read without running anything that is in them, and written whole or not at all.

Since version 2.6 ``torch.load`` reads tensors and plain containers, and other objects only if their class is
on a list. Some of what fairseq saves is not on it, and fairseq's commands call ``torch.load`` themselves, so
`allow_fairseq_checkpoints` extends the list for the whole process.

A file may call what is listed with any arguments, and give the result any state. So this list has, wherever
that matters, not the class itself but a stand-in under its name, which takes what pickle writes for an
ordinary object and nothing else. Above all numpy's own functions are not listed: they believe a state in
which the bytes of numbers are said to be Python objects, and then follow pointers that are in the file.
"""

import math
import os
import pickle
from argparse import Namespace
from collections import defaultdict
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from fairseq.distributed.utils import _TensorPlaceholder
from omegaconf import DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

from modular_fairseq_cli.errors import UsageError, unreadable_checkpoint


def allow_fairseq_checkpoints() -> None:
    """Let ``torch.load`` read what fairseq saves. It goes on refusing everything else; a second call changes
    nothing.

    - ``argparse.Namespace``: the options of models that register them with argparse, and all options in old
    files.
    - ``numpy.ndarray``, ``dtype``, ``_reconstruct``, ``scalar``, under their names in numpy 1 and 2: the sums
      that ``--eval-bleu`` keeps, and scores. Numbers only.
    - omegaconf's containers, nodes and metadata, and fairseq's ``_TensorPlaceholder``: not in files, but in
      what the first of several processes sends to the others when training resumes; they read it with
      ``torch.load`` too.
    - ``typing.Any``, ``dict``, ``list``, ``int``: the types that omegaconf's metadata names. Calling ``Any``
      is an error; calling the others makes a container or a number of what has been loaded already.
    - ``collections.defaultdict``: in that metadata as well. Only with ``dict``: it would call any other
    argument later.
    """
    torch.serialization.add_safe_globals(
        [(stand_in, f"{kind.__module__}.{kind.__qualname__}") for kind, stand_in in _STAND_INS.items()]
        + [
            (_Dtype, "numpy.dtype"),
            (CheckpointArray, "numpy.ndarray"),
            (_defaultdict, "collections.defaultdict"),
        ]
        + [(_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
        + [(_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
        + [Any, dict, list, int]
    )


def load_checkpoint(path: str | os.PathLike) -> dict[str, Any]:
    """The contents of a fairseq checkpoint, tensors on the CPU, as saved: nothing is upgraded or overridden.

    Raises:
        UsageError: ``path`` is not a file, cannot be read, is cut short, contains anything but data, or has
            no "model".
    """
    path = os.fspath(path)
    allow_fairseq_checkpoints()
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
            f'{path}: is not a fairseq checkpoint, because it has no "model"; give a file that fairseq-train saved'
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


def _filled_from_dict(kind: type) -> type:
    """A stand-in for ``kind``: its objects come into being empty and get their attributes from a dict, as
    pickle writes them.

    Then the object becomes a ``kind`` proper. No constructor of ``kind`` ever runs on a file's arguments.
    """

    class StandIn(kind):
        def __new__(cls, *arguments):
            if arguments:
                raise pickle.UnpicklingError(f"{kind.__name__} is called with arguments")
            return object.__new__(cls)

        def __init__(self, *arguments):
            raise pickle.UnpicklingError(f"{kind.__name__} is called")

        def __setstate__(self, state):
            object.__setattr__(self, "__class__", kind)
            if hasattr(kind, "__setstate__"):
                kind.__setstate__(self, state)
            else:
                self.__dict__.update(state)

    return StandIn


_STAND_INS = {
    kind: _filled_from_dict(kind)
    for kind in (Namespace, DictConfig, ListConfig, AnyNode, Metadata, ContainerMetadata, _TensorPlaceholder)
}


def _defaultdict(factory: type) -> defaultdict:
    if factory is not dict:
        raise pickle.UnpicklingError("defaultdict is called with something other than dict")
    return defaultdict(dict)


class _Dtype:
    """``numpy.dtype``: a kind of number and a byte order. The rest of a data type's state says nothing about
    numbers.
    """

    def __init__(self, code, *flags):
        if code not in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"):
            raise pickle.UnpicklingError("a numpy array of something other than numbers")
        self.dtype = np.dtype(code)

    def __setstate__(self, state):
        _version, byte_order, *rest = state
        if byte_order not in ("<", ">", "|", "=") or rest != [None, None, None, -1, -1, 0]:
            raise pickle.UnpicklingError("a numpy array of something other than numbers")
        self.dtype = self.dtype.newbyteorder(byte_order)


class CheckpointArray(np.ndarray):
    """``numpy.ndarray``: filled once from a shape, a `_Dtype` and bytes; saved again as a plain array."""

    def __new__(cls, *arguments):
        raise pickle.UnpicklingError("ndarray is called")

    def __setstate__(self, state):
        version, shape, dtype, is_fortran, data = state
        if (
            type(dtype) is not _Dtype
            or type(data) is not bytes
            or len(data) != math.prod(shape) * dtype.dtype.itemsize
        ):
            raise pickle.UnpicklingError("a numpy array whose bytes do not fit its shape and type")
        super().__setstate__((version, shape, dtype.dtype, is_fortran, data))

    def __reduce_ex__(self, protocol):
        return np.asarray(self).__reduce_ex__(protocol)


def _reconstruct(kind: type, shape: tuple, code: bytes) -> np.ndarray:
    if kind is not CheckpointArray:
        raise pickle.UnpicklingError("a numpy array of another class")
    return np.ndarray.__new__(CheckpointArray, 0)


def _scalar(dtype: _Dtype, data: bytes) -> np.generic:
    if type(dtype) is not _Dtype or type(data) is not bytes or len(data) != dtype.dtype.itemsize:
        raise pickle.UnpicklingError("a numpy scalar whose bytes do not fit its type")
    return np.frombuffer(data, dtype.dtype)[0]
