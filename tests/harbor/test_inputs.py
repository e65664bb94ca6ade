"""Links among a task's inputs; equality with Harbor itself is in test_against_harbor.py."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from poolmgr.harbor import ignore, inputs
from poolmgr.harbor.archive import ArchiveError, Limits, open_archive
from poolmgr.harbor.tree import FolderTree
from tests.harbor.trees import write_task


def trouble(folder: Path, *steps: str) -> str | None:
    return inputs.link_trouble(FolderTree(str(folder)), steps)


def test_a_link_that_leaves_is_refused_unless_the_rules_leave_it_out(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    (task / "tests" / "out").symlink_to("/etc/hostname")
    assert "leads out of the task" in (trouble(task) or "")
    (task / "tests" / ".harborignore").write_text("out\n")
    assert trouble(task) is None
    (task / "tests" / ".harborignore").write_text("out\n!out\n")
    assert "leads out of the task" in (trouble(task) or "")


@pytest.mark.parametrize(
    ("rules", "why"), [(b"\xff", "is not UTF-8"), (b"!\n", "tests/.harborignore"), (None, "no regular file")]
)
def test_rules_that_cannot_be_used(tmp_path: Path, rules: bytes | None, why: str) -> None:
    task = write_task(tmp_path / "t")
    if rules is None:
        (task / "tests" / ignore.NAME).mkdir()
    else:
        (task / "tests" / ignore.NAME).write_bytes(rules)
    assert why in (trouble(task) or "")


def test_links_that_multiply_paths_come_to_an_end(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    for n in range(40):
        folder = task / "tests" / f"d{n}"
        folder.mkdir()
        for name in ("a", "b"):
            (folder / name).symlink_to(f"../d{n + 1}")
    assert "10,000 paths" in (trouble(task) or "")


def test_a_link_to_the_task_itself_is_a_ring(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    (task / "tests" / "up").symlink_to("..")
    assert "loop" in (trouble(task) or "")


def test_folders_thousands_deep_raise_nothing_else() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("tests/" + "a/" * 1900 + "f"))
        link = tarfile.TarInfo("tests/l")
        link.type, link.linkname = tarfile.SYMTYPE, "nothing"
        tar.addfile(link)
    try:
        tree = open_archive(out.getvalue(), Limits())
    except ArchiveError:
        return
    assert "folders deep" in (inputs.link_trouble(tree, ()) or "")
