"""Rows of datasets in every layout; nothing is left out in silence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolmgr.errors import DatasetInvalidError
from poolmgr.harbor import rows as reader
from poolmgr.model.task import Row
from poolmgr.ops.dataset import Dataset, open_dataset
from poolmgr.settings import Settings


def dataset(place: Path) -> Dataset:
    return open_dataset(str(place), Settings.read())


def read(place: Path) -> tuple[Row, ...]:
    return dataset(place).rows


def pairs(place: Path) -> list[tuple[str | None, str | None]]:
    rows = read(place)
    assert [r for r in rows if r.trouble] == []
    return [(r.task, r.image) for r in rows]


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return path


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


CONFIG = {"env_name": "e", "image": "acme/e:1", "task_id": "t1"}


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_env_config_as_struct_and_as_text(tmp_path: Path, form: str, as_text: bool) -> None:
    rows = [{"messages": ["x" * 100], "env_config": json.dumps(CONFIG) if as_text else CONFIG}]
    path = tmp_path / f"a.{form}"
    (parquet if form == "parquet" else lines)(path, rows)
    assert pairs(path) == [("t1", "acme/e:1")]


def test_columns_stand_in_for_what_env_config_does_not_say(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"task_id": "a", "image": "i:1"},
        {"task_id": 7, "image": None},
        {"env_config": {"image": "i:2"}, "ground_truth": "b"},
        {"env_config": {"image": None, "task_id": "c"}, "image": "i:3"},
    ]
    expected = [("a", "i:1"), ("7", None), ("b", "i:2"), ("c", "i:3")]
    assert pairs(lines(tmp_path / "a.jsonl", rows)) == expected
    for i, row in enumerate(rows):
        assert pairs(parquet(tmp_path / f"{i}.parquet", [row])) == [expected[i]]


def test_a_picture_in_the_image_column_is_no_reference(tmp_path: Path) -> None:
    row = {"env_config": CONFIG, "image": {"bytes": b"\x89PNG", "path": "x.png"}}
    assert pairs(parquet(tmp_path / "a.parquet", [row])) == [("t1", "acme/e:1")]


def test_a_folder_of_shards_in_order_and_packed_lines(tmp_path: Path) -> None:
    for shard in (1, 0):
        parquet(tmp_path / "data" / f"train-{shard}.parquet", [{"task_id": f"t{shard}", "image": "i"}])
    packed = tmp_path / "x.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"task_id":"z","image":"i"}\n'))
    assert [task for task, _ in pairs(tmp_path)] == ["t0", "t1"]
    assert pairs(packed) == [("z", "i")]
    assert dataset(tmp_path).skipped == (("x.jsonl.gz", "the dataset's rows are in Parquet"),)


def test_a_json_list_is_read_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"task_id": "a", "image": "i"}, {"task_id": "b"}], indent=1))
    assert pairs(path) == [("a", "i"), ("b", None)]


def test_an_image_file_in_the_tasks_folder_is_used_where_the_row_names_none(tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", [{"task_id": "a", "image": "i"}, {"task_id": "b"}])
    (tmp_path / "tasks" / "b").mkdir(parents=True)
    (tmp_path / "tasks" / "b" / "image.txt").write_text("acme/b:1\n")
    (tmp_path / "tasks" / "b" / "hidden.jsonl").write_text("not a row file of the dataset")
    assert pairs(tmp_path) == [("a", "i"), ("b", "acme/b:1")]
    (tmp_path / "more" / "b").mkdir(parents=True)
    (tmp_path / "more" / "b" / "image.txt").write_text("acme/b:2\n")
    assert "2 image files" in (read(tmp_path)[1].trouble or "")


def task(folder: Path, text: str | None = None, image: str | None = None) -> None:
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "task.toml").write_text(text)
    if image is not None:
        (folder / "image.txt").write_text(image)


def test_task_folders(tmp_path: Path) -> None:
    root = tmp_path / "d"
    task(root / "a", '[environment]\ndocker_image = "acme/a:1"\n')
    task(root / "b", "[environment]\n", "acme/b:1")
    task(root / "c", None, "acme/c:1")
    task(root / "built", "[metadata]\n")
    task(root / "broken", "[environment\n")
    task(root / "odd", "environment = 3\n")
    task(root / "two", None, "acme/c:1 acme/c:2")
    (root / "a" / "tests").mkdir()
    (root / "a" / "tests" / "x.parquet").write_bytes(b"")
    task(root / "notes")
    (root / "notes" / "n.md").write_text("x")
    rows = {r.task: r for r in read(root)}
    assert {t: r.image for t, r in rows.items() if not r.trouble} == {
        "a": "acme/a:1", "b": "acme/b:1", "c": "acme/c:1", "built": None,
    }  # fmt: skip
    assert "not TOML" in (rows["broken"].trouble or "")
    assert "not a table" in (rows["odd"].trouble or "")
    assert "2 words" in (rows["two"].trouble or "")
    assert dataset(root).skipped == (("notes", "holds no task.toml and no image.txt"),)
    assert [r.task for r in read(root / "a")] == ["a"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"image": "i"}, "no task id"),
        ({"env_config": "{", "task_id": "t"}, "not JSON"),
        ({"env_config": "[1]", "task_id": "t"}, "not an object"),
        ({"env_config": "[" * 100_000, "task_id": "t"}, "nested"),
        ({"env_config": '{"image":"a","image":"b"}', "task_id": "t"}, "twice"),
        ({"env_config": " " + "x" * (1 << 20), "task_id": "t"}, "more than"),
        ({"env_config": 3, "task_id": "t"}, "neither"),
        ({"env_config": {"task_id": "a"}, "task_id": "b"}, "'a'"),
        ({"task_id": True}, "not a text"),
        ({"task_id": "t", "image": 5}, "not a text"),
        ({"task_id": "t\n", "image": "i"}, "control"),
        ({"task_id": "t", "image": "x" * 5000}, "longer"),
        ([1], "not an object"),
        (None, "not an object"),
    ],
)
def test_a_row_that_cannot_be_used_says_why_and_the_rest_goes_on(tmp_path: Path, row: Any, why: str) -> None:
    rows = read(lines(tmp_path / "a.jsonl", [row, {"task_id": "ok", "image": "i"}]))
    assert [r.task for r in rows][-1] == "ok"
    assert len(rows) == 2
    assert why in (rows[0].trouble or "")
    assert rows[0].where == "a.jsonl line 1"


def test_lines_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xff\n\n{"task_id":"ok"}\n{"task_id":')
    assert [(r.task, r.trouble is None) for r in read(path)] == [(None, False), ("ok", True), (None, False)]


def test_a_line_without_end_is_skipped_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_LINE", 100)
    rows = read(lines(tmp_path / "a.jsonl", [{"task_id": "x" * 1000}, {"task_id": "ok"}]))
    assert "longer than 100" in (rows[0].trouble or "")
    assert [r.task for r in rows] == [None, "ok"]


def test_files_that_are_cut(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet", [{"task_id": f"t{i}", "image": "i"} for i in range(9)])
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "b.parquet").write_bytes(whole.read_bytes()[:-20])
    parquet(tmp_path / "cut" / "c.parquet", [{"task_id": "ok", "image": "i"}])
    rows = read(tmp_path / "cut")
    assert "Parquet" in (rows[0].trouble or "")
    assert rows[1].task == "ok"
    packed = tmp_path / "x.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"task_id":"z"}\n' * 1000)[:-12])
    assert "gzip" in (read(packed)[-1].trouble or "")
    packed.write_bytes(b"no gzip at all")
    assert "gzip" in (read(packed)[-1].trouble or "")


def test_damaged_parquet_never_raises_anything_else(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet", [{"task_id": f"t{i}", "env_config": CONFIG} for i in range(9)])
    data = whole.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 150)):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        whole.write_bytes(damaged)
        assert read(whole)


def test_a_parquet_file_without_the_columns_names_those_it_has(tmp_path: Path) -> None:
    (row,) = read(parquet(tmp_path / "a.parquet", [{"path": "x", "task_binary": b""}]))
    assert "task_binary" in (row.trouble or "")


@pytest.mark.parametrize("what", ["empty", "gone", "wrong"])
def test_what_holds_no_rows_is_an_error(tmp_path: Path, what: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "wrong").write_text("x")
    with pytest.raises(DatasetInvalidError):
        read(tmp_path / what)


def test_a_link_loop_ends(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", [{"task_id": "a"}])
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    assert {row.task for row in read(tmp_path)} == {"a"}


def test_files_that_are_links_are_read(tmp_path: Path) -> None:
    """As the Hub client's cache lays a snapshot out."""
    (tmp_path / "blobs").mkdir()
    parquet(tmp_path / "blobs" / "abc", [{"task_id": "a", "image": "i"}])
    (tmp_path / "snapshots" / "c" / "data").mkdir(parents=True)
    (tmp_path / "snapshots" / "c" / "data" / "train.parquet").symlink_to("../../../blobs/abc")
    assert pairs(tmp_path / "snapshots" / "c") == [("a", "i")]


def test_eight_rows_of_every_kind(tmp_path: Path) -> None:
    rows: list[Any] = [{"env_config": {"image": "ubuntu:22.04", "task_id": f"g{i}"}} for i in range(3)]
    rows += [{"env_config": json.dumps({"image": f"acme/s{i}:1", "task_id": f"s{i}"})} for i in range(2)]
    rows += [{"env_config": {"task_id": "none"}}, {"env_config": {"task_id": "text"}}, {"env_config": CONFIG}]
    lines(tmp_path / "rows.jsonl", rows)
    task(tmp_path / "text", image="acme/text:1\n")
    assert dict(pairs(tmp_path)) == {
        "g0": "ubuntu:22.04", "g1": "ubuntu:22.04", "g2": "ubuntu:22.04", "s0": "acme/s0:1",
        "s1": "acme/s1:1", "none": None, "text": "acme/text:1", "t1": "acme/e:1",
    }  # fmt: skip
