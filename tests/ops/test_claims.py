"""Claims: one at a time, also over processes, and the dead lose theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from poolmgr.ops import claims as module
from poolmgr.ops.claims import Claims
from poolmgr.owner import Owner
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
        "import sys, time\nfrom pathlib import Path\nfrom poolmgr.ops.claims import Claims\n"
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
