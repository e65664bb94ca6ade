"""Pushing into a folder: each blob by temporary file, fsync and link; then, under a claim, the index.

After a kill at any moment every blob under its final name is whole, the index names only such
blobs, and the next push finds what is there and goes on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from poolmgr import __version__
from poolmgr.errors import (
    AlreadyExistsError,
    BadFileError,
    DestinationError,
    NoSpaceError,
    PoolChangedError,
    PoolError,
)
from poolmgr.model.attestation import Attestation
from poolmgr.model.blob import STATE_DIR
from poolmgr.model.stamp import Stamp
from poolmgr.ops.attest import AttestWriter
from poolmgr.ops.progress import Progress
from poolmgr.ops.push_files import PIECE, LocalFile, changed
from poolmgr.ops.push_write import Upload
from poolmgr.ops.view import PoolView
from poolmgr.sif.source import FileSource
from poolmgr.store.claims import claimed
from poolmgr.store.files import (
    fsync_dir,
    make_dirs,
    mapped_os_errors,
    publish,
    swap_durable,
    sync_fd,
    temp_file,
    write_all,
)
from poolmgr.store.local import LocalStore
from poolmgr.temporary import sweep

CLAIM = f"{STATE_DIR}/claim"
RESERVE = 64 << 20
"""Bytes to leave free, for the index and what else is written."""


class FolderWriter:
    """``push_write.Writer`` for a folder."""

    merges = True

    def __init__(self, view: PoolView, jobs: int, progress: Progress) -> None:
        assert view.root is not None
        self._view = view
        self._root = view.root
        self._jobs = jobs
        self._progress = progress
        self._stop = threading.Event()
        self._attestations: AttestWriter | None = None

    def ready(self) -> None:
        """Whether this user may write; and what killed pushes left is removed."""
        for folder in (self._root, self._root / STATE_DIR):
            _check_folder(folder)
        for path in ("", CLAIM, *self._view.listing.directories):
            sweep(self._root / path)

    def resume(self, title: str) -> PoolView | None:
        """Nothing: a folder has no pull requests, and what is there shows in its listing."""

    def finish(self) -> str | None:
        """Nothing is left to do."""

    def fresh(self) -> PoolView:
        return replace(self._view, store=LocalStore(self._root))

    def room(self, uploads: Sequence[Upload]) -> None:
        """``NoSpaceError`` where fewer bytes are free, ``DestinationError`` where a directory is closed."""
        root = self._root.resolve()
        for folder in dict.fromkeys((self._root / u.path).parent for u in uploads):
            _check_folder(folder)
            if not folder.resolve().is_relative_to(root):  # no reader would follow the tasks there
                raise DestinationError(
                    f"{folder}: a symbolic link that leads out of the pool; nothing was sent",
                    hint="a pool's blobs lie in the pool: put a real folder there, or bind-mount one",
                )
        size = sum(u.file.size for u in uploads)
        with mapped_os_errors(self._root, "look at"):
            there = os.statvfs(self._root)
        free = there.f_bavail * there.f_frsize
        if free < size + RESERVE:
            raise NoSpaceError(
                f"{self._root}: {size:,} bytes are to be added and {free:,} are free; nothing was written",
                hint="make room, or push to a pool on another filesystem",
            )

    def add(self, uploads: Sequence[Upload], done: Callable[[Upload], None]) -> None:
        """Copy every file; a copy, since whoever made the file may go on writing to it."""
        self._progress.begin("copying", files=len(uploads), size=sum(u.file.size for u in uploads))
        pool = ThreadPoolExecutor(max(1, min(self._jobs, len(uploads))), thread_name_prefix="push")
        try:
            # One directory after the other: a push that was cut off opens no other batches when it goes on.
            for folder, group in groupby(uploads, key=lambda u: (self._root / u.path).parent):
                make_dirs(folder)
                futures = {pool.submit(self._copy, upload): upload for upload in group}
                for future in as_completed(futures):
                    stamp = future.result()  # the first error that comes stops the others
                    done(futures[future])
                    self._attest(futures[future].path, futures[future].file, stamp)
                fsync_dir(folder)
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            self._stop.clear()
            self._progress.end()
            self._close_attestations()

    def vouch(self, found: Sequence[tuple[str, LocalFile, Stamp]]) -> None:
        """Attest them: their bytes are those of files that passed every check."""
        for path, file, stamp in found:
            self._attest(path, file, stamp)
        self._close_attestations()

    def seal(
        self,
        documents: Mapping[str, bytes],
        expected: Mapping[str, bytes | None],
        needs: Mapping[str, int],
        message: str,
    ) -> str | None:
        """Under the claim: nothing that was planned on may have changed. Returns None: no commits here."""
        with claimed(self._root / CLAIM, waiting=self._progress.note):
            for name, before in expected.items():
                place = self._root / name
                now = place.read_bytes() if place.exists() else None
                if now != before:
                    raise PoolChangedError(f"{place} was changed by somebody else")
            gone = [path for path, size in needs.items() if self._size(path) != size]
            if gone:
                raise PoolChangedError(f"{self._root / gone[0]} is gone, or not what it was")
            for name, data in documents.items():
                make_dirs((self._root / name).parent)
                if not swap_durable(self._root / name, data, expected[name]):
                    raise PoolChangedError(f"{self._root / name} was changed by somebody else")
        return None

    def _size(self, path: str) -> int | None:
        try:
            return os.stat(self._root / path).st_size
        except OSError:
            return None

    # --- one file -----------------------------------------------------------------------------------

    def _attest(self, path: str, file: LocalFile, stamp: Stamp) -> None:
        """What was proven of the file holds for its copy; else ``resolve`` would refuse it until an audit."""
        if self._view.identity is None or self._view.attest_folder is None:
            return
        row = Attestation(
            self._view.identity, path, stamp, file.checks, file.sha256, file.findings, file.arch,
            {"poolmgr": __version__}, time.time(),
        )  # fmt: skip
        try:
            if self._attestations is None:
                self._attestations = AttestWriter(self._view.attest_folder)
            self._attestations.add(row)
        except PoolError as e:
            self._progress.note(f"what was proven is not remembered: {e.message}")

    def _close_attestations(self) -> None:
        writer, self._attestations = self._attestations, None
        if writer is not None:
            try:
                writer.close()
            except PoolError as e:
                self._progress.note(f"what was proven is not remembered: {e.message}")

    def _copy(self, upload: Upload) -> Stamp:
        """Copy one file; the stamp of the copy under its final name."""
        final = self._root / upload.path
        with temp_file(final.parent) as (fd, temp):
            self._transfer(upload.file, fd, final)
            try:
                publish(temp, final)
            except AlreadyExistsError:
                raise PoolChangedError(f"{final} was added by somebody else") from None
            stamp = Stamp.of(os.fstat(fd))
        self._progress.file_done(upload.path)
        return stamp

    def _transfer(self, file: LocalFile, fd: int, final: os.PathLike[str]) -> None:
        """All bytes of the file into ``fd``, on disk; refused unless they are the ones that were checked."""
        import xxhash

        digest = xxhash.xxh3_128()
        at = 0
        try:
            with FileSource(file.path) as source:
                if Stamp.of(os.fstat(source.fd)) != file.stamp:
                    raise changed(file)
                while piece := os.pread(source.fd, PIECE, at):
                    if self._stop.is_set():
                        raise BadFileError(f"{file.key}: the run was stopped")
                    if at > file.size:
                        raise changed(file)
                    digest.update(piece)
                    at += len(piece)
                    with mapped_os_errors(final):
                        write_all(fd, piece)
                    self._progress.advance(len(piece))
        except OSError as e:
            raise BadFileError(f"{file.key}: reading failed: {e.strerror}") from None
        if digest.hexdigest() != file.xxh3:
            raise changed(file)
        with mapped_os_errors(final):
            sync_fd(fd)


def _check_folder(folder: Path) -> None:
    """``DestinationError`` for what is there and is no folder that this user may write to."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise DestinationError(f"{folder}: not a folder; nothing was sent", hint="see what lies there")
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise DestinationError(
            f"{folder}: this user may not write there; nothing was sent",
            hint="ask the owner of the pool for the right, or push to a copy",
        )
