"""Maps of tasks to files: every form, and everything that is wrong told at once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.errors import MapInvalidError
from poolmgr.model.task_map import MapRow, parse_map


def rows_of(data: bytes, name: str) -> tuple[MapRow, ...]:
    found = parse_map(data, name)
    found.refuse()
    return found.rows


TWO = (MapRow("t1", "a.sif"), MapRow("t2", "images/b.sif"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.json", '{"t1": "a.sif", "t2": "images/b.sif"}'),
        ("m.json", '{"t1": {"file": "a.sif"}, "t2": {"blob": "images/b.sif"}}'),
        ("m.json", '[{"task": "t1", "file": "a.sif"}, {"task_id": "t2", "path": "images/b.sif"}]'),
        ("m.jsonl", '{"task": "t1", "file": "a.sif"}\n\n{"task": "t2", "file": "images/b.sif"}\n'),
        ("stdin", '{"task": "t1", "file": "a.sif"}\n{"task": "t2", "file": "images/b.sif"}\n'),
        ("stdin", '{"t1": "a.sif", "t2": "images/b.sif"}'),
        ("m.csv", "task,file\r\nt1,a.sif\r\nt2,images/b.sif\r\n"),
        ("m.csv", 't1,a.sif\nt2,"images/b.sif"\n'),
        ("m.tsv", "file\ttask\na.sif\tt1\nimages/b.sif\tt2\n"),
        ("m.tsv", "t1\ta.sif\nt2\timages/b.sif"),
        ("stdin", "t1\ta.sif\nt2\timages/b.sif"),
        ("stdin", "\ufefftask,file,comment\nt1,a.sif,x\nt2,images/b.sif,\n"),
    ],
)
def test_forms(name: str, text: str) -> None:
    assert rows_of(text.encode(), name) == TWO


def test_references_and_digests() -> None:
    digest = "sha256:" + "ab" * 32
    rows = rows_of(
        f"task\tfile\timage\tdigest\nt\ta.sif\tacme/env:1\t{digest}\nu\tb.sif\t\t\n".encode(), "m.tsv"
    )
    assert rows == (MapRow("t", "a.sif", "acme/env:1", digest), MapRow("u", "b.sif"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"t": "a", "t": "b"}', "more than once"),
        ('[{"task": "t", "file": "a"}, {"task": "t", "file": "a"}]', "more than once"),
        ('{"t": "../a.sif"}', "'..'"),
        ('{"t": "a\\\\b.sif"}', "backslash"),
        ('{"t": "a\\nb.sif"}', "control character"),
        ('{"t": ".hidden/a.sif"}', "begins with a dot"),
        ('{"t": ""}', "is empty"),
        ('{"t": 3}', "no file"),
        ('{"t": null}', "no file"),
        ('{"": "a.sif"}', "is empty"),
        ('{"t": {"x": "a.sif"}}', "no file"),
        ("[3]", "name is missing"),
        ("[]", "names no task"),
        ("{}", "names no task"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"t": NaN}', "no JSON value"),
        ('{"hard": {"t": "a.sif"}}', "no file"),
        ('{"t": {"file": "a.sif", "digest": "sha256:12"}}', "no digest"),
        ('{"t": {"file": "a.sif", "image": "a\\u0000"}}', "no image reference"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(MapInvalidError, match=r"m\.json") as e:
        rows_of(text.encode(), "m.json")
    assert said in str(e.value)


def test_everything_wrong_is_told_at_once() -> None:
    with pytest.raises(MapInvalidError) as e:
        rows_of(b"task\tfile\nt\ta.sif\nt\tb.sif\nu\t/../c\nv\n", "m.tsv")
    assert len(e.value.details) == 3
    assert e.value.details[1] == "line 4: '/../c' has a '..' component"
    assert "2 more" in e.value.message


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(MapInvalidError, match="not UTF-8"):
        rows_of(b"\xff\xfe", "m.tsv")


NAMES = st.sampled_from(["m.json", "m.csv", "m.tsv", "m.jsonl", "x"])
TASKS = st.text("ab\t, \"'é", min_size=1).filter(lambda t: t.isprintable())


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode), NAMES)
def test_any_bytes_are_rows_or_one_error(data: bytes, name: str) -> None:
    try:
        rows = rows_of(data, name)
    except MapInvalidError:
        return
    assert rows
    assert len({row.task for row in rows}) == len(rows)


@given(st.dictionaries(TASKS, st.just("images/a.sif"), min_size=1))
def test_json_gives_back_what_was_written(tasks: dict[str, str]) -> None:
    rows = rows_of(json.dumps(tasks).encode(), "m.json")
    assert {row.task: row.file for row in rows} == tasks
