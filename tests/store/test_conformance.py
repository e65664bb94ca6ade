"""One suite that every store passes: what a verb may rely on, wherever a pool lies."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poolmgr.errors import AlreadyExistsError, BadFileError, FileMissingError, PoolError
from poolmgr.model.blob import INDEX_NAME
from poolmgr.store.base import RangeSource, Store, can_write
from tests.store.places import Folder, OnHub, Place

A = bytes(range(256)) * 700
B = b"second" * 1000
INDEX = b'{"v": {"t1": "images/a.sif"}}'
FILES = {INDEX_NAME: INDEX, "README.md": b"# pool\n", "images/a.sif": A, "images_b00/deep/b.sif": B}
ODD_NAMES = [
    "images/with space.sif",
    "images/br[a]cket.sif",
    "images/bra.sif",
    "images/star*.sif",
    "images/what?.sif",
    "images/per%20cent.sif",
    "images/per cent.sif",
    "images/plus+and&#hash.sif",
    "images/ünïcödé-画像.sif",
    "images/{brace}.sif",
    "images/'quote'.sif",
    "images/a@b=c,d;e!f~g.sif",
    "images/colon:tag.sif",
]


def test_it_is_a_writable_store_with_a_printable_address(place: Place) -> None:
    store = place.store()
    assert can_write(store)
    assert store.address
    assert "@" not in store.address


def test_the_listing_has_every_file_and_its_size(place: Place) -> None:
    place.fill(FILES)
    listing = place.store().list()
    assert {p: b.size for p, b in listing.blobs.items()} == {
        p: len(data) for p, data in FILES.items() if p != INDEX_NAME
    }
    assert all(path == blob.path and blob.trouble is None for path, blob in listing.blobs.items())
    assert listing.refused == ()
    assert listing.source == place.store().address


def test_a_listed_sha256_is_that_of_the_bytes(place: Place) -> None:
    place.fill(FILES)
    blob = place.store().list().blobs["images/a.sif"]
    assert blob.sha256 == (hashlib.sha256(A).hexdigest() if place.hashes else None)


def test_the_listing_has_directories_and_their_entries(place: Place) -> None:
    place.fill(FILES)
    listing = place.store().list()
    assert listing.directories == {"images", "images_b00", "images_b00/deep"}
    hidden = 1 if isinstance(place, OnHub) else 0  # .gitattributes
    assert listing.entries == {"": 4 + hidden, "images": 1, "images_b00": 1, "images_b00/deep": 1}


def test_hidden_names_are_no_part_of_a_pool(place: Place) -> None:
    place.fill({"images/a.sif": A, ".poolmgr/lock/v.json": b"{}", "images/.hidden.sif": B, ".git/x": b""})
    listing = place.store().list()
    assert set(listing.blobs) == {"images/a.sif"}
    assert listing.directories == {"images"}
    assert listing.refused == ()


@pytest.mark.parametrize("name", ["images/back\\slash.sif", "images/bell\x07.sif", "images/\u202egnp.sif"])
def test_a_hostile_name_is_refused_by_name_and_the_rest_stays(place: Place, name: str) -> None:
    place.fill({"images/a.sif": A, name: B})
    listing = place.store().list()
    assert set(listing.blobs) == {"images/a.sif"}
    assert len(listing.refused) == 1
    assert listing.refused[0][0].startswith("images/")


def test_odd_names_are_listed_and_read_and_never_taken_for_patterns(place: Place) -> None:
    files = {name: name.encode() * 3 for name in ODD_NAMES}
    place.fill(files)
    store = place.store()
    assert set(store.list().blobs) == set(files)
    for name, data in files.items():
        assert store.read(name, limit=10_000) == data
        assert store.read_range(name, 2, 5) == data[2:7]
        with store.stream(name) as body:
            assert b"".join(body) == data


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_put_and_nothing_else_is(place: Place, name: str) -> None:
    store = place.store()
    store.put(name, b"bytes of " + name.encode())
    assert place.files() == {name: b"bytes of " + name.encode()}
    with pytest.raises(AlreadyExistsError):
        store.put(name, b"other")


@pytest.mark.parametrize(
    ("start", "length"),
    [
        (0, 1), (0, 32), (1, 1), (255, 2), (0, len(A)), (len(A) - 1, 1), (len(A) - 5, 5),
        (len(A) - 5, 500), (0, len(A) + 1), (len(A), 1), (len(A) + 7, 10), (10**12, 10), (5, 0), (0, 0),
    ],
)  # fmt: skip
def test_a_range_is_exact_and_short_only_at_the_end(place: Place, start: int, length: int) -> None:
    place.fill({"images/a.sif": A})
    assert place.store().read_range("images/a.sif", start, length) == A[start : start + length]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(B) + 10), st.integers(0, len(B) + 10))
def test_any_range_is_exact(place: Place, start: int, length: int) -> None:
    if not isinstance(place, OnHub) or not place.repo.files().get("b.sif"):
        place.fill({"b.sif": B})
    assert place.store().read_range("b.sif", start, length) == B[start : start + length]


def test_an_empty_file_is_listed_and_read(place: Place) -> None:
    place.fill({"images/empty.sif": b"", "images/a.sif": A})
    store = place.store()
    assert store.list().blobs["images/empty.sif"].size == 0
    assert store.read("images/empty.sif", limit=10) == b""
    assert store.read_range("images/empty.sif", 0, 10) == b""
    with store.stream("images/empty.sif") as body:
        assert b"".join(body) == b""


@pytest.mark.parametrize("start", [0, 1, len(A) - 1, len(A)])
def test_a_stream_begins_where_it_says(place: Place, start: int) -> None:
    place.fill({"images/a.sif": A})
    with place.store().stream("images/a.sif", start) as body:
        assert body.start in (0, start)
        assert body.total in (None, len(A))
        begin = body.start
        assert b"".join(body) == A[begin:]


def test_an_image_reader_can_read_anywhere(place: Place) -> None:
    place.fill({"images/a.sif": A})
    source = RangeSource(place.store(), "images/a.sif", len(A))
    for at, length in ((0, 128), (4096, 100), (len(A) - 10, 100), (100_000, 60_000), (3, 1)):
        assert source.read_at(at, length) == A[at : at + length]


def test_a_missing_file_is_said_to_be_missing(place: Place) -> None:
    place.fill(FILES)
    store = place.store()
    for path in ("images/none.sif", "none/a.sif", "images/a.sif/b.sif"):
        with pytest.raises(FileMissingError):
            store.read(path, limit=100)
        with pytest.raises(FileMissingError):
            store.read_range(path, 0, 100)
        with pytest.raises(FileMissingError), store.stream(path) as body:
            list(body)


def test_a_directory_is_no_file(place: Place) -> None:
    place.fill(FILES)
    store = place.store()
    with pytest.raises(BadFileError):
        store.read("images", limit=100)
    with pytest.raises(BadFileError):
        store.read_range("images", 0, 100)


def test_more_than_the_limit_is_not_read(place: Place) -> None:
    place.fill(FILES)
    store = place.store()
    assert store.read("images/a.sif", limit=len(A)) == A
    with pytest.raises(BadFileError, match=r"images/a\.sif"):
        store.read("images/a.sif", limit=len(A) - 1)


def test_the_index_is_read_and_is_no_blob(place: Place) -> None:
    place.fill(FILES)
    store = place.store()
    assert store.read(INDEX_NAME, limit=1000) == INDEX
    assert INDEX_NAME not in store.list().blobs


@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_put_creates_and_never_replaces(place: Place, tmp_path: Path, kind: str) -> None:
    place.fill({"images/a.sif": A})
    file = tmp_path / "source.sif"
    file.write_bytes(B)
    source = B if kind == "bytes" else file
    store = place.store()
    store.put("new/folder/b.sif", source)
    assert place.files() == {"images/a.sif": A, "new/folder/b.sif": B}
    assert place.store().list().blobs["new/folder/b.sif"].size == len(B)
    with pytest.raises(AlreadyExistsError, match=r"images/a\.sif|taken|already"):
        store.put("images/a.sif", source)
    assert place.files() == {"images/a.sif": A, "new/folder/b.sif": B}


def test_of_two_writers_of_one_name_one_wins_whole(place: Place) -> None:
    if not isinstance(place, Folder):
        pytest.skip("only a folder tells two writers of the same moment apart everywhere")
    results: list[str] = []
    start = threading.Barrier(6)

    def put(data: bytes) -> None:
        start.wait()
        try:
            place.store().put("images/x.sif", data)
            results.append("won")
        except AlreadyExistsError:
            results.append("lost")

    threads = [threading.Thread(target=put, args=(bytes([n]) * 300_000,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["lost"] * 5 + ["won"]
    files = place.files()
    assert list(files) == ["images/x.sif"]
    assert len(set(files["images/x.sif"])) == 1
    assert len(files["images/x.sif"]) == 300_000


@pytest.mark.parametrize("path", ["../x.sif", "/x.sif", "a/../../x.sif", "images/.x.sif", "a\\b.sif", ""])
def test_no_unsafe_path_is_put_or_read(place: Place, path: str) -> None:
    place.fill(FILES)
    store = place.store()
    with pytest.raises(PoolError):
        store.put(path, b"x")
    with pytest.raises(PoolError):
        store.read(path, limit=100)
    assert place.files() == FILES


def test_put_of_a_file_that_is_not_there(place: Place, tmp_path: Path) -> None:
    with pytest.raises(PoolError, match=r"none\.sif"):
        place.store().put("images/a.sif", tmp_path / "none.sif")
    assert place.files() == {}


def test_what_others_add_is_seen_by_the_next_store(place: Place) -> None:
    place.fill(FILES)
    place.store().list()
    place.fill({"images/later.sif": B})
    store = place.store()
    assert store.list().blobs["images/later.sif"].size == len(B)
    assert store.read("images/later.sif", limit=len(B)) == B


def test_a_store_without_commits_looks_again_each_time(place: Place) -> None:
    place.fill(FILES)
    store: Store = place.store()
    store.list()
    place.fill({"images/later.sif": B})
    seen = "images/later.sif" in store.list().blobs
    assert seen == (store.commit is None)


def test_one_store_serves_many_threads(place: Place) -> None:
    place.fill(FILES)
    store = place.store()
    wrong: list[object] = []

    def read(n: int) -> None:
        for at in range(n, 2000, 211):
            if store.read_range("images/a.sif", at, 100) != A[at : at + 100]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
