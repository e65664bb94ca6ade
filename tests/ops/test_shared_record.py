"""The record of shared ranges that ``derive`` leaves for ``push``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.ranges import MAX_TEXT, Relative
from poolmgr.ops.shared_record import read_record, write_record

A, B = "a" * 64, "b" * 64


def test_it_reads_what_it_wrote(tmp_path: Path) -> None:
    rows = {A: Relative(B, "0+5,9+1@2")}
    write_record(tmp_path / "x.ranges.json", rows)
    assert read_record(tmp_path / "x.ranges.json") == rows


@pytest.mark.parametrize(
    "text",
    ["", "[]", "nonsense", '{"schema": 2, "blobs": {}}', '{"schema": 1, "blobs": []}', "[" * 100_000, "\x00"],
)
def test_what_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever kind
        read_record(tmp_path / "x")


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        "x",
        {},
        {"base_sha256": B},
        {"base_sha256": 7, "shared_ranges": ""},
        {"base_sha256": "short", "shared_ranges": ""},
        {"base_sha256": B, "shared_ranges": [1]},
        {"base_sha256": B, "shared_ranges": "9" * (MAX_TEXT + 1)},
    ],
)
def test_rows_that_cannot_be_are_left_out(tmp_path: Path, row: object) -> None:
    (tmp_path / "x").write_text(json.dumps({"schema": 1, "blobs": {A: row}}))
    assert read_record(tmp_path / "x") == {}


anything = st.recursive(
    st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
)


@given(anything)
def test_any_json_is_a_record_or_a_value_error(
    tmp_path_factory: pytest.TempPathFactory, body: object
) -> None:
    file = tmp_path_factory.mktemp("r") / "x"
    for whole in (body, {"schema": 1, "blobs": body}):
        file.write_text(json.dumps(whole))
        try:
            read_record(file)
        except ValueError:
            continue
