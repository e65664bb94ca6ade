"""The claim on a folder: one at a time, a dead owner's is taken over, an unseen one's is waited for."""

from __future__ import annotations

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
from poolmgr.store import claim
from poolmgr.store.claim import claimed
from tests.conftest import ROOT


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
from poolmgr.store.claim import claimed
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


@pytest.mark.parametrize("text", [str(Owner("0" * 12, 1, 1, "0" * 8)), "", "rubbish"])
def test_an_owner_that_cannot_be_seen_is_not_robbed(tmp_path: Path, text: str) -> None:
    (tmp_path / f"{7:012d}").write_text(text)
    with pytest.raises(PoolBusyError, match="000000000007"), claimed(tmp_path, patience=0.1):
        raise AssertionError
    (tmp_path / f"{7:012d}").unlink()
    with claimed(tmp_path):
        pass


def test_who_slept_between_looking_and_making_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sleeper saw number 5 free; meanwhile 6 was taken and released as 7, and 6 removed."""
    (tmp_path / f"{5:012d}").write_text(claim.RELEASED)
    real = claim.create_durable
    slept = []

    def slow(path: Path, data: bytes) -> None:
        if not slept:
            slept.append(path.name)
            with claimed(tmp_path):
                pass
            assert [p.name for p in tmp_path.iterdir()] == [f"{7:012d}"]
        real(path, data)

    monkeypatch.setattr(claim, "create_durable", slow)
    with claimed(tmp_path):
        assert slept == [f"{6:012d}"]
        assert max(p.name for p in tmp_path.iterdir()) == f"{8:012d}"
