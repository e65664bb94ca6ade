"""``poolmgr query``: making a catalogue, asking it, and the forms of its answer."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.conftest import RunPoolmgr
from tests.harbor.trees import write_task


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    for n in range(4):
        write_task(tmp_path / "d" / f"t{n}", {"Dockerfile": f"FROM a:{n % 2}\n"})
    return tmp_path / "d"


COUNT = "SELECT dataset, count(DISTINCT hash) AS n FROM environments GROUP BY dataset"


def test_a_dataset_is_asked_directly(dataset: Path, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("query", COUNT, "-d", dataset)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["dataset  n", "d        2"]


def test_the_catalogue_agrees_with_env_count(dataset: Path, poolmgr: RunPoolmgr) -> None:
    write_task(dataset / "bad", toml="= 1")
    counted = json.loads(poolmgr("env", "count", dataset, "--json", "--scheme", "all").stdout)["datasets"][0]
    assert poolmgr("query", "-d", dataset, "--catalogue", "c").returncode == 3, (
        "a bad task is not passed over"
    )
    sql = (
        "SELECT (SELECT count(*) FROM tasks WHERE is_task), (SELECT count(*) FROM tasks WHERE NOT is_task), "
        "count(DISTINCT hash), count(DISTINCT snapshot), count(DISTINCT hash_build) FROM environments"
    )
    done = poolmgr("query", sql, "--catalogue", "c", "--json")
    assert json.loads(done.stdout)["rows"] == [
        [counted[k] for k in ("tasks", "not_tasks", "environments", "snapshots")]
        + [counted["by_scheme"]["build"]]
    ]


def test_forms(dataset: Path, tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    import pyarrow.parquet as pq

    assert poolmgr("query", "-d", dataset, "--catalogue", "c").stdout.splitlines()[-1] == "c"
    sql = "SELECT task, hash FROM environments ORDER BY task"
    rows = list(
        csv.reader(
            io.StringIO(poolmgr("query", "-", "--catalogue", "c", "--format", "csv", stdin=sql).stdout)
        )
    )
    assert [r[0] for r in rows] == ["task", "t0", "t1", "t2", "t3"]
    assert poolmgr("query", sql, "--catalogue", "c", "-q").stdout.split() == ["t0", "t1", "t2", "t3"]
    assert poolmgr("query", sql, "--catalogue", "c", "--format", "parquet", "-o", "x.parquet").returncode == 0
    assert pq.read_table(tmp_path / "x.parquet").column("task").to_pylist() == ["t0", "t1", "t2", "t3"]
    again = poolmgr("query", sql, "--catalogue", "c", "--format", "csv", "-o", "x.parquet")
    assert again.returncode == 1
    assert "already-exists" in again.stderr
    assert poolmgr("query", sql, "--catalogue", "c", "--format", "csv", "-o", "x.csv").returncode == 0
    assert (tmp_path / "x.csv").read_text().splitlines()[0] == "task,hash"


def test_usage_and_refusals(dataset: Path, tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    assert poolmgr("query", "SELECT 1").returncode == 2
    assert poolmgr("query", "-d", dataset).returncode == 2
    assert poolmgr("query", "SELECT 1", "-d", dataset, "--format", "parquet").returncode == 2
    done = poolmgr("query", "COPY tasks TO 'x'", "-d", dataset, "--json")
    assert done.returncode == 1
    assert json.loads(done.stderr.splitlines()[-1])["code"] == "query-refused"
    assert not (tmp_path / "x").exists()


def test_tables(poolmgr: RunPoolmgr) -> None:
    done = poolmgr("query", "--tables")
    assert done.returncode == 0
    assert "distinct environments per dataset" in done.stdout
    assert poolmgr("query", "--tables", "-q").stdout.split() == [
        "blobs",
        "assignments",
        "checks",
        "tasks",
        "environments",
    ]


def test_what_is_wrong_with_a_whole_task_is_in_its_codes(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    write_task(tmp_path / "d" / "a")
    listed = tmp_path / "d" / "dataset.toml"
    listed.write_text(f'[[tasks]]\nname = "o/a"\ndigest = "sha256:{"0" * 64}"\n')
    done = poolmgr("query", "SELECT task, codes FROM tasks", "-d", listed, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["rows"] == [["a", "task-digest"]]
