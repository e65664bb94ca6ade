"""A pool on the Hugging Face Hub: listed once at one pinned commit, read by ranged HTTP.

The listing, the commit and every write go through the real client (hub_client.py); file bytes come
through hub_http.py, which hub_client.py's headers open.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, MutableSequence, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from poolmgr.errors import (
    BadFileError,
    BadTransferError,
    FileMissingError,
    OfflineError,
    PoolNotFoundError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.model.blob import INDEX_NAME, Blob, Listing, path_trouble
from poolmgr.store.base import OnRetry
from poolmgr.store.hub_client import OFFLINE_HINT, HubClient
from poolmgr.store.hub_http import HubBody, HubHttp
from poolmgr.store.hub_pace import Pace, Quota

KINDS = {"dataset": "datasets/", "model": "", "space": "spaces/"}
MAX_LISTED = 2_000_000
"""Entries after which a listing is taken for hostile; the Hub advises fewer than 100,000 files."""
READ_TWICE = 2
"""Tries of a whole small file whose bytes are not the listed ones."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HEX64 = re.compile(r"[0-9a-f]{64}")


class _Entry(NamedTuple):
    """A row of the listing; only ``oid`` is of a type that can be relied on."""

    path: Any
    size: Any
    oid: str | None
    """git's name of a file; None for a folder."""
    sha256: Any
    xet: Any


class HubStore:
    """A repository as a store (``store.base.CommittingStore``); safe to use from many threads.

    ``token`` is for tests and callers that hold one: None resolves it as the client does, False
    sends none. ``on_retry`` is told what is being waited for.
    """

    def __init__(
        self,
        repo_id: str,
        *,
        repo_type: str = "dataset",
        revision: str | None = None,
        endpoint: str | None = None,
        token: str | bool | None = None,
        offline: bool = False,
        on_retry: OnRetry | None = None,
    ) -> None:
        if repo_type not in KINDS:
            raise PoolNotFoundError(
                f"no such kind of repository: {repo_type!r}", hint="dataset, model or space"
            )
        self.repo_id = repo_id
        self.repo_type = repo_type
        self.revision = revision
        self.address = f"hf://{KINDS[repo_type]}{repo_id}" + (f"@{revision}" if revision else "")
        self._endpoint = endpoint
        self._token = token
        self._offline = offline
        self._on_retry: OnRetry = on_retry or _nobody
        self._pace = Pace(self._on_retry)
        self._commit: str | None = None
        self._listing: Listing | None = None
        self._files: dict[str, tuple[int, str, str | None]] = {}
        """Path -> (size, git blob id, sha256 of an LFS file), of everything seen at the commit."""
        self._lock = threading.RLock()
        self._client_: HubClient | None = None
        self._http_: HubHttp | None = None

    # --- reading -------------------------------------------------------------------------------------

    @property
    def commit(self) -> str:
        """The commit that the revision named at first need; one request a run."""
        with self._lock:
            if self._commit is None:
                info = self.client.call("looking up the repository", self._info)
                sha = info.sha
                if not isinstance(sha, str) or not _COMMIT.fullmatch(sha):
                    raise RemoteRefusedError(f"{self.address}: the server names no commit ({sha!r})")
                self._commit = sha
            return self._commit

    def files(self) -> Mapping[str, tuple[int, str, str | None]]:
        """(size, git blob id, sha256 of an LFS file) of every file at the commit, by path.

        Also those that are no pool's business: dot-leading names, and paths that no disk should take.
        """
        self.list()
        return self._files

    @property
    def quota(self) -> Quota | None:
        """What the server said last of how many more requests it takes; None if it said nothing."""
        return self._pace.quota

    def list(self) -> Listing:
        """Everything at the pinned commit, by the paged tree: 1,000 entries a request."""
        with self._lock:
            if self._listing is None:
                rows = self.client.call("listing", lambda: self._tree(self.commit), tries=2)
                self._listing = self._listed(rows)
            return self._listing

    def read(self, path: str, *, limit: int) -> bytes:
        """The whole file, proven against the size and hash that the commit records for it."""
        size, oid, sha256 = self._recorded(path)
        if size > limit:
            raise BadFileError(f"{self.address}/{path}: {size:,} bytes, more than the {limit:,} allowed")
        for _ in range(READ_TWICE):
            data = self._whole(path, size)
            good = hashlib.sha256(data).hexdigest() == sha256 if sha256 else git_id(data) == oid
            if good and len(data) == size:
                return data
            page = " (a web page in its place)" if data.lstrip()[:5].lower() in (b"<!doc", b"<html") else ""
            self._on_retry(f"{path}: other bytes arrived than the commit records{page}; reading it again")
        raise BadTransferError(
            f"{self.address}/{path}: expected {size:,} bytes with"
            f" {'sha256 ' + sha256 if sha256 else 'git id ' + oid}, found {len(data):,} others{page}",
            hint="something between you and the Hub changes what it sends: a proxy, or a login page",
        )

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``start``, fewer only where the file ends."""
        if start < 0 or length <= 0:
            return b""
        data, total = self._http.range(self._url(path), path, start, length)
        known = self._files.get(path)
        if known is not None and total is not None and total != known[0]:
            raise BadTransferError(
                f"{self.address}/{path}: {known[0]:,} bytes listed, the server serves {total:,}"
            )
        want = length if total is None else max(0, min(length, total - start))
        if len(data) < want:
            raise RemoteTroubleError(f"{self.address}/{path}: {len(data):,} bytes came of {want:,}")
        return data

    def stream(self, path: str, start: int = 0) -> AbstractContextManager[HubBody]:
        """The bytes from ``start`` on, as they arrive; trouble on the way is ``RemoteTroubleError``."""
        return self._http.stream(self._url(path), path, start)

    def close(self) -> None:
        """Ends every wait of other threads, in ``RemoteTroubleError``; for a run that stops."""
        self._pace.close()

    # --- writing -------------------------------------------------------------------------------------

    def put(self, path: str, source: Path | bytes) -> None:
        """One file in one commit; ``AlreadyExistsError`` if the name is taken."""
        from poolmgr.store.hub_push import push

        self._moved(push(self, {path: source}, message=f"Add {path}", parent=self.commit, replace=()))

    def commit_files(
        self,
        files: Mapping[str, Path | bytes],
        *,
        message: str,
        parent: str | None,
        replace: Collection[str] = (INDEX_NAME,),
        sha256: Mapping[str, str] | None = None,
        uploaded: Callable[[], None] | None = None,
        sent: Callable[[str], None] | None = None,
        jobs: int = 5,
    ) -> str:
        """One commit on top of ``parent`` (None: the pinned one), looked at after it was made; its id.

        Only the paths in ``replace`` may be there already. ``sha256``: what files must be, by path;
        ``sent`` is told of each file whose bytes are there, ``uploaded`` is called when all are and no
        commit is made yet. ``PoolChangedError`` if the head moved.
        """
        from poolmgr.store.hub_push import push

        commit = push(
            self, files, message=message, parent=parent or self.commit, replace=replace, sha256=sha256,
            uploaded=uploaded, sent=sent, jobs=jobs,
        )  # fmt: skip
        self._moved(commit)
        return commit

    def at(self, commit: str | None, revision: str | None = None) -> HubStore:
        """This repository pinned at another commit (None: the head, when it is needed).

        Writes go to ``revision``, else to the same branch as before.
        """
        other = HubStore(
            self.repo_id, repo_type=self.repo_type, revision=revision or self.revision,
            endpoint=self._endpoint, token=self._token, offline=self._offline, on_retry=self._on_retry,
        )  # fmt: skip
        other._commit = commit
        other._pace = self._pace
        return other

    def wait(self, seconds: float, why: str) -> None:
        """Say why, and wait; ends early when the store is closed."""
        self._on_retry(f"{why}; looking again in {seconds:.1f} s")
        self._pace.sleep(seconds)

    def _moved(self, commit: str) -> None:
        self._commit, self._listing = commit, None
        self._files.clear()

    # --- the two ways in -------------------------------------------------------------------------------

    @property
    def client(self) -> HubClient:
        """The real client; refuses to exist offline."""
        with self._lock:
            if self._client_ is None:
                self._refuse_offline()
                self._client_ = HubClient(
                    self.address, self._endpoint, self._token, self._pace, self._on_retry
                )
            return self._client_

    @property
    def _http(self) -> HubHttp:
        with self._lock:
            if self._http_ is None:
                client = self.client
                self._http_ = HubHttp(
                    self.address, client.endpoint, client.headers, self._pace, self._on_retry
                )
            return self._http_

    def _refuse_offline(self) -> None:
        from huggingface_hub import constants

        if self._offline or constants.is_offline_mode():
            raise OfflineError(
                f"{self.address}: this pool is on the network, and HF_HUB_OFFLINE forbids every request",
                hint=OFFLINE_HINT,
            )

    def _url(self, path: str) -> str:
        """``/resolve/`` at the pinned commit; the same that ``huggingface_hub.hf_hub_url`` gives."""
        repo = f"{self.client.endpoint}/{KINDS[self.repo_type]}{self.repo_id}"
        return f"{repo}/resolve/{self.commit}/{quote(path)}"

    # --- parts of reading --------------------------------------------------------------------------------

    def _info(self) -> Any:
        return self.client.api.repo_info(self.repo_id, revision=self.revision, repo_type=self.repo_type)

    def _tree(self, commit: str) -> Sequence[_Entry]:
        """The listing's rows as the Hub sends them (HfApi.list_repo_tree makes three objects of each)."""
        from huggingface_hub.utils import paginate

        rows: MutableSequence[_Entry] = []
        url = f"{self.client.endpoint}/api/{self.repo_type}s/{self.repo_id}/tree/{commit}"
        for row in paginate(url, {"recursive": True, "expand": False}, self.client.headers()):
            if row["type"] == "file":
                lfs = row.get("lfs")
                sha256 = None if lfs is None else lfs["oid"]
                rows.append(_Entry(row["path"], row["size"], str(row["oid"]), sha256, row.get("xetHash")))
            else:
                rows.append(_Entry(row["path"], 0, None, None, None))
            if len(rows) > MAX_LISTED:
                raise RemoteRefusedError(
                    f"{self.address}: the listing does not end after {MAX_LISTED:,} entries"
                )
        return rows

    def _listed(self, rows: Iterable[_Entry]) -> Listing:
        blobs: dict[str, Blob] = {}
        refused: list[tuple[str, str]] = []
        folders: set[str] = set()
        entries: Counter[str] = Counter()
        for path, size, oid, sha256, xet in rows:
            if not isinstance(path, str):
                refused.append((repr(path), "is no text"))
                continue
            parent = path.rpartition("/")[0]
            entries[parent] += 1
            hidden = path.startswith(".") or "/." in path
            if oid is None:
                if not hidden and path_trouble(path) is None:
                    folders.add(path)
                continue
            trouble = _row_trouble(size, sha256)
            if trouble is None:
                self._files[path] = (size, oid, sha256)
            if path == INDEX_NAME or (hidden and not _climbs(path)):
                continue
            trouble = trouble or path_trouble(path) or ("is listed twice" if path in blobs else None)
            if trouble is not None:
                refused.append((path, trouble))
                continue
            xet = xet if isinstance(xet, str) and _HEX64.fullmatch(xet) else None
            blobs[path] = Blob(path, size, sha256, xet_hash=xet)
        for path in blobs:
            parent = path.rpartition("/")[0]
            while parent and parent not in folders:
                folders.add(parent)
                parent = parent.rpartition("/")[0]
        return Listing(
            source=self.address,
            commit=self.commit,
            blobs=blobs,
            refused=tuple(refused),
            directories=frozenset(folders),
            entries=dict(entries),
        )

    def infos(self, paths: Collection[str], commit: str) -> dict[str, tuple[int, str, str | None]]:
        """Path -> (size, git id, sha256) of those of ``paths`` that are files at ``commit``."""
        from huggingface_hub import RepoFile

        found: dict[str, tuple[int, str, str | None]] = {}
        names = sorted(paths)
        for at in range(0, len(names), 500):
            group = names[at : at + 500]  # the server takes 1,000 at most (facts: hub section 1)
            rows = self.client.call(
                "looking up files",
                lambda group=group: self.client.api.get_paths_info(  # type: ignore[misc]
                    self.repo_id, group, revision=commit, repo_type=self.repo_type
                ),
            )
            for row in rows:
                if isinstance(row, RepoFile):
                    sha256 = row.lfs.sha256 if row.lfs is not None else None
                    if _row_trouble(row.size, sha256) is None:
                        found[row.path] = (row.size, row.blob_id, sha256)
        return found

    def _recorded(self, path: str) -> tuple[int, str, str | None]:
        if path not in self._files and self._listing is None:
            self._files.update(self.infos([path], self.commit))
        if path not in self._files:
            raise FileMissingError(f"{self.address}: no such file: {path}")
        return self._files[path]

    def _whole(self, path: str, size: int) -> bytes:
        """All bytes of a small file, continued where a connection breaks; at most one more than ``size``."""
        data = bytearray()

        def rest() -> bytes:
            with self.stream(path, len(data)) as body:
                if body.start != len(data):
                    data.clear()
                for chunk in body:
                    data.extend(chunk)
                    if len(data) > size:
                        break
            return bytes(data)

        return self.client.call(f"reading {path}", rest)


def _nobody(message: str) -> None:
    """Nobody wants to know."""


def _row_trouble(size: object, sha256: object) -> str | None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        return f"has the size {size!r}"
    if sha256 is not None and not (isinstance(sha256, str) and _HEX64.fullmatch(sha256)):
        return f"has the sha256 {sha256!r}"
    return None


def _climbs(path: str) -> bool:
    return ".." in path.split("/")


def git_id(data: bytes) -> str:
    """git's name for a file with these bytes, which the Hub records for files outside LFS."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
