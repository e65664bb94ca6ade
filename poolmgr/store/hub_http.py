"""Bytes of one file of the Hub by ranged HTTP: redirects, time-outs, retries, and what arrived.

Why not the client's own download: it never hashes, cannot continue a file in another process, and
takes stale bytes for new ones (facts: hub section 0). Why urllib3 and not the client's httpx2: half
the CPU a request and a third of it a byte (benchmarks/bench_http.py).
"""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from poolmgr.errors import BadFileError, PoolError, RemoteRefusedError, RemoteTroubleError
from poolmgr.store.base import OnRetry
from poolmgr.store.hub_errors import PASSING, Answer, meaning, redact
from poolmgr.store.hub_pace import CONNECT_TIMEOUT, READ_TIMEOUT, TRIES, Pace, asked_wait, backoff

CHUNK = 1 << 20
SLOWEST = 1024
"""Bytes a second, over a minute; a body that drips more slowly than this has stalled."""
DRIP_WINDOW = 60.0
MAX_REDIRECTS = 8
MAX_CONNECTIONS = 64
KEEP_LOCATION = 120.0
"""Seconds for which a signed address is used again for more ranges of the same file."""
MAX_LOCATIONS = 4096
MAX_SKIPPED = 8 * 1024 * 1024
"""Bytes read and thrown away at most, to reach a range that the server did not honour."""

Origin = tuple[str, str, int]
"""(scheme, host, port) of a URL."""

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_UNSATISFIED = re.compile(r"bytes \*/(\d{1,18})")


class HubBody:
    """Bytes on their way (``store.base.Body``). Trouble in mid-body is ``RemoteTroubleError``."""

    def __init__(self, response: Any, what: str, start: int, length: int | None, total: int | None) -> None:
        self.start = start
        self.total = total
        self.length = length
        """Bytes that were announced for this body."""
        self._response = response
        self._what = what

    def __iter__(self) -> Iterator[bytes]:
        from urllib3.exceptions import HTTPError

        got = 0
        window, window_got = time.monotonic(), 0
        while True:
            try:
                data: bytes = self._response.read1(CHUNK)
            except (HTTPError, OSError) as e:
                raise RemoteTroubleError(f"{self._what}: {broken(e)} after {got:,} bytes") from None
            if not data:
                break
            got += len(data)
            yield data
            if got == self.length:
                break
            now = time.monotonic()
            if now - window > DRIP_WINDOW:
                if got - window_got < SLOWEST * DRIP_WINDOW:
                    raise RemoteTroubleError(
                        f"{self._what}: it stalled: {got - window_got:,} bytes in {now - window:.0f} s"
                    )
                window, window_got = now, got
        if self.length is not None and got < self.length:
            raise RemoteTroubleError(
                f"{self._what}: the connection ended at {got:,} of {self.length:,} bytes"
            )


class HubHttp:
    """GETs of files; safe to use from many threads."""

    def __init__(
        self,
        pool: str,
        endpoint: str,
        headers: Callable[[], Mapping[str, str]],
        pace: Pace,
        on_retry: OnRetry,
    ) -> None:
        self._pool = pool
        self._origin = origin(endpoint)
        """The one origin that is sent the Authorization header and counts requests."""
        self._headers = headers
        self._pace = pace
        self._on_retry = on_retry
        self._locations: dict[str, tuple[str, float]] = {}
        self._pools: dict[Origin, Any] = {}
        self._lock = threading.Lock()

    # --- what the store calls ------------------------------------------------------------------------

    @contextmanager
    def stream(self, url: str, path: str, start: int = 0) -> Iterator[HubBody]:
        """The bytes from ``start`` on."""
        body, response = self._open(url, path, f"bytes={start}-" if start else None, start)
        try:
            yield body
        finally:
            _give_back(response)

    def range(self, url: str, path: str, start: int, length: int) -> tuple[bytes, int | None]:
        """(exactly ``length`` bytes from ``start``, fewer only at the file's end; the file's size)."""
        asked = f"bytes={start}-{start + length - 1}"
        tried = 0
        while True:
            tried += 1
            body, response = self._open(url, path, asked, start, keep=True)
            try:
                return self._part(body, path, start, length), body.total
            except RemoteTroubleError as e:
                if tried >= TRIES:
                    raise
                trouble = e.message
            finally:
                _give_back(response)
            self._backoff(tried, trouble)

    def _part(self, body: HubBody, path: str, start: int, length: int) -> bytes:
        skip = start - body.start
        if not 0 <= skip <= MAX_SKIPPED:
            raise RemoteRefusedError(
                f"{self._pool}: reading {path}: asked for bytes from {start:,},"
                f" was sent bytes from {body.start:,}",
                hint="the server, or a proxy before it, serves no byte ranges; fetch the whole file",
            )
        data = bytearray()
        for chunk in body:
            data += chunk
            if len(data) >= skip + length:
                break
        return bytes(data[skip : skip + length])

    # --- one request -----------------------------------------------------------------------------------

    def _open(
        self, url: str, path: str, byte_range: str | None, start: int, *, keep: bool = False
    ) -> tuple[HubBody, Any]:
        """The answer to a GET, after redirects and retries; ``keep`` reuses a signed address."""
        what = f"reading {path}"
        tried = 0
        while True:
            tried += 1
            response = self._follow(url, what, byte_range, keep)
            if isinstance(response, RemoteTroubleError):
                if tried >= TRIES:
                    raise response
                self._backoff(tried, response.message)
                continue
            if response.status in (200, 206, 416):
                return self._body(response, path, byte_range, start, past_end=keep), response
            answer = Answer.of(response.status, response.headers, response.read(4096, decode_content=True))
            response.close()
            stale = self._locations.pop(url, None) is not None and response.status in (400, 401, 403)
            if not (response.status in PASSING or stale) or tried >= TRIES:
                raise self._meaning(answer, what)
            wait = asked_wait(response.headers, time.monotonic())
            if response.status == 429 or wait is not None:
                wait = wait if wait is not None else backoff(tried)
                self._pace.hold(wait, f"{what}: the server answered {answer}")
                if self._is_hub(response.final_url):
                    continue
                self._pace.sleep(wait)
            elif not stale:
                self._backoff(tried, f"{what}: the server answered {answer}")

    def _meaning(self, answer: Answer, what: str) -> PoolError:
        return meaning(answer, what, self._pool, signed_in="authorization" in _lower(self._headers()))

    def _follow(self, url: str, what: str, byte_range: str | None, keep: bool) -> Any:
        """The first answer that is no redirect, or the trouble that came in between."""
        from urllib3.exceptions import HTTPError

        kept = self._locations.get(url) if keep else None
        target = kept[0] if kept is not None and kept[1] > time.monotonic() else url
        for _ in range(MAX_REDIRECTS):
            hub = self._is_hub(target)
            headers = dict(self._headers()) if hub else {"user-agent": self._agent()}
            headers["accept-encoding"] = "identity"
            if byte_range is not None:
                headers["range"] = byte_range
            if hub:
                self._pace.wait()
            try:
                pool = self._connections(target)
                response = pool.urlopen(
                    "GET", request_target(pool, target), headers=headers, redirect=False, retries=False,
                    assert_same_host=False,
                    preload_content=False, decode_content=False,
                )  # fmt: skip
            except (HTTPError, OSError) as e:
                self._locations.pop(url, None)
                if "CERTIFICATE_VERIFY_FAILED" in str(e):
                    raise RemoteRefusedError(
                        f"{self._pool}: {what}: the server's certificate is not trusted here",
                        hint="set SSL_CERT_FILE to the certificates of your network's proxy",
                    ) from None
                return RemoteTroubleError(f"{self._pool}: {what}: {broken(e)}")
            if hub:
                self._pace.note(response.headers)
            location = response.headers.get("Location")
            if response.status not in (301, 302, 303, 307, 308) or location is None:
                response.final_url = target
                return response
            response.read(65536)
            response.release_conn()
            target = self._next(target, location, what)
            if keep and not self._is_hub(target):
                self._remember(url, target)
        raise RemoteRefusedError(f"{self._pool}: {what}: more than {MAX_REDIRECTS} redirects")

    def _next(self, here: str, location: str, what: str) -> str:
        target = location if location.startswith(("http://", "https://")) else urljoin(here, location)
        if origin(target)[0] != "https" and origin(here)[0] == "https":
            raise RemoteRefusedError(
                f"{self._pool}: {what}: the server redirects from https to an address without it"
            )
        return target

    def _remember(self, url: str, target: str) -> None:
        if len(self._locations) >= MAX_LOCATIONS:
            self._locations.clear()
        self._locations[url] = (target, time.monotonic() + KEEP_LOCATION)

    def _body(
        self, response: Any, path: str, byte_range: str | None, start: int, *, past_end: bool
    ) -> HubBody:
        """What the answer claims to be, checked against what was asked."""
        what = f"{self._pool}: reading {path}"
        announced = response.headers.get("Content-Length", "")
        length = int(announced) if announced.isascii() and announced.isdigit() else None
        if response.headers.get("Content-Encoding", "identity") != "identity":
            response.close()
            raise RemoteRefusedError(f"{what}: the server sent it encoded, although that was declined")
        if response.status == 200:
            return HubBody(response, what, 0, length, length)
        said = response.headers.get("Content-Range", "")
        if response.status == 416:
            response.close()
            end = _UNSATISFIED.fullmatch(said)
            total = int(end[1]) if end else None
            if byte_range is None or (total is not None and start < total):
                raise RemoteTroubleError(f"{what}: the server says that the range is not in the file")
            if total is None or (start > total and not past_end):
                raise BadFileError(f"{what}: it ends before byte {start:,}")
            return HubBody(_Empty(), what, start, 0, total)
        match = _RANGE.fullmatch(said)
        if match is None:
            response.close()
            raise RemoteRefusedError(f"{what}: the server sent a part of the file and does not say which")
        first, last = int(match[1]), int(match[2])
        if length is not None and length != last - first + 1:
            response.close()
            raise RemoteTroubleError(f"{what}: {length:,} bytes announced for the range {said!r}")
        return HubBody(response, what, first, last - first + 1, None if match[3] == "*" else int(match[3]))

    def _backoff(self, tried: int, why: str) -> None:
        wait = backoff(tried)
        self._on_retry(f"{why}; trying again in {wait:.1f} s")
        self._pace.sleep(wait)

    # --- connections -----------------------------------------------------------------------------------

    def _agent(self) -> str:
        return _lower(self._headers()).get("user-agent", "poolmgr")

    def _is_hub(self, url: str) -> bool:
        return origin(url) == self._origin

    def _connections(self, url: str) -> Any:
        """The kept connections to the origin of ``url``, behind the proxy that the environment names.

        Found once an origin: reading the proxies from the environment costs more than a request.
        """
        here = origin(url)
        pool = self._pools.get(here)
        if pool is None:
            with self._lock:
                pool = self._pools.get(here) or connect(here)
                self._pools[here] = pool
        return pool


class _Empty:
    def read1(self, amount: int) -> bytes:
        return b""


def connect(here: Origin) -> Any:
    """Connections to one origin, behind the proxy that the environment names."""
    import urllib3
    from huggingface_hub.utils import httpx

    scheme, host, port = here
    timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT, read=READ_TIMEOUT)
    common: dict[str, Any] = {"maxsize": MAX_CONNECTIONS, "timeout": timeout}
    if scheme == "https":
        common["ssl_context"] = httpx.create_ssl_context()  # the certificates that the client trusts
    proxy = None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme)
    if proxy is None:
        manager = urllib3.PoolManager(**common)
    else:
        manager = _proxy_manager(proxy if "://" in proxy else f"http://{proxy}", common)
    return manager.connection_from_host(host, port, scheme)


def _proxy_manager(proxy: str, common: dict[str, Any]) -> Any:
    import urllib3

    if proxy.startswith("socks"):
        raise RemoteRefusedError(
            f"a SOCKS proxy is set ({redact(proxy)}), which ranged HTTP cannot use",
            hint="set HTTPS_PROXY to an HTTP proxy, or use --transfer xet",
        )
    parts = urlsplit(proxy)
    auth = None
    if parts.username:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        auth = urllib3.make_headers(proxy_basic_auth=user)
    return urllib3.ProxyManager(proxy, proxy_headers=auth, **common)


def _give_back(response: Any) -> None:
    """A connection whose body was read to its end is kept; any other is closed."""
    if response.closed or response.length_remaining == 0:
        response.release_conn()
    else:
        response.close()


def request_target(pool: Any, url: str) -> str:
    """What goes into the request line: all of ``url`` for a proxy that forwards, else path and query."""
    if pool.proxy is not None and pool.scheme == "http":
        return url
    parts = urlsplit(url)
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


def origin(url: str) -> Origin:
    """(scheme, host, port) of a URL."""
    path = url.find("/", url.find("://") + 3)
    return _origin(url if path < 0 else url[:path])


@lru_cache(maxsize=256)
def _origin(url: str) -> Origin:
    parts = urlsplit(url)
    return (
        parts.scheme,
        (parts.hostname or "").lower(),
        parts.port or (443 if parts.scheme == "https" else 80),
    )


def broken(error: Exception) -> str:
    """A transport error in a few words, without addresses that carry secrets."""
    from urllib3 import exceptions as u

    match error:
        case u.ConnectTimeoutError():
            return "no connection in time"
        case u.ReadTimeoutError():
            return "no byte came in time"
        case u.NameResolutionError():
            return "the server's name cannot be resolved"
        case u.NewConnectionError():
            return "no connection: " + redact(str(error).rpartition(": ")[2])
        case u.SSLError():
            return "the server's certificate or TLS is not good: " + redact(str(error))
        case u.IncompleteRead() | u.ProtocolError():
            return "the connection broke"
    return redact(str(error)) or type(error).__name__


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
