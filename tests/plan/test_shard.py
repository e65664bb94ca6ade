"""Slices of a run: stable by path, complete, and never of a guessed number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.errors import UsageError
from poolmgr.plan.shard import ArrayTask, Shard, parse_shard


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), unique=True), st.integers(1, 40))
def test_every_path_is_in_exactly_one_slice(paths: list[str], count: int) -> None:
    for path in paths:
        assert sum(Shard(i, count).holds(path) for i in range(count)) == 1


def test_a_slice_does_not_move() -> None:
    """The rule is part of the interface: a run of yesterday and one of today agree."""
    assert [n for n in range(12) if Shard(2, 4).holds(f"images/{n}.sif")] == [4, 8, 9]


def test_workers_may_be_counted_from_0_or_from_1() -> None:
    for words in (("0/3", "1/3", "2/3"), ("1/3", "2/3", "3/3")):
        assert {parse_shard(word, None).index for word in words} == {0, 1, 2}


def test_one_task_of_an_array_that_is_run_again_repeats_its_slice() -> None:
    whole = parse_shard("auto/32", ArrayTask(7, 0, 31, 32))
    again = parse_shard("auto/32", ArrayTask(7, 7, 7, 1))
    assert whole == again == Shard(7, 32)


def test_the_number_is_taken_from_slurm_only_when_the_array_is_whole() -> None:
    assert parse_shard("auto", ArrayTask(3, 0, 3, 4)) == Shard(3, 4)
    assert parse_shard("auto/auto", ArrayTask(0, 0, 3, 4)) == Shard(0, 4)
    for array in (
        ArrayTask(3, 3, 3, 1),
        ArrayTask(1, 1, 4, 4),
        ArrayTask(0, 0, 6, 4, 2),
        ArrayTask(0, 0, 5, 3),
    ):
        with pytest.raises(UsageError, match="cannot be told"):
            parse_shard("auto", array)


@pytest.mark.parametrize(
    "text", ["", "3", "4/3", "-1/3", "a/3", "1/0", "1/x", "1/2/3", "auto/0", "١/3", "1/9999999999"]
)
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(UsageError):
        parse_shard(text, ArrayTask(1, 0, 3, 4))


def test_outside_an_array() -> None:
    with pytest.raises(UsageError, match="no task of a Slurm array"):
        parse_shard("auto/4", None)
