"""Pools under ``env count`` and ``query``: what a variant's blobs share, and the tables of a pool."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from poolmgr.catalogue.schema import EXAMPLES
from tests.conftest import RunPoolmgr


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Three blobs, two of one content; the record knows two trees."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = tmp_path / "pool"
    contents = {"images/a.sif": b"same", "images/b.sif": b"same", "derived/c.sif": b"other"}
    for path, content in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    index = {
        "one": {"t1": "images/a.sif", "t2": "images/a.sif", "t3": "images/b.sif"},
        "two": {"t1": "images/a.sif", "t4": "derived/c.sif"},
    }
    (root / "task_to_blob.json").write_text(json.dumps(index))
    table = {
        "path": list(contents),
        "size": [len(c) for c in contents.values()],
        "sha256": [hashlib.sha256(c).hexdigest() for c in contents.values()],
        "tree_sha256": ["t" * 64, "t" * 64, None],
    }
    pq.write_table(pa.table(table), root / "blobs.parquet")
    return root


def test_a_variant_is_counted_by_file_content_and_tree(pool: Path, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("env", "count", "-p", pool, "--variant", "one", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {k: found[k] for k in ("tasks", "blobs", "largest", "single_use", "sha256", "trees")} == {
        "tasks": 3, "blobs": 2, "largest": 2, "single_use": 1, "sha256": 1, "trees": 1,
    }  # fmt: skip
    text = poolmgr("env", "count", "-p", pool, "--variant", "two").stdout
    assert "distinct contents  2" in text
    assert "of the 1 files on record" in text
    assert poolmgr("env", "count", "-p", pool, "--variant", "two", "--limit", 1).returncode == 3


def test_what_no_file_has_on_record_is_null_and_not_0(pool: Path, poolmgr: RunPoolmgr) -> None:
    (pool / "blobs.parquet").unlink()
    found = json.loads(poolmgr("env", "count", "-p", pool, "--variant", "one", "--json").stdout)
    assert (found["sha256"], found["with_sha256"], found["trees"], found["with_tree"]) == (None, 0, None, 0)


def test_only_an_explicit_pool_means_a_pool(pool: Path, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("env", "count", env={"POOLMGR_POOL": str(pool)})
    assert done.returncode == 2
    assert poolmgr("env", "count", "-p", pool).returncode == 2
    assert poolmgr("env", "count", "-p", pool, "--variant", "three").returncode == 3


def test_a_pool_as_tables(pool: Path, poolmgr: RunPoolmgr) -> None:
    sql = "SELECT directory, count(*) n, sum(size) s FROM blobs WHERE path LIKE '%.sif' GROUP BY 1 ORDER BY 1"
    done = poolmgr("query", sql, "-p", pool, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == [["derived", 1, 5], ["images", 2, 8]]
    sql = dict(EXAMPLES)["blobs shared by two variants"]
    assert poolmgr("query", sql, "-p", pool, "-q").stdout.split() == ["images/a.sif"]


def test_what_audit_found_is_in_the_tables(pool: Path, poolmgr: RunPoolmgr) -> None:
    assert poolmgr("audit", "two", "-p", pool, "--level", "mount", "--no-dataset").returncode == 3
    done = poolmgr("query", dict(EXAMPLES)["tasks whose blob failed"], "-p", pool, "--json")
    rows = json.loads(done.stdout)["rows"]
    assert {(variant, task) for variant, task, *_ in rows} >= {("two", "t1"), ("two", "t4"), ("one", "t1")}
    assert all("not-sif" in codes for *_, codes in rows)
