"""Let ``torch.load`` read fairseq's checkpoints safely, and let fairseq write and copy them completely.

A file can call every function and class on the allow list of ``torch.load`` with any arguments, and can give
the result any state. Where this matters, the list therefore contains a stand-in under the name of the class.
A stand-in accepts what pickle writes for an ordinary object, and nothing else. In particular, numpy's own
functions are not on the list. They accept a state that declares the bytes of an array to be Python objects,
and would then follow pointers from the file.
"""

import io
import math
import os
import pickle
import shutil
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Self, SupportsIndex

import numpy as np
import torch
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.file_io import PathManager
from omegaconf import DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

from modular_fairseq.models.tasks import OtherTaskError
from modular_fairseq.patches.registry import change, replace
from modular_fairseq.training.checkpoints import check_weights, load_checkpoint, refuse_compressed
from modular_fairseq_cli.errors import UsageError, disk_error, find_usage_error


@replace("fairseq.file_io.PathManager.copy")
def copy_checkpoints_whole(copy: Callable, src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """Copy a local file to a temporary name and then rename it, so that no partial copy can remain.

    checkpoint_best.pt and checkpoint_last.pt are copies of another checkpoint
    (fairseq/checkpoint_utils.py:139). fairseq writes a copy in place (fairseq/file_io.py:71-76). A run that
    is killed at that moment leaves a partial file under the name from which it would resume.
    """
    if PathManager.path_requires_pathmanager(dst_path) or (os.path.exists(dst_path) and not overwrite):
        return copy(src_path, dst_path, overwrite)
    part = f"{dst_path}.part"
    try:
        shutil.copyfile(src_path, part)
        os.replace(part, dst_path)
    except OSError:
        with suppress(OSError):
            os.remove(part)
        raise
    return True


TRIES, PAUSE = 3, 2.5  # of a write that fails; seconds between them


@replace("fairseq.checkpoint_utils._torch_persistent_save")
def write_again_from_the_beginning(write: Callable, obj: Any, file: str | BinaryIO) -> None:
    """Write a checkpoint again from its beginning if this fails, and name the file if it fails every time.

    fairseq tries three times (fairseq/checkpoint_utils.py:599-607). It leaves the part that was written in
    the file, and the next try writes the whole checkpoint behind it. After the last one it logs a traceback
    and raises an error that does not name the file.

    Raises:
        OSError: the file cannot be written. The error names the file.
    """
    if not isinstance(file, io.BufferedWriter) or not isinstance(file.name, str):
        write(obj, file)
        return
    for left in reversed(range(TRIES)):
        try:
            # A buffer that could not be written would still be in `file`.
            with open(file.name, "wb") as whole:
                torch.save(obj, whole)
            return
        except (OSError, RuntimeError) as error:
            found = disk_error(error)
            if found is None:
                raise
            if left == 0:
                with suppress(OSError):
                    os.remove(file.name)
                found.filename = file.name.removesuffix(".tmp")
                raise found from None
            time.sleep(PAUSE)


@replace("fairseq.checkpoint_utils.load_checkpoint_to_cpu")
def name_what_a_checkpoint_lacks(load: Callable, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Say which file is no whole checkpoint of fairseq, and what it lacks.

    fairseq looks up what it needs without a check (fairseq/checkpoint_utils.py:335-368,610-690), and ends
    with an error such as ``KeyError: 'extra_state'``. It gives the weights to a model as they are. If one is
    no tensor, the error that follows says that the model is of another architecture. fairseq would also read
    a compressed file, which could fill the memory.
    """
    if os.path.isfile(path):
        refuse_compressed(path)
    try:
        state = load(path, *args, **kwargs)
    except Exception as error:
        if find_usage_error(error) is not None:
            raise
        lacking = [
            part for part in ("extra_state", "optimizer_history") if not load_checkpoint(path).get(part)
        ]
        if not lacking:
            raise
        raise UsageError(
            f"{path} is not a whole fairseq checkpoint, because it has no {' and no '.join(lacking)}; give a "
            "file that fairseq-train saved"
        ) from error
    check_weights(state, path)
    return state


@replace("fairseq.checkpoint_utils.load_model_ensemble_and_task")
def name_checkpoints_of_another_task(load: Callable, filenames: list[str], *args: Any, **kwargs: Any) -> Any:
    """Say that a checkpoint has a model for another task.

    fairseq builds the model of a checkpoint for the task of the command
    (fairseq/checkpoint_utils.py:485,504). The message about its --arch, which nobody gave, would not say
    which file is wrong.
    """
    try:
        return load(filenames, *args, **kwargs)
    except OtherTaskError as error:
        raise UsageError(
            f"{' or '.join(filenames)} has a model for --task {error.own}; this command needs a model for "
            f"--task {error.asked}"
        ) from None


@change("torch.serialization.get_safe_globals()")
def allow_fairseq_checkpoints() -> None:
    """Allow ``torch.load`` to read what fairseq saves. It still refuses everything else.

    Since version 2.6, ``torch.load`` reads tensors and plain containers. It reads other objects only if their
    class is on an allow list. fairseq calls ``torch.load`` itself (fairseq/checkpoint_utils.py:340,
    fairseq/distributed/utils.py:805), but saves some objects whose classes are not on the list. This patch
    adds:

    - ``argparse.Namespace``, for the options of models that register them with argparse, and for all options
      in old files.
    - ``numpy.ndarray``, ``dtype``, ``_reconstruct`` and ``scalar``, under their names in numpy 1 and 2, for
      scores and for the sums that ``--eval-bleu`` keeps. They may contain numbers only.
    - omegaconf's containers, nodes and metadata, and fairseq's ``_TensorPlaceholder``. They are not in files.
      When training resumes, the first of several processes sends them to the others, which also read them
      with ``torch.load``.
    - ``typing.Any``, ``dict``, ``list`` and ``int``, the types that omegaconf's metadata names. Calling
      ``Any`` is an error. Calling the others makes a container or a number from data that has already been
      loaded.
    - ``collections.defaultdict``, which is in that metadata as well. Its argument may only be ``dict``,
      because it calls its argument later.
    """
    allowed: list[Any] = [
        *((stand_in, f"{kind.__module__}.{kind.__qualname__}") for kind, stand_in in _STAND_INS.items()),
        (_Dtype, "numpy.dtype"),
        (CheckpointArray, "numpy.ndarray"),
        (_defaultdict, "collections.defaultdict"),
        *((_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
        *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
        *(Any, dict, list, int),
    ]
    torch.serialization.add_safe_globals(allowed)


def _filled_from_dict(kind: type) -> type:
    """Return a stand-in for a class. Its objects are created empty and get their attributes from a dict.

    This is how pickle writes ordinary objects. The object then becomes an instance of the class itself. No
    constructor of the class runs on arguments from a file.
    """

    class StandIn(kind):
        def __new__(cls, *arguments: Any) -> Any:
            if arguments:
                raise pickle.UnpicklingError(f"{kind.__name__} is called with arguments")
            return object.__new__(cls)

        def __init__(self, *arguments: Any) -> None:
            raise pickle.UnpicklingError(f"{kind.__name__} is called")

        def __setstate__(self, state: Any) -> None:
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
    """A stand-in for ``numpy.dtype`` that accepts a type of number and a byte order only.

    The rest of the state that numpy saves with a data type does not concern numbers.
    """

    def __init__(self, code: str, *flags: Any):
        if code not in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"):
            raise pickle.UnpicklingError("a numpy array of something other than numbers")
        self.dtype: np.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        _version, byte_order, *rest = state
        if byte_order not in ("<", ">", "|", "=") or rest != [None, None, None, -1, -1, 0]:
            raise pickle.UnpicklingError("a numpy array of something other than numbers")
        self.dtype = self.dtype.newbyteorder(byte_order)


class CheckpointArray(np.ndarray):
    """A stand-in for ``numpy.ndarray`` that is filled once from a shape, a `_Dtype` and bytes.

    It is saved as a plain array.
    """

    def __new__(cls, *arguments: Any) -> Self:
        raise pickle.UnpicklingError("ndarray is called")

    def __setstate__(self, state: tuple) -> None:
        version, shape, dtype, is_fortran, data = state
        if (
            type(dtype) is not _Dtype
            or type(data) is not bytes
            or len(data) != math.prod(shape) * dtype.dtype.itemsize
        ):
            raise pickle.UnpicklingError("a numpy array whose bytes do not fit its shape and type")
        super().__setstate__((version, shape, dtype.dtype, is_fortran, data))

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        return np.asarray(self).__reduce_ex__(protocol)


def _reconstruct(kind: type, shape: tuple, code: bytes) -> np.ndarray:
    if kind is not CheckpointArray:
        raise pickle.UnpicklingError("a numpy array of another class")
    return np.ndarray.__new__(CheckpointArray, 0)


def _scalar(dtype: _Dtype, data: bytes) -> np.generic:
    if type(dtype) is not _Dtype or type(data) is not bytes or len(data) != dtype.dtype.itemsize:
        raise pickle.UnpicklingError("a numpy scalar whose bytes do not fit its type")
    return np.frombuffer(data, dtype.dtype)[0]
