"""A flag that tells modules whether a forward pass is the second one of activation checkpointing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_thread = threading.local()


@contextmanager
def recomputation() -> Iterator[None]:
    """Mark the forward pass inside the block as the second one of activation checkpointing.

    In it no module counts or reports anything a second time.
    """
    former = is_recomputation()
    _thread.recomputing = True
    try:
        yield
    finally:
        _thread.recomputing = former


def is_recomputation() -> bool:
    """Tell whether this thread is in a `recomputation` block."""
    return getattr(_thread, "recomputing", False)
