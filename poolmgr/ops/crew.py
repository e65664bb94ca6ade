"""A few workers for many items, each worker with something of its own; an interrupt ends them all."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def crew(items: Sequence[T], jobs: int, one: Callable[[int, T], R], interrupt: Callable[[], None]) -> list[R]:
    """``one(worker, item)`` for every item, in ``jobs`` threads; the results in the order of the items.

    ``worker`` is a number below ``jobs``, and no two items of one worker overlap. Whatever ``one``
    raises, or Ctrl-C, lets ``interrupt`` be called, which should make what runs end soon; no further
    item is begun, and the exception passes on.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(items)):
        waiting.put(number)
    results: dict[int, R] = {}
    ended = False

    def work(worker: int) -> None:
        while not ended:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            results[number] = one(worker, items[number])

    jobs = max(1, min(jobs, len(items)))
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="crew")
    try:
        for future in [pool.submit(work, worker) for worker in range(jobs)]:
            future.result()
    except BaseException:
        ended = True
        interrupt()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return [results[number] for number in range(len(items))]
