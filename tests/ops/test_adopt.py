"""Adopting a folder that is really there: what is written, what is left alone, and going on after a kill."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from poolmgr.errors import (
    AlreadyExistsError,
    BadFileError,
    Exit,
    NothingComparedError,
    PoolChangedError,
    UsageError,
)
from poolmgr.ops.adopt import Adopt, Adopted, Request
from poolmgr.ops.audit import Request as AuditRequest
from poolmgr.ops.audit import audit
from poolmgr.ops.view import open_pool
from poolmgr.settings import Settings
from poolmgr.sif.write import minimal_image
from tests.conftest import ROOT
from tests.loopback.hub import Hub
from tests.ops.fetch_kit import fetch, fill

IMAGES = {
    f"{folder}acme__env-v3__{i:012x}.sif": minimal_image(f"env {i}", bytes([i]) * 2000)
    for i, folder in enumerate(["", "images/", "images/", "images_b00/"])
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "sifs"
    for path, data in IMAGES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def tsv(folder: Path, *more: str) -> Path:
    lines = [f"acme/env-v3:{Path(p).stem[-12:]}\t{Path(p).name}" for p in IMAGES]
    file = folder.parent / "launch_image_manifest.tsv"
    file.write_text("\n".join([*lines, *more]) + "\n")
    return file


def rows(folder: Path, count: int = 6) -> str:
    names = list(IMAGES)
    file = folder.parent / "train.jsonl"
    with file.open("w") as out:
        for n in range(count):
            image = f"acme/env-v3:{Path(names[n % len(names)]).stem[-12:]}"
            out.write(json.dumps({"env_config": {"task_id": f"task_{n}", "image": image}}) + "\n")
    return str(file)


def adopt(folder: Path, **how: Any) -> Adopted:
    run = Adopt(open_pool(str(folder), Settings.read()), Request(**how), Settings.read())
    return run.carry_out(run.plan())


def index_of(folder: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((folder / "task_to_blob.json").read_bytes())
    return found


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and mtime of every image."""
    return {str(p): ((s := p.stat()).st_ino, s.st_mtime_ns) for p in folder.rglob("*.sif")}


def test_a_map_alone_makes_its_references_the_tasks(folder: Path) -> None:
    before = snapshot(folder)
    done = adopt(folder, image_map=tsv(folder), variant="original")
    assert done.index_written
    assert index_of(folder) == {"original": {f"acme/env-v3:{Path(p).stem[-12:]}": p for p in IMAGES}}
    assert snapshot(folder) == before
    assert not (folder / ".poolmgr").exists()


@pytest.mark.parametrize("with_map", [False, True])
def test_a_dataset_by_map_or_by_rule_gives_the_same_pool_which_audits(folder: Path, with_map: bool) -> None:
    how = {"image_map": tsv(folder)} if with_map else {}
    adopt(folder, dataset=rows(folder), variant="original", hashing=True, **how)
    names = list(IMAGES)
    assert index_of(folder) == {"original": {f"task_{n}": names[n % 4] for n in range(6)}}
    view = open_pool(str(folder), Settings.read())
    assert {p: view.recorded(p).sha256 for p in IMAGES} == {  # type: ignore[union-attr]
        p: hashlib.sha256(data).hexdigest() for p, data in IMAGES.items()
    }
    audited = audit(view, AuditRequest(), lambda address: ())
    assert audited.passed


def test_the_folders_own_index_is_a_source_that_stays(folder: Path) -> None:
    index = {"v": {"t0": next(iter(IMAGES)), "t1": "images/gone.sif"}}
    (folder / "task_to_blob.json").write_text(json.dumps(index))
    assert adopt(folder).adoption.unmatched[0].finding.code == "missing"
    before = (folder / "task_to_blob.json").read_bytes()
    done = adopt(folder, allow_unmatched=1, hashing=True)
    assert done.table_written
    assert not done.index_written
    assert (folder / "task_to_blob.json").read_bytes() == before


def test_another_source_never_replaces_an_index(folder: Path) -> None:
    adopt(folder, image_map=tsv(folder), variant="original")
    before = (folder / "task_to_blob.json").read_bytes()
    other = folder.parent / "other.json"
    other.write_text(json.dumps({"v": {"t": next(iter(IMAGES))}}))
    for how in ({"dataset": rows(folder), "variant": "second"}, {"index": other}):
        with pytest.raises(AlreadyExistsError):
            adopt(folder, **how)
    assert (folder / "task_to_blob.json").read_bytes() == before


def test_a_variant_is_added_when_the_index_is_named_as_a_source(folder: Path) -> None:
    adopt(folder, image_map=tsv(folder), variant="original")
    first = index_of(folder)
    own = folder / "task_to_blob.json"
    bytes_before = own.read_bytes()
    adopt(folder, index=own, dataset=rows(folder), variant="second")
    assert index_of(folder)["original"] == first["original"]
    assert len(index_of(folder)["second"]) == 6
    (kept,) = (folder / ".poolmgr/adopted").iterdir()
    assert kept.read_bytes() == bytes_before
    with pytest.raises(AlreadyExistsError, match="already"):
        adopt(folder, index=own, dataset=rows(folder), variant="second")


def test_an_index_that_changes_meanwhile_is_not_touched(folder: Path) -> None:
    adopt(folder, image_map=tsv(folder), variant="original")
    own = folder / "task_to_blob.json"
    request = Request(index=own, dataset=rows(folder), variant="second")
    run = Adopt(open_pool(str(folder), Settings.read()), request, Settings.read())
    plan = run.plan()
    changed = json.dumps({"theirs": {"t": next(iter(IMAGES))}})
    own.write_text(changed)
    with pytest.raises(PoolChangedError):
        run.carry_out(plan)
    assert own.read_text() == changed


def test_an_index_from_elsewhere_is_copied_in(folder: Path) -> None:
    other = folder.parent / "other.json"
    flat = {f"t{n}": f"somewhere/{Path(p).name}" for n, p in enumerate(IMAGES)}
    other.write_text(json.dumps({"v": flat}))
    with pytest.raises(NothingComparedError):
        adopt(folder, index=other)
    adopt(folder, index=other, by_name=True)
    assert index_of(folder) == {"v": {f"t{n}": p for n, p in enumerate(IMAGES)}}


def test_a_map_of_another_folder_is_told_in_a_few_lines(folder: Path) -> None:
    table = folder.parent / "other.tsv"
    table.write_text("".join(f"acme/other:t{n}\tother{n}.sif\n" for n in range(1000)))
    with pytest.raises(NothingComparedError, match="of 1,000 rows, none") as e:
        adopt(folder, image_map=table, variant="v")
    assert len(e.value.details) == 5
    assert e.value.details[-1] == "… and 996 more"


def test_unmatched_rows_write_nothing_unless_allowed(folder: Path) -> None:
    table = tsv(folder, "acme/env-v3:gone\tgone.sif", "no pair")
    done = adopt(folder, image_map=table, variant="v", hashing=True, allow_unmatched=1)
    assert len(done.adoption.unmatched) == 2
    assert {p.name for p in folder.iterdir()} == {"images", "images_b00", next(iter(IMAGES))}
    done = adopt(folder, image_map=table, variant="v", allow_unmatched=2)
    assert done.index_written
    assert len(index_of(folder)["v"]) == len(IMAGES)


def test_links_that_lead_out_are_not_adopted(folder: Path) -> None:
    outside = folder.parent / "outside.sif"
    outside.write_bytes(minimal_image("outside"))
    (folder / "out.sif").symlink_to(outside)
    (folder / "gone.sif").symlink_to("nothing.sif")
    (folder / "same.sif").symlink_to(next(iter(IMAGES)))
    table = tsv(folder, "acme/o:1\tout.sif", "acme/g:1\tgone.sif", "acme/s:1\tsame.sif")
    done = adopt(folder, image_map=table, variant="v", allow_unmatched=2, hashing=True)
    assert {u.task: u.finding.code for u in done.adoption.unmatched} == {
        "acme/o:1": "outward-link", "acme/g:1": "dangling-link"
    }  # fmt: skip
    assert done.equal == ((next(iter(IMAGES)), "same.sif"),)


def test_a_bad_image_is_named_when_it_is_hashed_and_is_not_in_the_table(folder: Path) -> None:
    path = list(IMAGES)[2]
    (folder / path).write_bytes(IMAGES[path][:-5000])
    done = adopt(folder, image_map=tsv(folder), variant="v", hashing=True)
    assert list(done.bad) == [path]
    view = open_pool(str(folder), Settings.read())
    assert set(view.recorded_blobs) == set(IMAGES) - {path}


def test_blobs_that_no_task_names_are_on_record_too(folder: Path) -> None:
    """A push compares with every blob of the pool, so each would else be hashed at each push again."""
    spare = minimal_image("spare")
    (folder / "spare.sif").write_bytes(spare)
    (folder / "broken.sif").write_bytes(spare[:-5000])
    request = Request(image_map=tsv(folder), variant="v", hashing=True)
    run = Adopt(open_pool(str(folder), Settings.read()), request, Settings.read())
    done = run.carry_out(run.plan())
    assert list(done.bad) == ["broken.sif"]
    assert run.exit(done) is Exit.GOOD, "it is named, and no task needs it"
    view = open_pool(str(folder), Settings.read())
    assert set(view.recorded_blobs) == {*IMAGES, "spare.sif"}


def test_a_table_that_is_there_stays_and_is_compared(folder: Path) -> None:
    adopt(folder, image_map=tsv(folder), variant="v", hashing=True)
    table = (folder / "blobs.parquet").read_bytes()
    path = list(IMAGES)[1]
    (folder / path).write_bytes(minimal_image("another", bytes(2000)))
    done = adopt(folder, hashing=True)
    assert [f.code for f in done.bad[path]] == ["wrong-hash"]
    assert done.hashed == 1
    assert done.remembered == 3
    assert (folder / "blobs.parquet").read_bytes() == table


def test_hashing_goes_on_after_kill_9(folder: Path) -> None:
    """Killed after some files, between two, wherever it stands: what is attested is not hashed again."""
    table = tsv(folder)
    code = (
        "import sys, time; from pathlib import Path; from poolmgr.ops import attest, verify\n"
        "attest.FLUSH_SECONDS = 0\n"
        "look = verify.Verifier._look\n"
        "def slow(self, target, threads):\n"
        "    result = look(self, target, threads); print('done', flush=True); time.sleep(0.3)\n"
        "    return result\n"
        "verify.Verifier._look = slow\n"
        "from poolmgr.ops.adopt import Adopt, Request; from poolmgr.ops.view import open_pool\n"
        "from poolmgr.settings import Settings\n"
        "run = Adopt(open_pool(sys.argv[1], Settings.read()), Request(image_map=Path(sys.argv[2]), "
        "variant='v', hashing=True, jobs=1), Settings.read())\n"
        "run.carry_out(run.plan())\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), str(table)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert child.stdout is not None
    for _ in range(2):
        assert child.stdout.readline() == "done\n"
    time.sleep(0.1)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert not (folder / "task_to_blob.json").exists()
    assert not (folder / "blobs.parquet").exists()
    done = adopt(folder, image_map=table, variant="v", hashing=True)
    assert done.remembered == 2
    assert done.hashed == 2
    assert done.index_written
    assert done.table_written
    again = adopt(folder, hashing=True)
    assert (again.remembered, again.hashed) == (4, 0)


def test_a_mirror_is_a_pool_already(hub: Hub, tmp_path: Path) -> None:
    fill(hub)
    fetch(hub, tmp_path / "mirror")
    with pytest.raises(AlreadyExistsError, match="mirror"):
        adopt(tmp_path / "mirror")


def test_an_adopted_folder_is_not_taken_for_a_mirror(hub: Hub, folder: Path) -> None:
    """A fetch into it would replace the adopted index; it says so first."""
    from poolmgr.errors import NotAMirrorError

    adopt(folder, image_map=tsv(folder), variant="v", hashing=True)
    fill(hub)
    with pytest.raises(NotAMirrorError):
        fetch(hub, folder)


def test_without_a_source_or_with_an_unreadable_one(folder: Path) -> None:
    with pytest.raises(UsageError, match="nothing says"):
        adopt(folder)
    with pytest.raises(UsageError, match="variant"):
        adopt(folder, image_map=tsv(folder))
    with pytest.raises(BadFileError):
        adopt(folder, image_map=folder / "nothing.tsv", variant="v")
    with pytest.raises(BadFileError):
        adopt(folder, index=folder / "task_to_blob.json")
    with pytest.raises(NothingComparedError):
        adopt(folder, image_map=folder.parent / _empty(folder), variant="v")


def _empty(folder: Path) -> str:
    (folder.parent / "empty.tsv").write_bytes(b"")
    return "empty.tsv"
