"""poolmgr bind on the command line: text, JSON, quiet, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from poolmgr.ops.demo import DemoPool
from tests.conftest import RunPoolmgr


@pytest.fixture
def dataset(pool: DemoPool, tmp_path: Path) -> Path:
    index = json.loads((tmp_path / "pool/task_to_blob.json").read_text())
    rows = [{"env_config": {"image": "acme/x:1", "task_id": task}} for task in index["solvable"]]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return file


def images(file: Path) -> list[str]:
    return [json.loads(line)["env_config"]["image"] for line in file.read_text().splitlines()]


def test_rows_name_images_that_resolve_finds(poolmgr: RunPoolmgr, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "bound.jsonl"
    done = poolmgr("bind", dataset, "--variant", "solvable", "-p", "pool", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "names" in done.stdout
    assert images(out)
    assert all(Path(image).is_absolute() and Path(image).is_file() for image in images(out))


def test_json_and_quiet(poolmgr: RunPoolmgr, dataset: Path, tmp_path: Path) -> None:
    words = ("bind", dataset, "--variant", "solvable", "-p", "pool", "--out", "bound.jsonl")
    plan = json.loads(poolmgr(*words, "-n", "--json").stdout)
    assert (plan["written"], plan["dropped"]) == (False, [])
    assert not (tmp_path / "bound.jsonl").exists()
    done = json.loads(poolmgr(*words, "--json").stdout)
    assert {**done, "written": False} == plan
    again = poolmgr(*words, "--json")
    assert again.returncode == 1
    assert json.loads(again.stderr.splitlines()[-1])["code"] == "already-exists"
    quiet = poolmgr(*words[:-1], "other.jsonl", "-q")
    assert (quiet.stdout, quiet.stderr) == ("other.jsonl\n", "")


def test_a_task_that_does_not_resolve(poolmgr: RunPoolmgr, dataset: Path, tmp_path: Path) -> None:
    index = json.loads((tmp_path / "pool/task_to_blob.json").read_text())
    blob = next(iter(index["solvable"].values()))
    lost = [task for task, path in index["solvable"].items() if path == blob]
    (tmp_path / "pool" / blob).write_bytes(b"")
    words = ("bind", dataset, "--variant", "solvable", "-p", "pool", "--out", "bound.jsonl")
    refused = poolmgr(*words)
    assert refused.returncode == 3
    assert "error[unbound-tasks]" in refused.stderr
    assert lost[0] in refused.stderr
    assert not (tmp_path / "bound.jsonl").exists()
    done = poolmgr(*words, "--drop-missing", len(lost).__str__(), "--json")
    assert done.returncode == 0, done.stderr
    assert {d["task"] for d in json.loads(done.stdout)["dropped"]} == set(lost)
    assert {d["code"] for d in json.loads(done.stdout)["dropped"]} == {"zero-byte"}


def test_an_unknown_variant(poolmgr: RunPoolmgr, dataset: Path) -> None:
    done = poolmgr("bind", dataset, "--variant", "solvabel", "-p", "pool", "--out", "x.jsonl")
    assert done.returncode == 3
    assert "solvable" in done.stderr
