"""Partial files: whose they are, and who may go on with them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from poolmgr.ops.partials import Partials, scan

KEY = "a" * 64
ROOT = Path(__file__).parents[2]


def leave_partial(folder: Path, data: bytes, *, alive: bool = False) -> subprocess.Popen[str]:
    """Another process writes a partial and dies, or lives until its stdin closes."""
    code = (
        "import sys; from pathlib import Path; from poolmgr.ops.partials import Partials, scan\n"
        f"p = Partials(Path(sys.argv[1])); p.mine({KEY!r}).write_bytes({data!r})\n"
        "print('written', flush=True)\n" + ("sys.stdin.read()\n" if alive else "")
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "written\n"
    if not alive:
        child.communicate()
    return child


def test_a_dead_processs_partial_is_taken_over_by_its_name(tmp_path: Path) -> None:
    leave_partial(tmp_path, b"begun")
    partials = Partials(tmp_path)
    assert partials.take_over(KEY, 100) == 5
    assert partials.mine(KEY).read_bytes() == b"begun"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_live_processs_partial_is_left_to_it(tmp_path: Path) -> None:
    child = leave_partial(tmp_path, b"begun", alive=True)
    try:
        partials = Partials(tmp_path)
        (theirs,) = partials.of(KEY)
        assert not partials.surely_dead(theirs)
        partials.take_over(KEY, 100)
        assert theirs.path.read_bytes() == b"begun"
        assert not theirs.path.samefile(partials.mine(KEY))
        partials.sweep()
        assert theirs.path.exists()
    finally:
        child.communicate()
    assert partials.surely_dead(theirs)


def test_two_takers_of_one_partial_never_share_a_file(tmp_path: Path) -> None:
    leave_partial(tmp_path, b"begun")
    one, two = Partials(tmp_path), Partials(tmp_path)
    assert one.take_over(KEY, 100) == 5
    two.take_over(KEY, 100)
    assert one.mine(KEY) != two.mine(KEY)
    assert not (two.mine(KEY).exists() and two.mine(KEY).samefile(one.mine(KEY)))


def test_a_file_of_another_machine_is_copied_never_renamed(tmp_path: Path) -> None:
    theirs = tmp_path / f"{KEY}.{'0' * 12}-1-1-{'0' * 8}.part"
    theirs.write_bytes(b"begun")
    partials = Partials(tmp_path)
    assert partials.take_over(KEY, 100) == 5
    assert theirs.read_bytes() == b"begun"
    partials.sweep()
    assert theirs.exists()
    assert not partials.mine(KEY).exists()


def test_a_partial_that_was_just_published_is_never_written_to(tmp_path: Path) -> None:
    leave_partial(tmp_path, b"whole")
    (part,) = tmp_path.iterdir()
    final = tmp_path / "final.sif"
    os.link(part, final)
    partials = Partials(tmp_path)
    partials.take_over(KEY, 100)
    assert not partials.mine(KEY).samefile(final)


@pytest.mark.parametrize("size", [0, 101])
def test_an_empty_or_too_long_partial_is_no_start(tmp_path: Path, size: int) -> None:
    leave_partial(tmp_path, b"x" * size)
    assert Partials(tmp_path).take_over(KEY, 100) == 0


def test_a_run_of_this_process_that_ended_is_dead(tmp_path: Path) -> None:
    first = Partials(tmp_path)
    first.mine(KEY).write_bytes(b"begun")
    second = Partials(tmp_path)
    (left,) = second.of(KEY)
    assert not second.surely_dead(left)
    first.close()
    assert second.surely_dead(left)


def test_files_of_other_names_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep")
    (tmp_path / f"{KEY}.part").write_text("keep")
    partials = Partials(tmp_path)
    assert scan(tmp_path) == {}
    partials.sweep()
    assert len(list(tmp_path.iterdir())) == 2
