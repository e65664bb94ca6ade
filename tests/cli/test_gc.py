"""``poolmgr gc``: real mirrors of a loopback Hub; what goes is proven to be there, all else stays."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poolmgr.ops.busy import busy
from poolmgr.ops.gc import Gc, Request
from poolmgr.ops.state import State
from poolmgr.settings import Settings
from poolmgr.sif.write import minimal_image
from tests.conftest import ROOT, RunPoolmgr
from tests.loopback.hub import Hub
from tests.loopback.repos import Repo
from tests.ops.fetch_kit import IMAGES, INDEX, PATHS, fetch, files, fill

GONE = PATHS[1]
"""Named by the first commit alone."""


@pytest.fixture
def repo(hub: Hub) -> Repo:
    return fill(hub)


@pytest.fixture
def mirror(hub: Hub, repo: Repo, tmp_path: Path) -> Path:
    """Fetched at one commit, and again at the next, in which ``task_1`` moved away from ``GONE``."""
    to = tmp_path / "mirror"
    fetch(hub, to, "original")
    index = {v: dict(tasks) for v, tasks in INDEX.items()}
    index["original"]["task_1"] = PATHS[0]
    repo.add({"task_to_blob.json": json.dumps(index).encode()})
    fetch(hub, to, "original")
    return to


def gc(poolmgr: RunPoolmgr, hub: Hub, mirror: Path, *words: str, exit_: int = 0) -> dict[str, object]:
    done = poolmgr("gc", "-p", mirror, "--json", *words, env=hub.env())
    assert done.returncode == exit_, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def audits(poolmgr: RunPoolmgr, mirror: Path, *variants: str) -> bool:
    done = poolmgr("audit", *variants, "-p", mirror, "--no-dataset", "--inspect", "off")
    return done.returncode == 0


def test_what_no_lock_names_any_more_is_freed_once_proven(
    hub: Hub, mirror: Path, poolmgr: RunPoolmgr
) -> None:
    planned = gc(poolmgr, hub, mirror, "-n")
    assert [f["path"] for f in planned["free"]] == [GONE]  # type: ignore[index, attr-defined]
    assert (mirror / GONE).exists()
    done = gc(poolmgr, hub, mirror, "-y")
    assert {k: done[k] for k in ("free", "debris", "kept")} == {
        k: planned[k] for k in ("free", "debris", "kept")
    }
    assert set(files(mirror)) == {PATHS[0], PATHS[2], PATHS[3]}
    assert audits(poolmgr, mirror)
    assert gc(poolmgr, hub, mirror, "-y")["free"] == []
    assert not list((mirror / ".poolmgr/former").iterdir())


def test_it_asks(hub: Hub, mirror: Path, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("gc", "-p", mirror, env=hub.env())
    assert done.returncode == 2
    assert "-y" in done.stderr
    assert GONE in done.stdout
    assert (mirror / GONE).exists()


def test_what_the_pool_lost_stays(hub: Hub, repo: Repo, mirror: Path, poolmgr: RunPoolmgr) -> None:
    """The commit is still listed; the bytes are not served any more."""
    hub.fault(GONE, origin="cdn", times=None, status=404)
    found = gc(poolmgr, hub, mirror, "-y", exit_=3)
    assert found["free"] == []
    assert [k["code"] for k in found["kept"]] == ["gc-unproven"]  # type: ignore[index, attr-defined]
    assert (mirror / GONE).exists()


def test_a_pool_that_is_gone_proves_nothing(hub: Hub, mirror: Path, poolmgr: RunPoolmgr) -> None:
    lock = next((mirror / ".poolmgr/former").iterdir())
    row = json.loads(lock.read_bytes())
    lock.write_text(json.dumps({**row, "source": "hf://datasets/acme/nowhere"}))
    assert gc(poolmgr, hub, mirror, "-y", exit_=3)["free"] == []
    assert (mirror / GONE).exists()


@pytest.mark.parametrize("how", ["rewritten", "touched", "replaced", "linked", "folder-linked"])
def test_a_file_that_is_not_the_one_that_was_fetched_stays(
    hub: Hub, mirror: Path, poolmgr: RunPoolmgr, how: str, tmp_path: Path
) -> None:
    file = mirror / GONE
    aside = tmp_path / "aside.sif"
    if how == "rewritten":
        file.write_bytes(b"mine")
    elif how == "touched":
        os.utime(file)
    elif how == "replaced":
        shutil.copy2(file, aside)
        aside.rename(file)
    elif how == "linked":
        file.rename(aside)
        file.symlink_to(aside)
    else:
        (mirror / "images").rename(tmp_path / "elsewhere")
        (mirror / "images").symlink_to(tmp_path / "elsewhere")
    content = file.read_bytes()
    found = gc(poolmgr, hub, mirror, "-y")
    assert found["free"] == []
    assert {k["code"] for k in found["kept"]} <= {"gc-changed", "gc-not-ours"}  # type: ignore[index, attr-defined]
    assert file.read_bytes() == content


def test_what_fetch_found_there_is_not_its_own(
    hub: Hub, repo: Repo, tmp_path: Path, poolmgr: RunPoolmgr
) -> None:
    to = tmp_path / "mirror"
    (to / "images").mkdir(parents=True)
    (to / GONE).write_bytes(IMAGES[GONE])
    (to / "images/mine.sif").write_bytes(minimal_image("mine"))
    fetch(hub, to, "original")
    found = gc(poolmgr, hub, to, "-y", "--variant", "original")
    assert [k["path"] for k in found["kept"]] == [GONE]  # type: ignore[index, attr-defined]
    assert set(files(to)) == {GONE, "images/mine.sif"}
    gc(poolmgr, hub, to, "-y", "--found-too")
    assert set(files(to)) == {"images/mine.sif"}


def test_forgetting_a_variant_frees_what_only_it_named(
    hub: Hub, repo: Repo, tmp_path: Path, poolmgr: RunPoolmgr
) -> None:
    to = tmp_path / "mirror"
    fetch(hub, to, "original", "solvable")
    planned = gc(poolmgr, hub, to, "-n", "--variant", "original")
    gone = set(INDEX["original"].values()) - set(INDEX["solvable"].values())
    assert {f["path"] for f in planned["free"]} == gone  # type: ignore[index, attr-defined]
    assert State(to).locked() == {"original", "solvable"}
    gc(poolmgr, hub, to, "-y", "--variant", "original")
    assert set(files(to)) == set(INDEX["solvable"].values())
    assert json.loads((to / "task_to_blob.json").read_bytes()) == {"solvable": INDEX["solvable"]}
    assert audits(poolmgr, to)
    assert gc(poolmgr, hub, to, "-y", "--variant", "solvable")["forget"] == ["solvable"]
    assert not files(to)
    assert not (to / "task_to_blob.json").exists()
    assert poolmgr("gc", "-p", to, "--variant", "solvabel").returncode == 3


def test_a_running_fetch_keeps_what_it_counts_on(hub: Hub, mirror: Path, poolmgr: RunPoolmgr) -> None:
    with busy(State(mirror), [GONE], []):
        found = gc(poolmgr, hub, mirror, "-y")
        assert [k["code"] for k in found["kept"]] == ["gc-wanted"]  # type: ignore[index, attr-defined]
    assert (mirror / GONE).exists()
    assert [f["path"] for f in gc(poolmgr, hub, mirror, "-y")["free"]] == [GONE]  # type: ignore[index, attr-defined]


@pytest.mark.parametrize("when", ["before", "between"])
def test_a_fetch_that_starts_during_gc_wins(
    hub: Hub, mirror: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    for name, value in hub.env().items():
        monkeypatch.setenv(name, value)
    run = Gc(mirror, Request(), Settings.read())
    plan = run.plan()
    assert [c.path for c in plan.free] == [GONE]
    with busy(State(mirror), [], []) as _:
        pass
    started = []

    def start() -> None:
        claim = busy(State(mirror), [GONE], [])
        claim.__enter__()
        started.append(claim)

    if when == "before":
        start()
    else:
        hide = Gc._hide

        def slow(self: Gc, path: str) -> Path:
            temp = hide(self, path)
            start()
            return temp

        monkeypatch.setattr(Gc, "_hide", slow)
    freed = run.carry_out(plan)
    assert freed.files == ()
    assert [k.finding.code for k in freed.kept] == ["gc-wanted"]
    assert (mirror / GONE).read_bytes() == IMAGES[GONE]
    for claim in started:
        claim.__exit__(None, None, None)


def halved(hub: Hub, to: Path) -> tuple[dict[str, bytes], subprocess.Popen[str]]:
    """A mirror of whose 60 files half are needed no more, until a fetch of ``b``, which starts, needs all."""
    many = {f"images/m{i:03d}.sif": minimal_image(f"many {i}") for i in range(61)}
    tasks = {f"t{i}": path for i, path in enumerate(many)}
    repo = fill(hub, many, {"b": tasks})
    for count in (60, 30):
        index = {"a": dict(list(tasks.items())[:count]), "b": tasks}
        repo.add({"task_to_blob.json": json.dumps(index).encode()})
        fetch(hub, to, "a")
    return many, start(hub, "fetch", "b", "-p", "hf://datasets/acme/pool", "--to", to, "--json")


def start(hub: Hub, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "poolmgr", *map(str, words)],
        env={**os.environ, **hub.env(), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_real_gc_in_the_middle_of_a_real_fetch_frees_nothing_that_it_counts_on(
    hub: Hub, tmp_path: Path, poolmgr: RunPoolmgr
) -> None:
    said: list[str] = []
    to = tmp_path / "mirror"

    def whole_gc() -> None:
        said.append(start(hub, "gc", "-p", to, "-y", "--json").communicate(timeout=120)[0])

    hub.fault("m060.sif", method="GET", origin="cdn", before=whole_gc)
    many, fetching = halved(hub, to)
    out, error = fetching.communicate(timeout=180)
    assert fetching.returncode == 0, out + error
    found = json.loads(said[0])
    assert found["free"] == []
    assert {k["code"] for k in found["kept"]} == {"gc-wanted"}
    assert len(found["kept"]) == 30
    assert audits(poolmgr, to, "a", "b")
    assert set(files(to)) == set(many)


@pytest.mark.parametrize("late", [0.0, 0.4])
def test_a_real_fetch_and_a_real_gc_that_start_together_lose_nothing(
    hub: Hub, tmp_path: Path, poolmgr: RunPoolmgr, late: float
) -> None:
    """Whoever comes first where: a fetch that says it is done has every file, and so has every lock."""
    to = tmp_path / "mirror"
    many, fetching = halved(hub, to)
    time.sleep(random.uniform(0, late))
    freeing = start(hub, "gc", "-p", to, "-y", "--json")
    said, words = freeing.communicate(timeout=120)
    assert freeing.returncode in (0, 3), said + words
    _, error = fetching.communicate(timeout=120)
    assert audits(poolmgr, to, "a")
    if fetching.returncode != 0:  # gc took a file after the plan: that is said, and the same command goes on
        assert "run it again" in error
        fetch(hub, to, "b")
    assert audits(poolmgr, to, "a", "b")
    assert set(files(to)) == set(many)
    assert not list(to.rglob(".poolmgr-tmp-*"))


def test_debris_of_the_dead_goes_and_of_the_living_stays(hub: Hub, mirror: Path, poolmgr: RunPoolmgr) -> None:
    code = (
        "import sys; from pathlib import Path; from poolmgr.ops.partials import Partials\n"
        "import os; from poolmgr.temporary import temp_name; from poolmgr.ops.busy import busy\n"
        "from poolmgr.ops.state import State\n"
        "root = Path(sys.argv[1]); p = Partials(root / '.poolmgr/partial')\n"
        "p.mine(sys.argv[2] * 64).write_bytes(bytes(1000))\n"
        "temp_name(root / 'images').write_bytes(bytes(100))\n"
        "claim = busy(State(root), ['x.sif'], []); claim.__enter__(); print('ready', flush=True)\n"
        "sys.stdin.read(); os._exit(0)\n"
    )

    def child(key: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, "-c", code, str(mirror), key], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        return started

    dead, alive = child("d"), child("e")
    try:
        dead.communicate()
        quarantine = mirror / ".poolmgr/quarantine"
        quarantine.mkdir(exist_ok=True)
        (quarantine / f"{'a' * 64}.sif").write_bytes(bytes(50))
        (quarantine / f"{'a' * 64}.json").write_bytes(b"{}")
        (quarantine / "notes.txt").write_text("mine")
        (mirror / ".poolmgr/partial/mine.txt").write_text("mine")
        done = gc(poolmgr, hub, mirror, "-y")
        kinds = sorted(d["kind"] for d in done["debris"])  # type: ignore[index, attr-defined]
        assert kinds == ["busy", "partial", "quarantine", "quarantine", "temporary"]
        assert done["unseen"] == 2
        assert [p.name for p in quarantine.iterdir()] == ["notes.txt"]
        left = {p.name[:1] for p in (mirror / ".poolmgr/partial").iterdir()}
        assert left == {"e", "m"}
        assert len(list((mirror / ".poolmgr/busy").iterdir())) == 1
    finally:
        alive.communicate()


def test_a_folder_pool_is_read_to_be_believed(tmp_path: Path, poolmgr: RunPoolmgr, hub: Hub) -> None:
    pool, to = tmp_path / "pool", tmp_path / "mirror"
    for path, data in IMAGES.items():
        (pool / path).parent.mkdir(parents=True, exist_ok=True)
        (pool / path).write_bytes(data)
    (pool / "task_to_blob.json").write_text(json.dumps(INDEX))
    assert poolmgr("fetch", "--all", "-p", pool, "--to", to, "--reserve", "0").returncode == 0
    broken = bytearray(IMAGES[GONE])
    broken[len(broken) // 2] ^= 1
    (pool / GONE).write_bytes(broken)
    found = gc(poolmgr, hub, to, "-y", "--variant", "original", exit_=3)
    assert {k["path"] for k in found["kept"]} == {GONE}  # type: ignore[index, attr-defined]
    assert set(files(to)) == {GONE, *INDEX["solvable"].values()}


def test_no_mirror(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    (tmp_path / "folder").mkdir()
    assert poolmgr("gc", "-p", tmp_path / "folder").returncode == 1
    assert poolmgr("gc", "-p", tmp_path / "nowhere").returncode == 2
    assert poolmgr("gc").returncode == 2


def test_killed_at_any_moment_it_leaves_a_pool_that_audits(
    hub: Hub, tmp_path: Path, poolmgr: RunPoolmgr
) -> None:
    many = {f"images/m{i:03d}.sif": minimal_image(f"many {i}") for i in range(150)}
    index = {"keep": {f"t{i}": p for i, p in enumerate(many) if i % 3 == 0},
             "drop": {f"t{i}": p for i, p in enumerate(many)}}  # fmt: skip
    fill(hub, many, index)
    to = tmp_path / "mirror"
    fetch(hub, to, "keep", "drop")
    words = ["gc", "-p", str(to), "-y", "--variant", "drop"]
    for _ in range(6):
        child = subprocess.Popen(
            [sys.executable, "-m", "poolmgr", *words],
            env={**os.environ, **hub.env(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + random.uniform(0.5, 1.5)
        # most of the time goes into the proof; the kill is to fall into the freeing
        while time.monotonic() < until or (State(to).locked() > {"keep"} and child.poll() is None):
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert audits(poolmgr, to, "keep")
        if State(to).locked() == {"keep"}:
            words = words[:4]
    gc(poolmgr, hub, to, "-y")
    assert set(files(to)) == set(index["keep"].values())
    assert not list(to.rglob(".poolmgr-tmp-*"))
