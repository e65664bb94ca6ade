"""What killed processes left is swept; what anybody may still use is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from poolmgr.owner import Owner, this_process
from poolmgr.temporary import TEMP_PREFIX, scratch_folder, sweep, temp_name, temp_owner

ROOT = Path(__file__).parents[1]
CODE = """
import sys, time
from pathlib import Path
from poolmgr.temporary import scratch_folder, temp_name
temp_name(sys.argv[1]).with_name(temp_name(sys.argv[1]).name + ".jsonl.gz").write_bytes(b"half")
with scratch_folder(Path(sys.argv[1])) as scratch:
    (scratch / "locked").mkdir(mode=0o500)
    (scratch / "deep").mkdir()
    (scratch / "deep/file").write_bytes(b"half")
    print("written", flush=True)
    time.sleep(600)
"""


def test_a_killed_processs_files_and_folders_are_swept_and_a_live_ones_are_not(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CODE, str(tmp_path)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        left = set(tmp_path.iterdir())
        assert len(left) == 2
        assert sweep(tmp_path) == ()
        assert set(tmp_path.iterdir()) == left
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert set(sweep(tmp_path)) == left
    assert not list(tmp_path.iterdir())


def test_names_that_are_not_surely_a_dead_processs_stay(tmp_path: Path) -> None:
    elsewhere = Owner("0" * 12, 1, 1, "0" * 8)
    for name in (
        f"{TEMP_PREFIX}{elsewhere}-0",
        f"{TEMP_PREFIX}12-abc",
        f"{TEMP_PREFIX}{this_process()}-5",
        f"x{temp_name(tmp_path).name}",
        "task_to_blob.json",
    ):
        (tmp_path / name).write_bytes(b"")
    before = sorted(tmp_path.iterdir())
    assert sweep(tmp_path) == ()
    assert sorted(tmp_path.iterdir()) == before


def test_a_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    ended = Owner.begin()
    ended.close()
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_bytes(b"mine")
    link = tmp_path / f"{TEMP_PREFIX}{ended}-0"
    link.symlink_to(kept)
    assert sweep(tmp_path) == (link,)
    assert (kept / "file").read_bytes() == b"mine"


def test_a_scratch_folder_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as scratch:
        assert scratch.stat().st_mode & 0o777 == 0o700
        assert temp_owner(scratch.name) == this_process()
    assert not scratch.exists()
    assert sweep(tmp_path / "absent") == ()


def test_marks_are_read_back() -> None:
    owner = Owner.begin()
    assert Owner.parse(str(owner)) == owner
    assert not owner.surely_dead()
    owner.close()
    assert owner.surely_dead()
    assert Owner.parse(f"{owner}x") is None
