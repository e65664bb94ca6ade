"""What a run of ``derive`` has made, written down as it goes: the next run need not make or read it again.

JSON Lines in ``.poolmgr/derived/`` of the folder, one file a run, like attestations (ops/attest.py): a
row counts for its own file alone, and while size, mtime, ctime and inode hold, or when its sha256 agrees.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from poolmgr.model.blob import STATE_DIR
from poolmgr.model.digest import parse_sha256
from poolmgr.model.ranges import MAX_TEXT
from poolmgr.model.stamp import Stamp

SCHEMA = 1
_FOLDER = "derived"


@dataclass(frozen=True, slots=True)
class MadeRow:
    """One image that was made, passed every check, and got its name."""

    file: str
    base_sha256: str
    recipe_sha256: str
    expect_sha256: str
    """Of the expectations that it met."""
    stamp: Stamp
    sha256: str
    tree_sha256: str | None
    shared: str
    notes: tuple[str, ...] = ()

    def to_line(self) -> str:
        row = {
            "schema": SCHEMA, "kind": "derived", "file": self.file, "base_sha256": self.base_sha256,
            "recipe_sha256": self.recipe_sha256, "expect_sha256": self.expect_sha256,
            "size": self.stamp.size, "mtime_ns": self.stamp.mtime_ns, "ctime_ns": self.stamp.ctime_ns,
            "inode": self.stamp.inode, "sha256": self.sha256, "tree_sha256": self.tree_sha256,
            "shared_ranges": self.shared, "notes": list(self.notes),
        }  # fmt: skip
        return json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n"

    @staticmethod
    def from_line(line: str) -> MadeRow:
        """The row of one line; ``ValueError`` when it is none of this schema."""
        try:
            row = json.loads(line)
            stamp = Stamp(*(row[key] for key in ("size", "mtime_ns", "ctime_ns", "inode")))
            tree, shared = row["tree_sha256"], row["shared_ranges"]
            if row["schema"] != SCHEMA or row["kind"] != "derived":
                raise ValueError("another schema")
            if not isinstance(row["file"], str) or not isinstance(shared, str) or len(shared) > MAX_TEXT:
                raise ValueError("not a row of a derivation")
            return MadeRow(
                row["file"], parse_sha256(row["base_sha256"]), parse_sha256(row["recipe_sha256"]),
                parse_sha256(row["expect_sha256"]), stamp, parse_sha256(row["sha256"]),
                None if tree is None else parse_sha256(tree), shared, tuple(map(str, row["notes"])),
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError, RecursionError) as e:
            raise ValueError(f"not a row of a derivation: {e!r}") from None


def journal_folder(to: Path) -> Path:
    return to / STATE_DIR / _FOLDER


def read_journal(to: Path) -> Mapping[str, list[MadeRow]]:
    """File name -> its rows, of all runs into the folder ``to``. What cannot be read only costs work."""
    found: dict[str, list[MadeRow]] = {}
    try:
        files = sorted(f for f in journal_folder(to).iterdir() if f.suffix == ".jsonl")
        for file in files:
            with file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    try:
                        row = MadeRow.from_line(line)
                    except ValueError:
                        continue  # torn by a kill, or of another version
                    found.setdefault(row.file, []).append(row)
    except OSError:
        pass
    return found
