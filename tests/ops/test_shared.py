"""What two files share: every range that is found is true, and what derive keeps is found."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from poolmgr.model.ranges import SharedRanges
from poolmgr.ops.shared import SHORTEST, shared_ranges
from poolmgr.sif.source import BytesSource

SOUP = random.Random(1).randbytes(3 << 20)  # as compressed data is


def find(target: bytes, base: bytes) -> SharedRanges:
    """The ranges, each of which is looked at."""
    shared = shared_ranges(BytesSource(target), BytesSource(base))
    for one in shared.ranges:
        assert target[one.target : one.end] == base[one.base : one.base + one.length]
    return shared


def test_equal_files_share_everything() -> None:
    assert find(SOUP, SOUP).text() == f"0+{len(SOUP)}"


def test_a_changed_head_and_a_longer_tail_cost_themselves_only() -> None:
    target = SOUP[:100] + b"other" + SOUP[105:] + b"tail" * 5000
    (one,) = find(target, SOUP).ranges
    assert (one.target, one.base, one.end) == (105, 105, len(SOUP))


def test_what_moved_is_found_to_the_byte() -> None:
    cuts = [0, 700_001, 1_500_003, len(SOUP)]
    parts = [SOUP[a:b] for a, b in itertools.pairwise(cuts)]
    target = b"new" * 50_000 + parts[2] + b"\1" * 300_000 + parts[0] + parts[1]
    found = find(target, SOUP)
    assert [(r.base, r.length) for r in found.ranges] == [(cuts[2], len(parts[2])), (0, cuts[2])]


def test_strangers_share_nothing() -> None:
    assert find(random.Random(2).randbytes(1 << 20), SOUP).ranges == ()
    assert find(b"", SOUP).ranges == find(SOUP, b"").ranges == ()


def test_short_runs_are_left_out() -> None:
    target = SOUP[: SHORTEST - 1] + b"\1" * 500_000
    assert find(target, SOUP).ranges == ()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(SOUP)), st.integers(0, 600_000), st.integers(0, 200_000)), max_size=6
    ),
    st.integers(0, len(SOUP)),
)
def test_whatever_is_cut_from_whatever(cuts: list[tuple[int, int, int]], end: int) -> None:
    target = b"".join(SOUP[at : at + length] + bytes(fill) for at, length, fill in cuts)
    find(target, SOUP[:end])
