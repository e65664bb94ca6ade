"""A blob's bytes into a partial file: as a stream from the pool, by Xet, or on its base.

Every way fills the file from the front and hashes what it holds, so whatever stops it leaves a
partial file that any way can continue, and whatever it was told wrongly shows in the sha256.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from poolmgr.errors import RemoteTroubleError
from poolmgr.model.blob import Blob
from poolmgr.model.finding import Finding
from poolmgr.ops.progress import Progress
from poolmgr.plan.item import Base
from poolmgr.sif.source import FileSource
from poolmgr.store.base import Store
from poolmgr.store.files import mapped_os_errors

CHUNK = 1 << 20
ASKED = 8 << 20
"""Bytes of one ranged request for what a base lacks; also what one blob holds in memory."""
TRIES_WITHOUT_PROGRESS = 5
BACKOFF = 0.5
"""Seconds before the first retry of a broken body; doubled each time, with jitter."""

_NO_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}


class WrongBytesError(Exception):
    """The bytes on hand are not the blob's; begin again from byte 0."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class StoppedError(Exception):
    """The run is over; partial files stay for the next one."""


@dataclass
class Tally:
    """What one blob has cost."""

    transferred: int = 0
    """Bytes that came from the pool, retries included."""
    reused: int = 0
    """Bytes that the base gave, in the attempt under way."""
    shown: int = 0
    """Bytes of the attempt under way that the progress was told of."""


@dataclass
class Bringer:
    """Fills partial files for one run."""

    store: Store
    progress: Progress
    stopped: Callable[[], bool]
    download: Callable[[Blob, Path], None] | None = None
    """Another way to bring a whole file (Xet); None is ranged HTTP."""

    # --- from the pool ---------------------------------------------------------------------------

    def stream(self, blob: Blob, part: Path, start: int, tally: Tally) -> str:
        """Fill ``part`` from ``start`` on; the sha256 of the whole. Goes on at the byte reached."""
        with mapped_os_errors(part):
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            digest = hashlib.sha256()
            self.hash(fd, 0, start, digest, tally)
            at = start
            tries = 0
            while at < blob.size:
                reached = at
                try:
                    with self.store.stream(blob.path, at) as body:
                        if body.total is not None and body.total != blob.size:
                            raise WrongBytesError(size_finding(blob, body.total, next(iter(body), b"")))
                        if body.start != at:  # the server began elsewhere than it was asked to
                            if body.start != 0:
                                raise WrongBytesError(_start_finding(at, body.start))
                            self._advance(-at, tally)
                            digest, at = hashlib.sha256(), 0
                        for chunk in body:
                            self.check_stop()
                            if at + len(chunk) > blob.size:
                                raise WrongBytesError(
                                    Finding(
                                        "wrong-size",
                                        f"the pool lists {blob.size:,} bytes, more than that arrived",
                                    )
                                )
                            digest.update(chunk)
                            with mapped_os_errors(part):
                                _write_at(fd, chunk, at)
                            at += len(chunk)
                            tally.transferred += len(chunk)
                            self._advance(len(chunk), tally)
                    if at < blob.size:
                        raise RemoteTroubleError(
                            f"{blob.path}: the connection ended at {at:,} of {blob.size:,} bytes"
                        )
                except RemoteTroubleError as e:
                    tries = 0 if at > reached else tries + 1
                    self._wait(blob, at, tries, e)
            return _settled(blob, part, fd, digest.hexdigest())
        finally:
            os.close(fd)

    def through_client(self, blob: Blob, part: Path, tally: Tally) -> str:
        """Fill ``part`` by the other way, then read it back: nothing that it says is taken on trust."""
        assert self.download is not None
        part.unlink(missing_ok=True)
        self.download(blob, part)
        with FileSource(part) as source, mapped_os_errors(part):
            tally.transferred += source.size
            if source.size != blob.size:
                raise WrongBytesError(size_finding(blob, source.size, source.read_at(0, 64)))
            sha256 = self.hash(source.fd, 0, source.size, tally=tally)
            os.fsync(source.fd)
        if blob.sha256 is not None and sha256 != blob.sha256:
            raise WrongBytesError(hash_finding(blob, sha256))
        return sha256

    # --- on a base -------------------------------------------------------------------------------

    def on_base(self, blob: Blob, base: Base, file: FileSource, part: Path, start: int, tally: Tally) -> str:
        """Fill ``part`` from ``start`` on with what ``file`` shares, and with the pool's bytes between.

        ``WrongBytesError`` when the base is cut short or the result is another: the base or the
        record of what it shares is wrong, which of them the caller may find out.
        """
        with mapped_os_errors(part):
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            digest = hashlib.sha256()
            self.hash(fd, 0, start, digest, tally)
            at = start
            for piece in base.pieces:
                while at < piece.end:
                    self.check_stop()
                    if piece.base is None:
                        data = self._asked(blob, part, fd, at, min(piece.end, at + ASKED) - at)
                        tally.transferred += len(data)
                    else:
                        # chunks end at even places, where a filesystem can share blocks instead of copying
                        length = min(piece.end, (at // CHUNK + 1) * CHUNK) - at
                        with mapped_os_errors(part):
                            data = _copied(file.fd, piece.base + at - piece.start, fd, at, length)
                        if len(data) != length:
                            raise WrongBytesError(Finding("wrong-size", f"{base.path} was cut short"))
                        tally.reused += length
                    digest.update(data)
                    at += len(data)
                    self._advance(len(data), tally)
            return _settled(blob, part, fd, digest.hexdigest())
        finally:
            os.close(fd)

    def _asked(self, blob: Blob, part: Path, fd: int, at: int, length: int) -> bytes:
        tries = 0
        while True:
            try:
                data = self.store.read_range(blob.path, at, length)
                break
            except RemoteTroubleError as e:
                tries += 1
                self._wait(blob, at, tries, e)
        if len(data) != length:
            raise WrongBytesError(size_finding(blob, at + len(data), b""))
        with mapped_os_errors(part):
            _write_at(fd, data, at)
        return data

    # --- small things ----------------------------------------------------------------------------

    def hash(
        self, fd: int, start: int, end: int, digest: hashlib._Hash | None = None, tally: Tally | None = None
    ) -> str:
        """Feeds bytes [start, end) of an open file to ``digest`` (a new one), and gives its hex form."""
        digest = digest or hashlib.sha256()
        while start < end:
            self.check_stop()
            chunk = os.pread(fd, min(CHUNK, end - start), start)
            if not chunk:
                break
            digest.update(chunk)
            start += len(chunk)
            self._advance(len(chunk), tally)
        return digest.hexdigest()

    def again(self, tally: Tally) -> None:
        """The attempt under way was for nothing: the progress is what it was before."""
        self.progress.advance(-tally.shown)
        tally.shown = tally.reused = 0

    def check_stop(self) -> None:
        if self.stopped():
            raise StoppedError

    def _advance(self, size: int, tally: Tally | None) -> None:
        self.progress.advance(size)
        if tally is not None:
            tally.shown += size

    def _wait(self, blob: Blob, at: int, tries: int, trouble: RemoteTroubleError) -> None:
        """Before the next of so many tries from byte ``at`` that brought nothing; or raises ``trouble``."""
        if tries >= TRIES_WITHOUT_PROGRESS:
            raise trouble
        wait = BACKOFF * 2**tries * random.uniform(0.7, 1.3)  # noqa: S311 - jitter, not a secret
        self.progress.note(f"{blob.path}: {trouble.message}; going on at byte {at:,} in {wait:.1f} s")
        self._pause(wait)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check_stop()
            time.sleep(min(0.2, left))


def open_base(root: Path, base: Base) -> FileSource | None:
    """The base's file, if it is still a file of its size."""
    try:
        source = FileSource(root / base.path)
    except OSError:
        return None
    if stat.S_ISREG(source.stat.st_mode) and source.size == base.size:
        return source
    source.close()
    return None


def _settled(blob: Blob, part: Path, fd: int, sha256: str) -> str:
    """The finished file on disk, if it is the blob."""
    with mapped_os_errors(part):
        os.ftruncate(fd, blob.size)
        os.fsync(fd)
    if blob.sha256 is not None and sha256 != blob.sha256:
        raise WrongBytesError(hash_finding(blob, sha256))
    return sha256


def _copied(source: int, at: int, fd: int, to: int, length: int) -> bytes:
    """Copies inside the kernel where that can be (sharing blocks, on XFS and btrfs); what was copied."""
    done = 0
    try:
        while done < length:
            count = os.copy_file_range(source, fd, length - done, at + done, to + done)
            if count == 0:
                break
            done += count
    except (OSError, AttributeError) as e:
        if isinstance(e, OSError) and e.errno not in _NO_COPY:
            raise
        data = os.pread(source, length, at)
        _write_at(fd, data, to)
        return data
    return os.pread(fd, done, to)


def _write_at(fd: int, data: bytes, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        if done == 0:
            raise OSError(errno.EIO, "nothing was written")
        offset += done
        data = data[done:]


def _start_finding(asked: int, found: int) -> Finding:
    return Finding("bad-transfer", f"asked for bytes from {asked:,}, was sent bytes from {found:,}")


def size_finding(blob: Blob, found: int, head: bytes) -> Finding:
    """``found``: bytes that the server has instead of the listed ones, which begin with ``head``."""
    what = (
        " (an HTML page in its place)"
        if head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html"))
        else ""
    )
    return Finding("wrong-size", f"the pool lists {blob.size:,} bytes, the server sends {found:,}{what}")


def hash_finding(blob: Blob, found: str) -> Finding:
    return Finding("wrong-hash", f"the pool lists sha256 {blob.sha256}, what arrived has {found}")
