"""What is read from a folder of attestations."""

from __future__ import annotations

import os
from pathlib import Path

from poolmgr.ops.attest import load


def test_only_files_are_read(tmp_path: Path) -> None:
    """A pipe would never end; a folder is no file of rows."""
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "torn.jsonl").write_text('{"schema":1')
    found = load(tmp_path, "x")
    assert not found.rows
    assert found.unreadable == ("torn.jsonl:1: cut off in the middle (the run was killed)",)


def test_a_row_with_an_endless_number_is_one_unreadable_row(tmp_path: Path) -> None:
    row = (
        '{"schema":1,"kind":"attestation","pool":"x","path":"p","size":1,"mtime_ns":1,"ctime_ns":1,'
        '"inode":1,"checks":{"mount":"ok"},"time":%s}\n'
    )
    (tmp_path / "a.jsonl").write_text(row % ("1" + "0" * 400) + row % "NaN" + row % "1700000000")
    found = load(tmp_path, "x")
    assert len(found.rows["p"]) == 1
    assert len(found.unreadable) == 2
