"""Checkpoints: what ``torch.load`` may read, and copies that are whole.

A file may call what is on the list of ``torch.load`` with any arguments, and give the result any state. So
the list has, wherever that matters, not the class itself but a stand-in under its name, which takes what
pickle writes for an ordinary object and nothing else. Above all numpy's own functions are not listed: they
believe a state in which the bytes of numbers are said to be Python objects, and then follow pointers that are
in the file.
"""

import math
import os
import pickle
import shutil
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.file_io import PathManager
from omegaconf import DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

from modular_fairseq.patches.registry import change, replace


@replace("fairseq.file_io.PathManager.copy")
def copy_checkpoints_whole(copy: Callable, src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """A copy of a local file is there whole or not at all.

    checkpoint_best.pt and checkpoint_last.pt are copies of another checkpoint
    (fairseq/checkpoint_utils.py:139). fairseq writes them in place (fairseq/file_io.py:71-76), so a run that
    is killed at that moment leaves a part of a file under the very name that it resumes from.
    """
    if PathManager.path_requires_pathmanager(dst_path) or (os.path.exists(dst_path) and not overwrite):
        return copy(src_path, dst_path, overwrite)
    part = f"{dst_path}.part"
    shutil.copyfile(src_path, part)
    os.replace(part, dst_path)
    return True


@change("torch.serialization.get_safe_globals()")
def allow_fairseq_checkpoints() -> None:
    """``torch.load`` reads what fairseq saves, and goes on refusing everything else.

    Since version 2.6 it reads tensors and plain containers, and other objects only if their class is on a
    list. Some of what fairseq saves is not on it, and fairseq calls ``torch.load`` itself
    (fairseq/checkpoint_utils.py:340, fairseq/distributed/utils.py:805). The list is extended by:

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
