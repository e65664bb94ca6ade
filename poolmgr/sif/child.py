"""Run a program so that it cannot do harm: argument list, chosen environment, bounded in all.

The child leads a process group of its own, which is ended as a whole when its time is up or the
caller is interrupted; its output is drained to the end, and only the beginning and the end of it
are kept.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
NETWORK = ("HOME", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
"""What a child that talks to a registry needs besides: proxies, and HOME for its own login files."""
GRACE = 3.0
"""Seconds between asking a group to end and ending it."""
STOP_LOOK = 0.2
"""Seconds between two looks at whether to stop."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a child ended. Its texts are cut in the middle where they were long."""

    status: int
    """Exit status; negative for a signal."""
    out: str
    err: str
    timed_out: bool = False
    stopped: bool = False
    """It was ended because its caller was asked to stop."""


def run_child(
    command: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    network: bool = False,
    keep: int = 256 << 10,
    stop: threading.Event | None = None,
) -> Done:
    """Run ``command`` to its end, for ``timeout`` seconds, or until ``stop`` is set.

    ``env`` is added to the chosen one.

    Raises ``OSError`` when the program cannot be started. No token ever reaches the child.
    """
    names = (*KEPT, *NETWORK) if network else KEPT
    chosen = {name: os.environ[name] for name in names if name in os.environ} | dict(env or {})
    child = subprocess.Popen(
        list(command),
        env=chosen,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    drains = [_Drain(child.stdout, keep), _Drain(child.stderr, keep)]
    timed_out = stopped = False
    end = time.monotonic() + timeout
    try:
        while True:
            left = end - time.monotonic()
            try:
                child.wait(left if stop is None else min(left, STOP_LOOK))
                break
            except subprocess.TimeoutExpired:
                stopped = stop is not None and stop.is_set()
                timed_out = not stopped and time.monotonic() >= end
                if stopped or timed_out:
                    break
    finally:
        # also what the child left behind: a process that still holds a pipe would block the drain
        _end_group(child)
        texts = [drain.text() for drain in drains]
    return Done(child.returncode, texts[0], texts[1], timed_out, stopped)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, sign)
        except (ProcessLookupError, PermissionError):
            break
        if child.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)
    child.wait()


class _Drain:
    """Reads a pipe to its end in a thread of its own."""

    def __init__(self, pipe: IO[bytes], keep: int) -> None:
        self.pipe = pipe
        self.keep = keep
        self.head = b""
        self.tail = b""
        self.lost = 0
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self.pipe.fileno(), 1 << 16):
                room = self.keep - len(self.head)
                self.head += data[:room]
                self.tail += data[room:]
                if len(self.tail) > self.keep:
                    self.lost += len(self.tail) - self.keep
                    self.tail = self.tail[-self.keep :]

    def text(self) -> str:
        self.thread.join(GRACE)
        if not self.thread.is_alive():
            self.pipe.close()
        middle = f"\n[… {self.lost} bytes …]\n".encode() if self.lost else b""
        return (self.head + middle + self.tail).decode("utf-8", "replace")
