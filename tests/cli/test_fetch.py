"""fetch as a process: kills, signals, two at once, full disks, and what it prints."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from poolmgr.ops.state import State as Folder
from poolmgr.sif.write import minimal_image
from tests.conftest import ROOT, RunPoolmgr
from tests.loopback.hub import Hub
from tests.ops.fetch_kit import ADDRESS, IMAGES, INDEX, PATHS, files, fill, only

MANY = {
    f"images/m{i:03d}.sif": minimal_image(f"many {i}", random.Random(i).randbytes(200_000)) for i in range(40)
}
MANY_INDEX = {
    "v": {f"t{i}": path for i, path in enumerate(MANY)},
    "w": {f"t{i}": path for i, path in enumerate(MANY)},
}


def start(hub: Hub, to: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "poolmgr", "fetch", *words, "-p", ADDRESS, "--to", str(to), "--reserve", "0"],
        env={**os.environ, **hub.env(), "PYTHONPATH": str(ROOT)},
        cwd=to.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


# --- what it prints ------------------------------------------------------------------------------------


def test_the_certificate_in_words_and_as_json_lines(hub: Hub, poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    fill(hub)
    done = poolmgr("fetch", "original", "-p", ADDRESS, "--to", "sifs", env=hub.env())
    assert done.returncode == 0, done.stderr
    assert "all 5 tasks have their image, 4 blobs" in done.stdout
    assert "4 blobs transferred" in done.stdout
    again = poolmgr("fetch", "original", "-p", ADDRESS, "--to", "sifs", "--json", env=hub.env())
    *images, variant, summary = rows(again.stdout)
    assert {r["path"]: r["result"] for r in images} == dict.fromkeys(PATHS[:4], "kept")
    assert (variant["kind"], variant["tasks"], variant["locked"]) == ("variant", 5, True)
    assert (summary["kind"], summary["verdict"], summary["reused"]) == ("summary", "proven", 4)
    assert (summary["transferred"], summary["failed"], summary["exit"]) == (0, 0, 0)
    quiet = poolmgr("fetch", "original", "-p", ADDRESS, "--to", "sifs", "-q", env=hub.env())
    assert sorted(quiet.stdout.split()) == sorted(PATHS[:4])


def test_the_dry_run_is_the_plan_and_writes_nothing(hub: Hub, poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    fill(hub)
    plan = poolmgr("fetch", "original", "-p", ADDRESS, "--to", "sifs", "-n", "--json", env=hub.env())
    assert plan.returncode == 0
    assert not (tmp_path / "sifs").exists()
    run = poolmgr("fetch", "original", "-p", ADDRESS, "--to", "sifs", "--json", env=hub.env())
    planned = {r["path"]: r["transfer"] for r in rows(plan.stdout) if r["kind"] == "image"}
    carried = {r["path"]: r["transferred"] for r in rows(run.stdout) if r["kind"] == "image"}
    assert planned == carried


def test_the_mirror_is_a_pool_offline(hub: Hub, poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    fill(hub)
    assert poolmgr("fetch", "--all", "-p", ADDRESS, "--to", "sifs", env=hub.env()).returncode == 0
    hub.close()
    offline = {"HF_HUB_OFFLINE": "1", "POOLMGR_POOL": "sifs"}
    assert poolmgr("audit", env=offline).returncode == 0
    assert poolmgr("status", env=offline).returncode == 0
    found = poolmgr("resolve", "task_2", "--variant", "solvable", env=offline)
    assert found.stdout == f"{tmp_path}/sifs/{PATHS[2]}\n"


def test_a_subset_says_so_everywhere(hub: Hub, poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    fill(hub)
    (tmp_path / "mine.txt").write_text("task_1\n\ntask_2\n")
    done = poolmgr("fetch", "original", "--tasks", "mine.txt", "-p", ADDRESS, "--to", "sifs", env=hub.env())
    assert "original: 2 of 5 tasks on" in done.stdout
    assert "proven: 2 of 5 tasks have their image" in done.stdout
    assert "2 of 5" in poolmgr("status", "-p", "sifs").stdout
    whole = poolmgr("audit", "original", "-p", "sifs")
    assert whole.returncode == 3
    assert "2 of 5 tasks" in whole.stdout
    assert poolmgr("audit", "original", "--tasks", "mine.txt", "-p", "sifs").returncode == 0


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["nope"], 3, "unknown-variant"),
        ([], 2, "usage"),
        (["original", "--all"], 2, "usage"),
        (["original", "--tasks", "none.txt"], 1, "bad-file"),
        (["original", "--reserve", "much"], 2, "usage"),
        (["original", "--transfer", "xet", "-p", "."], 1, "bad-index"),
    ],
)  # fmt: skip
def test_refusals_have_a_code_and_a_status(
    hub: Hub, poolmgr: RunPoolmgr, tmp_path: Path, words: list[str], status: int, code: str
) -> None:
    fill(hub)
    done = poolmgr("fetch", "-p", ADDRESS, *words, "--to", "sifs", "--json", env=hub.env())
    error = json.loads(done.stderr.splitlines()[-1])
    assert (done.returncode, error["code"], error["exit"]) == (status, code, status)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "sifs").exists()


INDEXES = {
    "is not JSON": b"{",
    "is an HTML page": b"<!doctype html><title>login</title>",
    "names no variant": b"{}",
    "has 0 tasks": b'{"v": {}}',
    "holds a JSON list": b"[1]",
    "'t': a JSON object stands": b'{"v": {"t": {"x": "y"}}}',
    "names a directory": b'{"v": {"t": "images/"}}',
    "has a '..' component": b'{"v": {"t": "../x.sif"}}',
    "begins with a dot": b'{"v": {"t": ".poolmgr/x.sif"}}',
    "is absolute": b'{"v": {"t": "/etc/passwd"}}',
    "holds a backslash": b'{"v": {"t": "a\\\\b.sif"}}',
    "gives a key twice": b'{"v": {"t": "a.sif", "t": "b.sif"}}',
    "differ only in case": b'{"v": {"t": "a.sif", "u": "A.sif"}}',
}


@pytest.mark.parametrize("says", INDEXES)
def test_a_hostile_index_is_refused_by_name(poolmgr: RunPoolmgr, tmp_path: Path, says: str) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/task_to_blob.json").write_bytes(INDEXES[says])
    done = poolmgr("fetch", "v", "-p", "pool", "--to", "sifs")
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.startswith("error[bad-index]: ")
    assert not (tmp_path / "sifs").exists()


def test_a_name_in_another_case_and_a_folder_are_told_apart(poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    (pool / "images/folder.sif").mkdir(parents=True)
    (pool / "images/A.sif").write_bytes(IMAGES[PATHS[0]])
    index = {"v": {"t1": "images/a.sif", "t2": "images/folder.sif"}}
    (pool / "task_to_blob.json").write_text(json.dumps(index))
    done = poolmgr("fetch", "v", "-p", "pool", "--to", "sifs")
    assert done.returncode == 3
    assert "images/a.sif: the pool holds it only as 'images/A.sif' (tasks: v/t1)" in done.stderr
    assert "images/folder.sif: the index names a directory" in done.stderr


# --- kills, signals, company -------------------------------------------------------------------------


def test_killed_at_random_moments_it_completes_and_fetches_no_finished_file_again(
    hub: Hub, poolmgr: RunPoolmgr, tmp_path: Path
) -> None:
    fill(hub, MANY, MANY_INDEX)
    hub.fault(".sif", origin="cdn", times=None, delay=0.02)
    to = tmp_path / "sifs"
    luck = random.Random(int(os.environ.get("POOLMGR_SEED", "7")))
    for _ in range(4):
        child = start(hub, to, "v", "-j", "4")
        finished = set(files(to)) if to.exists() else set()
        before = len(hub.log)
        deadline = time.monotonic() + luck.uniform(0.5, 1.2)
        while time.monotonic() < deadline and child.poll() is None:
            time.sleep(0.005)
        child.kill()
        child.communicate()
        asked = {r.target for r in hub.log[before:] if r.origin == "api"}
        assert not [p for p in finished if any(p in t for t in asked)]
        for path, data in files(to).items() if to.exists() else ():
            assert data == MANY[path], "a file had its name before it was whole"
    finished = set(files(to))
    before = len(hub.log)
    assert start(hub, to, "v").wait() == 0
    assert not [r for r in hub.log[before:] if any(p in r.target for p in finished)]
    assert files(to) == MANY
    assert not list((to / ".poolmgr/partial").iterdir())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 5), (signal.SIGINT, 130)])
def test_a_signal_stops_it_in_good_order_and_the_next_run_goes_on(
    hub: Hub, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    fill(hub, MANY, MANY_INDEX)
    fault = hub.fault(".sif", origin="cdn", times=None, drip=0.001, delay=0.05)
    to = tmp_path / "sifs"
    child = start(hub, to, "v", "-j", "4")
    while not hub.requests(".sif", origin="cdn"):
        time.sleep(0.01)
        assert child.poll() is None, child.communicate()
    time.sleep(0.2)
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert child.returncode == status, err
    assert "Traceback" not in err
    assert not Folder(to).locks()
    hub.faults.clear()
    del fault
    assert start(hub, to, "v").wait() == 0
    assert files(to) == MANY


@pytest.mark.parametrize("variants", [("v", "v"), ("v", "w")], ids=["one variant", "two variants"])
def test_two_fetches_into_one_folder_share_the_work(
    hub: Hub, tmp_path: Path, variants: tuple[str, str]
) -> None:
    fill(hub, MANY, MANY_INDEX)
    hub.fault(".sif", origin="cdn", times=None, delay=0.02)
    to = tmp_path / "sifs"
    children = [start(hub, to, variant, "-j", "4") for variant in variants]
    answers = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0], answers
    assert files(to) == MANY
    assert set(Folder(to).locks()) == set(variants)
    assert not list((to / ".poolmgr/partial").iterdir())
    sent = len(hub.requests(".sif", origin="cdn"))
    assert sent < 2 * len(MANY), "each of the two fetched everything"


# --- the destination ---------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", place], capture_output=True, check=False
    )
    if done.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"mount: {done.stderr!r}")
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(
    hub: Hub, poolmgr: RunPoolmgr, small_disk: Path
) -> None:
    fill(hub, MANY, MANY_INDEX)
    done = poolmgr("fetch", "v", "-p", ADDRESS, "--to", small_disk / "sifs", "--reserve", "0", env=hub.env())
    assert done.returncode == 1
    assert done.stderr.startswith("error[no-space]: ")
    assert not (small_disk / "sifs").exists()
    assert not hub.requests(".sif")


def test_a_disk_that_fills_up_keeps_what_is_finished(hub: Hub, poolmgr: RunPoolmgr, small_disk: Path) -> None:
    some = dict(list(MANY.items())[:6])
    fill(hub, some, {"v": {path: path for path in some}})
    to = small_disk / "sifs"
    hub.fault(".sif", origin="cdn", times=None, delay=0.3)
    child = start(hub, to, "v", "-j", "1")
    while not hub.requests(".sif", origin="cdn"):
        time.sleep(0.01)
    filler = small_disk / "filler"
    room = os.statvfs(small_disk)
    filler.write_bytes(b"x" * (room.f_bavail * room.f_frsize - 700_000))
    _, err = child.communicate(timeout=60)
    assert child.returncode == 1, err
    assert "error[no-space]: " in err
    assert "Traceback" not in err
    kept = files(to)
    assert kept
    assert all(some[p] == data for p, data in kept.items())
    filler.unlink()
    hub.faults.clear()
    assert poolmgr("fetch", "v", "-p", ADDRESS, "--to", to, "--reserve", "0", env=hub.env()).returncode == 0
    assert files(to) == some


def test_a_read_only_filesystem(hub: Hub, poolmgr: RunPoolmgr, small_disk: Path) -> None:
    fill(hub)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = poolmgr(
        "fetch", "original", "-p", ADDRESS, "--to", small_disk / "sifs", "--reserve", "0", env=hub.env()
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error[bad-destination]: ")


def test_a_folder_pool_is_fetched_like_any_other(poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    for path, data in IMAGES.items():
        (pool / path).parent.mkdir(parents=True, exist_ok=True)
        (pool / path).write_bytes(data)
    (pool / "task_to_blob.json").write_text(json.dumps(INDEX))
    done = poolmgr("fetch", "original", "-p", "pool", "--to", "sifs", "--reserve", "0")
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "sifs") == only(*PATHS[:4])
    assert poolmgr("audit", "original", "-p", "sifs").returncode == 0
