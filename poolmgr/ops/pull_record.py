"""What was pulled into a folder, remembered so that any later run goes on from it.

Every run writes a journal of its own (``.poolmgr/pull/``): one line before a file gets its name, one
after. The first makes a crash between the two harmless: the file that is then found is compared with
the sha256 that was written down. ``pull.jsonl`` beside the files is made of all journals.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from poolmgr.model.pulled import Pulled
from poolmgr.ops.state import State
from poolmgr.owner import Owner
from poolmgr.store.files import fsync_dir, make_dirs, mapped_os_errors, sync_fd, write_all, write_durable

LIST_NAME = "pull.jsonl"
MAX_JOURNAL = 1 << 30
_MERGES = 5


class Record:
    """The journals of one folder; ``add`` writes this run's own, and may be called from any thread."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self.folder = folder
        self.journals = _folder(folder)
        self._own = self.journals / f"{time.time_ns():020d}-{owner.run}.jsonl"
        self._fd: int | None = None
        self._lock = threading.Lock()
        self.rows: dict[str, Pulled] = recorded(folder)

    def of(self, name: str) -> Pulled | None:
        """The newest record of the file that this run knows."""
        with self._lock:
            return self.rows.get(name)

    def refresh(self) -> None:
        """Read what other runs wrote down meanwhile."""
        rows = recorded(self.folder)
        with self._lock:
            self.rows.update(rows)

    def add(self, row: Pulled) -> None:
        """Write the row down, on disk when this returns."""
        data = (row.line() + "\n").encode()
        with self._lock, mapped_os_errors(self._own):
            if self._fd is None:
                make_dirs(self.journals)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._fd = os.open(self._own, flags, 0o666)
                fsync_dir(self.journals)
            write_all(self._fd, data)
            sync_fd(self._fd)
            self.rows[row.file] = row

    def close(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def publish(self) -> Path | None:
        """Write ``pull.jsonl`` from all journals: the files that are there. None when there are none.

        Another run may do so at the same time. Whoever writes last has read what the other wrote
        down before, or finds it by looking again.
        """
        final = self.folder / LIST_NAME
        written: bytes | None = None
        for _ in range(_MERGES):
            rows = [row for _, row in sorted(pulled_files(self.folder).items())]
            data = b"".join(
                json.dumps({"schema": 1, "kind": "image", **row.row()}, ensure_ascii=False).encode() + b"\n"
                for row in rows
            )
            if data == written or not data:
                break
            write_durable(final, data)
            written = data
        return final if written else None


def recorded(folder: Path) -> dict[str, Pulled]:
    """File -> newest record, over all journals of ``folder`` in the order of their names (their times)."""
    journals = _folder(folder)
    rows: dict[str, Pulled] = {}
    try:
        names = sorted(name for name in os.listdir(journals) if name.endswith(".jsonl"))
    except (FileNotFoundError, NotADirectoryError):
        return rows
    for name in names:
        for row in _journal(journals / name):
            rows[row.file] = row
    return rows


def pulled_files(folder: Path) -> dict[str, Pulled]:
    """The records of files that got their names and are there, with the size that they had then."""
    return {name: row for name, row in recorded(folder).items() if _is_there(folder, row)}


def _is_there(folder: Path, row: Pulled) -> bool:
    try:
        return row.stamp is not None and (folder / row.file).stat().st_size == row.size
    except OSError:
        return False


def _folder(folder: Path) -> Path:
    return State(folder).folder / "pull"


def _journal(path: Path) -> Iterable[Pulled]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JOURNAL)
    except OSError:
        return
    for line in data.split(b"\n"):
        if (row := Pulled.parse(line.decode("utf-8", "replace"))) is not None:
            yield row
