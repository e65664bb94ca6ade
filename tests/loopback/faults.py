"""What a loopback hub can do wrong on purpose, and to which requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.loopback.httpd import FilePart, Request, Response

HTML = b"<!doctype html><html><body><h1>Please log in to the hotel's network</h1></body></html>"


@dataclass
class Fault:
    """One kind of trouble for the requests that match; the first matching fault wins.

    ``skip`` matching requests go well first, then ``times`` of them go wrong (None: all).
    """

    contains: str = ""
    """Text in the unquoted target. CDN targets carry the file's path too."""
    method: str | None = None
    origin: str | None = None
    """``api`` or ``cdn``; None for both."""
    skip: int = 0
    times: int | None = 1
    # --- what happens
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    delay: float = 0.0
    drop: bool = False
    truncate: int | None = None
    """Send so many bytes of the body and close; the length announced stays."""
    short: int | None = None
    """Send so many bytes and announce exactly them: a body cut by something that knows HTTP."""
    stall: int | None = None
    flip: int | None = None
    """Offset, within the body sent, of a byte in which one bit is flipped."""
    repeat: int | None = None
    """The first so many bytes come twice; the length announced stays."""
    ignore_range: bool = False
    chunked: bool = False
    """The body comes in chunks, so its length is not announced."""
    drip: float = 0.0
    """Seconds before each next byte."""
    html: bool = False
    """A page with status 200 in place of the answer."""
    apply_then_status: int | None = None
    """Do what was asked, then say that it failed."""
    before: Callable[[], object] | None = None
    """Something that happens just before the request is looked at, such as somebody else's commit."""
    lose: str = ""
    """Leave files whose path holds this text out of a commit, without a word."""
    seen: int = 0
    hit: int = 0

    def matches(self, request: Request) -> bool:
        return (
            (self.method is None or self.method == request.method)
            and (self.origin is None or self.origin == request.origin)
            and self.contains in unquote(request.target)
        )


class Faults:
    """The faults of one hub; ``take`` is called once a request."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def take(self, request: Request) -> Fault | None:
        if not self._faults:
            return None
        with self._lock:
            for fault in self._faults:
                if not fault.matches(request):
                    continue
                fault.seen += 1
                if fault.seen <= fault.skip or (fault.times is not None and fault.hit >= fault.times):
                    continue
                fault.hit += 1
                return fault
        return None


def instead(fault: Fault) -> Response | None:
    """The answer that replaces the real one without anything being done, if the fault has one."""
    if fault.before is not None:
        fault.before()
    if fault.delay:
        time.sleep(fault.delay)
    if fault.drop:
        return Response(drop=True)
    if fault.html:
        return Response(200, {"Content-Type": "text/html"}, HTML)
    if fault.status is not None:
        body = fault.body if fault.body is not None else b'{"error":"injected"}'
        return Response(fault.status, {"X-Error-Message": "injected", **fault.headers}, body)
    return None


def without(body: bytes, lose: str) -> bytes:
    """A commit's lines without those of the files that are to be lost."""
    lines = [line for line in body.splitlines() if line.strip()]
    return b"\n".join(line for line in lines if lose not in json.loads(line)["value"].get("path", ""))


def spoil(fault: Fault, answer: Response) -> Response:
    """The real answer, with the fault's damage done to it."""
    if fault.apply_then_status is not None:
        return Response(fault.apply_then_status, dict(fault.headers), b'{"error":"applied, then failed"}')
    answer.headers.update(fault.headers)
    if answer.status >= 300:
        return answer
    answer.cut = fault.truncate
    answer.chunked = fault.chunked
    answer.drip = fault.drip
    answer.stall = fault.stall
    if fault.short is not None or fault.flip is not None or fault.repeat is not None:
        body = answer.body.read() if isinstance(answer.body, FilePart) else bytes(answer.body)
        if fault.short is not None:
            body = body[: fault.short]
        if fault.flip is not None and fault.flip < len(body):
            body = body[: fault.flip] + bytes([body[fault.flip] ^ 1]) + body[fault.flip + 1 :]
        if fault.repeat is not None:
            body = (body[: fault.repeat] + body)[: len(body)]
        answer.body = body
    return answer
