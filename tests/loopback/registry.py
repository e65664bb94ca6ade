"""A real image registry (Debian's docker-registry) on loopback, behind a proxy that can fail on purpose.

Images are made with umoci and pushed by skopeo straight to the registry; whoever pulls goes through
the proxy at ``host``, which counts requests, injects faults, and can ask for a token.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tests.images import BUSYBOX, need, run
from tests.loopback.faults import Fault, Faults, instead, spoil
from tests.loopback.httpd import Request, Response, Server

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
TOKEN = "a-token-that-must-not-be-seen"
_DROPPED = {"connection", "transfer-encoding", "content-length", "date", "keep-alive"}


class Registry:
    def __init__(self, folder: Path) -> None:
        need("docker-registry", "skopeo", "umoci", "busybox")
        self.folder = folder
        self.port = _free_port()
        config = {
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
            "http": {"addr": f"127.0.0.1:{self.port}"},
        }
        (folder / "config.yml").write_text(json.dumps(config))
        self.process = subprocess.Popen(
            ["docker-registry", "serve", folder / "config.yml"],
            stdout=subprocess.DEVNULL,
            stderr=(folder / "log").open("w"),
        )
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.05)
        else:
            raise AssertionError((folder / "log").read_text())
        self.faults = Faults()
        self.requests: list[Request] = []
        self.login: tuple[str, str] | None = None
        self._proxy = Server("registry", self._handle)
        self.host = f"127.0.0.1:{self._proxy.port}"
        self._layout = folder / "oci"
        run("umoci", "init", "--layout", self._layout)
        self._made: dict[str, str] = {}

    def close(self) -> None:
        self._proxy.close()
        self.process.kill()
        self.process.wait()

    def reset(self) -> None:
        """No faults, no login, nothing asked for yet; the images stay."""
        self.faults.clear()
        self.requests.clear()
        self.login = None

    # --- images ---------------------------------------------------------------------------------------

    def add(
        self, name: str, files: Mapping[str, str] | None = None, *, arch: str = "amd64",
        machine: int | None = None, config: Iterable[str] = (),
    ) -> str:  # fmt: skip
        """Push a small image that runs ``true``, with ``files`` in it; its reference through the proxy.

        ``machine`` puts another ELF machine number into its program.
        """
        key = hashlib.sha256(repr((name, files, arch, machine, tuple(config))).encode()).hexdigest()[:16]
        if self._made.get(name) != key:
            root = self.folder / f"root-{key}"
            (root / "bin").mkdir(parents=True)
            shutil.copy2(BUSYBOX, root / "bin/busybox")
            if machine is not None:
                with (root / "bin/busybox").open("r+b") as elf:
                    elf.seek(18)
                    elf.write(machine.to_bytes(2, "little"))
            for link in ("sh", "true"):
                (root / "bin" / link).symlink_to("busybox")
            for path, text in (files or {"etc/name": name}).items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            for path in (root, *root.rglob("*")):  # equal files make one layer, also a second later
                os.utime(path, (1_700_000_000, 1_700_000_000), follow_symlinks=False)
            image = f"{self._layout}:{key}"
            run("umoci", "new", "--image", image)
            run("umoci", "insert", "--rootless", "--image", image, root, "/")
            run("umoci", "config", "--image", image, "--architecture", arch, "--os", "linux", *config)
            run(
                "skopeo", "copy", "-q", "--insecure-policy", "--dest-tls-verify=false",
                f"oci:{image}", f"docker://127.0.0.1:{self.port}/{name}",
            )  # fmt: skip
            shutil.rmtree(root)
            self._made[name] = key
        return f"{self.host}/{name}"

    def add_index(self, name: str, platforms: Mapping[str, str]) -> str:
        """Push an index for several platforms: architecture -> tag of the same repository."""
        repository, _, tag = name.partition(":")
        rows = []
        for arch, other in platforms.items():
            body = self.manifest(f"{repository}:{other}")
            digest = "sha256:" + hashlib.sha256(body).hexdigest()
            platform = {"architecture": arch, "os": "linux"}
            rows.append({"mediaType": MANIFEST, "digest": digest, "size": len(body), "platform": platform})
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}).encode()
        status, _, said = self._ask(
            "PUT", f"/v2/{repository}/manifests/{tag}", {"Content-Type": INDEX}, index
        )
        assert status == 201, said
        return f"{self.host}/{name}"

    def manifest(self, name: str) -> bytes:
        repository, _, tag = name.partition(":")
        accept = {"Accept": f"{MANIFEST}, {INDEX}"}
        status, _, body = self._ask("GET", f"/v2/{repository}/manifests/{tag}", accept, b"")
        assert status == 200, body
        return body

    def digest(self, name: str) -> str:
        """What ``name`` (``acme/env:1``) points at now."""
        return "sha256:" + hashlib.sha256(self.manifest(name)).hexdigest()

    # --- the proxy --------------------------------------------------------------------------------------

    def fault(self, **what: object) -> Fault:
        """Trouble for requests to come (tests/loopback/faults.py)."""
        return self.faults.add(Fault(**what))  # type: ignore[arg-type]

    def asked(self, method: str, contains: str) -> int:
        """How many requests there were since ``reset``."""
        return sum(r.method == method and contains in r.target for r in self.requests)

    def _handle(self, request: Request) -> Response:
        self.requests.append(request)
        fault = self.faults.take(request)
        if fault is not None and (answer := instead(fault)) is not None:
            return answer
        if self.login is not None and (refused := self._guard(request)) is not None:
            return refused
        headers = {k: v for k, v in request.headers.items() if k not in {"host", "authorization", *_DROPPED}}
        status, kept, body = self._ask(request.method, request.target, headers, request.body)
        answer = Response(status, kept, body)
        if request.method == "HEAD":
            answer.length = int(kept.pop("Content-Length", "0"))
        return answer if fault is None else spoil(fault, answer)

    def _guard(self, request: Request) -> Response | None:
        """The token dance: a bearer token from ``/token``, which takes the login or nothing."""
        sent = request.headers.get("authorization", "")
        parts = urlsplit(request.target)
        if parts.path == "/token":
            assert self.login is not None
            basic = base64.b64encode(":".join(self.login).encode()).decode()
            if sent and sent != f"Basic {basic}":
                return Response(401, {}, b'{"errors":[{"code":"UNAUTHORIZED","message":"wrong password"}]}')
            scope = "all" if sent else "public"
            document = {"token": f"{TOKEN}-{scope}", "expires_in": 300}
            return Response(200, {"Content-Type": "application/json"}, json.dumps(document).encode())
        if sent == f"Bearer {TOKEN}-all" or (sent == f"Bearer {TOKEN}-public" and "/public/" in parts.path):
            return None
        challenge = f'Bearer realm="http://{self.host}/token",service="loopback",scope="repository:x:pull"'
        return Response(
            401, {"WWW-Authenticate": challenge}, b'{"errors":[{"code":"UNAUTHORIZED","message":"log in"}]}'
        )

    def _ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, target, body or None, dict(headers))
            answer = connection.getresponse()
            kept = {k: v for k, v in answer.getheaders() if k.lower() not in _DROPPED - {"content-length"}}
            if method != "HEAD":
                kept.pop("Content-Length", None)
            return answer.status, kept, answer.read()
        finally:
            connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
