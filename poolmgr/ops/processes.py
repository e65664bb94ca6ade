"""Work spread over several processes: for what Python itself takes long at, where threads only wait
for each other.

A process that helps ends with the one that started it, however that one ends: else it would wait
for work for ever. Ctrl-C is left to the one that started it, which tells what was done.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from poolmgr.errors import ToolFailedError

C = TypeVar("C")
R = TypeVar("R")
AHEAD = 3
"""Chunks that are handed out for each process before the first is done: what memory is bounded by."""


def spread(work: Callable[[C], R], chunks: Iterable[C], jobs: int) -> Iterator[R]:
    """``work`` of every chunk, by ``jobs`` processes, in the order of ``chunks``.

    ``work`` is a function of a module (or a ``partial`` of one) that is quick to import. Whoever calls
    this runs as a module or under ``if __name__ == "__main__"``: a new process imports it again.
    Raises ``ToolFailedError`` when one of the processes is killed.
    """
    # spawn: this process may have threads (Arrow's, the parser's), which a fork would break.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    pending: deque[Future[R]] = deque()
    try:
        for chunk in chunks:
            pending.append(pool.submit(work, chunk))
            if len(pending) > jobs * AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise ToolFailedError(
            "one of the processes that share the work was killed",
            hint="is memory short? -j 1 does all in one process",
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    multiprocessing.connection.wait([parent])
    os._exit(1)
