"""Places that the conformance suite puts a pool in: each can be filled behind the store's back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from poolmgr.settings import Settings
from poolmgr.store.base import WritableStore, can_write
from poolmgr.store.hub import HubStore
from poolmgr.store.locate import locate
from tests.loopback.hub import TOKEN, Hub


class Place(Protocol):
    """Where a pool lies."""

    hashes: bool
    """Whether listings carry a sha256."""

    def fill(self, files: Mapping[str, bytes]) -> None:
        """Add files as somebody else would, and not through the store."""
        ...

    def store(self) -> WritableStore:
        """A store that has seen nothing yet."""
        ...

    def files(self) -> dict[str, bytes]:
        """All that is there now, by another way than the store's."""
        ...


class Folder:
    hashes = False

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def fill(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def store(self) -> WritableStore:
        return _located(str(self.root))

    def files(self) -> dict[str, bytes]:
        return {str(f.relative_to(self.root)): f.read_bytes() for f in self.root.rglob("*") if f.is_file()}


class Memory:
    hashes = False

    def __init__(self) -> None:
        import fsspec

        self.fs = fsspec.filesystem("memory")
        self.fs.store.clear()
        self.fs.pseudo_dirs[:] = ["", "/pool"]

    def fill(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            self.fs.pipe_file(f"/pool/{path}", data)

    def store(self) -> WritableStore:
        return _located("memory://pool")

    def files(self) -> dict[str, bytes]:
        return {k.removeprefix("/pool/"): f.getvalue() for k, f in self.fs.store.items()}


class S3:
    hashes = False

    def __init__(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        import boto3

        monkeypatch.setenv("AWS_ENDPOINT_URL", server)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-access-key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        self.client: Any = boto3.client("s3", endpoint_url=server)
        self.client.create_bucket(Bucket="pools")
        # A neighbour whose name begins alike is no part of the pool.
        self.client.put_object(Bucket="pools", Key="acme2/images/other.sif", Body=b"neighbour")

    def fill(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            self.client.put_object(Bucket="pools", Key=f"acme/{path}", Body=data)

    def store(self) -> WritableStore:
        return _located("s3://pools/acme")

    def files(self) -> dict[str, bytes]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket="pools", Prefix="acme/")
        keys = [row["Key"] for page in pages for row in page.get("Contents", ())]
        return {k[5:]: self.client.get_object(Bucket="pools", Key=k)["Body"].read() for k in keys}


class OnHub:
    hashes = True

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.repo = hub.add_repo("datasets", "acme/pool", {".gitattributes": b"*.sif filter=lfs\n"})

    def fill(self, files: Mapping[str, bytes]) -> None:
        self.repo.add(files)

    def store(self) -> WritableStore:
        return HubStore("acme/pool", endpoint=self.hub.url, token=TOKEN)

    def files(self) -> dict[str, bytes]:
        return {k: v for k, v in self.repo.files().items() if k != ".gitattributes"}


def _located(address: str) -> WritableStore:
    store = locate(address, Settings.read()).store
    assert can_write(store)
    return store


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """moto's S3 on loopback."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> S3:
    import urllib.request

    request = urllib.request.Request(f"{s3_server}/moto-api/reset", method="POST")
    urllib.request.urlopen(request).close()
    return S3(s3_server, monkeypatch)


@pytest.fixture(params=["local", "memory", "s3", "hub"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    match request.param:
        case "local":
            return Folder(tmp_path / "pool")
        case "memory":
            return Memory()
        case "s3":
            made: Place = request.getfixturevalue("s3")
            return made
        case _:
            import huggingface_hub.constants

            monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
            return OnHub(request.getfixturevalue("hub"))
