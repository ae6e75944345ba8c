"""Whether a forward pass is the second one of activation checkpointing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_thread = threading.local()


@contextmanager
def recomputation() -> Iterator[None]:
    """Around the second forward pass: norms use what they used in the first, and nothing is counted or handed
    out twice.
    """
    _thread.recomputing = True
    try:
        yield
    finally:
        _thread.recomputing = False


def is_recomputation() -> bool:
    return getattr(_thread, "recomputing", False)
