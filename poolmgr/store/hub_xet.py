"""Whole files by Xet, through the real client in a child process under a watchdog.

Xet needs one token request a commit where ranged HTTP needs one request a file, so it is the way
out when the quota is short. In exchange a killed file starts again, a transfer may stall for ever,
and errors are bare RuntimeErrors (facts: hub section 2, rows 1, 2, 9). Nothing that arrives is
taken on trust: the caller hashes it.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from poolmgr.errors import (
    BadFileError,
    CredentialsError,
    MissingToolError,
    NoSpaceError,
    PoolError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.model.blob import Blob
from poolmgr.store.hub_errors import Answer, meaning, redact
from poolmgr.store.hub_pace import Quota, backoff

if TYPE_CHECKING:
    from poolmgr.store.hub import HubStore

STALL = 60.0
"""Seconds without a byte after which a transfer is taken for stalled and the child is killed."""
TRIES = 3
_CHILD = Path(__file__).with_name("hub_xet_child.py")
_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN")


def quota_demands_xet(blobs: Collection[Blob], quota: Quota | None) -> bool:
    """Whether one request a file would use up the quota, and Xet can bring every one of ``blobs``."""
    if quota is None or len(blobs) <= quota.remaining:
        return False
    return all(b.xet_hash for b in blobs) and xet_available()


def xet_available() -> bool:
    """Whether hf_xet is installed and not switched off (HF_HUB_DISABLE_XET, as the client read it)."""
    from huggingface_hub import constants

    return not constants.HF_HUB_DISABLE_XET and importlib.util.find_spec("hf_xet") is not None


@dataclass
class _Job:
    moved: float
    """``time.monotonic()`` of the last sign of life."""
    ended: threading.Event = field(default_factory=threading.Event)
    answer: dict[str, Any] = field(default_factory=dict)


class XetDownloader:
    """Downloads for many threads through one child; a context manager that ends it."""

    def __init__(self, store: HubStore, *, stall: float = STALL) -> None:
        if not xet_available():
            raise MissingToolError(
                "hf_xet is not installed, or HF_HUB_DISABLE_XET is set", hint="use --transfer http"
            )
        self._store = store
        self._stall = stall
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._jobs: dict[int, _Job] = {}
        self._numbers = itertools.count()
        self._closed = False

    def download(self, blob: Blob, staging: Path) -> None:
        """Write the bytes of ``blob`` to ``staging``, a file of the caller's own; not verified.

        Tried again a few times from byte 0 after trouble or a stall, then ``RemoteTroubleError``.
        """
        if blob.xet_hash is None:
            raise RemoteRefusedError(
                f"{self._store.address}: {blob.path} has no Xet address", hint="use --transfer http"
            )
        for tried in range(1, TRIES + 1):
            staging.unlink(missing_ok=True)
            try:
                return self._once(blob, staging)
            except RemoteTroubleError as e:
                if tried == TRIES or self._closed:
                    raise
                self._store.client.pause(e, backoff(tried))
        raise AssertionError("unreachable")

    def close(self) -> None:
        """End the child; whoever waits for it gets ``RemoteTroubleError``."""
        self._closed = True
        with self._lock:
            child = self._child
        if child is not None:
            self._kill(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    # --- one job -------------------------------------------------------------------------------------

    def _once(self, blob: Blob, staging: Path) -> None:
        store = self._store
        number = next(self._numbers)
        job = _Job(time.monotonic())
        route = (
            f"{store.client.endpoint}/api/{store.repo_type}s/{store.repo_id}/xet-read-token/{store.commit}"
        )
        wish = {
            "id": number,
            "to": str(staging.absolute()),
            "hash": blob.xet_hash,
            "size": blob.size,
            "route": route,
            "headers": store.client.headers(),
        }
        with self._lock:
            child = self._running()
            self._jobs[number] = job
            assert child.stdin is not None
            try:
                child.stdin.write(json.dumps(wish) + "\n")
                child.stdin.flush()
            except OSError:
                job.answer = {"error": "gone"}
                job.ended.set()
        while not job.ended.wait(min(1.0, self._stall / 4)):
            if time.monotonic() - job.moved > self._stall:
                self._kill(child)
                job.ended.wait(10)
                raise RemoteTroubleError(
                    f"{store.address}: reading {blob.path} by Xet: not a byte in {self._stall:.0f} s;"
                    " the transfer was killed"
                )
        with self._lock:
            self._jobs.pop(number, None)
        if "done" not in job.answer:
            raise self._error(blob, job.answer)

    def _error(self, blob: Blob, answer: dict[str, Any]) -> PoolError:
        store = self._store
        what = f"reading {blob.path} by Xet"
        told = f"{store.address}: {what}"
        words = redact(str(answer.get("words", "")))
        kind = answer.get("error")
        if kind == "http":
            said = Answer(int(answer["status"]), str(answer["code"]), words)
            return meaning(said, what, store.address, signed_in=store.client.signed_in)
        if kind == "gone":
            return RemoteTroubleError(f"{told}: the process that reads it ended")
        if "No space left" in words:
            return NoSpaceError(
                f"{told}: no space left on the destination", hint="free some room and run it again"
            )
        if kind == "XetAuthenticationError":
            return CredentialsError(f"{told}: {words}", hint="run 'hf auth login', or set HF_TOKEN")
        if kind == "XetObjectNotFoundError":
            return BadFileError(f"{told}: the Hub's storage does not have it: {words}")
        return RemoteTroubleError(f"{told}: {words or kind}")

    # --- the child -----------------------------------------------------------------------------------

    def _running(self) -> subprocess.Popen[str]:
        """The child, started if there is none; called with the lock held."""
        if self._closed:
            raise RemoteTroubleError("stopped")
        if self._child is None or self._child.poll() is not None:
            # HF_* is read when the client is imported. The chunk cache would double the disk use.
            env = {k: v for k, v in os.environ.items() if k not in _SECRETS}
            env.setdefault("HF_XET_CHUNK_CACHE_SIZE_BYTES", "0")
            child = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, encoding="utf-8", env=env, start_new_session=True,
            )  # fmt: skip
            threading.Thread(target=self._listen, args=(child,), daemon=True).start()
            self._child = child
        return self._child

    def _listen(self, child: subprocess.Popen[str]) -> None:
        """Hand the child's lines to the jobs they are for; when it ends, so do its jobs."""
        assert child.stdout is not None
        for line in child.stdout:
            said = json.loads(line)
            job = self._jobs.get(said["id"])
            if job is None:
                continue
            job.moved = time.monotonic()
            if "moved" not in said:
                job.answer = said
                job.ended.set()
        child.wait()
        with self._lock:
            if self._child is child:
                self._child = None
                for job in self._jobs.values():
                    if not job.ended.is_set():
                        job.answer = {"error": "gone"}
                        job.ended.set()
                self._jobs.clear()

    def _kill(self, child: subprocess.Popen[str]) -> None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
