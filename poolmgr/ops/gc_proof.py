"""Proof that a pool still holds a blob: its listing at the recorded commit, and bytes that it serves now.

A commit on the Hub never changes, so its listing alone would also name a blob whose bytes were
deleted since. So the end of each blob is read from the pool and compared with the file here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from poolmgr.errors import CredentialsError, PoolError
from poolmgr.ops.progress import Progress
from poolmgr.ops.view import PoolView, open_pool
from poolmgr.plan.gc import Candidate, Origin
from poolmgr.settings import Settings

TAIL = 4096
JOBS = 8


@dataclass
class Prover:
    root: Path
    settings: Settings
    progress: Progress
    on_retry: Callable[[str], None] | None
    read_pool: bool = False
    _views: dict[Origin, PoolView | str] = field(default_factory=dict)

    def prove(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, str | None]]:
        """Each candidate with None when it is proven, else why it is not. ``CredentialsError`` is raised."""
        for candidate in candidates:
            for origin in candidate.origins:
                if origin not in self._views:
                    self._views[origin] = self._open(origin)
        self.progress.begin("proving that the pool holds them", files=len(candidates))
        pool = ThreadPoolExecutor(JOBS, thread_name_prefix="gc")
        try:
            yield from zip(candidates, pool.map(self._one, candidates), strict=True)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self.progress.end()

    def _open(self, origin: Origin) -> PoolView | str:
        """The pool at the recorded commit, listed; or why there is none."""
        address = origin.source
        if origin.commit is not None and address.startswith("hf://"):
            address = f"{address.rpartition('@')[0] or address}@{origin.commit}"
        try:
            view = open_pool(address, self.settings, on_retry=self.on_retry)
            view.listing  # noqa: B018 - asked for once, before the threads
            return view
        except CredentialsError:
            raise
        except PoolError as e:
            return f"{address}: {e.message}"

    def _one(self, candidate: Candidate) -> str | None:
        why = "no former lock says where it came from"
        for origin in candidate.origins:
            view = self._views[origin]
            try:
                said = view if isinstance(view, str) else self._in(view, candidate)
            except CredentialsError:
                raise
            except (PoolError, OSError) as e:
                said = str(e)
            if said is None:
                self.progress.file_done(candidate.path)
                return None
            why = said
        self.progress.file_done(candidate.path)
        return why

    def _in(self, view: PoolView, c: Candidate) -> str | None:
        listed = view.listing.blobs.get(c.path)
        if listed is None or listed.trouble is not None:
            return f"{view.address} does not hold it any more"
        if view.root is not None and view.root.resolve() == self.root.resolve():
            return f"{view.address} is this mirror itself"
        if listed.size != c.size:
            return f"{view.address} holds {listed.size:,} bytes under its name, {c.size:,} were recorded"
        if listed.sha256 is not None:
            if listed.sha256 != c.sha256:
                return f"{view.address} holds other bytes under its name (sha256 {listed.sha256})"
        elif view.root is not None:
            file = view.file(c.path)
            if os.path.samefile(file, self.root / c.path):
                return f"{file} is the very same file"
            standing = view.attested.standing(c.path, os.stat(file))
            if (standing.sha256 if standing else None) != c.sha256 and self._hash(view, c) != c.sha256:
                return f"{file} has other bytes"
        elif not self.read_pool:
            return f"{view.address} lists no sha256; --read-pool reads it whole and compares"
        elif self._hash(view, c) != c.sha256:
            return f"{view.address} holds other bytes under its name"
        start = max(0, c.size - TAIL)
        with (self.root / c.path).open("rb") as file_here:
            end = os.pread(file_here.fileno(), TAIL, start)
        if view.store.read_range(c.path, start, c.size - start) != end:
            return f"{view.address} serves other bytes at the end of it"
        return None

    def _hash(self, view: PoolView, c: Candidate) -> str:
        digest = hashlib.sha256()
        with view.store.stream(c.path) as body:
            for chunk in body:
                digest.update(chunk)
        return digest.hexdigest()
