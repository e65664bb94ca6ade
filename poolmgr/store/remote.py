"""Any other URL as a store, through fsspec: S3, GCS, SFTP, ``memory://`` …

Nothing that fsspec keeps is trusted: listings and sizes are asked for anew, bytes come by plain
ranges without its file caches, and no call is made that would take a name for a glob.
"""

from __future__ import annotations

import errno
import inspect
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from poolmgr.errors import (
    AlreadyExistsError,
    BadFileError,
    CredentialsError,
    FileMissingError,
    MissingToolError,
    PoolError,
    PoolNotFoundError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.model.blob import INDEX_NAME, Blob, Listing, check_path, path_trouble, shown
from poolmgr.store.address import printable
from poolmgr.store.base import OnRetry
from poolmgr.temporary import temp_name

CHUNK = 8 << 20
"""Bytes of one request while a file is streamed."""
TRIES = 3
"""Of one reading request; backends such as s3fs try several times on their own within each."""
MAX_LISTED = 2_000_000

_PASSING = {
    errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT,
    errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EBUSY, errno.EAGAIN, errno.EIO,
}  # fmt: skip
_PASSING_NAMES = re.compile(r"Timeout|Connect|Disconnect|Incomplete|Payload|SlowDown|Endpoint")
_CREDENTIAL_NAMES = re.compile(r"Credential|Authenti|Unauthori|TokenRetriev|SSOToken")

T = TypeVar("T")


class RemoteStore:
    """A place with an fsspec URL (``store.base.WritableStore``). Safe to use from many threads.

    Listings carry sizes and no sha256: no such place records one (an ETag is none).
    Raises ``MissingToolError`` when the URL's protocol needs a package that is not installed.
    """

    def __init__(self, url: str, *, on_retry: OnRetry | None = None) -> None:
        self.address = printable(url).rstrip("/")
        self._on_retry = on_retry
        self._url = url
        self._fs, self._root = self._open_filesystem()

    @property
    def commit(self) -> str | None:
        """None: such places have no commits."""
        return None

    # --- reading -------------------------------------------------------------------------------------

    def list(self) -> Listing:
        """Everything below the URL, asked for anew. ``PoolNotFoundError`` where there is nothing at all."""
        try:
            rows = self._again("listing", self._find)
        except FileMissingError:
            rows = {}
        if not rows and not self._again("looking", lambda: self._fs.isdir(self._root)):
            raise PoolNotFoundError(f"{self.address}: there is nothing at this address")
        prefix = self._root.rstrip("/") + "/"
        blobs: dict[str, Blob] = {}
        refused: list[tuple[str, str]] = []
        children: dict[str, set[str]] = {"": set()}
        for name, row in rows.items():
            if not name.startswith(prefix):
                continue
            path = name[len(prefix) :]
            is_file = row.get("type") == "file"
            _note_children(path.rstrip("/"), children)
            if not path or path == INDEX_NAME or (_hidden(path) and not _climbs(path)):
                continue
            size = row.get("size")
            if trouble := path_trouble(path.rstrip("/") if not is_file else path):
                refused.append((shown(path), trouble))
            elif not is_file:
                children.setdefault(path.rstrip("/"), set())
            elif isinstance(size, bool) or not isinstance(size, int) or size < 0:
                refused.append((path, "is listed without its size"))
            else:
                blobs[path] = Blob(path, size)
        folders = {path for path in children if path and not _hidden(path) and path_trouble(path) is None}
        return Listing(
            source=self.address,
            commit=None,
            blobs=blobs,
            refused=tuple(sorted(refused)),
            directories=frozenset(folders),
            entries={path: len(children[path]) for path in ("", *folders)},
        )

    def read(self, path: str, *, limit: int) -> bytes:
        """The whole file; ``BadFileError`` when it is larger than ``limit`` bytes."""
        size = self._size(path)
        if size > limit:
            raise BadFileError(f"{self.address}/{path}: {size:,} bytes, more than the {limit:,} it may have")
        data = self._range(path, 0, size)
        if len(data) != size:
            raise RemoteTroubleError(f"{self.address}/{path}: {len(data):,} bytes came of {size:,}")
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``start``, fewer only where the file ends."""
        if start < 0 or length <= 0:
            return b""
        return self._range(path, start, length)

    @contextmanager
    def stream(self, path: str, start: int = 0) -> Iterator[RemoteBody]:
        """The bytes from ``start`` on, 8 MiB a request."""
        yield RemoteBody(self, path, max(0, start), self._size(path))

    # --- writing -------------------------------------------------------------------------------------

    def put(self, path: str, source: Path | bytes) -> None:
        """Create ``path``; ``AlreadyExistsError`` if the name is taken.

        Object stores whose backend has ``mode="create"`` (S3: If-None-Match) decide that themselves,
        and show a file when it is complete. Elsewhere the name is looked up first, so two writers
        that use one name in the same second are not told apart; where the backend can rename, the
        bytes arrive under a temporary name.
        """
        if path != INDEX_NAME:
            check_path(path, self.address)
        size = len(source) if isinstance(source, bytes) else _size_of(source)
        with self._mapped("writing", path):
            if self._fs.exists(self._at(path)):
                raise FileExistsError(path)
            self._put(self._at(path), source)
        there = self._size(path)
        if there != size or (not isinstance(source, bytes) and _size_of(source) != size):
            raise BadFileError(
                f"{self.address}/{path}: {there:,} bytes arrived of {size:,}",
                hint="the file changed while it was sent: remove what arrived, and put it again",
            )

    def _put(self, final: str, source: Path | bytes) -> None:
        fs = self._fs
        put: Callable[..., Any] = fs.pipe_file if isinstance(source, bytes) else fs.put_file
        what: Any = (final, source) if isinstance(source, bytes) else (str(source), final)
        own = getattr(fs, "_" + put.__name__, None) or put
        if (
            "mode" in inspect.signature(own).parameters
            and own.__qualname__.split(".")[0] != "AbstractFileSystem"
        ):
            put(*what, mode="create")
            return
        if type(fs).mv is _abstract().mv:
            fs.makedirs(final.rpartition("/")[0], exist_ok=True)
            put(*what)
            return
        folder = final.rpartition("/")[0]
        fs.makedirs(folder, exist_ok=True)
        temp = str(temp_name(folder))
        try:
            fs.pipe_file(temp, source) if isinstance(source, bytes) else fs.put_file(str(source), temp)
            if fs.exists(final):
                raise FileExistsError(final)
            fs.mv(temp, final)
        finally:
            if fs.exists(temp):
                fs.rm_file(temp)

    # --- parts ---------------------------------------------------------------------------------------

    def _open_filesystem(self) -> tuple[Any, str]:
        import fsspec.core

        try:
            # Instances are shared and remember listings otherwise.
            fs, root = fsspec.core.url_to_fs(self._url, skip_instance_cache=True, use_listings_cache=False)
        except ImportError as e:
            raise MissingToolError(
                f"{self.address}: {_first_line(str(e))}", hint="pip install 'poolmgr[s3]' for S3"
            ) from None
        except ValueError as e:
            if "Protocol not known" in str(e):
                protocol = self.address.partition(":")[0]
                raise PoolNotFoundError(
                    f"{self.address}: no store is known for {protocol}://",
                    hint="hf://datasets/ORG/NAME, s3://BUCKET/FOLDER, or another URL that fsspec knows",
                ) from None
            raise PoolNotFoundError(f"{self.address}: {self._scrub(e)}") from None
        except Exception as e:  # noqa: BLE001 - a backend's constructor may raise anything
            raise self._meaning(e, "opening", "") from None
        return fs, root

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def _find(self) -> dict[str, dict[str, Any]]:
        self._fs.invalidate_cache()
        rows: dict[str, dict[str, Any]] = self._fs.find(self._root, detail=True, withdirs=True)
        if len(rows) > MAX_LISTED:
            raise RemoteRefusedError(f"{self.address}: more than {MAX_LISTED:,} entries, which no pool has")
        return rows

    def _size(self, path: str) -> int:
        if path != INDEX_NAME:
            check_path(path, self.address)
        info = self._again("looking at", lambda: self._fs.info(self._at(path)), path)
        if info.get("type") == "directory":
            raise BadFileError(f"{self.address}/{path}: a directory, not a file")
        size = info.get("size")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise RemoteRefusedError(f"{self.address}/{path}: the server does not say its size")
        return size

    def _range(self, path: str, start: int, length: int) -> bytes:
        if path != INDEX_NAME:
            check_path(path, self.address)
        if length == 0:
            return b""
        at = self._at(path)
        try:
            data: bytes = self._again(
                "reading", lambda: self._fs.cat_file(at, start=start, end=start + length), path
            )
        except (FileMissingError, CredentialsError):
            raise
        except PoolError:
            if start >= self._size(path):  # a range that begins at the end is refused by some servers
                return b""
            raise
        if len(data) == length:
            return data
        size = self._size(path)
        want = max(0, min(length, size - start))
        if len(data) == size and size > want:  # the server sent the whole file instead of the range
            return data[start : start + length]
        if len(data) != want:
            raise RemoteTroubleError(f"{self.address}/{path}: {len(data):,} bytes came of {want:,}")
        return data

    def _again(self, what: str, call: Callable[[], T], path: str = "") -> T:
        """``call``'s answer; passing trouble is tried again, ``TRIES`` in all."""
        for attempt in range(1, TRIES + 1):
            try:
                with self._mapped(what, path):
                    return call()
            except RemoteTroubleError as e:
                if attempt == TRIES:
                    raise
                wait = 2 ** (attempt - 1) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
                if self._on_retry is not None:
                    self._on_retry(f"{e.message}; trying again in {wait:.1f} s")
                time.sleep(wait)
        raise AssertionError

    @contextmanager
    def _mapped(self, what: str, path: str) -> Iterator[None]:
        try:
            yield
        except PoolError:
            raise
        except Exception as e:  # noqa: BLE001 - each backend raises classes of its own
            raise self._meaning(e, what, path) from None

    def _meaning(self, error: Exception, what: str, path: str) -> PoolError:
        place = f"{self.address}/{path}" if path else self.address
        kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return FileMissingError(f"{place}: no such file")
        if isinstance(error, FileExistsError) or "PreconditionFailed" in str(error):
            return AlreadyExistsError(
                f"{place}: the name is taken", hint="nothing is overwritten: a new version needs a new name"
            )
        if isinstance(error, IsADirectoryError):
            return BadFileError(f"{place}: a directory, not a file")
        text = self._scrub(error)
        if isinstance(error, PermissionError) or _CREDENTIAL_NAMES.search(kinds):
            return CredentialsError(
                f"{place}: {what} was refused: {text}",
                hint="give the backend its credentials in its own way, such as AWS_PROFILE for s3://",
            )
        if (
            number in _PASSING
            or isinstance(error, ConnectionError | TimeoutError)
            or _PASSING_NAMES.search(kinds)
        ):
            return RemoteTroubleError(f"{place}: {what} failed: {text}")
        return RemoteRefusedError(f"{place}: {what} failed: {text}")

    def _scrub(self, error: Exception) -> str:
        """The error's first line without what may be secret in it."""
        text = _first_line(str(error)).replace(self._url, self.address)
        text = re.sub(r"(?<=://)[^/\s]*@", "", text)
        text = re.sub(r"\?[^\s'\"]+", "", text)
        return f"{text[:300]} ({type(error).__name__})" if text else type(error).__name__


class RemoteBody:
    """The bytes of one file from ``start`` on (``store.base.Body``)."""

    def __init__(self, store: RemoteStore, path: str, start: int, total: int) -> None:
        self.start = start
        self.total: int | None = total
        self._store = store
        self._path = path
        self._end = total

    def __iter__(self) -> Iterator[bytes]:
        at = self.start
        while at < self._end:
            data = self._store.read_range(self._path, at, min(CHUNK, self._end - at))
            if not data:
                return
            at += len(data)
            yield data


def _abstract() -> Any:
    import fsspec

    return fsspec.AbstractFileSystem


def _hidden(path: str) -> bool:
    return path.startswith(".") or "/." in path


def _climbs(path: str) -> bool:
    return ".." in path.split("/")


def _note_children(path: str, children: dict[str, set[str]]) -> None:
    """Count ``path`` and the folders above it as entries of theirs."""
    while path:
        parent = path.rpartition("/")[0]
        known = children.setdefault(parent, set())
        if path in known:
            return
        known.add(path)
        path = parent


def _size_of(source: Path) -> int:
    try:
        return os.stat(source).st_size
    except OSError as e:
        raise BadFileError(f"{source}: cannot be read: {e.strerror}") from None


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
