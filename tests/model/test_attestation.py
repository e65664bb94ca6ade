"""Attestations: they bind one file, come back as they were written, and nothing else is one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.attestation import CHECKS, Attestation, standing
from poolmgr.model.finding import CODES, Finding, Level, Severity, Verdict
from poolmgr.model.stamp import Stamp

STAMP = Stamp(10, 20, 30, 40)
NUMBER = st.integers(0, 2**63)
ROWS = st.builds(
    Attestation,
    pool=st.text(min_size=1, max_size=10),
    path=st.text(min_size=1, max_size=20),
    stamp=st.builds(Stamp, NUMBER, NUMBER, NUMBER, NUMBER),
    checks=st.dictionaries(st.sampled_from(CHECKS), st.sampled_from(Verdict), max_size=4),
    sha256=st.none() | st.just("ab" * 32),
    findings=st.lists(
        st.builds(
            Finding,
            st.sampled_from(sorted(CODES)),
            st.text(max_size=10),
            st.sampled_from(Severity),
            st.text(max_size=5),
        ),
        max_size=2,
    ).map(tuple),
    arch=st.none() | st.just("amd64"),
    versions=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    time=st.floats(0, 1e12),
)


@given(ROWS.filter(lambda row: all(c < "\ud800" or c > "\udfff" for c in row.pool + row.path)))
def test_a_row_comes_back_as_it_was_written(row: Attestation) -> None:
    line = row.to_line()
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert Attestation.from_line(line) == row


def good() -> dict[str, Any]:
    row: dict[str, Any] = json.loads(
        Attestation("id", "a.sif", STAMP, {"mount": Verdict.OK}, "ab" * 32, time=1.0).to_line()
    )
    return row


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2}, {"schema": "1"}, {"kind": "lock"}, {"size": "10"}, {"size": True}, {"size": 1.5},
        {"checks": []}, {"checks": {"mount": "fine"}}, {"checks": {"other": "ok"}}, {"checks": None},
        {"sha256": 5}, {"sha256": "short"}, {"path": None}, {"pool": 1}, {"time": None}, {"time": "x"},
        {"time": 10**400}, {"time": math.nan}, {"time": math.inf}, {"time": 1e13}, {"time": True},
        {"findings": 3}, {"findings": [3]}, {"findings": [{"code": "x"}]}, {"versions": 3}, {"arch": 1},
    ],
)  # fmt: skip
def test_a_changed_row_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the one class that a reader of lines catches
        Attestation.from_line(json.dumps({**good(), **change}))


@pytest.mark.parametrize(
    "key", ["schema", "kind", "pool", "path", "size", "mtime_ns", "ctime_ns", "inode", "checks"]
)
def test_a_row_that_lacks_something_is_none(key: str) -> None:
    row = good()
    del row[key]
    with pytest.raises(ValueError):  # noqa: PT011
        Attestation.from_line(json.dumps(row))


@given(
    st.text(max_size=60) | st.just("[" * 50_000) | st.sampled_from(["null", "[]", "3", '"x"', "{}", "NaN"])
)
def test_any_other_line_is_none(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Attestation.from_line(line)


def row(time: float, sha256: str | None = None, stamp: Stamp = STAMP, **checks: Verdict) -> Attestation:
    return Attestation("id", "a.sif", stamp, checks, sha256, time=time)


@pytest.mark.parametrize("field", ["size", "mtime_ns", "ctime_ns", "inode"])
def test_a_row_counts_only_while_the_whole_stamp_holds(field: str) -> None:

    other = STAMP._replace(**{field: 99})
    assert standing([row(1, mount=Verdict.OK)], other) is None


def test_the_newest_word_counts_and_a_shallow_pass_clears_no_deep_failure() -> None:
    told = standing([row(2, mount=Verdict.OK), row(1, data=Verdict.BAD)], STAMP)
    assert told is not None
    assert told.verdict is Verdict.BAD
    assert not told.proves(Level.LISTED, None)
    told = standing([row(1, mount=Verdict.BAD), row(2, data=Verdict.OK, sha256="ab" * 32)], STAMP)
    assert told is not None
    assert told.proves(Level.MOUNT, "ab" * 32)
    assert not told.proves(Level.MOUNT, "cd" * 32)


def test_a_level_proves_those_below_it_and_none_above() -> None:
    told = standing([row(1, mount=Verdict.OK)], STAMP)
    assert told is not None
    assert [level for level in Level if told.proves(level, None)] == [Level.LISTED, Level.HEADER, Level.MOUNT]
    assert not told.proves(Level.MOUNT, "ab" * 32)


@pytest.mark.parametrize("verdict", [Verdict.BAD, Verdict.UNCHECKED, Verdict.UNSUPPORTED])
def test_only_a_pass_proves(verdict: Verdict) -> None:
    told = standing([row(1, mount=verdict)], STAMP)
    assert told is not None
    assert not any(told.proves(level, None) for level in Level)


def test_nothing_proves_nothing() -> None:
    assert standing([], STAMP) is None
    told = standing([row(1)], STAMP)
    assert told is not None
    assert not told.proves(Level.LISTED, None)


@given(st.lists(ROWS, max_size=4), st.randoms())
def test_the_order_of_shards_does_not_matter(rows: list[Attestation], random: Any) -> None:
    from dataclasses import replace

    rows = [replace(r, stamp=STAMP, time=float(n)) for n, r in enumerate(rows)]
    mixed = list(rows)
    random.shuffle(mixed)
    assert standing(rows, STAMP) == standing(mixed, STAMP)
