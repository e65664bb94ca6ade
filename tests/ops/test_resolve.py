"""resolve: from a task or a reference to one proven file, or an error that says why not."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from poolmgr import Pool, PoolError
from poolmgr.errors import (
    AmbiguousError,
    ChangedSinceProvenError,
    EmptyFileError,
    InvalidImageError,
    MissError,
    UnknownTaskError,
    UnknownVariantError,
    UsageError,
)
from poolmgr.ops.audit import Request, audit
from tests.conftest import ROOT, RunPoolmgr
from tests.loopback.hub import Hub
from tests.ops.fetch_kit import IMAGES, INDEX, PATHS, fetch, fill

REFERENCE = "acme/env-v3:000000000001"
"""tmax naming: ``images/acme__env-v3__000000000001.sif``, which is PATHS[1]."""


@pytest.fixture
def mirror(hub: Hub, tmp_path: Path) -> Path:
    fill(hub)
    fetch(hub, tmp_path / "sifs", "original", "solvable")
    return tmp_path / "sifs"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A folder pool about which nobody ever wrote anything down."""
    for path, data in IMAGES.items():
        (tmp_path / "pool" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pool" / path).write_bytes(data)
    (tmp_path / "pool/task_to_blob.json").write_text(json.dumps(INDEX))
    return tmp_path / "pool"


@pytest.mark.parametrize("kind", ["mirror", "plain"])
def test_a_task_and_a_reference_lead_to_the_file(kind: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(kind)
    pool = Pool.open(root)
    assert pool.resolve(task="task_1", variant="original") == str(root / PATHS[1])
    assert pool.resolve(REFERENCE) == str(root / PATHS[1])
    assert pool.resolve(f"docker://docker.io/{REFERENCE}") == str(root / PATHS[1])


def test_the_variant_may_be_left_out_where_it_makes_no_difference(mirror: Path) -> None:
    pool = Pool.open(mirror)
    assert pool.resolve(task="task_2") == str(mirror / PATHS[2])
    with pytest.raises(AmbiguousError) as caught:
        pool.resolve(task="task_0")
    assert caught.value.details == (f"original: {PATHS[0]}", f"solvable: {PATHS[4]}")


def test_a_miss_names_what_was_expected_where_and_what_comes_nearest(mirror: Path) -> None:
    pool = Pool.open(mirror)
    with pytest.raises(UnknownTaskError, match="task_9"):
        pool.resolve(task="task_9", variant="original")
    with pytest.raises(UnknownVariantError, match="solvable"):
        pool.resolve(task="task_1", variant="solvabel")
    with pytest.raises(MissError) as caught:
        pool.resolve("acme/env-v3:000000000009")
    assert "acme__env-v3__000000000009.sif" in caught.value.message
    (mirror / PATHS[1]).unlink()
    with pytest.raises(MissError) as caught:
        Pool.open(mirror).resolve(task="task_1", variant="original")
    assert PATHS[1] in caught.value.message
    assert str(mirror) in caught.value.message
    with pytest.raises(UsageError):
        pool.resolve()


@pytest.mark.parametrize("kind", ["mirror", "plain"])
def test_an_empty_file_and_a_cut_one_are_refused(kind: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(kind)
    (root / PATHS[0]).write_bytes(b"")
    (root / PATHS[1]).write_bytes(IMAGES[PATHS[1]][:-4096])
    pool = Pool.open(root)
    with pytest.raises(EmptyFileError):
        pool.resolve(task="task_0", variant="original")
    with pytest.raises(ChangedSinceProvenError if kind == "mirror" else InvalidImageError):
        pool.resolve(task="task_1", variant="original")


def test_a_swapped_file_is_refused_until_an_audit_has_hashed_it(mirror: Path) -> None:
    victim = mirror / PATHS[1]
    before = victim.stat()
    shutil.copy(victim, mirror / "copy")
    os.replace(mirror / "copy", victim)
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    pool = Pool.open(mirror)
    with pytest.raises(ChangedSinceProvenError, match="still holds"):
        pool.resolve(task="task_1", variant="original")
    result = audit(pool.view, Request(variants=("original",), inspect="off"), lambda _: None)
    assert result.passed
    assert pool.resolve(task="task_1", variant="original") == str(victim)
    victim.write_bytes(IMAGES[PATHS[0]].ljust(before.st_size, b"x")[: before.st_size])
    again = audit(Pool.open(mirror).view, Request(variants=("original",), inspect="off"), lambda _: None)
    assert not again.passed
    with pytest.raises(PoolError):
        Pool.open(mirror).resolve(task="task_1", variant="original")


def test_links_are_followed_inside_the_pool_only(plain: Path, tmp_path: Path) -> None:
    (plain / PATHS[0]).rename(plain / "images/real.sif")
    (plain / PATHS[0]).symlink_to("real.sif")
    (plain / PATHS[1]).rename(tmp_path / "outside.sif")
    (plain / PATHS[1]).symlink_to(tmp_path / "outside.sif")
    pool = Pool.open(plain)
    assert pool.resolve(task="task_0", variant="original") == str(plain / PATHS[0])
    with pytest.raises(MissError, match="leaves the pool"):
        pool.resolve(task="task_1", variant="original")
    (plain / PATHS[2]).unlink()
    (plain / PATHS[2]).symlink_to("nowhere.sif")
    with pytest.raises(MissError, match="leads nowhere"):
        pool.resolve(task="task_2", variant="original")


def test_a_path_is_passed_through_only_if_an_image_is_there(plain: Path, tmp_path: Path) -> None:
    pool = Pool.open(plain)
    assert pool.resolve(str(plain / PATHS[0])) == str(plain / PATHS[0])
    outside = tmp_path / "mine.sif"
    with pytest.raises(MissError):
        pool.resolve(str(outside))
    outside.write_bytes(b"no image at all")
    with pytest.raises(InvalidImageError):
        pool.resolve(str(outside))
    outside.write_bytes(b"")
    with pytest.raises(EmptyFileError):
        pool.resolve(str(outside))
    outside.write_bytes(IMAGES[PATHS[0]])
    assert pool.resolve(str(outside)) == str(outside)


def test_no_network_no_environment_and_no_heavy_library(
    mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys, socket; socket.socket.connect = None\n"
        "from poolmgr import Pool\n"
        f"print(Pool.open({str(mirror)!r}).resolve(task='task_1', variant='original'))\n"
        "heavy = {'huggingface_hub', 'pyarrow', 'duckdb', 'fsspec', 'tqdm', 'click', 'asyncio', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [str(mirror / PATHS[1]), "[]"]
    monkeypatch.setattr(socket.socket, "connect", lambda *a: pytest.fail("a connection was tried"))


def test_the_command_prints_one_path_and_one_error(mirror: Path, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("resolve", "task_1", "--variant", "original", "-p", mirror)
    assert (done.stdout, done.stderr, done.returncode) == (f"{mirror / PATHS[1]}\n", "", 0)
    assert json.loads(poolmgr("resolve", REFERENCE, "-p", mirror, "--json").stdout)["path"] == str(
        mirror / PATHS[1]
    )
    missing = poolmgr("resolve", "acme/other:1", "-p", mirror, "--json")
    assert (missing.returncode, missing.stdout) == (3, "")
    assert json.loads(missing.stderr.splitlines()[-1])["code"] == "miss"
    remote = poolmgr("resolve", "acme/other:1", "-p", mirror, "--allow-remote")
    assert (remote.returncode, remote.stdout) == (0, "acme/other:1\n")
    assert remote.stderr.startswith("warning: ")
    task = poolmgr("resolve", "task_9", "--variant", "original", "-p", mirror, "--allow-remote")
    assert task.returncode == 2


def test_a_task_that_a_subset_left_out_is_told_apart(hub: Hub, tmp_path: Path) -> None:
    fill(hub)
    fetch(hub, tmp_path / "sifs", tasks=("task_0",))
    with pytest.raises(UnknownTaskError, match="this mirror holds 1 of 5 tasks") as e:
        Pool.open(tmp_path / "sifs").resolve(task="zzz", variant="original")
    assert "--tasks" in e.value.hint


def test_a_relative_path_is_the_users_else_the_pools_and_never_a_reference(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poolmgr: RunPoolmgr
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    pool = Pool.open(plain)
    assert pool.resolve(PATHS[0]) == str(plain / PATHS[0])
    for path in ("none.sif", "images/none.sif", "../none.sif", "./none.sif"):
        with pytest.raises(MissError, match="path"):
            pool.resolve(path)
        done = poolmgr("resolve", path, "-p", plain, "--allow-remote")
        assert (done.returncode, done.stdout) == (3, "")
    (here / "images").mkdir()
    (here / PATHS[0]).write_bytes(IMAGES[PATHS[1]])
    assert pool.resolve(PATHS[0]) == str(here / PATHS[0])


def test_a_miss_compares_names_only_when_somebody_reads_the_hint(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plain / PATHS[1]).unlink()
    pool = Pool.open(plain)
    compared: list[str] = []
    for place in ("poolmgr.model.index.nearest", "poolmgr.ops.resolve.nearest"):
        monkeypatch.setattr(place, lambda word, words, count=3: compared.append(word) or ["near"])
    errors = []
    for task in ("task_1", "tsak_1"):
        with pytest.raises(PoolError) as e:
            pool.resolve(task=task, variant="original")
        errors.append(e.value)
    assert not compared
    assert all("near" in error.hint for error in errors)
    assert compared
