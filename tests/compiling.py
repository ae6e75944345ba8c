"""Compile layers in a test without leaving a program or a setting behind."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch._dynamo
import torch._inductor.config

from modular_fairseq.training import compilation


@contextmanager
def compiling() -> Iterator[dict]:
    """Yield torch's counters of compiled programs and graph breaks, which start at 0."""
    with (
        warnings.catch_warnings(),
        torch._dynamo.config.patch(cache_size_limit=8, optimize_ddp=True),
        torch._inductor.config.patch(compile_threads=1),  # torch 2.6 would start processes in advance
        compilation.shapes.patch(use_duck_shape=True),
    ):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        yield torch._dynamo.utils.counters
        torch._dynamo.reset()
