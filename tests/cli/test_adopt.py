"""``poolmgr adopt``: what a user and a script see."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from poolmgr.sif.write import minimal_image
from tests.conftest import RunPoolmgr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "sifs"
    root.mkdir()
    for i in range(3):
        (root / f"acme__env__{i}.sif").write_bytes(minimal_image(f"env {i}"))
    (root / "stray.sif").write_bytes(minimal_image("stray"))
    lines = "".join(f"docker://acme/env:{i}\tacme__env__{i}.sif\n" for i in range(4))
    (tmp_path / "m.tsv").write_text(lines + "bro\x1bken\n")
    return root


ARGS = ("--images", "m.tsv", "--variant", "original")


def test_a_dry_run_shows_the_plan_and_writes_nothing(folder: Path, poolmgr: RunPoolmgr) -> None:
    before = sorted(os.listdir(folder))
    allowed = ("--allow-unmatched", "2")
    planned = poolmgr("adopt", folder, *ARGS, *allowed, "-n", "--json")
    assert planned.returncode == 0, planned.stderr
    assert sorted(os.listdir(folder)) == before
    done = poolmgr("adopt", folder, *ARGS, *allowed, "--json")
    assert done.returncode == 0, done.stderr
    differ = {"dry_run", "wrote"}
    one, two = json.loads(planned.stdout), json.loads(done.stdout)
    assert {k: v for k, v in one.items() if k not in differ} == {
        k: v for k, v in two.items() if k not in differ
    }
    assert two["wrote"] == ["task_to_blob.json"]
    assert [u["code"] for u in two["unmatched"]] == ["missing", "bad-row"]
    assert two["unmapped"] == ["stray.sif"]


def test_unmatched_rows_are_3_and_named(folder: Path, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("adopt", folder, *ARGS)
    assert done.returncode == 3
    assert "docker://acme/env:3 (m.tsv line 4): missing" in done.stdout
    assert "m.tsv line 5: bad-row" in done.stdout
    assert "stray.sif" in done.stdout
    assert "\x1b" not in done.stdout
    assert "nothing was written" in done.stdout
    assert not (folder / "task_to_blob.json").exists()


def test_quiet_prints_the_blobs(folder: Path, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("adopt", folder, *ARGS, "--allow-unmatched", "2", "-q")
    assert done.stdout.split() == [f"acme__env__{i}.sif" for i in range(3)]
    assert done.stderr == ""


def test_the_manifests_datasets_become_variants(folder: Path, tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    for name in ("one", "two"):
        rows = [{"env_config": {"task_id": f"{name}_{i}", "image": f"acme/env:{i}"}} for i in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "rules.toml").write_text(
        'schema = 1\n[pool]\nurl = "sifs"\n[variants.one]\ndataset = "one.jsonl"\n'
        '[variants.two]\ndataset = "two.jsonl"\n[variants.three]\n'
    )
    done = poolmgr("adopt", folder, "--manifest", "rules.toml", "--hash")
    assert done.returncode == 0, done.stderr
    index = json.loads((folder / "task_to_blob.json").read_bytes())
    assert {v: len(t) for v, t in index.items()} == {"one": 3, "two": 3}
    assert "wrote sifs/blobs.parquet" in done.stdout.replace(str(tmp_path) + "/", "")
    assert poolmgr("audit", "-p", folder).returncode == 0


def test_a_folder_that_cannot_be_written(folder: Path, poolmgr: RunPoolmgr) -> None:
    assert poolmgr("adopt", folder / "nowhere", *ARGS).returncode == 1
    assert poolmgr("adopt", "hf://datasets/acme/pool", *ARGS).returncode != 0
