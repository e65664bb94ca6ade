"""The numbers of a pool, from its index and one listing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import Blob, Listing
from poolmgr.model.index import Index
from poolmgr.plan.summary import PoolSummary, summarize


def summary(
    variants: dict[str, dict[str, str]], sizes: dict[str, int], records: dict[str, int] | None = None,
    totals: dict[str, int] | None = None, trouble: dict[str, str] | None = None,
) -> PoolSummary:  # fmt: skip
    blobs = {p: Blob(p, s, trouble=(trouble or {}).get(p)) for p, s in sizes.items()}
    known = {p: Blob(p, s) for p, s in (records or {}).items()}
    return summarize(
        Index.build(variants, "test"), Listing("test", None, blobs), recorded=known.get, totals=totals or {},
        max_entries=9000,
    )  # fmt: skip


def test_shared_and_own_blobs_and_what_a_fetch_saves() -> None:
    s = summary(
        {
            "original": {"t1": "images/a.sif", "t2": "images/a.sif", "t3": "images/b.sif"},
            "solvable": {"t1": "derived/a.sif", "t3": "images/b.sif"},
        },
        {"images/a.sif": 100, "images/b.sif": 20, "derived/a.sif": 3, "images/spare.sif": 7, "README.md": 9},
    )
    original, solvable = s.variants
    assert (original.tasks, original.blobs, original.shared, original.own, original.size) == (3, 2, 1, 1, 120)
    assert (solvable.tasks, solvable.blobs, solvable.shared, solvable.own, solvable.size) == (2, 2, 1, 1, 23)
    assert (s.assignments, s.named, s.shared, s.missing) == (5, 3, 1, ())
    assert (s.blobs, s.size, s.orphans, s.orphan_size) == (4, 130, 1, 7)
    assert s.saved_by(solvable) == 107
    assert [(d.path, d.entries) for d in s.directories] == [("derived", 1), ("images", 3)]


def test_what_is_missing_is_named_and_counts_with_its_recorded_size() -> None:
    variants = {"v": {"t1": "a.sif", "t2": "b.sif", "t3": "c.sif", "t4": "d.sif"}}
    s = summary(variants, {"a.sif": 5, "d.sif": 1}, {"b.sif": 50}, trouble={"d.sif": "dangling-link"})
    assert s.variants[0].missing == s.missing == ("b.sif", "c.sif", "d.sif")
    assert (s.variants[0].size, s.variants[0].unsized, s.size) == (55, 2, 5)


def test_a_subset_says_so() -> None:
    s = summary({"v": {"t1": "a.sif"}}, {"a.sif": 5}, totals={"v": 7015})
    assert s.variants[0].subset
    assert s.variants[0].total_tasks == 7015
    assert not summary({"v": {"t1": "a.sif"}}, {"a.sif": 5}, totals={"v": 1}).variants[0].subset


PATHS = st.sampled_from([f"images/{n}.sif" for n in range(6)] + [f"derived/{n}.sif" for n in range(4)])


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.dictionaries(st.sampled_from("tuvwxyz"), PATHS, min_size=1),
        min_size=1,
    ),
    st.dictionaries(PATHS, st.integers(1, 100)),
)
def test_the_numbers_agree_with_each_other(
    variants: dict[str, dict[str, str]], sizes: dict[str, int]
) -> None:
    s = summary(variants, sizes)
    named = {p for tasks in variants.values() for p in tasks.values()}
    assert s.named == len(named)
    assert set(s.missing) == named - sizes.keys()
    assert s.blobs - s.orphans == len(named & sizes.keys())
    assert set(s.missing) == {p for v in s.variants for p in v.missing}
    for v in s.variants:
        assert v.own + v.shared == v.blobs
        assert s.saved_by(v) == s.size - v.size
    assert sum(v.own for v in s.variants) + s.shared == s.named
