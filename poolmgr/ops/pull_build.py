"""One image, from a registry's digest to a file that has passed every check and has no name yet."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from poolmgr.errors import (
    BadFileError,
    DamagedImageError,
    ImageNotFoundError,
    MachineCannotError,
    NoSpaceError,
    PoolError,
    RateLimitedError,
    RegistryDeniedError,
    RemoteTroubleError,
    ToolFailedError,
    WrongArchitectureError,
)
from poolmgr.model.arch import runs_on
from poolmgr.model.pulled import Pulled
from poolmgr.model.reference import Reference
from poolmgr.sif.apptainer import Apptainer
from poolmgr.sif.identity import file_sha256, tree_sha256
from poolmgr.sif.image import open_image
from poolmgr.sif.pull_words import PullCause, last_cause, pull_cause
from poolmgr.sif.source import FileSource
from poolmgr.sif.squashfs import DamageError
from poolmgr.store.hub_pace import backoff
from poolmgr.store.oci import Registries
from poolmgr.temporary import remove_tree

MAX_CACHE = 20 << 30
"""Bytes of layers that one worker keeps for the next image; more, and it begins anew."""
LIMIT_WAIT = 15.0
"""Seconds that a registry is left alone whose limit Apptainer met; doubled with each try."""
RETRIED = (RateLimitedError, RemoteTroubleError, DamagedImageError)
"""What another try can cure; nothing else is tried again."""


@dataclass
class Turns:
    """At most so many builds at once from one registry."""

    count: int
    _gates: dict[str, threading.Semaphore] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def of(self, host: str) -> Iterator[None]:
        with self._lock:
            gate = self._gates.setdefault(host, threading.Semaphore(self.count))
        with gate:
            yield


@dataclass
class Layers:
    """One worker's cache of layers: for one pull at a time, gone after one that failed."""

    folder: Path
    used: bool = field(default=False, init=False)

    def drop(self) -> None:
        remove_tree(self.folder)
        self.used = False

    def keep(self) -> None:
        """After a pull that went well: keep the layers, not the image, and not too many."""
        remove_tree(self.folder / "cache" / "oci-tmp")
        self.used = True
        size = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                try:
                    size += os.lstat(os.path.join(folder, name)).st_size
                except OSError:
                    continue
        if size > MAX_CACHE:
            self.drop()


@dataclass(frozen=True)
class Builder:
    """Builds images of registries; safe to use from many threads, each with its own ``Layers``."""

    apptainer: Apptainer
    registries: Registries
    arch: str
    """Go's name of the architecture that every image must be for."""
    note: Callable[[str], None]
    stop: threading.Event
    identity: bool = True
    """Whether the tree identity of what was built is computed."""
    tries: int = 4

    def build(self, reference: Reference, digest: str, made: Path, scratch: Path, layers: Layers) -> None:
        """Pull the image at ``digest`` into the new file ``made``; what can succeed is tried again.

        Raises the error of the last try: ``ImageNotFoundError``, ``RegistryDeniedError``,
        ``RateLimitedError``, ``RemoteTroubleError``, ``NoSpaceError``, ``WrongArchitectureError``,
        ``DamagedImageError``, ``MachineCannotError`` or ``ToolFailedError``.
        """
        tried = 0
        while True:
            tried += 1
            warm = layers.used
            try:
                self._pull(reference, digest, made, scratch, layers.folder)
            except PoolError as e:
                layers.drop()
                if isinstance(e, NoSpaceError) and warm:
                    continue  # there is more room without the kept layers
                if self.stop.is_set() or tried >= self.tries or not isinstance(e, RETRIED):
                    raise
                self._wait(reference, e, tried)
            else:
                layers.keep()
                return

    def _wait(self, reference: Reference, error: PoolError, tried: int) -> None:
        if isinstance(error, RateLimitedError):
            wait = LIMIT_WAIT * 2.0 ** (tried - 1)
            self.registries.hold(reference.host, wait, f"{reference.canonical}: {error.message}")
        else:
            wait = backoff(tried)
            self.note(f"{error.message}; trying again in {wait:.1f} s")
            if self.stop.wait(wait):
                raise error
        # asks once more, so that a limit that still holds is met with its own Retry-After
        self.registries.point(reference)

    def _pull(self, reference: Reference, digest: str, made: Path, scratch: Path, cache: Path) -> None:
        options = ["--arch", self.arch]
        if reference.host in self.registries.insecure:
            options.append("--no-https")
        login = self.registries.logins.find(reference)
        if login is not None:
            options += ["--authfile", str(login.file)]
        source = f"docker://{reference.name}@{digest}"
        try:
            self.apptainer.pull(source, made, scratch=scratch, options=options, cache=cache, stop=self.stop)
        except ToolFailedError as e:
            raise failure(e, reference) from None
        except BadFileError as e:
            raise DamagedImageError(f"{reference.canonical}: {e.message}", hint=_DAMAGED) from None

    def look(self, made: Path, name: str, reference: Reference, digest: str) -> Pulled:
        """The record of a new file; ``WrongArchitectureError`` for one of another machine."""
        try:
            with FileSource(made) as source:
                image = open_image(source, reference.canonical)
                # Apptainer reads it from the image's own programs, whatever was asked for
                if image.arch is not None and not runs_on(image.arch, self.arch):
                    raise WrongArchitectureError(
                        f"{reference.canonical} is for {image.arch}, not for {self.arch}",
                        hint="another tag may hold the platform; --arch asks for another one",
                    )
                tree = tree_sha256(image, threads=1) if self.identity else None
                return Pulled(
                    name, reference.canonical, digest, source.size, file_sha256(source), tree,
                    image.arch, self.apptainer.version,
                    datetime.now(UTC).isoformat(timespec="seconds"),
                )  # fmt: skip
        except DamageError as e:
            raise DamagedImageError(f"{reference.canonical}: {e}", hint=_DAMAGED) from None


_DAMAGED = "what was built cannot be read; the next try builds it again from new bytes"


def failure(error: ToolFailedError, reference: Reference) -> PoolError:
    """The error that names the cause of a failed pull."""
    said = last_cause(error.message.partition(" failed: ")[2] or error.message)
    told = f"{reference.canonical}: {said}"
    match pull_cause("\n".join((error.message, *error.details)), reference):
        case PullCause.NO_SPACE:
            return NoSpaceError(
                told, hint="a build needs about four times the image's size for a while; make room, run again"
            )
        case PullCause.LIMIT:
            return RateLimitedError(told, hint="run the same command again later; a login may have more")
        case PullCause.DENIED:
            return RegistryDeniedError(
                told, hint=f"'apptainer registry login docker://{reference.host}' keeps a login"
            )
        case PullCause.MISSING:
            return ImageNotFoundError(told, hint="the registry lacks a part of the image: push it again")
        case PullCause.ARCH:
            return WrongArchitectureError(told, hint="--arch asks for another architecture")
        case PullCause.DAMAGED:
            return DamagedImageError(
                told, hint="the registry, or a proxy before it, sends other bytes than it says"
            )
        case PullCause.TROUBLE:
            return RemoteTroubleError(told, hint="run the same command again later")
        case PullCause.MACHINE:
            return MachineCannotError(
                told,
                hint="building needs user namespaces or root, and mksquashfs: 'poolmgr doctor', or run "
                "it on another machine",
            )
    return ToolFailedError(told, hint="the lines above it are Apptainer's own", details=error.details)
