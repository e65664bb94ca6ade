"""A small, fast HTTP/1.1 server for tests: threads, keep-alive, and answers that can be spoilt.

The standard library's ``http.server`` needs about 1 ms a request; a pool has 16,203 files.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

REASONS = {s.value: s.phrase for s in HTTPStatus}
PIECE = 1 << 20


@dataclass(slots=True)
class Request:
    origin: str
    """Which of the hub's ports it came to: ``api`` or ``cdn``."""
    method: str
    target: str
    """Path and query as sent, still quoted."""
    headers: dict[str, str]
    """Lower-case names."""
    body: bytes = b""


@dataclass(slots=True)
class FilePart:
    """A stretch of a file on disk as a body, so that big blobs need no memory."""

    path: Path
    start: int
    length: int

    def read(self) -> bytes:
        with self.path.open("rb") as f:
            f.seek(self.start)
            return f.read(self.length)


@dataclass(slots=True)
class Response:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | FilePart = b""
    length: int | None = None
    """The Content-Length to announce when it is not the body's own."""
    cut: int | None = None
    """Send so many bytes of the body, then close."""
    stall: int | None = None
    """Send so many bytes of the body, then nothing until the client hangs up."""
    chunked: bool = False
    """Send the body in chunks, with no Content-Length."""
    drip: float = 0.0
    """Seconds before each next byte of the body."""
    tunnel: int | None = None
    """A port of this machine to which the connection is joined from now on (CONNECT)."""
    drop: bool = False
    """Close without a word."""


Handler = Callable[[Request], Response]


class Server:
    """Listens on a port of 127.0.0.1 from its construction until ``close``."""

    def __init__(
        self, origin: str, handle: Handler, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.origin = origin
        self._handle = handle
        self._listener = socket.create_server(("127.0.0.1", port), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._tls = tls
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        self._connections: set[socket.socket] = set()
        self._closing = threading.Event()
        self.accepted = 0
        """Connections so far: says whether a client keeps them alive."""
        threading.Thread(target=self._accept, name=f"{origin}-accept", daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.accepted += 1
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            buffer = b""
            while True:
                request, buffer = self._read(connection, buffer)
                if request is None or not self._answer(connection, request):
                    return
        except OSError:
            return
        finally:
            self._connections.discard(connection)
            connection.close()

    def _read(self, connection: socket.socket, buffer: bytes) -> tuple[Request | None, bytes]:
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            data = connection.recv(65536)
            if not data or data[:1] == b"\x16":  # a TLS greeting: nobody here speaks that
                return None, b""
            buffer += data
        head, rest = buffer[:end].decode("latin-1"), buffer[end + 4 :]
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            value, name = value.strip(), name.lower()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        request = Request(self.origin, method, target, headers)
        if headers.get("expect", "").lower() == "100-continue":
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "content-length" in headers:
            request.body, rest = _exactly(connection, rest, int(headers["content-length"]))
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            request.body, rest = _chunked(connection, rest)
        return request, rest

    def _answer(self, connection: socket.socket, request: Request) -> bool:
        """Send the answer; False when the connection ends with it."""
        answer = self._handle(request)
        if answer.drop:
            return False
        if answer.tunnel is not None:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            _join(connection, answer.tunnel)
            return False
        body = answer.body
        size = body.length if isinstance(body, FilePart) else len(body)
        headers = dict(answer.headers)
        if answer.chunked:
            headers["Transfer-Encoding"] = "chunked"
            body = _in_chunks(body.read() if isinstance(body, FilePart) else body)
            size = len(body)
        else:
            headers.setdefault("Content-Length", str(size if answer.length is None else answer.length))
        lines = [f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
        if request.method == "HEAD":
            connection.sendall(head)
            return True
        stop = answer.cut if answer.cut is not None else answer.stall
        limit = size if stop is None else min(stop, size)
        if answer.drip:
            connection.sendall(head)
            for at in range(limit):
                self._closing.wait(answer.drip)
                connection.sendall((body.read() if isinstance(body, FilePart) else body)[at : at + 1])
        elif isinstance(body, FilePart):
            connection.sendall(head)
            _send_file(connection, body, limit)
        elif limit < 65536:
            connection.sendall(head + body[:limit])
        else:
            connection.sendall(head)
            connection.sendall(memoryview(body)[:limit])
        if answer.stall is not None:
            self._wait_for_hangup(connection)
        return stop is None and headers.get("Connection") != "close"

    def _wait_for_hangup(self, connection: socket.socket) -> None:
        while not self._closing.is_set():
            ready, _, _ = select.select([connection], [], [], 0.1)
            if ready and not connection.recv(65536):
                return


def _join(connection: socket.socket, port: int) -> None:
    """Carry bytes both ways until either side hangs up."""
    with socket.create_connection(("127.0.0.1", port)) as other:
        pairs = {connection: other, other: connection}
        while True:
            ready, _, _ = select.select(list(pairs), [], [], 30)
            for side in ready:
                data = side.recv(65536)
                if not data:
                    return
                pairs[side].sendall(data)
            if not ready:
                return


def _exactly(connection: socket.socket, have: bytes, count: int) -> tuple[bytes, bytes]:
    parts, got = [have], len(have)
    while got < count:
        data = connection.recv(min(PIECE, count - got))
        if not data:
            raise OSError("the client hung up in its body")
        parts.append(data)
        got += len(data)
    whole = b"".join(parts)
    return whole[:count], whole[count:]


def _chunked(connection: socket.socket, have: bytes) -> tuple[bytes, bytes]:
    parts: list[bytes] = []
    while True:
        while (end := have.find(b"\r\n")) < 0:
            data = connection.recv(65536)
            if not data:
                raise OSError("the client hung up in its body")
            have += data
        size = int(have[:end].split(b";")[0], 16)
        chunk, have = _exactly(connection, have[end + 2 :], size + 2)
        if size == 0:
            return b"".join(parts), have
        parts.append(chunk[:-2])


def _in_chunks(body: bytes) -> bytes:
    parts = [body[at : at + 10_000] for at in range(0, len(body), 10_000)]
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


def _send_file(connection: socket.socket, part: FilePart, limit: int) -> None:
    with part.path.open("rb") as f:
        sent = 0
        while sent < limit:
            count = os.sendfile(connection.fileno(), f.fileno(), part.start + sent, limit - sent)
            if count == 0:
                return
            sent += count
