"""Reading and writing attestations: JSON Lines files, one a run, one writer a file."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from poolmgr.model.attestation import Attestation, Standing, standing
from poolmgr.model.stamp import Stamp, StatLike
from poolmgr.store.files import fsync_dir, mapped_os_errors

FLUSH_SECONDS = 1.0


@dataclass(frozen=True)
class Attested:
    """What the attestations of one pool say, and what in them did not count."""

    rows: Mapping[str, list[Attestation]] = field(default_factory=dict)
    """Blob path -> its rows, of this pool only."""
    foreign: int = 0
    """Rows of another pool."""
    unreadable: tuple[str, ...] = ()
    """``file:line: why`` of rows that could not be read, a torn last line among them."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was ignored, as a user is told."""
        said = []
        if self.foreign:
            said.append(f"{self.foreign:,} attestation rows of another pool were ignored")
        if self.unreadable:
            more = f" (and {len(self.unreadable) - 1:,} more)" if self.unreadable[1:] else ""
            said.append(f"attestation rows that cannot be read were ignored: {self.unreadable[0]}{more}")
        return tuple(said)

    def standing(self, path: str, stat: StatLike) -> Standing | None:
        """What holds for the file at ``path`` as ``stat`` shows it now; None if nothing does."""
        rows = self.rows.get(path)
        return standing(rows, Stamp.of(stat)) if rows else None


def load(folder: Path, pool: str | None) -> Attested:
    """All rows below ``folder`` that name the pool ``pool``; an absent folder holds none."""
    rows: dict[str, list[Attestation]] = defaultdict(list)
    unreadable: list[str] = []
    foreign = 0
    try:
        files = sorted(f for f in folder.iterdir() if f.suffix == ".jsonl" and f.is_file())
    except (FileNotFoundError, NotADirectoryError):
        files = []
    for file in files:
        with file.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith("\n"):
                    unreadable.append(f"{file.name}:{number}: cut off in the middle (the run was killed)")
                    continue
                try:
                    row = Attestation.from_line(line)
                except ValueError as e:
                    unreadable.append(f"{file.name}:{number}: {e}")
                    continue
                if row.pool == pool:
                    rows[row.path].append(row)
                else:
                    foreign += 1
    return Attested(rows, foreign, tuple(unreadable))


class Line(Protocol):
    """What becomes one line of JSON."""

    def to_line(self) -> str: ...


class AttestWriter:
    """One run's file, created with its first row; rows reach the disk within a second or at close.

    Safe for several threads. A row that is lost to a crash costs a hash later, never a wrong pass.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path: Path | None = None
        self._fd: int | None = None
        self._lock = threading.Lock()
        self._pending: list[str] = []
        self._flushed = time.monotonic()

    def add(self, row: Line) -> None:
        with self._lock:
            self._pending.append(row.to_line())
            if time.monotonic() - self._flushed > FLUSH_SECONDS:
                self._flush()

    def flush(self) -> None:
        """Everything added so far is on disk when this returns."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        with self._lock:
            self._flush()
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        if not self._pending:
            return
        with mapped_os_errors(self.path or self.folder):
            if self._fd is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
                host = "".join(c if c.isalnum() else "-" for c in os.uname().nodename)[:40]
                self.path = self.folder / f"{stamp}-{host}-{os.getpid()}-{os.urandom(4).hex()}.jsonl"
                self._fd = os.open(
                    self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
                )
                fsync_dir(self.folder)
            data = "".join(self._pending).encode()
            while data:
                data = data[os.write(self._fd, data) :]
            os.fsync(self._fd)
        self._pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
