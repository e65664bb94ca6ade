"""Claims: one at a time, also over processes, and the dead lose theirs."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from poolmgr.errors import PoolBusyError
from poolmgr.owner import Owner
from poolmgr.store import claims as module
from poolmgr.store.claims import Claims, claimed
from tests.conftest import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "claims"


def make(folder: Path, **options: float) -> Claims:
    return Claims(folder, Owner.begin(), "here", **options)


def test_a_claim_has_one_owner_until_it_is_given_up(folder: Path) -> None:
    one, two = make(folder), make(folder)
    assert one.take("a.sif") is None
    held = two.take("a.sif")
    assert held is not None
    assert held.owner == one.owner
    assert held.machine == "here"
    assert two.take("b.sif") is None
    two.give_up("a.sif")  # not its own: nothing happens
    assert two.take("a.sif") is not None
    one.give_up("a.sif")
    assert two.take("a.sif") is None
    one.close()
    two.close()
    assert not list(folder.iterdir())


def test_an_ended_run_of_this_process_loses_its_claim(folder: Path) -> None:
    one, two, three = make(folder), make(folder), make(folder)
    one.take("a")
    one.owner.close()
    assert two.take("a") is None
    assert three.take("a") is not None
    two.give_up("a")
    assert not list(folder.iterdir())  # the dead one's too


def test_a_killed_process_loses_its_claim(folder: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom poolmgr.store.claims import Claims\n"
        "from poolmgr.owner import Owner\n"
        "assert Claims(Path(sys.argv[1]), Owner.begin(), 'there').take('a') is None\n"
        "print('taken', flush=True)\ntime.sleep(60)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, env=env, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "taken\n"
    mine = make(folder)
    held = mine.take("a")
    assert held is not None
    assert held.owner is not None
    assert held.owner.pid == child.pid
    child.kill()
    child.wait()
    child.stdout.close()
    assert mine.take("a") is None


def test_of_many_takers_of_a_dead_claim_one_gets_it(folder: Path) -> None:
    for _ in range(20):
        dead = make(folder)
        dead.take("a")
        dead.owner.close()
        runs = [make(folder) for _ in range(8)]
        start = threading.Barrier(len(runs))
        won: list[Claims] = []

        def take(run: Claims, start: threading.Barrier = start, won: list[Claims] = won) -> None:
            start.wait()
            if run.take("a") is None:
                won.append(run)

        threads = [threading.Thread(target=take, args=(run,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        for run in runs:
            run.close()


def test_another_machines_claim_holds_while_it_is_touched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Claims(folder, Owner("0" * 12, 1, 1, "0" * 8), "there", beat=0.05)
    here = make(folder)
    assert there.take("a") is None
    (claim,) = folder.glob("*.claim")
    monkeypatch.setattr(module, "STALE", 0.8)
    time.sleep(1.2)
    assert here.take("a") is not None, "its owner still touches it"
    there._stop.set()
    old = time.time() - 3600
    time.sleep(0.2)
    os.utime(claim, (old, old))
    assert here.take("a") is None
    there.give_up("a")  # too late: the newer claim stays
    assert make(folder).take("a") is not None


@pytest.mark.parametrize("body", [b"", b"\n\n", b"\xff\xfe" * 600, b"x" * 4000, b"0-0-0-0\n"])
def test_a_claim_that_nobody_can_read_holds_until_it_is_stale(folder: Path, body: bytes) -> None:
    one = make(folder)
    one.take("a")
    (claim,) = folder.glob("*.claim")
    claim.write_bytes(body)
    two = make(folder)
    assert two.take("a") is not None
    os.utime(claim, (1, 1))
    assert two.take("a") is None


# --- the exact claim on an index -------------------------------------------------------------------


def test_one_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(20):
            with claimed(tmp_path / "claim"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 80
    assert max(most) == 1
    assert len(os.listdir(tmp_path / "claim")) == 1, "no heap of old claims"


def test_a_live_owner_is_waited_for_and_then_named(tmp_path: Path) -> None:
    told: list[str] = []
    with (
        claimed(tmp_path),
        pytest.raises(PoolBusyError, match=f"process {os.getpid()}"),
        claimed(tmp_path, patience=0.2, waiting=told.append),
    ):
        raise AssertionError
    assert len(told) == 1
    with claimed(tmp_path, patience=0.2):
        pass


def test_a_killed_owner_is_seen_to_be_dead(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from poolmgr.store.claims import claimed
with claimed(Path({str(tmp_path)!r})):
    print("held", flush=True)
    time.sleep(60)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(PoolBusyError), claimed(tmp_path, patience=0.1):
        raise AssertionError
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with claimed(tmp_path, patience=0.1):
        pass


def index_claim(folder: Path, number: int) -> Path:
    return folder / f"{hashlib.sha256(b'index').hexdigest()}.{number}.claim"


@pytest.mark.parametrize("text", [str(Owner("0" * 12, 1, 1, "0" * 8)) + "\nthere\n", "", "rubbish"])
def test_an_index_claim_of_an_unseen_owner_holds_until_it_is_stale(tmp_path: Path, text: str) -> None:
    """A pusher that died on another machine does not block a pool for ever, and a live one is not robbed."""
    claim = index_claim(tmp_path, 7)
    claim.write_text(text)
    with pytest.raises(PoolBusyError, match=r"\.7\.claim"), claimed(tmp_path, patience=0.1):
        raise AssertionError
    old = time.time() - module.STALE - 60
    os.utime(claim, (old, old))
    with claimed(tmp_path, patience=0.1):
        assert [p.name for p in tmp_path.iterdir()] == [index_claim(tmp_path, 8).name]


def test_an_index_claim_is_touched_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.Claims
    monkeypatch.setattr(module, "Claims", lambda *a, **k: real(*a, **k, beat=0.05))
    with claimed(tmp_path):
        (claim,) = tmp_path.iterdir()
        os.utime(claim, (1, 1))
        deadline = time.monotonic() + 20
        while claim.stat().st_mtime < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_who_slept_between_looking_and_making_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sleeper saw number 5 free; meanwhile 6 was taken and released as 7, and 6 removed."""
    index_claim(tmp_path, 5).write_text(module.RELEASED)
    real = module.create_durable
    slept = []

    def slow(path: Path, data: bytes) -> None:
        if not slept:
            slept.append(path.name)
            with claimed(tmp_path):
                pass
            assert [p.name for p in tmp_path.iterdir()] == [index_claim(tmp_path, 7).name]
        real(path, data)

    monkeypatch.setattr(module, "create_durable", slow)
    with claimed(tmp_path):
        assert slept == [index_claim(tmp_path, 6).name]
        assert [p.name for p in tmp_path.iterdir()] == [index_claim(tmp_path, 8).name]
