"""fetch through Xet: the Hub's own client brings the bytes, the proof is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from poolmgr.errors import Exit, UsageError
from poolmgr.ops import bringing
from poolmgr.ops.fetch import Fetch, Request
from poolmgr.ops.transfer import Result
from poolmgr.ops.view import open_folder
from poolmgr.store import hub_pace
from poolmgr.store.hub_pace import Quota
from tests.loopback.hub import Hub
from tests.loopback.repos import Repo
from tests.ops.fetch_kit import IMAGES, PATHS, codes, fetch, files, fill, only, view_of


@pytest.fixture
def repo(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setattr(hub_pace, "BACKOFF", 0.01)
    monkeypatch.setattr(bringing, "BACKOFF", 0.001)
    repo = fill(hub)
    hub.serve_xet(tmp_path / "cas")
    return repo


def test_whole_files_arrive_with_one_token_and_no_request_a_file(
    hub: Hub, repo: Repo, tmp_path: Path
) -> None:
    to = tmp_path / "sifs"
    fetched = fetch(hub, to, transfer="xet")
    assert fetched.exit is Exit.GOOD, codes(fetched)
    assert {o.result for o in fetched.outcomes} == {Result.TRANSFERRED}
    assert files(to) == only(*PATHS[:4])
    assert not hub.requests(".sif")
    assert len(hub.requests("/xet-read-token/")) == 1
    assert not list((to / ".poolmgr/partial").iterdir())


def test_wrong_bytes_from_the_client_are_found(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hf_xet has returned the right number of wrong bytes (huggingface_hub#3643)."""
    from poolmgr.store.hub_xet import XetDownloader

    real = XetDownloader.download

    def flipped(self: XetDownloader, blob: object, staging: Path) -> None:
        real(self, blob, staging)  # type: ignore[arg-type]
        data = bytearray(staging.read_bytes())
        data[-1] ^= 1
        staging.write_bytes(data)

    monkeypatch.setattr(XetDownloader, "download", flipped)
    fetched = fetch(hub, tmp_path / "sifs", transfer="xet")
    assert fetched.exit is Exit.BAD
    assert codes(fetched) == {path: ["wrong-hash"] for path in PATHS[:4]}
    assert files(tmp_path / "sifs") == {}


def test_auto_takes_xet_only_where_the_quota_demands_it(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from poolmgr.store.hub import HubStore

    fetch(hub, tmp_path / "plenty", transfer="auto")
    assert not hub.requests("/xet-read-token/")
    monkeypatch.setattr(HubStore, "quota", property(lambda self: Quota(2, 1e12, None)), raising=True)
    assert fetch(hub, tmp_path / "short", transfer="auto").exit is Exit.GOOD
    assert hub.requests("/xet-read-token/")


def test_xet_is_the_hubs_alone(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    (pool / PATHS[0]).write_bytes(IMAGES[PATHS[0]])
    (pool / "task_to_blob.json").write_text(f'{{"v": {{"t": "{PATHS[0]}"}}}}')
    run = Fetch(open_folder(pool), Request(tmp_path / "sifs", ("v",), reserve=0), transfer="xet")
    with pytest.raises(UsageError, match="no Xet"):
        run.carry_out(run.plan())


def test_a_view_of_the_hub_is_what_the_tests_say(hub: Hub, repo: Repo) -> None:
    assert all(b.xet_hash for p, b in view_of(hub).listing.blobs.items() if p.endswith(".sif"))
