"""Applies a function to the blocks of a text, by several processes, in order, with a bounded number of blocks
in memory.
"""

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.lifetime import end_with

function: Callable | None = None  # of a worker process


def map_blocks(make: Callable[..., Callable], arguments: tuple, blocks: Iterable, workers: int) -> Iterator:
    """Yield `make(*arguments)(block)` for each block, in order. Each process makes the function once, so that
    it may remember words.
    """
    if workers == 1:
        yield from map(make(*arguments), blocks)
        return
    # Workers are children of this process.
    context = multiprocessing.get_context("fork") if sys.platform == "linux" else None
    with ProcessPoolExecutor(workers, context, start_worker, (make, arguments, os.getpid())) as pool:
        waiting = deque()
        try:
            for block in blocks:
                waiting.append(pool.submit(call, block))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UsageError(
                "a worker process was ended from outside, perhaps for want of memory; try again with fewer "
                "--workers"
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def start_worker(make: Callable[..., Callable], arguments: tuple, parent: int) -> None:
    global function
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers, and says so once
    function = make(*arguments)


def call(block):
    return function(block)
