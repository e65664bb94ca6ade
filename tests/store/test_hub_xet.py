"""Xet, with the real client and hf_xet's own local storage: whole files through a child."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub.constants
import pytest

from poolmgr.errors import (
    CredentialsError,
    MissingToolError,
    PoolError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.model.blob import Blob
from poolmgr.store import hub_pace
from poolmgr.store.hub_pace import Quota
from poolmgr.store.hub_xet import XetDownloader, quota_demands_xet
from tests.loopback.hub import TOKEN, Hub
from tests.loopback.repos import Repo
from tests.store.hub_kit import A, fill, store_of

PATH = "images/a.sif"


@pytest.fixture
def repo(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setattr(hub_pace, "BACKOFF", 0.01)
    repo = fill(hub)
    hub.serve_xet(tmp_path / "cas")
    hub.log.clear()
    return repo


def test_many_files_with_one_token_and_no_request_a_file(hub: Hub, tmp_path: Path) -> None:
    files = {f"i/{n}.sif": os.urandom(5000) for n in range(30)}
    hub.add_repo("datasets", "acme/pool", files)
    hub.serve_xet(tmp_path / "cas")
    store, _ = store_of(hub)
    blobs = store.list().blobs
    before = len(hub.log)
    with XetDownloader(store) as xet, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda b: xet.download(b, tmp_path / b.path.replace("/", "_")), blobs.values()))
    assert all((tmp_path / p.replace("/", "_")).read_bytes() == data for p, data in files.items())
    assert len(hub.log) == before + 1
    assert hub.requests("/xet-read-token/")


def test_the_token_is_not_in_the_childs_environment(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    store, _ = store_of(hub)
    with XetDownloader(store) as xet:
        xet.download(store.list().blobs[PATH], tmp_path / "a")
        assert xet._child is not None
        assert TOKEN.encode() not in Path(f"/proc/{xet._child.pid}/environ").read_bytes()
        assert TOKEN.encode() not in Path(f"/proc/{xet._child.pid}/cmdline").read_bytes()
    assert (tmp_path / "a").read_bytes() == A


def test_a_stalled_transfer_is_killed_and_tried_again(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    store, told = store_of(hub)
    blob = store.list().blobs[PATH]
    hub.fault("/xet-read-token/", stall=0)
    with XetDownloader(store, stall=2.0) as xet:
        xet.download(blob, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == A
    assert any("not a byte" in t for t in told)


def test_a_child_that_dies_is_replaced(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    store, told = store_of(hub)
    blob = store.list().blobs[PATH]
    hub.fault("/xet-read-token/", delay=1.0)
    with XetDownloader(store) as xet:

        def shoot() -> None:
            while not hub.requests("/xet-read-token/"):
                time.sleep(0.02)
            assert xet._child is not None
            os.kill(xet._child.pid, signal.SIGKILL)

        thread = threading.Thread(target=shoot)
        thread.start()
        xet.download(blob, tmp_path / "a")
        thread.join()
    assert (tmp_path / "a").read_bytes() == A
    assert any("ended" in t for t in told)


def test_lost_storage_is_trouble_and_bounded(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    store, _ = store_of(hub)
    blob = store.list().blobs[PATH]
    for file in (tmp_path / "cas").rglob("*"):
        if file.is_file() and "xorbs" in file.parts:
            file.unlink()
    with XetDownloader(store) as xet, pytest.raises(PoolError) as e:
        xet.download(blob, tmp_path / "a")
    assert "by Xet" in e.value.message


def test_a_refused_token_is_final(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    store, _ = store_of(hub)
    blob = store.list().blobs[PATH]
    fault = hub.fault(
        "/xet-read-token/", status=403, headers={"X-Error-Message": "no right to this"}, times=None
    )
    with XetDownloader(store) as xet, pytest.raises(CredentialsError, match="no right to this"):
        xet.download(blob, tmp_path / "a")
    assert fault.hit == 1


def test_closing_ends_what_waits(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    store, _ = store_of(hub)
    blob = store.list().blobs[PATH]
    hub.fault("/xet-read-token/", stall=0, times=None)
    xet = XetDownloader(store)
    errors: list[PoolError] = []

    def use() -> None:
        try:
            xet.download(blob, tmp_path / "a")
        except RemoteTroubleError as e:
            errors.append(e)

    thread = threading.Thread(target=use)
    thread.start()
    while not hub.requests("/xet-read-token/"):
        time.sleep(0.02)
    xet.close()
    thread.join(20)
    assert errors
    with pytest.raises(RemoteTroubleError):
        xet.download(blob, tmp_path / "a")


def test_a_blob_without_a_xet_address_is_refused(hub: Hub, tmp_path: Path) -> None:
    fill(hub)
    store, _ = store_of(hub)
    with XetDownloader(store) as xet, pytest.raises(RemoteRefusedError, match="no Xet address"):
        xet.download(store.list().blobs[PATH], tmp_path / "a")


def test_xet_that_is_switched_off_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    with pytest.raises(MissingToolError, match="HF_HUB_DISABLE_XET"):
        XetDownloader(store_of(hub)[0])


def test_pushing_by_xet(hub: Hub, repo: Repo) -> None:
    data = os.urandom(100_000)
    hub.expect_xet(repo, data)
    store, _ = store_of(hub)
    store.put("images/new.sif", data)
    assert repo.files()["images/new.sif"] == data
    assert hub.requests("/xet-write-token/")
    assert not hub.requests(method="PUT")


def test_when_the_quota_demands_xet(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = [Blob(f"{n}.sif", 1, "0" * 64, xet_hash="1" * 64) for n in range(10)]
    assert not quota_demands_xet(blobs, None)
    assert not quota_demands_xet(blobs, Quota(10, 0.0, 5000))
    assert quota_demands_xet(blobs, Quota(9, 0.0, 5000))
    assert not quota_demands_xet([*blobs, Blob("x.sif", 1)], Quota(9, 0.0, 5000))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    assert not quota_demands_xet(blobs, Quota(9, 0.0, 5000))


def test_the_quota_is_known_after_the_index_was_read(hub: Hub) -> None:
    fill(hub)
    hub.ratelimit = lambda request: {
        "RateLimit": '"resolvers";r=4999;t=200' if "/resolve/" in request.target else '"api";r=9;t=200',
        "RateLimit-Policy": '"fixed window";"resolvers";q=5000;w=300',
    }
    store, _ = store_of(hub)
    store.read("task_to_blob.json", limit=1 << 20)
    store.list()
    assert store.quota is not None
    assert store.quota.remaining == 4999
