"""A registry of images, as far as pulling needs it: what a reference points at right now.

The protocol is the distribution project's (Docker Registry HTTP API v2, OCI distribution spec): one
HEAD of the manifest, after a 401 once more with the token that the answer says where to get. HEAD,
because the Docker Hub counts GETs of manifests against its limit. Errors: ``ImageNotFoundError``,
``RegistryDeniedError``, ``RateLimitedError``, ``RemoteTroubleError``, ``RemoteRefusedError``.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from poolmgr.errors import (
    DamagedImageError,
    ImageNotFoundError,
    PoolError,
    RateLimitedError,
    RegistryDeniedError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.model.reference import DOCKER_HUB, Reference
from poolmgr.store.base import OnRetry
from poolmgr.store.hub_errors import PASSING, redact
from poolmgr.store.hub_http import Origin, broken, connect, origin, request_target
from poolmgr.store.hub_pace import TRIES, Pace, asked_wait, backoff
from poolmgr.store.oci_login import Login, Logins

ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
MAX_MANIFEST = 4 << 20
"""Bytes; the OCI distribution spec lets registries refuse larger ones."""
MAX_ANSWER = 1 << 20
MAX_REDIRECTS = 5
TOKEN_SECONDS = 60.0
"""How long a token lasts whose registry does not say it."""
_HUB_HOST = "registry-1.docker.io"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'([a-z_]{1,20})="([^"]{0,2000})"', re.IGNORECASE)
_RATE_CODES = {"TOOMANYREQUESTS", "TOO_MANY_REQUESTS"}
_MISSING = {"MANIFEST_UNKNOWN", "NAME_UNKNOWN", "NAME_INVALID", "NOT_FOUND"}


@dataclass(frozen=True, slots=True)
class Pointed:
    """What a reference points at."""

    digest: str
    """``sha256:…`` of the manifest, or of the index where the image is for several platforms."""
    media_type: str


class _Answer:
    """One answer, its body read (within a limit), and the origin that it came from."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        codes, words = _errors(body)
        self.codes = codes
        self.words = redact(words)[:300]

    def __str__(self) -> str:
        return f"{self.status} {self.words}".rstrip()

    @property
    def is_limit(self) -> bool:
        return self.status == 429 or bool(self.codes & _RATE_CODES)


class Registries:
    """Every registry of one run; safe to use from many threads. ``close`` ends all waits."""

    def __init__(
        self, logins: Logins, on_retry: OnRetry, *, insecure: Collection[str] = (), tries: int = TRIES
    ) -> None:
        self.logins = logins
        self.insecure = frozenset(insecure)
        """``HOST[:PORT]`` of registries that are spoken to without TLS."""
        self._on_retry = on_retry
        self._tries = tries
        self._paces: dict[str, Pace] = {}
        self._pools: dict[Origin, Any] = {}
        self._tokens: dict[tuple[str, str], tuple[str, float]] = {}
        self._basic: set[str] = set()
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            for pace in self._paces.values():
                pace.close()

    def pace(self, host: str) -> Pace:
        """How fast the registry may be asked: a 429 that anyone met holds back everybody."""
        with self._lock:
            return self._paces.setdefault(host, Pace(self._on_retry))

    def point(self, reference: Reference) -> Pointed:
        """The digest that ``reference`` has now. A digest in it is asked for by itself, and compared."""
        answer = self._ask(reference, "HEAD")
        digest = answer.headers.get("Docker-Content-Digest", "").strip()
        if not _DIGEST.fullmatch(digest):
            # not every registry says it of a HEAD
            answer = self._ask(reference, "GET")
            if not _is_manifest(answer.body):
                raise DamagedImageError(
                    f"{reference.canonical}: what the registry sends is no manifest",
                    hint="the registry, or a proxy or log-in page before it, is at fault",
                )
            digest = "sha256:" + hashlib.sha256(answer.body).hexdigest()
        if reference.digest not in (None, digest):
            raise DamagedImageError(
                f"{reference.canonical}: the registry answers with {digest}",
                hint="the registry, or a proxy before it, is at fault",
            )
        return Pointed(digest, answer.headers.get("Content-Type", "").partition(";")[0].strip()[:100])

    # --- requests -----------------------------------------------------------------------------------

    def _ask(self, reference: Reference, method: str) -> _Answer:
        """The answer 200 to a request for the manifest, or the error that another one means."""
        host = reference.host
        pace = self.pace(host)
        at = f"{self._scheme(host)}://{_HUB_HOST if host == DOCKER_HUB else host}"
        url = f"{at}/v2/{quote(reference.repository)}/manifests/{quote(reference.sought, safe=':')}"
        tried, authorized = 0, False
        while True:
            tried += 1
            try:
                pace.wait()
            except RemoteTroubleError as e:
                raise RateLimitedError(e.message, hint=e.hint) from None
            answer = self._follow(method, url, reference)
            if isinstance(answer, RemoteTroubleError):
                if tried >= self._tries:
                    raise answer
                self._wait(pace, tried, answer.message)
                continue
            if answer.status == 200:
                return answer
            if answer.status == 401 and not authorized:
                authorized = True
                if self._authorize(answer, reference, at):
                    tried -= 1
                    continue
            if answer.is_limit or answer.status in PASSING:
                said = f"{reference.canonical}: the registry answered {answer}"
                if tried >= self._tries:
                    raise self._meaning(answer, reference)
                wait = asked_wait(answer.headers, time.monotonic())
                if answer.is_limit or wait is not None:
                    self.hold(host, backoff(tried) if wait is None else wait, said)
                else:
                    self._wait(pace, tried, said)
                continue
            raise self._meaning(answer, reference)

    def hold(self, host: str, seconds: float, why: str) -> None:
        """Nobody asks this registry for so long; ``RateLimitedError`` when that is too long."""
        try:
            self.pace(host).hold(seconds, why)
        except RemoteTroubleError as e:
            raise RateLimitedError(e.message, hint=e.hint) from None

    def _wait(self, pace: Pace, tried: int, why: str) -> None:
        wait = backoff(tried)
        self._on_retry(f"{why}; trying again in {wait:.1f} s")
        pace.sleep(wait)

    def _follow(self, method: str, url: str, reference: Reference) -> _Answer | RemoteTroubleError:
        """The first answer that is no redirect. Authorization stays with the registry's own origin."""
        first = origin(url)
        for _ in range(MAX_REDIRECTS):
            headers = {"accept": ACCEPT, "user-agent": "poolmgr"}
            if origin(url) == first and (value := self._authorization(reference)) is not None:
                headers["authorization"] = value
            answer = self._send(method, url, headers, None)
            if isinstance(answer, RemoteTroubleError):
                return RemoteTroubleError(f"{reference.canonical}: {answer.message}", hint=answer.hint)
            location = answer.headers.get("Location")
            if answer.status not in (301, 302, 303, 307, 308) or location is None:
                return answer
            target = urljoin(url, location)
            if urlsplit(target).scheme not in ("https", urlsplit(url).scheme):
                raise RemoteRefusedError(
                    f"{reference.canonical}: the registry redirects to an address without TLS"
                )
            url = target
        raise RemoteRefusedError(f"{reference.canonical}: more than {MAX_REDIRECTS} redirects")

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> _Answer | RemoteTroubleError:
        from urllib3.exceptions import HTTPError

        try:
            pool = self._connections(url)
            response = pool.urlopen(
                method, request_target(pool, url), headers=dict(headers), body=body, redirect=False,
                retries=False, assert_same_host=False, preload_content=False, decode_content=True,
            )  # fmt: skip
            limit = MAX_MANIFEST if response.status == 200 else MAX_ANSWER
            data = response.read(limit + 1)
            if len(data) > limit:
                response.close()
                raise RemoteRefusedError(f"{redact(url)}: an answer of more than {limit:,} bytes")
            if method != "HEAD" and response.length_remaining:
                response.close()
                return RemoteTroubleError("the connection ended before the answer did")
            response.release_conn()
        except (HTTPError, OSError) as e:
            if "CERTIFICATE_VERIFY_FAILED" in str(e):
                raise RemoteRefusedError(
                    f"{redact(url)}: the server's certificate is not trusted here",
                    hint="set SSL_CERT_FILE to the certificates of your network's proxy",
                ) from None
            if "WRONG_VERSION_NUMBER" in str(e) or "SSL" in str(e):
                raise RemoteRefusedError(
                    f"{redact(url)}: no TLS is spoken there: {broken(e)}",
                    hint="--no-https HOST:PORT allows plain HTTP for a registry that you trust",
                ) from None
            return RemoteTroubleError(broken(e), hint="run the same command again later")
        return _Answer(response.status, response.headers, data)

    def _connections(self, url: str) -> Any:
        here = origin(url)
        with self._lock:
            pool = self._pools.get(here)
            if pool is None:
                pool = self._pools[here] = connect(here)
            return pool

    def _scheme(self, host: str) -> str:
        return "http" if host in self.insecure else "https"

    # --- the token --------------------------------------------------------------------------------------

    def _authorization(self, reference: Reference) -> str | None:
        with self._lock:
            kept = self._tokens.get((reference.host, reference.repository))
            basic = reference.host in self._basic
        if kept is not None and kept[1] > time.monotonic():
            return f"Bearer {kept[0]}"
        login = self.logins.find(reference) if basic else None
        return login.basic if login is not None else None

    def _authorize(self, answer: _Answer, reference: Reference, at: str) -> bool:
        """Do what a 401 asks for; False when nothing can be done."""
        scheme, _, rest = answer.headers.get("WWW-Authenticate", "").strip().partition(" ")
        login = self.logins.find(reference)
        if scheme.lower() == "basic":
            if login is None:
                return False
            with self._lock:
                self._basic.add(reference.host)
            return True
        if scheme.lower() != "bearer":
            return False
        said = {key.lower(): value for key, value in _CHALLENGE.findall(rest[:8000])}
        realm = urljoin(at + "/", said.get("realm", ""))
        if urlsplit(realm).scheme != "https" and urlsplit(realm).netloc not in self.insecure:
            raise RemoteRefusedError(
                f"{reference.canonical}: the registry gives its tokens at an address without TLS",
                hint="--no-https HOST:PORT allows it, for a host that you trust",
            )
        query = {"service": said.get("service", ""), "scope": f"repository:{reference.repository}:pull"}
        url = f"{realm}{'&' if urlsplit(realm).query else '?'}" + urlencode(
            {k: v for k, v in query.items() if v}
        )
        return self._fetch_token(url, reference, login)

    def _fetch_token(self, url: str, reference: Reference, login: Login | None) -> bool:
        headers = {"user-agent": "poolmgr", "accept": "application/json"}
        if login is not None:
            headers["authorization"] = login.basic
        tried = 0
        while True:
            tried += 1
            answer = self._send("GET", url, headers, None)
            trouble = isinstance(answer, RemoteTroubleError)
            if isinstance(answer, _Answer):
                if answer.status in (401, 403):
                    raise self._meaning(answer, reference)
                if answer.status == 200:
                    break
                if not (answer.is_limit or answer.status in PASSING):
                    raise self._meaning(answer, reference)
            if tried >= self._tries:
                raise answer if trouble else self._meaning(answer, reference)  # type: ignore[misc, arg-type]
            wait = asked_wait(answer.headers, time.monotonic()) if isinstance(answer, _Answer) else None
            said = answer.message if isinstance(answer, RemoteTroubleError) else str(answer)
            if wait is not None:
                self.hold(reference.host, wait, f"{reference.canonical}: no token yet: {said}")
                self.pace(reference.host).wait()
            else:
                self._wait(self.pace(reference.host), tried, f"{reference.canonical}: no token yet: {said}")
        try:
            document = json.loads(answer.body)
            token = document.get("token") or document.get("access_token")
            seconds = float(document.get("expires_in") or TOKEN_SECONDS)
        except (ValueError, AttributeError, TypeError, RecursionError):
            token, seconds = None, 0.0
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]{1,16384}", token):
            raise RemoteRefusedError(f"{reference.canonical}: the registry's token service gives no token")
        until = time.monotonic() + max(10.0, min(seconds, 3600.0) - 10.0)
        with self._lock:
            self._tokens[reference.host, reference.repository] = (token, until)
        return True

    # --- what an answer means -----------------------------------------------------------------------------

    def _meaning(self, answer: _Answer, reference: Reference) -> PoolError:
        told = f"{reference.canonical}: the registry answered {answer}"
        if answer.is_limit:
            return RateLimitedError(
                told,
                hint="run the same command again later; a login ('apptainer registry login') "
                "often has a higher limit",
            )
        if answer.status in PASSING:
            return RemoteTroubleError(told, hint="run the same command again later")
        if answer.status in (401, 403):
            return RegistryDeniedError(told, hint=self._login_hint(reference))
        if answer.status in (404, 410) or answer.codes & _MISSING:
            return ImageNotFoundError(
                f"{reference.canonical}: the registry has no such image ({answer})",
                hint="check the name and the tag; a deleted tag may live on under its digest",
            )
        return RemoteRefusedError(told, hint="the answer is final; trying again cannot help")

    def _login_hint(self, reference: Reference) -> str:
        login = self.logins.find(reference)
        if login is not None:
            return f"the login in {login.file} has no right to it, or is not valid any more"
        if helped := self.logins.helpers():
            return (
                f"{helped[0]} leaves logins to a helper program, which poolmgr does not run: "
                f"'apptainer registry login docker://{reference.host}' keeps one in a file"
            )
        return (
            "the image is private or does not exist (registries do not tell which): check the name, "
            f"or run 'apptainer registry login docker://{reference.host}'"
        )


def _is_manifest(body: bytes) -> bool:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("schemaVersion") == 2


def _errors(body: bytes) -> tuple[set[str], str]:
    """Codes and words of the distribution API's error document."""
    try:
        rows = json.loads(body[:MAX_ANSWER])["errors"]
        found = [row for row in rows[:20] if isinstance(row, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return set(), ""
    codes = {str(row.get("code", ""))[:80].upper() for row in found}
    words = "; ".join(str(row.get("message") or row.get("code") or "")[:200] for row in found)
    return codes, words
