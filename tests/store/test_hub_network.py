"""The network between the Hub store and the Hub: proxies, and TLS that is trusted or not."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from poolmgr.errors import RemoteRefusedError
from poolmgr.store import hub_http, hub_pace
from poolmgr.store.hub import HubStore
from tests.loopback.httpd import Request, Response, Server
from tests.loopback.hub import TOKEN, Hub
from tests.store.hub_kit import FILES, A, fill, store_of


def proxy_before(hub: Hub, seen: list[Request]) -> Server:
    """A forwarding HTTP proxy for both ports of a hub."""

    def forward(request: Request) -> Response:
        seen.append(request)
        url = urlsplit(request.target)
        origin = "api" if url.port == hub.api.port else "cdn"
        target = f"{url.path}?{url.query}" if url.query else url.path
        return hub._handle(Request(origin, request.method, target, dict(request.headers), request.body))

    return Server("proxy", forward)


def test_a_proxy_is_used_and_told_its_password_only(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(hub)
    seen: list[Request] = []
    proxy = proxy_before(hub, seen)
    try:
        monkeypatch.setenv("http_proxy", f"http://me:se%40cret@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "")
        http = hub_http.HubHttp(
            "hf://x", hub.url, lambda: {"authorization": f"Bearer {TOKEN}"}, hub_pace.Pace(print), print
        )
        head = next(iter(hub.repos.values())).refs["main"]
        url = f"{hub.url}/datasets/acme/pool/resolve/{head}/images/a.sif"
        assert http.range(url, "images/a.sif", 0, 10) == (A[:10], len(A))
        assert [r.headers["proxy-authorization"] for r in seen] == ["Basic bWU6c2VAY3JldA=="] * 2
        assert ["authorization" in r.headers for r in seen] == [True, False]
    finally:
        proxy.close()


def test_no_proxy_is_kept(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(hub)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert store_of(hub)[0].read("images/a.sif", limit=1 << 20) == A


def test_a_socks_proxy_is_said_to_be_unusable(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://me:secret@127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    http = hub_http.HubHttp("hf://x", hub.url, dict, hub_pace.Pace(print), print)
    with pytest.raises(RemoteRefusedError, match="SOCKS") as e:
        http.range(f"{hub.url}/datasets/acme/pool/resolve/main/images/a.sif", "images/a.sif", 0, 10)
    assert "secret" not in e.value.message


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key


def tls_hub(certificate: tuple[Path, Path]) -> Hub:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    hub = Hub(tls=context)
    fill(hub)
    return hub


def test_tls_with_a_trusted_certificate(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    hub = tls_hub(certificate)
    try:
        assert hub.url.startswith("https://")
        import huggingface_hub.utils

        huggingface_hub.utils.close_session()  # made before SSL_CERT_FILE was set
        store = HubStore("acme/pool", endpoint=hub.url, token=TOKEN)
        assert store.read("task_to_blob.json", limit=1 << 20) == FILES["task_to_blob.json"]
        with store.stream("images/a.sif", 7) as body:
            assert b"".join(body) == A[7:]
    finally:
        hub.close()
        huggingface_hub.utils.close_session()


def test_tls_through_a_proxy(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    hub = tls_hub(certificate)
    seen: list[Request] = []

    def connect(request: Request) -> Response:
        seen.append(request)
        return Response(tunnel=int(request.target.rpartition(":")[2]))

    proxy = Server("proxy", connect)
    try:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "")
        http = hub_http.HubHttp(
            "hf://x", hub.url, lambda: {"authorization": f"Bearer {TOKEN}"}, hub_pace.Pace(print), print
        )
        head = next(iter(hub.repos.values())).refs["main"]
        url = f"{hub.url}/datasets/acme/pool/resolve/{head}/images/a.sif"
        assert http.range(url, "images/a.sif", 0, 10) == (A[:10], len(A))
        assert [r.method for r in seen] == ["CONNECT", "CONNECT"], "one tunnel an origin"
        assert not any("authorization" in r.headers for r in seen)
        assert all("proxy-authorization" in r.headers for r in seen)
    finally:
        proxy.close()
        hub.close()


def test_a_certificate_that_is_not_trusted_is_final(certificate: tuple[Path, Path]) -> None:
    hub = tls_hub(certificate)
    try:
        http = hub_http.HubHttp("hf://x", hub.url, dict, hub_pace.Pace(print), print)
        with pytest.raises(RemoteRefusedError, match="not trusted") as e:
            http.range(f"{hub.url}/datasets/acme/pool/resolve/main/images/a.sif", "images/a.sif", 0, 10)
        assert "SSL_CERT_FILE" in e.value.hint
    finally:
        hub.close()
