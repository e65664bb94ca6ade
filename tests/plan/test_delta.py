"""Which blobs are made of a base, in which order, and of which pieces."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import Blob, Listing
from poolmgr.model.ranges import Range, Relative, SharedRanges
from poolmgr.plan.delta import MAX_WAVES, REQUEST, Held, pieces
from poolmgr.plan.item import Item, Local, Piece, State
from poolmgr.plan.transfer import FetchPlan, plan_fetch

SIZE = 10 * REQUEST
MOST = f"{REQUEST}+{SIZE - 2 * REQUEST}"


def sha(name: str) -> str:
    return name.encode().hex().ljust(64, "0")


def plan(
    names: str,
    relatives: dict[str, Relative],
    *,
    held: dict[str, Held] | None = None,
    local: dict[str, Local] | None = None,
) -> FetchPlan:
    blobs = {n: Blob(n, SIZE, sha(n)) for n in names}
    wanted = {"v": {f"t{n}": n for n in names}}
    return plan_fetch(wanted, {"v": len(names)}, Listing("p", None, blobs), local or {}, {}, relatives, held)


def of(base: str, shared: str = MOST) -> Relative:
    return Relative(sha(base), shared)


def item(made: FetchPlan, name: str) -> Item:
    return next(i for i in made.items if i.blob.path == name)


def test_a_base_that_is_here_gives_what_it_shares() -> None:
    made = plan("d", {"d": of("b")}, held={sha("b"): Held("images/b.sif", SIZE)})
    (one,) = made.items
    assert one.state is State.MISSING
    assert one.base is not None
    assert (one.base.path, one.base.wave) == ("images/b.sif", 0)
    assert (one.transfer, one.saved, one.room) == (2 * REQUEST, SIZE - 2 * REQUEST, SIZE)
    assert made.saved == one.saved
    assert one.base.pieces == (
        Piece(0, REQUEST, None),
        Piece(REQUEST, SIZE - REQUEST, REQUEST),
        Piece(SIZE - REQUEST, SIZE, None),
    )


def test_without_the_base_it_comes_whole() -> None:
    (one,) = plan("d", {"d": of("b")}).items
    assert (one.base, one.transfer, one.saved) == (None, SIZE, 0)


def test_what_a_partial_has_is_not_saved_twice() -> None:
    held = {sha("b"): Held("b", SIZE)}
    (one,) = plan("d", {"d": of("b")}, held=held, local={"d": Local(partial=5 * REQUEST)}).items
    assert one.state is State.PARTIAL
    assert (one.have, one.saved, one.transfer) == (5 * REQUEST, 4 * REQUEST, REQUEST)


def test_bases_of_this_run_come_first() -> None:
    made = plan("abc", {"a": of("b"), "b": of("c")})
    assert [(i.blob.path, i.wave, i.base is not None) for i in made.items] == [
        ("a", 2, True),
        ("b", 1, True),
        ("c", 0, False),
    ]


def test_a_circle_is_broken() -> None:
    made = plan("ab", {"a": of("b"), "b": of("a")})
    assert sorted((i.wave, i.base is not None) for i in made.items) == [(0, False), (1, True)]
    (own,) = plan("a", {"a": of("a")}).items
    assert own.base is None


def test_a_base_that_the_pool_lacks_is_none() -> None:
    blobs = {"d": Blob("d", SIZE, sha("d"))}
    made = plan_fetch(
        {"v": {"t": "d", "u": "b"}}, {"v": 2}, Listing("p", None, blobs), {}, {}, {"d": of("b")}, {}
    )
    assert item(made, "d").base is None


def test_a_blob_without_a_hash_is_never_made_of_a_base() -> None:
    blobs = {"d": Blob("d", SIZE)}
    held = {sha("b"): Held("b", SIZE)}
    made = plan_fetch({"v": {"t": "d"}}, {"v": 1}, Listing("p", None, blobs), {}, {}, {"d": of("b")}, held)
    assert made.items[0].base is None


def test_ranges_that_cannot_be_are_said_and_not_used() -> None:
    held = {sha("b"): Held("b", SIZE)}
    for text in ("junk", f"0+{SIZE + 1}", f"0+{SIZE}@1"):
        made = plan("d", {"d": of("b", text)}, held=held)
        assert made.items[0].base is None
        (note,) = made.notes
        assert note.startswith("d: its shared_ranges cannot be")


def test_ranges_that_are_not_worth_a_request_are_fetched() -> None:
    shared = SharedRanges.of([Range(0, 0, REQUEST - 1), Range(REQUEST, 0, REQUEST)], SIZE, SIZE)
    assert pieces(shared, SIZE) == (
        Piece(0, REQUEST, None),
        Piece(REQUEST, 2 * REQUEST, 0),
        Piece(2 * REQUEST, SIZE, None),
    )


def test_xet_brings_them_whole() -> None:
    made = plan("d", {"d": of("b")}, held={sha("b"): Held("b", SIZE)}).whole()
    assert (made.saved, made.transfer) == (0, SIZE)


@given(
    st.lists(st.tuples(st.integers(0, 3 * REQUEST), st.integers(1, 3 * REQUEST)), max_size=8),
    st.integers(0, 9),
)
def test_pieces_are_the_whole_blob_in_order(drawn: list[tuple[int, int]], rest: int) -> None:
    ranges, at = [], 0
    for gap, length in drawn:
        ranges.append(Range(at + gap, 7, length))
        at += gap + length
    size = at + rest
    made = pieces(SharedRanges.of(ranges, size, size + 10), size)
    assert [p.start for p in made] == [0, *(p.end for p in made)][: len(made)]
    assert (made[-1].end if made else 0) == size
    true = {n: r.base for r in ranges for n in (r.target,)}
    assert all(p.base is None or (true[p.start] == p.base and p.end - p.start >= REQUEST) for p in made)
    assert not any(one.base is None and two.base is None for one, two in itertools.pairwise(made))


names = st.sampled_from("abcdefghijklmnop")


@given(st.dictionaries(names, names), st.sets(names))
def test_every_base_is_here_or_comes_before(bases: dict[str, str], held: set[str]) -> None:
    made = plan(
        "abcdefghijklmnop",
        {n: of(b) for n, b in bases.items()},
        held={sha(h): Held("elsewhere/" + h, SIZE) for h in held},
    )
    waves = {i.blob.path: i.wave for i in made.items}
    for one in made.items:
        assert 0 <= one.wave <= MAX_WAVES
        if one.base is not None:
            base = bases[one.blob.path]
            assert one.base.sha256 == sha(base)
            assert (one.wave == 0) == (base in held)
            assert one.wave == 0 or waves[base] < one.wave
        assert one.transfer + one.saved == one.lacks
