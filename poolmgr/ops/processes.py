"""Work spread over several processes: for what Python itself takes long at, where threads only wait
for each other.

A process that helps ends with the one that started it, however that one ends: else it would wait
for work for ever. Ctrl-C is left to the one that started it, which tells what was done: those that help
never see it, from their first moment on.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from poolmgr.errors import ToolFailedError

C = TypeVar("C")
R = TypeVar("R")
AHEAD = 3
"""Chunks that are handed out for each process before the first is done: what memory is bounded by."""
GRACE = 0.5
"""Seconds for a signal that ended a helper to arrive here as well, as Slurm sends it to all."""
_ENDING = frozenset({signal.SIGTERM, signal.SIGHUP})
_STOPPING = _ENDING | {signal.SIGINT}


def spread(
    work: Callable[[C], R],
    chunks: Iterable[C],
    jobs: int,
    *,
    size: Callable[[C], int] = lambda _: 0,
    most: int = 0,
) -> Iterator[R]:
    """``work`` of every chunk, by ``jobs`` processes, in the order of ``chunks``.

    Chunks that together have a ``size`` above ``most`` are not under way at once.

    ``work`` is a function of a module (or a ``partial`` of one) that is quick to import. Whoever calls
    this runs as a module or under ``if __name__ == "__main__"``: a new process imports it again.
    Raises ``ToolFailedError`` when one of the processes is killed.
    """
    # spawn: this process may have threads (Arrow's, the parser's), which a fork would break.
    context = multiprocessing.get_context("spawn")
    with _no_signals():  # Python's own tracker, which starts here, would end by SIGHUP
        pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    others = set(multiprocessing.active_children())
    pending: deque[tuple[Future[R], int]] = deque()
    total = 0
    is_stopping = False

    def first() -> R:
        nonlocal total
        future, its = pending.popleft()
        total -= its
        return future.result()

    try:
        for chunk in chunks:
            its = size(chunk)
            while pending and (len(pending) > jobs * AHEAD or total + its > most > 0):
                yield first()
            with _no_signals():
                pending.append((pool.submit(work, chunk), its))
            total += its
            del chunk
        while pending:
            yield first()
    except BrokenProcessPool:
        time.sleep(GRACE)
        raise ToolFailedError(
            "one of the processes that share the work was killed",
            hint="is memory short? -j 1 does all in one process",
        ) from None
    except BaseException:
        is_stopping = True
        # They hold nothing that could be lost. Left alive, they would be waited for, and for ever
        # where a second Ctrl-C breaks off the shutdown.
        with _no_signals(drop=True):
            for helper in set(multiprocessing.active_children()) - others:
                helper.kill()
        raise
    finally:
        with _no_signals(drop=is_stopping):
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _no_signals(*, drop: bool = False) -> Iterator[None]:
    """Signals that stop a command come a little later: what is half started or ended would stay so.

    Or not at all, with ``drop``: where the command is being stopped already.

    What is started here inherits that they are blocked, and ``_begin`` leaves only Ctrl-C so. A
    thread that was there before may take the signal all the same, for which Python would call the
    handler in this one: so that is put off too.
    """
    came: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _STOPPING:
                if callable(signal.getsignal(number)):
                    handlers[number] = signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        while drop and signal.sigtimedwait(_STOPPING, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for missed in () if drop else dict.fromkeys(came):
            signal.raise_signal(missed)


def _begin() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    multiprocessing.connection.wait([parent])
    os._exit(1)
