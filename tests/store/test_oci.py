"""The registry client and login files: what hostile registries and files come to."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poolmgr.errors import PoolError
from poolmgr.model.reference import parse_reference
from poolmgr.settings import registry_login_files
from poolmgr.store import oci
from poolmgr.store.oci import Registries
from poolmgr.store.oci_login import Logins
from tests.loopback.httpd import Request, Response, Server

DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[Request], Response]], str]]:
    """Start a registry that answers as it is told; gives its ``HOST:PORT``."""
    monkeypatch.setattr(oci, "backoff", lambda tried: 0.01)
    servers = []

    def start(handle: Callable[[Request], Response]) -> str:
        server = Server("registry", handle)
        servers.append(server)
        return f"127.0.0.1:{server.port}"

    yield start
    for server in servers:
        server.close()


def ask(host: str, *, logins: Logins | None = None, insecure: tuple[str, ...] = (), tries: int = 2) -> str:
    registries = Registries(logins or Logins(), lambda _: None, insecure=insecure or (host,), tries=tries)
    return registries.point(parse_reference(f"{host}/acme/env:1")).digest


def code(host: str, **options: object) -> str:
    with pytest.raises(PoolError) as e:
        ask(host, **options)  # type: ignore[arg-type]
    return e.value.code


def challenge(realm: str) -> Response:
    return Response(401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="s"'})


def test_a_redirect_gets_no_authorization(serve: Callable[..., str], tmp_path: Path) -> None:
    seen: list[Request] = []

    def other(request: Request) -> Response:
        seen.append(request)
        return Response(200, {"Docker-Content-Digest": DIGEST})

    away = serve(other)

    def registry(request: Request) -> Response:
        if "authorization" not in request.headers:
            return Response(401, {"WWW-Authenticate": 'Basic realm="x"'})
        return Response(307, {"Location": f"http://{away}/elsewhere"})

    host = serve(registry)
    file = tmp_path / "config.json"
    auth = base64.b64encode(b"ann:hunter2").decode()
    file.write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    assert ask(host, logins=Logins((file,))) == DIGEST
    assert seen
    assert "authorization" not in seen[0].headers


def test_a_token_service_without_tls_is_refused(serve: Callable[..., str]) -> None:
    host = serve(lambda _: challenge("http://tokens.example/token"))
    assert code(host) == "remote-refused"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Response(200, {}, b"<html>"), "remote-refused"),
        (Response(200, {}, b'{"token": 7}'), "remote-refused"),
        (Response(200, {}, b'{"token": "a\\nb"}'), "remote-refused"),
        (Response(200, {}, b'{"token": "t", "expires_in": "x"}'), "remote-refused"),
        (Response(200, {}, b"[" * 100_000), "remote-refused"),
        (Response(200, {}, b"{" + b" " * (5 << 20)), "remote-refused"),
        (Response(500, {}, b""), "remote-trouble"),
        (Response(429, {"Retry-After": "0"}, b""), "rate-limited"),
        (Response(403, {}, b""), "registry-denied"),
        (Response(418, {}, b""), "remote-refused"),
        (Response(drop=True), "remote-trouble"),
    ],
)
def test_a_token_service_that_fails(serve: Callable[..., str], answer: Response, expected: str) -> None:
    hosts: list[str] = []

    def registry(request: Request) -> Response:
        return answer if request.target.startswith("/token") else challenge(f"http://{hosts[0]}/token")

    hosts.append(serve(registry))
    assert code(hosts[0]) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Response(401, {"WWW-Authenticate": "Digest x"}), "registry-denied"),
        (Response(401, {}), "registry-denied"),
        (Response(301, {"Location": "/round"}), "remote-refused"),
        (Response(200, {}, b"{}"), "damaged-image"),
        (Response(200, {}, b"x" * (5 << 20)), "remote-refused"),
        (Response(200, {"Content-Encoding": "gzip"}, b"no gzip"), "remote-trouble"),
        (Response(502, {}, b"{\"errors\": 7}"), "remote-trouble"),
        (Response(404, {}, b"[" * 100_000), "no-such-image"),
        (Response(410, {}, b""), "no-such-image"),
    ],
)  # fmt: skip
def test_a_registry_that_answers_anything(serve: Callable[..., str], answer: Response, expected: str) -> None:
    assert code(serve(lambda _: answer)) == expected


def test_a_secret_in_an_answer_is_not_told(serve: Callable[..., str]) -> None:
    words = {"errors": [{"code": "X", "message": "at https://u:hunter2@h/x?sig=abc with Bearer abcdef"}]}
    host = serve(
        lambda r: Response(200) if r.method == "HEAD" else Response(400, {}, json.dumps(words).encode())
    )
    with pytest.raises(PoolError) as e:
        ask(host)
    for secret in ("hunter2", "sig=abc", "abcdef"):
        assert secret not in e.value.message


def test_an_address_that_nobody_listens_at_or_that_speaks_no_tls(serve: Callable[..., str]) -> None:
    host = serve(lambda _: Response(200))
    assert code(host, insecure=("other:1",)) in ("remote-refused", "remote-trouble")
    assert code("127.0.0.1:9") == "remote-trouble"


# --- login files ------------------------------------------------------------------------------------------


def test_the_login_of_the_longest_path_and_of_the_hubs_many_names(tmp_path: Path) -> None:
    def auth(user: str) -> dict[str, str]:
        return {"auth": base64.b64encode(f"{user}:pw:with:colons".encode()).decode()}

    file = tmp_path / "config.json"
    auths = {
        "https://index.docker.io/v1/": auth("hub"),
        "quay.example": auth("all"),
        "quay.example/org": auth("org"),
        "h.example:5000": {"username": "plain", "password": "pw"},
        "bad.example": {"auth": "%%%"},
        "empty.example": {},
        "odd.example": 7,
    }
    file.write_text(json.dumps({"auths": auths, "credsStore": "desktop"}))
    logins = Logins((tmp_path / "missing.json", file))

    def user(reference: str) -> str | None:
        login = logins.find(parse_reference(reference))
        return login.user if login else None

    assert user("ubuntu") == "hub"
    assert user("docker.io/acme/x") == "hub"
    assert user("quay.example/org/x:1") == "org"
    assert user("quay.example/organ/x:1") == "all"
    assert user("h.example:5000/x") == "plain"
    assert user("h.example/x") is None
    for host in ("bad", "empty", "odd", "other"):
        assert user(f"{host}.example/x") is None
    assert logins.helpers() == (file,)
    login = logins.find(parse_reference("ubuntu"))
    assert login is not None
    assert "pw" not in repr(login)
    assert base64.b64decode(login.basic.removeprefix("Basic ")) == b"hub:pw:with:colons"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.one_of(st.binary(max_size=200), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3)
    | st.dictionaries(st.sampled_from(["auths", "auth", "h.example", "credsStore"]), x, max_size=3),
).map(lambda x: json.dumps(x).encode())))  # fmt: skip
def test_any_login_file_is_read(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(data)
    logins = Logins((file,))
    logins.find(parse_reference("h.example/x"))
    logins.helpers()


def test_login_files_that_cannot_be_opened_are_none(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    logins = Logins((tmp_path / "folder", tmp_path / "pipe"))
    assert logins.find(parse_reference("ubuntu")) is None


def test_where_logins_are_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "d"))
    files = registry_login_files()
    assert files[0] == tmp_path / ".apptainer/docker-config.json"
    assert tmp_path / "d/config.json" in files
