"""The demo's pool has the shape of the real one, and every image of it is valid."""

from __future__ import annotations

from pathlib import Path

from poolmgr.model.finding import Level, Verdict
from poolmgr.model.index import Index
from poolmgr.ops.demo import BATCHES, VARIANT, build_pool, scenes, truncate
from poolmgr.sif.check import check_file


def images(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.sif")}


def test_the_pool_has_batches_derived_images_and_shared_blobs(tmp_path: Path) -> None:
    pool = build_pool(tmp_path / "pool")
    held = images(pool.folder)
    assert {path.partition("/")[0] for path in held} == {*BATCHES, "derived"}
    assert len(set(held.values())) == len(held)
    index = Index.parse((pool.folder / "task_to_blob.json").read_bytes(), "demo")
    assert set(index.variants) == {"original", "hardened_prefilter", VARIANT}
    for tasks in index.variants.values():
        assert set(tasks.values()) <= set(held)
    used = set(index.variants[VARIANT].values())
    assert len(used) < len(index.variants[VARIANT])
    assert {p.partition("/")[0] for p in used} >= {"images_b00", "derived"}
    for path in held:
        report = check_file(pool.folder / path, Level.MOUNT)
        assert report.verdict is Verdict.OK, (path, report)


def test_the_pool_is_the_same_each_time(tmp_path: Path) -> None:
    assert images(build_pool(tmp_path / "a").folder) == images(build_pool(tmp_path / "b").folder)


def test_the_damage_that_the_demo_does_is_seen(tmp_path: Path) -> None:
    pool = build_pool(tmp_path / "sifs")
    damage = next(s for s in scenes(pool) if s.command[0] == "truncate")
    assert damage.command[-1] == f"sifs/{pool.blob}"
    truncate(tmp_path, damage.command)
    assert check_file(pool.folder / pool.blob, Level.MOUNT).verdict is Verdict.BAD
