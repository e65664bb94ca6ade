"""Pushing to an fsspec URL: no commits there and no claims, so one writer; another's change is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace as replaced
from itertools import groupby

from poolmgr.errors import AlreadyExistsError, PoolChangedError
from poolmgr.model.stamp import Stamp
from poolmgr.ops.progress import Progress
from poolmgr.ops.push_files import LocalFile, changed, fingerprint
from poolmgr.ops.push_write import Upload
from poolmgr.ops.view import PoolView
from poolmgr.store.remote import RemoteStore
from poolmgr.store.remote_write import check_writable, discard, replace


class RemoteWriter:
    """``push_write.Writer`` for an fsspec URL."""

    merges = False

    def __init__(self, view: PoolView, store: RemoteStore, jobs: int, progress: Progress) -> None:
        self._view = view
        self._store = store
        self._jobs = jobs
        self._progress = progress
        self._stop = threading.Event()

    def ready(self) -> None:
        """Whether this user may write, by putting a small file and removing it."""
        check_writable(self._store)

    def resume(self, title: str) -> PoolView | None:
        """Nothing: there are no pull requests here."""

    def finish(self) -> str | None:
        """Nothing is left to do."""

    def fresh(self) -> PoolView:
        return replaced(self._view)  # listings are asked for anew anyhow

    def room(self, uploads: Sequence[Upload]) -> None:
        """Object stores do not say."""

    def add(self, uploads: Sequence[Upload], done: Callable[[Upload], None]) -> None:
        """Every file under its own name, which must be free; then their sizes as the store lists them."""
        self._progress.begin("uploading", files=len(uploads), size=sum(u.file.size for u in uploads))
        pool = ThreadPoolExecutor(max(1, min(self._jobs, len(uploads))), thread_name_prefix="push")
        try:
            for _, group in groupby(uploads, key=lambda u: u.path.rpartition("/")[0]):
                futures = {pool.submit(self._put, upload): upload for upload in group}
                for future in as_completed(futures):
                    future.result()
                    done(futures[future])
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            self._stop.clear()
            self._progress.end()

    def vouch(self, found: Sequence[tuple[str, LocalFile, Stamp]]) -> None:
        """Attestations are of folders only."""

    def seal(
        self, documents: Mapping[str, bytes], expected: Mapping[str, bytes | None], needs: Mapping[str, int],
        message: str,
    ) -> str | None:  # fmt: skip
        """Returns None: there are no commits here."""
        there = self._store.list().blobs
        gone = [p for p, size in needs.items() if p not in there or there[p].size != size]
        if gone:
            raise PoolChangedError(f"{self._store.address}/{gone[0]} is gone, or not what it was")
        for name, data in documents.items():
            replace(self._store, name, data, expected[name])
        return None

    def _put(self, upload: Upload) -> None:
        file = upload.file
        if self._stop.is_set():
            raise PoolChangedError("the run was stopped")
        if fingerprint(file.path, file.key) != file.xxh3:
            raise changed(file)
        try:
            self._store.put(upload.path, file.path)
        except AlreadyExistsError:
            raise PoolChangedError(
                f"{self._store.address}/{upload.path} was added by somebody else"
            ) from None
        if fingerprint(file.path, file.key) != file.xxh3:
            discard(self._store, upload.path)
            raise changed(file)
        self._progress.advance(file.size)
        self._progress.file_done(upload.path)
