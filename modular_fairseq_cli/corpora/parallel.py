"""Apply a function to the blocks of a text in several processes.

The results come in the order of the blocks, and only a bounded number of blocks is in memory.
"""

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.lifetime import end_with

Block = TypeVar("Block")
Result = TypeVar("Result")

function: Callable[[Any], Any] | None = None  # the function of this worker process, see `start_worker`


def map_blocks(
    make: Callable[..., Callable[[Block], Result]],
    arguments: tuple[Any, ...],
    blocks: Iterable[Block],
    workers: int,
) -> Iterator[Result]:
    """Yield `make(*arguments)(block)` for each block, in order.

    Each process calls `make` only once, so the function that it returns may remember words from block to
    block. With one worker, the function runs in this process.

    Raises:
        UsageError: a worker process was killed.
    """
    if workers == 1:
        yield from map(make(*arguments), blocks)
        return
    # A forked worker is a child of this process, and so ends with it; see `lifetime.end_with`.
    context = multiprocessing.get_context("fork") if sys.platform == "linux" else None
    with ProcessPoolExecutor(workers, context, start_worker, (make, arguments, os.getpid())) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for block in blocks:
                waiting.append(pool.submit(call, block))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UsageError(
                "a worker process was killed, perhaps because memory ran out; try again with fewer --workers"
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def start_worker(make: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...], parent: int) -> None:
    """Make the function of a new worker process, which ends when the process `parent` ends."""
    global function
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent reports an interrupt, and ends its workers
    function = make(*arguments)


def call(block: Any) -> Any:
    """Return what the function of this worker process makes of a block."""
    assert function is not None  # `start_worker` ran first
    return function(block)
