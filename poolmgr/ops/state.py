"""The ``.poolmgr`` folder of a pool: its identity, and where everything of ours lies in it."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from poolmgr.errors import AlreadyExistsError, MirrorInvalidError
from poolmgr.model.blob import STATE_DIR
from poolmgr.model.lock import Lock
from poolmgr.store.files import (
    create_durable,
    exchange,
    fsync_dir,
    mapped_os_errors,
    publish,
    replace,
    sync_fd,
    temp_file,
    write_all,
)

MAX_LOCK_BYTES = 1 << 30


class State:
    """Paths below ``ROOT/.poolmgr``. Nothing is created before it is asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / STATE_DIR
        self.identity_file = self.folder / "pool.json"
        self.locks_folder = self.folder / "lock"
        self.partial = self.folder / "partial"
        self.quarantine = self.folder / "quarantine"
        self.attest = self.folder / "attest"
        self.former_folder = self.folder / "former"
        self.busy = self.folder / "busy"

    def identity(self) -> str | None:
        """The pool's random identity, or None where the folder has none yet."""
        try:
            data = self.identity_file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            raise MirrorInvalidError(f"{self.identity_file}: {e.strerror}") from None
        try:
            row = json.loads(data)
            identity = row["id"]
            if row["schema"] != 1 or not isinstance(identity, str) or not identity:
                raise ValueError("another schema")
        except (ValueError, KeyError, TypeError) as e:
            raise MirrorInvalidError(
                f"{self.identity_file}: not a pool identity ({e})",
                hint="remove the file: the files of the pool are then hashed again",
            ) from None
        return identity

    def ensure_identity(self) -> str:
        """The identity, made now if there is none; the first of two makers wins."""
        identity = self.identity()
        if identity is not None:
            return identity
        with mapped_os_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
        row = {"schema": 1, "id": os.urandom(16).hex(), "created": time.time()}
        with suppress(AlreadyExistsError):
            create_durable(self.identity_file, (json.dumps(row) + "\n").encode())
        identity = self.identity()
        assert identity is not None
        return identity

    def lock_file(self, variant: str) -> Path:
        """The lock's file; every character that a path could trip over is percent-encoded."""
        from urllib.parse import quote

        return self.locks_folder / f"{quote(variant, safe='')}.json"

    def locked(self) -> set[str]:
        """The variants that have a lock, which is not read."""
        from urllib.parse import unquote

        return {unquote(file.stem) for file in self._lock_files()}

    def _lock_files(self) -> list[Path]:
        try:
            return sorted(f for f in self.locks_folder.iterdir() if f.suffix == ".json")
        except (FileNotFoundError, NotADirectoryError):
            return []

    def locks(self) -> dict[str, Lock]:
        """Every lock of the mirror by variant, in order; empty where ``fetch`` never finished."""
        locks = {}
        for file in self._lock_files():
            if file.stat().st_size > MAX_LOCK_BYTES:
                raise MirrorInvalidError(f"{file}: larger than a lock can be")
            lock = Lock.parse(file.read_bytes(), str(file))
            if self.lock_file(lock.variant) != file:
                raise MirrorInvalidError(f"{file}: holds the lock of another variant, {lock.variant!r}")
            locks[lock.variant] = lock
        return locks

    def former_locks(self) -> dict[Path, Lock]:
        """What was fetched before, by file; ``gc`` knows from them what the mirror got and from where."""
        try:
            files = sorted(f for f in self.former_folder.iterdir() if f.suffix == ".json")
        except (FileNotFoundError, NotADirectoryError):
            return {}
        locks = {}
        for file in files:
            with suppress(MirrorInvalidError):  # it then names nothing, and nothing of it is freed
                locks[file] = Lock.parse(file.read_bytes(), str(file))
        return locks

    def retire(self, variant: str) -> Lock | None:
        """Keep the variant's present lock among the former ones too; returns it."""
        file = self.lock_file(variant)
        try:
            data = file.read_bytes()
            lock = Lock.parse(data, str(file))
        except (FileNotFoundError, MirrorInvalidError):
            return None
        with mapped_os_errors(self.former_folder):
            self.former_folder.mkdir(parents=True, exist_ok=True)
        with suppress(AlreadyExistsError):
            name = f"{file.stem}~{hashlib.sha256(data).hexdigest()[:16]}.json"
            create_durable(self.former_folder / name, data)
        return lock

    def write_lock(self, lock: Lock, join: Callable[[Lock, Lock], Lock] = lambda _, new: new) -> Lock:
        """Write the lock that ``join`` makes of the one that stands and of ``lock``; returns what it wrote.

        One that named other blobs is kept among the former ones.
        What another fetch wrote between the look and the write is not lost: the write is a swap of
        names, which tells what it replaced, and that is joined too. (Where a filesystem cannot swap,
        the moment between the two is not watched.)
        """
        file = self.lock_file(lock.variant)
        with mapped_os_errors(self.locks_folder):
            self.locks_folder.mkdir(parents=True, exist_ok=True)
        while True:
            before = self._read_lock(file)
            wanted = lock if before is None else join(before[0], lock)
            if before is not None and not _blobs(before[0]) <= _blobs(wanted):
                self.retire(lock.variant)
            with temp_file(self.locks_folder) as (fd, temp):
                with mapped_os_errors(file):
                    write_all(fd, wanted.to_bytes())
                    sync_fd(fd)
                if before is None:
                    try:
                        publish(temp, file)
                    except AlreadyExistsError:
                        continue
                elif not exchange(temp, file):
                    replace(temp, file)
                elif _written(temp.stat()) != before[1] and (replaced := self._read_lock(temp)) is not None:
                    lock = join(replaced[0], wanted)
                    continue
            fsync_dir(self.locks_folder)
            return wanted

    def _read_lock(self, file: Path) -> tuple[Lock, tuple[int, int]] | None:
        """The lock in ``file``, and which writing of it that is."""
        try:
            with file.open("rb") as reader:
                st = os.fstat(reader.fileno())
                if st.st_size > MAX_LOCK_BYTES:
                    raise MirrorInvalidError(f"{file}: larger than a lock can be")
                return Lock.parse(reader.read(), str(file)), _written(st)
        except FileNotFoundError:
            return None


def _written(st: os.stat_result) -> tuple[int, int]:
    """(inode, mtime in ns), which no other writing of a file shares."""
    return st.st_ino, st.st_mtime_ns


def _blobs(lock: Lock) -> set[tuple[str, str | None]]:
    return {(b.path, b.sha256) for b in lock.blobs.values()}
