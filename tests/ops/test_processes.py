"""Work that is spread over processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from poolmgr.errors import ToolFailedError
from poolmgr.ops import verify
from poolmgr.ops.processes import spread
from poolmgr.ops.targets import Finder
from poolmgr.ops.verified import Result, Wish
from poolmgr.ops.verify import Verifier
from poolmgr.sif.write import minimal_image

PARENT = """
import operator, time
from poolmgr.ops.processes import spread
def pids():
    for one in spread(eval, ["__import__('os').getpid()"] * 2, 1):
        print(one, flush=True)
        time.sleep(600)
pids()
"""


def test_results_come_in_order_and_chunks_are_taken_as_they_are_needed() -> None:
    taken = 0

    def chunks() -> Iterator[int]:
        nonlocal taken
        for number in range(40):
            taken += 1
            yield -number

    found = spread(abs, chunks(), 2)
    assert next(found) == 0
    assert taken < 10
    assert list(found) == list(range(1, 40))


def test_large_chunks_are_not_under_way_together() -> None:
    ahead = 0

    def chunks() -> Iterator[int]:
        nonlocal ahead
        for number in range(12):
            ahead += 1
            yield -number

    for number, found in enumerate(spread(abs, chunks(), 2, size=lambda _: 60, most=100)):
        assert found == number
        assert ahead <= number + 2
    assert ahead == 12


def test_an_error_passes_on_and_a_killed_helper_is_named() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(spread(int, ["1", "x"], 2))
    with pytest.raises(ToolFailedError, match="was killed"):
        list(spread(eval, ["1", "__import__('os').kill(__import__('os').getpid(), 9)", "1"], 2))


def test_a_helper_ends_with_a_parent_that_is_killed_and_not_by_ctrl_c() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        helper = int(parent.stdout.readline())
        os.kill(helper, signal.SIGINT)
        time.sleep(0.5)
        assert _is_running(helper)
        parent.kill()
    for _ in range(100):
        if not _is_running(helper):
            return
        time.sleep(0.1)
    os.kill(helper, signal.SIGKILL)
    raise AssertionError(f"process {helper} outlived the one that started it")


STOPPED = """
import time
from poolmgr.ops.processes import spread
print("begun", flush=True)
try:
    list(spread(time.sleep, [0.2] * 100, 2))
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.mark.parametrize("after", [0.02, 0.06, 0.1, 0.15, 0.3])
def test_ctrl_c_for_all_is_quiet_even_while_helpers_start(after: float) -> None:
    """A terminal sends Ctrl-C to every process of the command."""
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begun\n"
        time.sleep(after)
        os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=60)
    assert (out, err) == ("stopped\n", "")


TWICE = """
import os, signal, sys, threading, time
def twice(first, second):
    time.sleep(first)
    os.killpg(0, signal.SIGINT)
    time.sleep(second)
    os.killpg(0, signal.SIGINT)
from poolmgr.ops.processes import spread
try:
    threading.Thread(target=twice, args=(float(sys.argv[1]), float(sys.argv[2])), daemon=True).start()
    list(spread(time.sleep, [0.02] * 2000, 2))
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("stopped", flush=True)
"""


@pytest.mark.parametrize("first", [0.06, 0.15, 0.3, 0.6])
@pytest.mark.parametrize("second", [0.002, 0.02, 0.1])
def test_a_second_ctrl_c_does_not_hang_the_command(first: float, second: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(first), str(second)], capture_output=True, text=True, timeout=60,
        start_new_session=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("stopped\n", "")


HUNG_UP = """
import signal
def stop(number, _):
    raise KeyboardInterrupt
signal.signal(signal.SIGHUP, stop)
"""


def test_a_hang_up_for_all_is_quiet() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HUNG_UP + STOPPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begun\n"
        time.sleep(0.8)
        os.killpg(parent.pid, signal.SIGHUP)
        out, err = parent.communicate(timeout=60)
    assert (out, err) == ("stopped\n", "")


STOPPED_AT_START = """
import os, signal, time
from concurrent.futures import process
from poolmgr.ops.processes import spread
class Stop(KeyboardInterrupt):
    pass
def stop(number, _):
    raise Stop
def start(self, go_on=process._ExecutorManagerThread.start):
    os.kill(os.getpid(), signal.{name})
    go_on(self)
signal.signal(signal.{name}, stop)
process._ExecutorManagerThread.start = start
try:
    list(spread(time.sleep, [0.2] * 100, 2))
except Stop:
    print("stopped", flush=True)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_stop_while_helpers_start_is_quiet(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_START.format(name=name)], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("stopped\n", "", 0)


def test_a_helper_ends_by_sigterm() -> None:
    with pytest.raises(ToolFailedError, match="was killed"):
        list(spread(eval, ["__import__('os').kill(__import__('os').getpid(), 15)", "1"], 1))


def test_verify_finds_the_same_by_processes_as_by_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    (pool / ".poolmgr").mkdir()
    (pool / "images/sandbox.sif/.singularity.d").mkdir(parents=True)
    for number in range(150):
        (pool / f"images/{number:03}.sif").write_bytes(minimal_image(f"n{number}", b"x" * 5000))
    (pool / "images/010.sif").write_bytes(b"")
    (pool / "images/020.sif").write_bytes(b"<html>")
    (pool / "images/030.sif").write_bytes((pool / "images/031.sif").read_bytes()[:-600])
    (pool / "images/040.sif").unlink()
    (pool / "images/040.sif").symlink_to("nowhere")

    def run(*, processes: bool) -> tuple[list[Result], int]:
        verifier = Verifier(Wish(jobs=2, processes=processes))
        found = list(verifier.results(list(Finder().find([str(pool), str(tmp_path / "missing.sif")]))))
        attested = sum(file.read_bytes().count(b"\n") for file in (pool / ".poolmgr").rglob("*.jsonl"))
        return found, attested

    one, before = run(processes=False)
    monkeypatch.setattr(verify, "MANY", 1)
    monkeypatch.setattr(verify.ThreadPoolExecutor, "submit", None)
    two, after = run(processes=True)
    assert [(r.path, r.size, dict(r.checks), r.findings, r.reasons, r.arch) for r in one] == [
        (r.path, r.size, dict(r.checks), r.findings, r.reasons, r.arch) for r in two
    ]
    assert {r.findings[0].code for r in one if not r.verdict.passes} == {
        "sandbox-folder", "zero-byte", "html-page", "sif-truncated", "dangling-link", "missing",
    }  # fmt: skip
    assert before > 0
    assert after == 2 * before


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
