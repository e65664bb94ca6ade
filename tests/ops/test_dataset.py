"""Datasets wherever they lie: a file, a folder, the Hub, fsspec."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from poolmgr.errors import DatasetInvalidError, PoolError
from poolmgr.ops.dataset import Dataset, open_dataset
from poolmgr.settings import Settings
from tests.loopback.hub import TOKEN, Hub

ROWS: list[dict[str, Any]] = [
    {"env_config": {"image": "acme/e:1", "task_id": "t1"}, "messages": "x" * 1000},
    {"env_config": {"image": None, "task_id": "t2"}, "messages": "x" * 1000},
]
LINES = "".join(json.dumps(r) + "\n" for r in ROWS).encode()


def parquet() -> bytes:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), out)
    return out.getvalue()


def read(address: str | Path) -> Dataset:
    return open_dataset(str(address), Settings.read())


def told(dataset: Dataset) -> list[tuple[str | None, str | None]]:
    return [(r.task, r.image) for r in dataset.rows]


WANTED = [("t1", "acme/e:1"), ("t2", None)]


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(LINES)
    (tmp_path / "rows.parquet").write_bytes(parquet())
    assert told(read(tmp_path / "rows.jsonl")) == WANTED
    assert told(read(tmp_path / "rows.parquet")) == WANTED


def test_a_folder_of_task_folders(tmp_path: Path) -> None:
    for task, image in (("t1", "acme/e:1"), ("t2", "")):
        (tmp_path / task).mkdir()
        (tmp_path / task / "task.toml").write_text(f'[environment]\ndocker_image = "{image}"\n')
    assert told(read(tmp_path)) == WANTED


def test_image_txt_beside_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(LINES)
    (tmp_path / "t2").mkdir()
    (tmp_path / "t2/image.txt").write_text("acme/e:2\n")
    assert told(read(tmp_path)) == [("t1", "acme/e:1"), ("t2", "acme/e:2")]


def test_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in hub.env(TOKEN).items():
        monkeypatch.setenv(name, value)
    hub.add_repo("datasets", "acme/rows", {"data/train.parquet": parquet(), "README.md": b"# rows"})
    assert told(read("hf://datasets/acme/rows")) == WANTED
    with pytest.raises(PoolError):
        read("hf://datasets/acme/none")


def test_a_file_or_folder_inside_a_repository(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in hub.env(TOKEN).items():
        monkeypatch.setenv(name, value)
    other = LINES.replace(b"t1", b"o1")
    hub.add_repo(
        "datasets",
        "acme/rows",
        {
            "data/train.parquet": parquet(),
            "other/rows.jsonl": other,
            "tasks/t1/task.toml": b'[environment]\ndocker_image = "acme/e:1"\n',
            "tasks/t2/task.toml": b"",
        },
    )
    for inside in ("/data/train.parquet", "/data", "/data/", "@main/data/train.parquet", "/tasks"):
        assert told(read(f"hf://datasets/acme/rows{inside}")) == WANTED
    assert told(read("hf://datasets/acme/rows/tasks/t1")) == WANTED[:1]
    found = read("hf://datasets/acme/rows/other/rows.jsonl")
    assert told(found) == [("o1", "acme/e:1"), ("t2", None)]
    assert found.address == "hf://datasets/acme/rows/other/rows.jsonl"
    with pytest.raises(DatasetInvalidError, match="no file or folder data/trian") as e:
        read("hf://datasets/acme/rows/data/trian.parquet")
    assert "data/train.parquet" in e.value.hint
    with pytest.raises(DatasetInvalidError, match="holds no rows"):
        read("hf://datasets/acme/rows/tasks/t1/task.toml")


def test_a_revision_with_a_slash(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in hub.env(TOKEN).items():
        monkeypatch.setenv(name, value)
    repo = hub.add_repo("datasets", "acme/rows", {"rows.jsonl": LINES})
    repo.refs["refs/pr/1"] = repo.refs["my/branch"] = repo.refs["main"]
    for revision in ("refs/pr/1", "my%2Fbranch"):
        for inside in ("", "/rows.jsonl"):
            assert told(read(f"hf://datasets/acme/rows@{revision}{inside}")) == WANTED


def test_any_fsspec_url() -> None:
    import fsspec

    name = f"memory://rows-{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe(f"{name}/rows.jsonl", LINES)
    assert told(read(name)) == WANTED
    assert told(read(f"{name}/rows.jsonl")) == WANTED
    with pytest.raises(DatasetInvalidError, match=r"no file or folder none\.jsonl"):
        read(f"{name}/none.jsonl")


def test_file_urls(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(LINES)
    assert told(read(f"file://{tmp_path}/rows.jsonl")) == told(read(f"file://{tmp_path}")) == WANTED


def test_none(tmp_path: Path) -> None:
    with pytest.raises(DatasetInvalidError, match="no such file or folder"):
        read(tmp_path / "none")
    with pytest.raises(DatasetInvalidError, match="holds no rows"):
        read(tmp_path)
