"""Listing and reading a pool on the Hub when all goes well."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from poolmgr.errors import BadFileError, FileMissingError, OfflineError, PoolNotFoundError
from poolmgr.store.base import RangeSource, Store, can_commit, can_write
from poolmgr.store.hub import HubStore
from tests.loopback.hub import Hub
from tests.store.hub_kit import FILES, POOL, A, fill, store_of


def test_it_is_a_store_that_commits_which_is_known_without_a_request(hub: Hub) -> None:
    fill(hub)
    store: Store = store_of(hub)[0]
    assert can_write(store)
    assert can_commit(store)
    assert not hub.requests()


def test_listing_has_sizes_hashes_folders_and_entries(hub: Hub) -> None:
    repo = fill(hub)
    listing = store_of(hub)[0].list()
    assert listing.commit == repo.refs["main"]
    assert listing.source == POOL
    assert set(listing.blobs) == set(FILES) - {"task_to_blob.json"}
    blob = listing.blobs["images/a.sif"]
    assert (blob.size, blob.sha256) == (len(A), repo.commits[repo.refs["main"]].files["images/a.sif"].sha256)
    assert listing.blobs["README.md"].sha256 is None
    assert listing.directories == {"images", "images_batch_01"}
    assert listing.entries == {"": 4, "images": 1, "images_batch_01": 1}


def test_listing_the_real_pool_takes_seventeen_requests_and_one_for_the_commit(hub: Hub) -> None:
    files = {f"images_batch_{n // 8100:02}/task_{n:06}.sif": b"%d" % n for n in range(16_200)}
    hub.add_repo("datasets", "acme/pool", files)
    store, _ = store_of(hub)
    listing = store.list()
    assert len(listing.blobs) == 16_200
    assert listing.entries["images_batch_00"] == 8100
    assert len(hub.requests("/tree/")) == 17  # with the two folders, 16,202 rows
    assert len(hub.log) == 18
    store.list()
    assert len(hub.log) == 18


def test_every_request_uses_the_commit_that_was_pinned_first(hub: Hub) -> None:
    repo = fill(hub)
    store, _ = store_of(hub)
    pinned = store.commit
    repo.add({"images/a.sif": b"other bytes", "images/new.sif": b"new"})
    assert "images/new.sif" not in store.list().blobs
    assert store.read("images/a.sif", limit=1 << 20) == A
    with store.stream("images/a.sif") as body:
        assert b"".join(body) == A
    assert all(pinned in r.target for r in hub.requests("/resolve/"))


def test_a_revision_may_be_a_branch_a_tag_or_a_commit(hub: Hub) -> None:
    repo = fill(hub)
    first = repo.refs["main"]
    repo.tags["v1"] = first
    repo.refs["refs/pr/1"] = first
    repo.add({"images/new.sif": b"new"})
    for revision in ("v1", first, "refs/pr/1"):
        store, _ = store_of(hub, revision=revision)
        assert store.commit == first
        assert "images/new.sif" not in store.list().blobs
    with pytest.raises(PoolNotFoundError, match="no such branch"):
        _ = store_of(hub, revision="v2")[0].commit


def test_unsafe_names_are_refused_by_name_and_hidden_ones_skipped(hub: Hub) -> None:
    hub.add_repo(
        "datasets",
        "acme/pool",
        {
            "ok.sif": b"1",
            "../up.sif": b"2",
            "a\\b.sif": b"3",
            ".poolmgr/lock/v.json": b"{}",
            ".gitattributes": b"x",
            "Task_to_blob.json": b"{}",
            "d/.hidden.sif": b"4",
        },
    )
    listing = store_of(hub)[0].list()
    assert set(listing.blobs) == {"ok.sif"}
    assert {p for p, _ in listing.refused} == {"../up.sif", "a\\b.sif", "Task_to_blob.json"}
    assert ".poolmgr" not in listing.directories


@pytest.mark.parametrize(
    "name", ["g/x[1].sif", "g/x?.sif", "g/a b#%41.sif", "g/ünïcödé-日本.sif", "g/*.sif", "g/a+b&c=d.sif"]
)
def test_names_are_names_and_never_patterns(hub: Hub, name: str) -> None:
    hub.add_repo("datasets", "acme/pool", {name: b"right" * 99, "g/x1.sif": b"wrong", "g/aA.sif": b"wrong"})
    store, _ = store_of(hub)
    assert name in store.list().blobs
    assert store.read(name, limit=1000) == b"right" * 99
    assert store.read_range(name, 1, 4) == b"ight"


def test_ranges_and_streams(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    assert store.read_range("images/a.sif", 5, 10) == A[5:15]
    assert store.read_range("images/a.sif", len(A) - 3, 10) == A[-3:]
    assert store.read_range("images/a.sif", len(A), 10) == b""
    assert store.read_range("images/a.sif", 5, 0) == b""
    for start in (0, 1, 65_536, len(A) - 1, len(A)):
        with store.stream("images/a.sif", start) as body:
            assert (body.start, body.total) == (start, len(A))
            assert b"".join(body) == A[start:]
    with pytest.raises(BadFileError, match="ends before byte"), store.stream("images/a.sif", len(A) + 1):
        pass


def test_files_outside_lfs_come_by_the_same_way(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    assert store.read("README.md", limit=100) == FILES["README.md"]
    assert store.read_range("README.md", 2, 4) == FILES["README.md"][2:6]
    assert not hub.requests(origin="cdn")


def test_a_remote_image_is_looked_at_in_two_requests_and_one_more_a_range(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    store.list()
    before = len(hub.log)
    source = RangeSource(store, "images/a.sif", len(A))
    assert source.read_at(0, 128) == A[:128]
    assert source.read_at(4096, 4096) == A[4096:8192]
    assert len(hub.log) == before + 2
    assert source.read_at(len(A) - 96, 96) == A[-96:]
    assert len(hub.log) == before + 3, "the signed address is used again"


def test_the_token_goes_to_the_hub_and_nowhere_else(hub: Hub) -> None:
    fill(hub, private=True)
    store, _ = store_of(hub)
    store.list()
    store.read("images/a.sif", limit=1 << 20)
    store.read_range("images_batch_01/b.sif", 0, 10)
    assert all(r.auth for r in hub.requests(origin="api"))
    assert hub.requests(origin="cdn")
    assert not any(r.auth for r in hub.requests(origin="cdn"))
    assert all(r.agent.startswith("poolmgr/") for r in hub.log)


def test_without_a_token_nothing_is_sent(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub, token=False)
    assert store.read("images/a.sif", limit=1 << 20) == A
    assert not any(r.auth for r in hub.log)


def test_the_token_is_found_as_the_client_finds_it(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(hub, private=True)
    monkeypatch.setenv("HF_TOKEN", next(iter(hub.tokens)))
    assert "images/a.sif" in HubStore("acme/pool", endpoint=hub.url).list().blobs


def test_connections_are_kept(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    store.list()
    for _ in range(20):
        with store.stream("images/a.sif") as body:
            assert len(b"".join(body)) == len(A)
    assert hub.cdn.accepted == 1
    assert hub.api.accepted <= 2, "one of the client, one of ours"


def test_many_threads_share_one_store(hub: Hub) -> None:
    files = {f"i/{n}.sif": b"%d" % n * 1000 for n in range(60)}
    hub.add_repo("datasets", "acme/pool", files)
    store, _ = store_of(hub)
    barrier = threading.Barrier(8)

    def get(name: str) -> bool:
        if name in [f"i/{n}.sif" for n in range(8)]:
            barrier.wait(10)  # eight at once, before the commit is known
        with store.stream(name) as body:
            return b"".join(body) == files[name]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(get, files))
    assert len(hub.requests("/api/datasets/acme/pool", "GET")) == 1, "the commit is looked up once"


def test_missing_files_and_too_large_ones(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    with pytest.raises(FileMissingError):
        store.read("images/none.sif", limit=10)
    with pytest.raises(FileMissingError):
        store.read_range("images/none.sif", 0, 10)
    with pytest.raises(FileMissingError), store.stream("images/none.sif"):
        pass
    with pytest.raises(BadFileError, match="more than the 10 allowed"):
        store.read("images/a.sif", limit=10)


def test_offline_is_refused_before_any_request(hub: Hub) -> None:
    fill(hub)
    store = HubStore("acme/pool", endpoint=hub.url, offline=True)
    for use in (store.list, lambda: store.commit, lambda: store.read_range("images/a.sif", 0, 1)):
        with pytest.raises(OfflineError, match="HF_HUB_OFFLINE"):
            use()
    assert not hub.log
