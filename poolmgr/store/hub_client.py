"""Calls through the real huggingface_hub client, with time-outs, bounded retries and poolmgr's errors.

The client's shared session has no time-out, several of its calls are never tried again, and it
tells of its own waits through its logger only (facts: hub section 1); each is put right here.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from poolmgr.errors import (
    FileMissingError,
    OfflineError,
    PoolError,
    PoolNotFoundError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.store.base import OnRetry
from poolmgr.store.hub_errors import Answer, meaning, redact
from poolmgr.store.hub_pace import CONNECT_TIMEOUT, READ_TIMEOUT, TRIES, Pace, asked_wait, backoff

T = TypeVar("T")

SLOW_READ_TIMEOUT = 120.0
"""Seconds for the answer to an upload or a commit, which the server works on (it gives up after 60)."""
OFFLINE_HINT = "unset HF_HUB_OFFLINE, or use a mirror that 'poolmgr fetch' filled before"


class HubClient:
    """One repository as the client sees it; ``api`` is its HfApi."""

    def __init__(
        self, pool: str, endpoint: str | None, token: str | bool | None, pace: Pace, on_retry: OnRetry
    ) -> None:
        from huggingface_hub import HfApi

        from poolmgr import __version__

        self.api = HfApi(endpoint=endpoint, token=token, library_name="poolmgr", library_version=__version__)
        self._pool = pool
        self._pace = pace
        self._on_retry = on_retry
        self._made: tuple[dict[str, str], float] = ({}, 0.0)

    @property
    def endpoint(self) -> str:
        return str(self.api.endpoint)

    def headers(self) -> dict[str, str]:
        """The client's own headers, Authorization included; made anew now and then, as tokens expire."""
        made, when = self._made
        now = time.monotonic()
        if not made or now - when > 60:
            made = dict(self.api._build_hf_headers())
            self._made = (made, now)
        return made

    @property
    def signed_in(self) -> bool:
        return any(name.lower() == "authorization" for name in self.headers())

    def call(self, what: str, do: Callable[[], T], *, tries: int = TRIES) -> T:
        """``do()``, tried again after passing trouble; ``what`` tells the user, such as ``listing``."""
        for tried in range(1, tries + 1):
            try:
                return self.once(what, do)
            except RemoteTroubleError as e:
                if tried == tries:
                    raise
                self.pause(e, backoff(tried))
        raise AssertionError("unreachable")

    def pause(self, trouble: PoolError, otherwise: float) -> None:
        """Wait as long as the server asked, else so many seconds; all threads do if it asked."""
        if isinstance(trouble, RemoteTroubleError) and trouble.wait is not None:
            self._pace.hold(trouble.wait, trouble.message)
            self._pace.wait()
        else:
            self._on_retry(f"{trouble.message}; trying again in {otherwise:.1f} s")
            self._pace.sleep(otherwise)

    def once(self, what: str, do: Callable[[], T]) -> T:
        """``do()``, once, with time-outs and with its errors translated."""
        try:
            with self._guarded():
                return do()
        except Exception as e:
            error = self._translated(e, what)
            if error is None:
                raise
            raise error from None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Time-outs where the client sets none; its retries told to the user; no bars of its own."""
        from huggingface_hub import utils

        session = utils.get_session()
        hooks = session.event_hooks
        if _limit not in hooks["request"]:
            session.event_hooks = {**hooks, "request": [*hooks["request"], _limit]}
        logger = logging.getLogger("huggingface_hub.utils._http")
        teller = _Teller(self._on_retry)
        logger.addFilter(teller)
        bars = not utils.are_progress_bars_disabled()
        if bars:
            utils.disable_progress_bars()
        try:
            yield
        finally:
            logger.removeFilter(teller)
            if bars:
                utils.enable_progress_bars()

    def _translated(self, error: Exception, what: str) -> PoolError | None:
        from huggingface_hub import errors
        from huggingface_hub.utils import httpx

        told = f"{self._pool}: {what}"
        match error:
            case errors.HfHubHTTPError():
                response = error.response
                words = redact(error.server_message or response.headers.get("X-Error-Message") or "")
                answer = Answer(response.status_code, response.headers.get("X-Error-Code", ""), words[:500])
                out = meaning(answer, what, self._pool, signed_in=self.signed_in)
                if isinstance(out, RemoteTroubleError):
                    out.wait = asked_wait(response.headers, time.monotonic())
                return out
            case errors.OfflineModeIsEnabled():
                return OfflineError(f"{told}: HF_HUB_OFFLINE forbids every request", hint=OFFLINE_HINT)
            case errors.HFValidationError():
                return PoolNotFoundError(
                    f"{told}: {redact(str(error))}", hint="hf://datasets/ORG/NAME is expected"
                )
            case httpx.TimeoutException():
                return RemoteTroubleError(f"{told}: no answer in time")
            case httpx.HTTPError() | httpx.StreamError():
                return RemoteTroubleError(f"{told}: {redact(str(error)) or type(error).__name__}")
            case json.JSONDecodeError():
                return RemoteRefusedError(
                    f"{told}: the answer is not JSON",
                    hint="is there a proxy or a login page between you and the Hub?",
                )
            case FileNotFoundError():
                return FileMissingError(f"{told}: {redact(str(error))}")
            case RuntimeError() if isinstance(error.__cause__, errors.HfHubHTTPError | httpx.HTTPError):
                return self._translated(error.__cause__, what)  # one file of an upload failed
            case RuntimeError() | ConnectionError():  # hf_xet raises no others
                return RemoteTroubleError(f"{told}: {redact(str(error))}")
            case KeyError() | TypeError() | AttributeError():
                return RemoteRefusedError(
                    f"{told}: the answer has not the fields that the client expects ({error!r})"
                )
        return None


def _limit(request: Any) -> None:
    """Time-outs for a request of the shared session that nobody gave any.

    A session's own time-outs would not do: the client passes ``timeout=None`` to some requests, the
    pages of a listing among them, which switches them off.
    """
    limits = request.extensions.get("timeout") or {}
    if not any(limits.values()):
        read = READ_TIMEOUT if request.method in ("GET", "HEAD") else SLOW_READ_TIMEOUT
        request.extensions["timeout"] = {
            "connect": CONNECT_TIMEOUT,
            "read": read,
            "write": SLOW_READ_TIMEOUT,
            "pool": None,
        }


class _Teller(logging.Filter):
    """Passes the client's words on retries to the user instead of its logger, for one thread."""

    def __init__(self, on_retry: OnRetry) -> None:
        super().__init__()
        self._on_retry = on_retry
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread or record.levelno < logging.WARNING:
            return True
        self._on_retry(redact(record.getMessage()))
        return False
