"""What a process does that another one started to read tasks with it; quick to import.

It ends with the process that started it, however that one ends: a worker whose parent was killed
would wait for work for ever.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Sequence

from poolmgr.harbor.archive import Limits
from poolmgr.harbor.source import Work
from poolmgr.model.environment import NotTask, Scheme, Task


def begin() -> None:
    """Called once in a new process. Ctrl-C is left to the parent, which tells what was done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    multiprocessing.connection.wait([parent])
    os._exit(1)


def read(works: Sequence[Work], schemes: frozenset[Scheme], limits: Limits) -> list[Task | NotTask]:
    """What each of ``works`` is, in order."""
    return [work.open(schemes, limits).item for work in works]
