"""Runs a user's SQL over a catalogue where it can reach nothing else and take no more than its share.

The fences, each enough by itself for what it covers: only a single statement that reads is run; the
database has no access to files or network but sealed copies of the tables, and loads no extension;
its configuration is locked before the user's SQL is seen; and it runs in a process of its own
(worker.py), which the kernel gives so much memory and no way to write a file, which has none of the
caller's tokens, and which is killed when its time is up.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from poolmgr.catalogue.worker import HEAD
from poolmgr.errors import PoolError, QueryInvalidError, QueryRefusedError, ToolFailedError

KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")
"""What the process keeps of the environment."""
START_SECONDS = 60.0
"""For the process to be ready; its own time begins then."""
TOO_LARGE = "print it with --format csv, or write it with -o FILE: these hold no more than a part of it"


@dataclass(frozen=True, slots=True)
class Limits:
    memory_mb: int = 2048
    """Of the process that runs the query; also of the answer, where it is held as a whole."""
    seconds: float = 60.0
    """Until the answer has been taken."""
    threads: int = 2


class Answer:
    """Rows on their way; what goes wrong meanwhile is raised where they are taken."""

    def __init__(self, pipe: IO[bytes], limits: Limits, lost: Lost) -> None:
        self.pid = lost.pid
        """Of the process that runs the query."""
        self._pipe = pipe
        self._limits = limits
        self._lost = lost
        self._has_ended = False
        self.columns: list[str] = []

    def chunks(self) -> Iterator[list[list[Any]]]:
        """Rows of JSON values, some at a time."""
        while (payload := self._next(b"R")) is not None:
            yield json.loads(payload.decode("utf-8", "surrogatepass"))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Every row; ``QueryRefusedError`` where they are larger than the memory that the query may use."""
        rows: list[tuple[Any, ...]] = []
        size = 0
        while (payload := self._next(b"R")) is not None:
            size += len(payload)
            if size > self._limits.memory_mb << 20:
                raise QueryRefusedError(
                    f"the answer has more than {self._limits.memory_mb:,} MB", hint=TOO_LARGE
                )
            rows += map(tuple, json.loads(payload.decode("utf-8", "surrogatepass")))
        return rows

    def arrow(self) -> Any:
        """The rows as a ``pyarrow.RecordBatchReader``, for an answer that was asked for as Arrow."""
        import pyarrow as pa

        return pa.ipc.open_stream(_Stream(self))

    def _start(self, ready: threading.Event) -> None:
        """Take the frames that come before the rows."""
        if self._next(b"S") is None:
            raise self._lost.error(None)
        ready.set()
        payload = self._next(b"C")
        self.columns = json.loads(payload or b"[]")

    def _next(self, wanted: bytes) -> bytes | None:
        """The payload of the next frame; None after the last one."""
        if self._has_ended:
            return None
        head = self._pipe.read(HEAD.size)
        if len(head) < HEAD.size:
            raise self._lost.error(None)
        kind, size = HEAD.unpack(head)
        if size > self._limits.memory_mb << 20:
            raise QueryRefusedError(f"one part of the answer has {size:,} bytes", hint=MORE_MEMORY)
        payload = self._pipe.read(size)
        if len(payload) < size:
            raise self._lost.error(None)
        if kind == b"E":
            raise self._lost.error(json.loads(payload))
        self._has_ended = kind != wanted
        return None if self._has_ended else payload


class _Stream:
    """The Arrow frames as one file, for pyarrow."""

    closed = False

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while (size < 0 or len(self._rest) < size) and (more := self._answer._next(b"A")) is not None:
            self._rest += more
        data = self._rest if size < 0 else self._rest[:size]
        self._rest = self._rest[len(data) :]
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


MORE_MEMORY = "--memory-mb gives it more"


class Lost:
    """Says why a query has no answer."""

    def __init__(self, child: subprocess.Popen[bytes], limits: Limits) -> None:
        self.pid = child.pid
        self._child = child
        self._limits = limits
        self.is_late = False

    def error(self, said: Mapping[str, str] | None) -> PoolError:
        """``said`` is the process's own word; None where it ended without one."""
        kind = "time" if self.is_late else said["kind"] if said else "gone"
        message = said["message"] if said else ""
        match kind:
            case "time":
                return QueryRefusedError(
                    f"the query took more than {self._limits.seconds:g} seconds",
                    hint="--timeout gives it longer",
                )
            case "refused":
                return QueryRefusedError(
                    message, hint="a query reads the catalogue's tables and nothing else"
                )
            case "invalid":
                return QueryInvalidError(message, hint="'poolmgr query --tables' shows tables and columns")
            case "memory":
                return self._memory()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(5)
        if (self._child.returncode or 0) < 0:  # killed: DuckDB gives up where it cannot allocate
            return self._memory()
        return ToolFailedError(
            f"the process that runs queries ended with status {self._child.returncode}"
            + (f": {message}" if message else ""),
            hint="try it again; 'poolmgr doctor' tells what is installed",
        )

    def _memory(self) -> PoolError:
        return QueryRefusedError(
            f"the query needs more than {self._limits.memory_mb:,} MB of memory", hint=MORE_MEMORY
        )


@contextmanager
def run(sql: str, tables: Mapping[str, Path], limits: Limits, *, arrow: bool = False) -> Iterator[Answer]:
    """The answer to ``sql``, inside the fences; time runs until the block is left.

    ``QueryInvalidError`` for SQL that does not parse or run, ``QueryRefusedError`` for what the
    fences and the limits do not let through.
    """
    for path in tables.values():
        if set("*?[") & set(str(path.resolve())):
            raise QueryRefusedError(
                f"{path}: DuckDB would take this path for a pattern", hint="move the catalogue"
            )
    request = {
        "sql": sql,
        "tables": {name: str(path.resolve()) for name, path in tables.items()},
        "memory_mb": limits.memory_mb,
        "seconds": limits.seconds,
        "threads": limits.threads,
        "arrow": arrow,
    }
    child = _start()
    assert child.stdout is not None
    lost = Lost(child, limits)
    ready, done = threading.Event(), threading.Event()

    def watch() -> None:
        if not ready.wait(START_SECONDS) or not done.wait(limits.seconds):
            lost.is_late = not done.is_set()
            _kill(child)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        _ask(child, request)
        answer = Answer(child.stdout, limits, lost)
        answer._start(ready)
        yield answer
    finally:
        done.set()
        ready.set()
        _kill(child)
        child.wait()
        child.stdout.close()


def _start() -> subprocess.Popen[bytes]:
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "poolmgr.catalogue.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=env, cwd="/", start_new_session=True,
    )  # fmt: skip


def _ask(child: subprocess.Popen[bytes], request: Mapping[str, Any]) -> None:
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it is gone: said where its answer is read
        child.stdin.write(json.dumps(request).encode("utf-8", "surrogatepass"))
        child.stdin.close()


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
