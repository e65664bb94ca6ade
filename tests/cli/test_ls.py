"""``poolmgr ls``: lines that a pipe can take."""

from __future__ import annotations

import json

from poolmgr.ops.demo import VARIANT, DemoPool
from tests.conftest import RunPoolmgr


def test_blobs_of_a_variant(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    for options in ([], ["--blobs"], ["-q"]):
        done = poolmgr("ls", VARIANT, "-p", pool.folder, *options)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == sorted(set(pool.tasks[VARIANT].values()))
        assert done.stderr == ""


def test_without_a_variant_orphans_are_listed_too(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    there = sorted(p.relative_to(pool.folder).as_posix() for p in pool.folder.rglob("*.sif"))
    assert poolmgr("ls", "-p", pool.folder).stdout.splitlines() == there


def test_tasks(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("ls", VARIANT, "--tasks", "-p", pool.folder)
    assert done.stdout.splitlines() == list(pool.tasks[VARIANT])
    every = poolmgr("ls", "--tasks", "-p", pool.folder).stdout.splitlines()
    assert sorted(every) == sorted({task for tasks in pool.tasks.values() for task in tasks})


def test_long(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    blobs = poolmgr("ls", VARIANT, "--long", "-p", pool.folder).stdout.splitlines()
    assert blobs[0].split() == ["size", "sha256", "tasks", "blob"]
    assert len(blobs) == 1 + len(set(pool.tasks[VARIANT].values()))
    tasks = poolmgr("ls", VARIANT, "--tasks", "-l", "-p", pool.folder).stdout.splitlines()
    assert [line.split() for line in tasks[1:]] == [[VARIANT, t, p] for t, p in pool.tasks[VARIANT].items()]


def test_json(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    document = json.loads(poolmgr("ls", VARIANT, "--json", "-p", pool.folder).stdout)
    rows = {row["path"]: row for row in document["blobs"]}
    for path, row in rows.items():
        assert row["size"] == (pool.folder / path).stat().st_size
        assert row["variants"] == {VARIANT: [t for t, p in pool.tasks[VARIANT].items() if p == path]}
        assert row["there"]
    document = json.loads(poolmgr("ls", VARIANT, "--tasks", "--json", "-p", pool.folder).stdout)
    assert {row["task"]: row["path"] for row in document["tasks"]} == pool.tasks[VARIANT]


def test_a_missing_blob_is_3_and_marked(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    (pool.folder / pool.blob).unlink()
    done = poolmgr("ls", VARIANT, "--long", "-p", pool.folder)
    assert done.returncode == 3
    assert next(line for line in done.stdout.splitlines() if pool.blob in line).startswith("missing")
    assert "1 of " in done.stderr


def test_an_unknown_variant_names_those_that_exist(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("ls", "solveable", "-p", pool.folder)
    assert done.returncode == 3
    assert "error[unknown-variant]" in done.stderr
    assert VARIANT in done.stderr
