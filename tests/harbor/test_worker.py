"""The processes that read tasks together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

PARENT = """
import multiprocessing, os, signal, time
from concurrent.futures import ProcessPoolExecutor
from poolmgr.harbor import worker
context = multiprocessing.get_context("spawn")
pool = ProcessPoolExecutor(1, mp_context=context, initializer=worker.begin)
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(600)
"""


def test_a_worker_ends_with_a_parent_that_is_killed_and_not_by_ctrl_c() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        os.kill(worker, signal.SIGINT)
        time.sleep(0.5)
        assert _is_running(worker)
        parent.kill()
    for _ in range(100):
        if not _is_running(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    raise AssertionError(f"process {worker} outlived the one that started it")


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
