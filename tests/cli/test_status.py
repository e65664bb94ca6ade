"""``poolmgr status`` on a folder and on mirrors, as text, JSON and names."""

from __future__ import annotations

import json
from pathlib import Path

from poolmgr.ops.demo import VARIANT, DemoPool
from tests.conftest import RunPoolmgr


def test_a_folder(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("status", "-p", pool.folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(pool.folder)
    assert lines[1].startswith(f"  pool of {sum(pool.files.values())} blobs, ")
    assert "3 variants with 42 tasks on" in lines[2]
    assert max(map(len, lines[1:])) <= 80
    assert "alone saves" in done.stdout
    for variant in pool.tasks:
        assert variant in done.stdout
    for directory in pool.files:
        assert directory in done.stdout
    assert done.stderr == ""


def test_json_has_exact_numbers(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("status", "-p", pool.folder, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["kind"], document["bytes"]) == (1, "status", pool.size)
    assert document["blobs"] == sum(pool.files.values())
    variants = {row["variant"]: row for row in document["variants"]}
    for variant, tasks in pool.tasks.items():
        row = variants[variant]
        size = sum((pool.folder / path).stat().st_size for path in set(tasks.values()))
        assert (row["tasks"], row["blobs"], row["bytes"]) == (len(tasks), len(set(tasks.values())), size)
        assert row["saves_bytes"] == pool.size - size
        assert not row["subset"]


def test_quiet_names_the_variants(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("status", "-q", env={"POOLMGR_POOL": str(pool.folder)})
    assert done.stdout.split() == list(pool.tasks)


def test_a_missing_blob_is_3_and_named_in_json(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    (pool.folder / pool.blob).unlink()
    done = poolmgr("status", "-p", pool.folder)
    assert done.returncode == 3
    assert f"warning: {VARIANT}: 1 of the " in done.stderr
    document = json.loads(poolmgr("status", "-p", pool.folder, "--json").stdout)
    assert document["missing"] == [pool.blob]


def test_a_mirror_tells_where_it_came_from(pool: DemoPool, poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    assert poolmgr("fetch", VARIANT, "-p", pool.folder, "--to", "sifs").returncode == 0
    done = poolmgr("status", "-p", "sifs")
    assert done.returncode == 0, done.stderr
    assert "mirror of " in done.stdout
    assert str(pool.folder) in done.stdout
    assert "whole" in done.stdout
    assert "saves" not in done.stdout


def test_a_subset_says_so_in_every_form(pool: DemoPool, poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    chosen = list(pool.tasks[VARIANT])[:3]
    done = poolmgr(
        "fetch", VARIANT, "-p", pool.folder, "--to", "sifs", "--tasks", "-", stdin="\n".join(chosen)
    )
    assert done.returncode == 0, done.stderr
    assert f"3 of {len(pool.tasks[VARIANT])}" in poolmgr("status", "-p", "sifs").stdout
    row = json.loads(poolmgr("status", "-p", "sifs", "--json").stdout)["variants"][0]
    assert (row["tasks"], row["of"], row["subset"]) == (3, len(pool.tasks[VARIANT]), True)


def test_no_pool(poolmgr: RunPoolmgr) -> None:
    done = poolmgr("status")
    assert done.returncode == 2
    assert "POOLMGR_POOL" in done.stderr
    done = poolmgr("status", "-p", "nowhere/at/all", "--json")
    assert done.returncode == 1
    assert json.loads(done.stderr.splitlines()[-1])["code"] == "no-pool"
    assert done.stdout == ""
