"""How fast to ask: the Hub's quota, shared by all threads of a store (facts: hub, rate limits).

The Hub announces its quota on every answer, such as ``RateLimit: "resolvers";r=4980;t=287`` (so
many requests left, so many seconds until the window ends). Requests go out freely while much is
left, are spread over the rest of the window when little is, and stop while nothing is. A 429
holds back every thread, not only the one that met it.
"""

from __future__ import annotations

import email.utils
import random
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from poolmgr.errors import RemoteTroubleError
from poolmgr.store.base import OnRetry

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 30.0
"""Seconds without a byte."""
TRIES = 6
BACKOFF = 0.5
"""Seconds before the second try; doubled each time up to ``MAX_BACKOFF``, with jitter."""
MAX_BACKOFF = 16.0
LONGEST_WAIT = 900.0
"""Seconds; the Hub's windows are 300 long. A server that asks for more is given up."""
SPREAD_BELOW = 0.1
"""The share of the quota below which requests are spread over the rest of the window."""

_STATE = re.compile(r'"(\w+)"\s*;\s*r\s*=\s*(\d{1,9})\s*;\s*t\s*=\s*(\d{1,9})')
_POLICY = re.compile(r"q\s*=\s*(\d{1,9}).*?w\s*=\s*(\d{1,9})")


def backoff(tried: int) -> float:
    """Seconds to wait after the ``tried``-th try has failed."""
    return min(MAX_BACKOFF, BACKOFF * 2.0 ** (tried - 1)) * random.uniform(0.7, 1.3)  # noqa: S311 - jitter


@dataclass(frozen=True, slots=True)
class Quota:
    """What the server said last of one kind of request."""

    remaining: int
    reset: float
    """``time.monotonic()`` when the window ends."""
    limit: int | None
    """Requests a window, where it is announced."""


def parse_quota(headers: Mapping[str, str], now: float) -> Quota | None:
    """The quota that ``RateLimit`` and ``RateLimit-Policy`` announce; None when there is none."""
    state = _STATE.search(headers.get("RateLimit", ""))
    if state is None:
        return None
    policy = _POLICY.search(headers.get("RateLimit-Policy", ""))
    return Quota(int(state[2]), now + int(state[3]), int(policy[1]) if policy else None)


def asked_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a refusal asks to wait: ``Retry-After`` (seconds or a date), else the quota's reset."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    if text:
        try:
            return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
        except ValueError:
            pass
    quota = parse_quota(headers, now)
    return quota.reset - now + 1 if quota is not None and quota.remaining == 0 else None


class Pace:
    """Told of every answer's headers; ``wait`` is called before every request to the Hub itself."""

    def __init__(self, on_retry: OnRetry) -> None:
        self._on_retry = on_retry
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._hold_until = 0.0
        self._next = 0.0
        self.quota: Quota | None = None

    def close(self) -> None:
        """Every wait ends at once, in ``RemoteTroubleError``."""
        self._closed.set()

    def note(self, headers: Mapping[str, str]) -> None:
        """Remember the quota that an answer announced, if it did."""
        quota = parse_quota(headers, time.monotonic())
        if quota is not None:
            self.quota = quota

    def hold(self, seconds: float, why: str) -> None:
        """Nobody asks for so many seconds; said once, however many threads meet the same wall."""
        if seconds > LONGEST_WAIT:
            raise RemoteTroubleError(
                f"{why}; the server asks to wait {seconds:,.0f} s",
                hint="run the same command again after that time; it goes on where it stopped",
            )
        with self._lock:
            until = time.monotonic() + seconds
            news = until > self._hold_until + 1
            self._hold_until = max(self._hold_until, until)
        if news:
            self._on_retry(f"{why}; all requests wait {seconds:.0f} s")

    def wait(self) -> None:
        """Return when a request may go out."""
        while True:
            with self._lock:
                now = time.monotonic()
                until = max(self._hold_until, self._slot(now))
            if until <= now:
                return
            self.sleep(until - now)

    def _slot(self, now: float) -> float:
        """When this request may go, by the quota; takes the slot if that is now."""
        quota = self.quota
        if quota is None or quota.reset <= now:
            return now
        if quota.remaining == 0:
            return quota.reset + random.uniform(0.1, 1)  # noqa: S311 - jitter, not a secret
        if quota.limit is None or quota.remaining > SPREAD_BELOW * quota.limit:
            return now
        if self._next > now:
            return self._next
        self._next = now + (quota.reset - now) / quota.remaining
        return now

    def sleep(self, seconds: float) -> None:
        """Sleep, unless the store is closed."""
        if self._closed.wait(seconds):
            raise RemoteTroubleError("stopped while waiting to try again")
