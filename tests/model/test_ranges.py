"""Shared ranges: what may be, and the text that a pool keeps of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.ranges import MAX_RANGES, MAX_TEXT, Range, SharedRanges

BASE_SIZE = 10_000


@st.composite
def possible(draw: st.DrawFn) -> tuple[list[Range], int]:
    """Ranges in order, apart or touching, and a target that they fit."""
    ranges, at = [], 0
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 500)), max_size=20)):
        base = draw(st.integers(0, BASE_SIZE - length))
        ranges.append(Range(at + gap, draw(st.sampled_from([base, min(at + gap, base)])), length))
        at += gap + length
    return ranges, at + draw(st.integers(0, 50))


@given(possible())
def test_the_text_gives_the_ranges_back(drawn: tuple[list[Range], int]) -> None:
    ranges, size = drawn
    shared = SharedRanges.of(ranges, size, BASE_SIZE)
    assert SharedRanges.parse(shared.text(), size, BASE_SIZE) == shared
    assert shared.ranges == tuple(ranges)
    assert shared.size == sum(r.length for r in ranges) <= size
    assert len(shared.text()) <= MAX_TEXT


def test_the_text() -> None:
    shared = SharedRanges.of([Range(0, 0, 5), Range(7, 100, 3)], 10, 200)
    assert shared.text() == "0+5,7+3@100"
    assert SharedRanges.parse("", 10, 10) == SharedRanges(())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0+5,4+1", "begins before byte 5"),
        ("5+1,0+1", "begins before byte 6"),
        ("0+0", "no range"),
        ("0+11", "leaves the blob's 10 bytes"),
        ("10+1", "leaves the blob's 10 bytes"),
        ("0+5@16", "leaves the base's 20 bytes"),
        ("0+5@-1", "no range"),
        ("-1+5", "no range"),
        ("0+5,", "no range"),
        (",0+5", "no range"),
        ("0+5 6+1", "no range"),
        ("0+5\n", "no range"),
        ("00+5", "no range"),
        ("٠+٥", "no range"),
        ("0+1@99999999999999999999", "no range"),
        ("0+999999999999999", "leaves the blob"),
        ("0+5@1@2", "no range"),
        ("nonsense", "no range"),
        (",".join(f"{n}+1" for n in range(MAX_RANGES + 1)), r"leaves the blob|more than"),
        ("0" * (MAX_TEXT + 1), "characters, more than"),
    ],
)
def test_what_cannot_be_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SharedRanges.parse(text, 10, 20)


def test_too_many_ranges() -> None:
    size = MAX_RANGES + 1
    full = [Range(n, n, 1) for n in range(size)]
    assert len(SharedRanges.of(full[:-1], size, size).ranges) == MAX_RANGES
    with pytest.raises(ValueError, match="more than"):
        SharedRanges.of(full, size, size)


@given(
    st.text("0123456789+@,-. \nx", max_size=60) | st.text(max_size=20), st.integers(0, 99), st.integers(0, 99)
)
def test_any_text_is_ranges_inside_both_files_or_a_value_error(text: str, size: int, base_size: int) -> None:
    try:
        shared = SharedRanges.parse(text, size, base_size)
    except ValueError:
        return
    reached = 0
    for one in shared.ranges:
        assert one.target >= reached
        assert one.length > 0
        assert 0 <= one.base <= base_size - one.length
        reached = one.end
    assert reached <= size
    assert SharedRanges.parse(shared.text(), size, base_size) == shared
