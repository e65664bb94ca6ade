"""``poolmgr diff``: two commits on the Hub, a folder beside its pool, and a mirror beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from poolmgr.ops.demo import VARIANT, DemoPool
from poolmgr.sif.write import minimal_image
from tests.conftest import RunPoolmgr
from tests.loopback.hub import Hub
from tests.ops.fetch_kit import ADDRESS, IMAGES, INDEX, PATHS, fetch, fill


@pytest.fixture
def commits(hub: Hub) -> tuple[str, str]:
    """A pool, and a later commit: one task remapped to a new blob, one added, one removed; one blob
    replaced, one renamed, one gone."""
    repo = fill(hub)
    first = repo.resolve("main").oid
    later = {v: dict(tasks) for v, tasks in INDEX.items()}
    later["original"]["task_1"] = "images/new.sif"
    later["original"]["task_9"] = PATHS[0]
    del later["original"]["task_3"]
    later["solvable"]["task_0"] = "derived/renamed.sif"
    repo.remove(PATHS[3], PATHS[4])
    repo.add({
        "task_to_blob.json": json.dumps(later).encode(),
        "images/new.sif": minimal_image("new"),
        "derived/renamed.sif": IMAGES[PATHS[4]],
        PATHS[2]: minimal_image("other bytes", bytes(4000)),
    })  # fmt: skip
    return first, repo.resolve("main").oid


def test_two_commits_of_one_pool(hub: Hub, commits: tuple[str, str], poolmgr: RunPoolmgr) -> None:
    sides = [f"{ADDRESS}@{commit}" for commit in commits]
    done = poolmgr("diff", *sides, "--json", env=hub.env())
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert (found["before"]["commit"], found["after"]["commit"]) == commits
    original = found["variants"]["original"]
    assert original["added"] == {"task_9": PATHS[0]}
    assert original["removed"] == {"task_3": PATHS[3]}
    assert original["remapped"] == {
        "task_1": {"before": PATHS[1], "after": "images/new.sif", "bytes": "other"}
    }
    assert found["variants"]["solvable"]["remapped"]["task_0"]["bytes"] == "same"
    blobs = found["blobs"]
    assert [b["path"] for b in blobs["added"]] == ["images/new.sif"]
    assert [b["path"] for b in blobs["removed"]] == [PATHS[3]]
    assert [b["after"]["path"] for b in blobs["replaced"]] == [PATHS[2]]
    assert [(b["before"], b["after"]) for b in blobs["renamed"]] == [([PATHS[4]], ["derived/renamed.sif"])]
    assert (blobs["unknown"], blobs["equal"], found["verdict"]) == ([], 2, "different")
    text = poolmgr("diff", *sides, env=hub.env()).stdout
    for name in (
        "task_9",
        "task_3",
        "task_1",
        "images/new.sif",
        PATHS[3],
        "derived/renamed.sif",
        "different",
    ):
        assert name in text
    assert poolmgr("diff", *sides, "-q", "--tasks", env=hub.env()).stdout.split() == [
        "task_9", "task_3", "task_1", "task_0"
    ]  # fmt: skip
    assert poolmgr("diff", *sides, "-q", env=hub.env()).stdout.split() == sorted(
        ["images/new.sif", "derived/renamed.sif", *PATHS[2:]]
    )
    only = json.loads(poolmgr("diff", *sides, "--variant", "solvable", "--json", env=hub.env()).stdout)
    assert list(only["variants"]) == ["solvable"]
    assert only["blobs"]["added"] == only["blobs"]["removed"] == []


def test_a_mirror_equals_its_pool_in_what_it_fetched(
    hub: Hub, tmp_path: Path, commits: tuple[str, str], poolmgr: RunPoolmgr
) -> None:
    """A mirror has a sha256 of all: equal is proven, and a file changed under it is seen."""
    mirror = tmp_path / "mirror"
    fetch(hub, mirror, "original")
    done = poolmgr("diff", ADDRESS, mirror, "--variant", "original", env=hub.env())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal" in done.stdout
    whole = json.loads(poolmgr("diff", ADDRESS, mirror, "--json", env=hub.env()).stdout)
    assert whole["variants"]["solvable"]["only"] == "before"
    (mirror / PATHS[0]).write_bytes(IMAGES[PATHS[0]][:-1])
    assert poolmgr("diff", ADDRESS, mirror, "--variant", "original", env=hub.env()).returncode == 3


def test_what_has_no_sha256_on_record_is_never_called_equal(
    pool: DemoPool, tmp_path: Path, poolmgr: RunPoolmgr
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pool.folder, copy)
    done = poolmgr("diff", pool.folder, copy, "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert found["verdict"] == "not proven equal"
    assert len(found["blobs"]["unknown"]) == sum(pool.files.values())
    for folder in (pool.folder, copy):
        assert poolmgr("adopt", folder, "--hash").returncode == 0
    narrow = poolmgr("diff", pool.folder, copy, "--variant", VARIANT)
    assert narrow.returncode == 0, narrow.stdout
    assert "not proven equal" not in narrow.stdout


def test_names_that_no_pool_has(pool: DemoPool, poolmgr: RunPoolmgr) -> None:
    assert poolmgr("diff", pool.folder, pool.folder, "--variant", "solvabel").returncode == 3
    assert poolmgr("diff", pool.folder, "nowhere").returncode == 1
    assert poolmgr("diff", pool.folder).returncode == 2
