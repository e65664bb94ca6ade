"""Pushing to the Hub: images in commits of at most 50, each looked at, then the index in one of its own.

Every commit names its parent, so nothing of another's is overwritten; where somebody else committed
first, the caller plans again on top of that. The index goes alone and last: even a server that drops
a file from a commit without a word cannot leave an index that names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from poolmgr.errors import PoolChangedError
from poolmgr.model.stamp import Stamp
from poolmgr.ops.progress import Progress
from poolmgr.ops.push_files import LocalFile, changed, fingerprint
from poolmgr.ops.push_write import MAX_BATCH, Upload
from poolmgr.ops.view import PoolView
from poolmgr.store import hub_pulls
from poolmgr.store.hub import HubStore, git_id
from poolmgr.store.hub_pace import backoff
from poolmgr.store.hub_push import head, probe

LOOKS = 6
"""Times that a head is asked for again when it is one that our own commit, or a 412, has left behind."""


class HubWriter:
    """``push_write.Writer`` for a repository on the Hub."""

    merges = True

    def __init__(
        self, view: PoolView, store: HubStore, jobs: int, progress: Progress, *, pull_request: bool = False
    ) -> None:
        self._view = view
        self._store = store
        self._jobs = jobs
        self._progress = progress
        self._proposes = pull_request
        self._title = ""
        self._number: int | None = None
        """Of the pull request, once there is one."""
        self._behind: set[str] = set()
        """Commits that are known not to be the head any more."""

    def ready(self) -> None:
        """Whether the token may write, asked in the way that sends no byte."""
        probe(self._store, pull_request=self._proposes)

    def resume(self, title: str) -> PoolView | None:
        """The pool as it is in this user's own pull request of that title, where it is not merged yet."""
        self._title = title
        if self._proposes and (number := hub_pulls.find(self._store, title)) is not None:
            self._progress.note(f"going on in pull request {number}")
            self._number = number
            self._store = self._store.at(None, hub_pulls.revision_of(number))
            return replace(self._view, store=self._store)
        return None

    def finish(self) -> str | None:
        """The pull request, if there is one, is no draft any more; its address."""
        if self._number is None:
            return None
        hub_pulls.make_ready(self._store, self._number)
        return hub_pulls.url_of(self._store, self._number)

    def fresh(self) -> PoolView:
        """The pool at its head, or where that lags behind, at the last commit of our own."""
        commit = self._store.commit
        for look in range(1, LOOKS + 1):
            found = head(self._store)
            if found not in self._behind:
                commit = found
                break
            self._store.wait(backoff(look), f"the head is still said to be {found[:12]}")
        self._behind.discard(commit)
        self._store = self._store.at(commit)
        return replace(self._view, store=self._store)

    def room(self, uploads: Sequence[Upload]) -> None:
        """The Hub does not say how much room an account has; its refusal is final and in its own words."""

    def add(self, uploads: Sequence[Upload], done: Callable[[Upload], None]) -> None:
        """Batch by batch: bytes in parallel, then the commit, then a comparison of its listing."""
        sizes = {u.path: u.file.size for u in uploads}

        def sent(path: str) -> None:
            self._progress.advance(sizes[path])
            self._progress.file_done(path)

        self._progress.begin("uploading", files=len(uploads), size=sum(u.file.size for u in uploads))
        try:
            for start in range(0, len(uploads), MAX_BATCH):
                batch = uploads[start : start + MAX_BATCH]
                self._commit(
                    {u.path: u.file.path for u in batch}, f"Add {len(batch):,} images",
                    sha256={u.path: u.file.sha256 for u in batch}, uploaded=partial(_unchanged, batch),
                    sent=sent,
                )  # fmt: skip
                for upload in batch:
                    done(upload)
        finally:
            self._progress.end()

    def vouch(self, found: Sequence[tuple[str, LocalFile, Stamp]]) -> None:
        """Attestations are of folders only."""

    def seal(
        self, documents: Mapping[str, bytes], expected: Mapping[str, bytes | None], needs: Mapping[str, int],
        message: str,
    ) -> str | None:  # fmt: skip
        """One commit on the one that was planned on, or on our own images on top of that.

        An answer that was lost is settled by the head, which may be another's commit on top of ours: so
        the documents are compared once more, at the very parent of this commit.
        """
        there = self._store.infos(list(expected), self._store.commit)
        for name, before in expected.items():
            if not _is(there.get(name), before):
                raise PoolChangedError(f"{self._view.address}: {name} was changed by somebody else")
        return self._commit(documents, message, replace=tuple(documents))

    def _commit(
        self, files: Mapping[str, Path | bytes], message: str, *, replace: Sequence[str] = (),
        sha256: Mapping[str, str] | None = None, uploaded: Callable[[], None] | None = None,
        sent: Callable[[str], None] | None = None,
    ) -> str:  # fmt: skip
        parent = self._store.commit
        if self._proposes and self._number is None:
            text = "Opened by `poolmgr push --pr`; a draft until every image and the index are in it."
            self._number = hub_pulls.create(self._store, self._title, text)
            self._store = self._store.at(parent, hub_pulls.revision_of(self._number))
        try:
            commit = self._store.commit_files(
                files, message=message, parent=parent, replace=replace, sha256=sha256, uploaded=uploaded,
                sent=sent, jobs=self._jobs,
            )  # fmt: skip
        except PoolChangedError:
            self._behind.add(parent)
            raise
        if commit != parent:
            self._behind.add(parent)
        return commit


def _is(there: tuple[int, str, str | None] | None, data: bytes | None) -> bool:
    """Whether the Hub's word on a file (size, git id, sha256 of an LFS file) is that of ``data``."""
    if there is None or data is None:
        return there is None and data is None
    _, oid, sha256 = there
    return hashlib.sha256(data).hexdigest() == sha256 if sha256 is not None else git_id(data) == oid


def _unchanged(batch: Sequence[Upload]) -> None:
    """Refuses the commit if a file is not what it was when it was checked."""
    for upload in batch:
        if fingerprint(upload.file.path, upload.file.key) != upload.file.xxh3:
            raise changed(upload.file)
