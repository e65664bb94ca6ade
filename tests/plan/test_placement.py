from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import Blob, Listing
from poolmgr.plan.placement import (
    batch_name,
    batch_number,
    directories,
    entries,
    open_batch,
    place,
)


def listing(paths: list[str]) -> Listing:
    return Listing("pool", None, {p: Blob(p, 1) for p in paths})


def test_a_large_push_is_spread_and_stable() -> None:
    """E9: 14,488 files at 10,000 a directory; five more move none."""
    names = [f"acme__env__{i:012x}.sif" for i in range(14_488)]
    plan = place(names, family="images", held=(), used={}, limit=9_000)
    assert list(plan) == names
    count = Counter(p.rpartition("/")[0] for p in plan.values())
    assert count == {"images": 9_000, "images_b00": 5_488}
    assert len(set(plan.values())) == len(names)
    held = listing(list(plan.values()))
    more = sorted([*names, *(f"aaa{i}.sif" for i in range(5))])
    again = place(more, family="images", held=held.blobs, used=entries(held), limit=9_000)
    assert {n: again[n] for n in names} == plan
    assert {again[f"aaa{i}.sif"] for i in range(5)} == {f"images_b00/aaa{i}.sif" for i in range(5)}


def test_the_real_pool_goes_on_in_its_last_batch() -> None:
    used = {"images": 9_971, "images_b00": 1_933, "images_b01": 2_000, "images_b02": 586, "derived": 1_713}
    assert open_batch("images", used, 9_000) == "images_b02"
    assert open_batch("derived", used, 9_000) == "derived"
    plan = place([f"n{i}" for i in range(8_415)], family="images", held=(), used=used, limit=9_000)
    assert plan["n8413"] == "images_b02/n8413"
    assert plan["n8414"] == "images_b03/n8414"


def test_batches_of_a_family_and_of_none() -> None:
    assert [batch_name("images", n) for n in (-1, 0, 9, 100)] == [
        "images",
        "images_b00",
        "images_b09",
        "images_b100",
    ]
    assert batch_number("images", "images_b07") == 7
    assert batch_number("a/images", "a/images_b07") == 7
    for other in (
        "derived",
        "images_c00",
        "images_b7",
        "images_b007",
        "xy_images_b00",
        "images_b00/x",
        "images2",
    ):
        assert batch_number("images", other) is None


def test_directories_show_entries_and_room_also_beyond_ours() -> None:
    held = listing([f"images/{i}.sif" for i in range(12)] + ["root.sif", "a/b/c.sif"])
    found = {d.path: d for d in directories(held, limit=10)}
    assert {p: d.entries for p, d in found.items()} == {"": 3, "images": 12, "a/b": 1}
    assert (found["images"].room, found["images"].hard_room, found["images"].full) == (0, 9_988, False)
    assert (found["a/b"].room, found["a/b"].hard_room) == (9, 9_999)


def test_the_listing_own_count_wins_since_it_sees_what_was_refused() -> None:
    held = Listing("pool", None, {"i/a": Blob("i/a", 1)}, entries={"": 2, "i": 10_000})
    (found,) = directories(held, limit=9_000)
    assert (found.entries, found.hard_room, found.full) == (10_000, 0, True)


names_of = st.lists(st.sampled_from([f"n{i}" for i in range(40)]), unique=True)


@given(names_of, names_of, st.integers(1, 7))
def test_no_directory_passes_the_limit_and_nothing_moves(
    first: list[str], second: list[str], limit: int
) -> None:
    plan = place(first, family="f", held=(), used={}, limit=limit)
    held = listing(list(plan.values()))
    later = place([*second, *first], family="f", held=held.blobs, used=entries(held), limit=limit)
    assert {n: later[n] for n in first} == plan
    assert set(later) == {*first, *second}
    assert len(set(later.values())) == len(later)
    assert max(Counter(p.rpartition("/")[0] for p in later.values()).values(), default=0) <= limit
    assert later == place([*second, *first], family="f", held=held.blobs, used=entries(held), limit=limit)
