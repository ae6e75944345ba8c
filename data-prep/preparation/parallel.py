"""A function over the blocks of a text, by several processes, in order, with a bounded number of blocks in memory."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from preparation import CorpusError

function: Callable | None = None  # of a worker process


def map_blocks(make: Callable[..., Callable], arguments: tuple, blocks: Iterable, workers: int) -> Iterator:
    """`make(*arguments)(block)` for each block, in order. Each process makes the function once, so that it may remember words."""
    if workers == 1:
        yield from map(make(*arguments), blocks)
        return
    with ProcessPoolExecutor(workers, initializer=start_worker, initargs=(make, arguments, os.getpid())) as pool:
        waiting = deque()
        try:
            for block in blocks:
                waiting.append(pool.submit(call, block))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise CorpusError(
                "a worker process was ended from outside, perhaps for want of memory; try again with fewer --workers"
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def start_worker(make: Callable[..., Callable], arguments: tuple, parent: int) -> None:
    global function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers, and says so once
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    function = make(*arguments)


def end_with(parent: int) -> None:
    """Workers of a killed run would wait for ever, and hold the lock of the folder."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def call(block):
    return function(block)
