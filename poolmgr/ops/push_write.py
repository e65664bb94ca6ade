"""The three ways in which a push writes: what every one of them promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from poolmgr.errors import NotAMirrorError, RemoteRefusedError, UsageError
from poolmgr.model.stamp import Stamp
from poolmgr.ops.progress import Progress
from poolmgr.ops.push_files import LocalFile
from poolmgr.ops.view import PoolView
from poolmgr.store.local import LocalStore

MAX_BATCH = 50
"""Images of one commit: the Hub gives up on a commit after 60 s (facts: hub, limits)."""


@dataclass(frozen=True, slots=True)
class Upload:
    file: LocalFile
    path: str
    """Where it goes in the pool."""


class Writer(Protocol):
    """Writes one push, blobs first, documents last; ``PoolChangedError`` when somebody else was quicker.

    Whoever is told so plans again on ``fresh`` and goes on; nothing that is there is sent twice.
    """

    merges: bool
    """Whether it can go on after ``PoolChangedError``; else another writer is not provided for."""

    def ready(self) -> None:
        """Refuses, before any byte is sent, where this user may not write."""
        ...

    def resume(self, title: str) -> PoolView | None:
        """Go on in the pull request of that title, if there is one; the pool as it is in it."""
        ...

    def finish(self) -> str | None:
        """All is written. The pull request's address, where the push is one."""
        ...

    def fresh(self) -> PoolView:
        """The pool as it is now."""
        ...

    def room(self, uploads: Sequence[Upload]) -> None:
        """Refuses, before the first is sent, where not all of them can go, as far as that can be known."""
        ...

    def add(self, uploads: Sequence[Upload], done: Callable[[Upload], None]) -> None:
        """Every blob at its path, proven to be what was planned. No name is ever replaced.

        ``done`` is told of each that is there for good.
        """
        ...

    def vouch(self, found: Sequence[tuple[str, LocalFile, Stamp]]) -> None:
        """Remember that blobs which the pool had (path, a file of equal bytes, stamp) are valid images."""
        ...

    def seal(
        self,
        documents: Mapping[str, bytes],
        expected: Mapping[str, bytes | None],
        needs: Mapping[str, int],
        message: str,
    ) -> str | None:
        """The documents in their order, the index last, if they still are what was expected; the commit.

        ``needs``: path -> size of the blobs that the tasks of this push map to; all of them must be there.
        """
        ...


def writer_of(view: PoolView, jobs: int, progress: Progress, *, pull_request: bool = False) -> Writer:
    """The writer for the kind of pool that ``view`` shows."""
    if view.is_mirror:
        raise NotAMirrorError(
            f"{view.address} is a mirror: its index is derived from what was fetched",
            hint="push to the pool that it came from",
        )
    from poolmgr.store.hub import HubStore

    if pull_request and not isinstance(view.store, HubStore):
        raise UsageError(f"{view.address} takes no pull requests", hint="--pr is for pools on the Hub")
    if isinstance(view.store, LocalStore):
        from poolmgr.ops.push_folder import FolderWriter

        return FolderWriter(view, jobs, progress)
    if isinstance(view.store, HubStore):
        from poolmgr.ops.push_hub import HubWriter

        return HubWriter(view, view.store, jobs, progress, pull_request=pull_request)
    from poolmgr.store.remote import RemoteStore

    if isinstance(view.store, RemoteStore):
        from poolmgr.ops.push_remote import RemoteWriter

        return RemoteWriter(view, view.store, jobs, progress)
    raise RemoteRefusedError(f"{view.address}: push cannot write to this kind of pool")
