"""A finding: one thing wrong with one thing, with a stable code; and the verdicts they add up to.

``CODES`` is the whole vocabulary: docs/findings.md is generated from it, and a test keeps every
``Finding`` that the code can make inside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    """The thing is bad: it does not pass."""
    WARNING = "warning"
    """Unusual, passes."""
    NOTE = "note"
    """Said for completeness, passes."""


class Verdict(StrEnum):
    """What a check says of one image. Only ``OK`` and ``PARTIAL`` pass."""

    OK = "ok"
    PARTIAL = "partial"
    """Every block was read, but the format carries no checksum: only a hash confirms the bytes."""
    BAD = "bad"
    UNCHECKED = "unchecked"
    """A codec, a permission or a tool is missing, or nobody looked."""
    UNSUPPORTED = "unsupported"
    """A real image of a kind that poolmgr cannot vouch for."""

    @property
    def passes(self) -> bool:
        return self in (Verdict.OK, Verdict.PARTIAL)


class Level(StrEnum):
    """How deep ``verify`` looks; each level includes the ones before (docs/verify.md)."""

    LISTED = "listed"
    HEADER = "header"
    MOUNT = "mount"
    TABLES = "tables"
    DATA = "data"

    @property
    def depth(self) -> int:
        return list(Level).index(self)

    def includes(self, other: Level) -> bool:
        return self.depth >= other.depth


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    """A key of ``CODES``."""
    message: str
    """What was expected and what was found, without the path."""
    severity: Severity = Severity.ERROR
    where: str = ""
    """The place inside the thing, such as ``descriptor 3`` or ``partition 2``."""

    def as_json(self) -> dict[str, str]:
        row = {"code": self.code, "severity": self.severity.value, "message": self.message}
        if self.where:
            row["where"] = self.where
        return row

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """``BAD`` with an error among them, else ``OK``; special verdicts are the check's own to give."""
    return Verdict.BAD if any(f.severity is Severity.ERROR for f in findings) else Verdict.OK


@dataclass(frozen=True, slots=True)
class CodeInfo:
    severity: Severity
    meaning: str
    remedy: str


CODES: dict[str, CodeInfo] = {}


def _define(code: str, severity: Severity, meaning: str, remedy: str) -> None:
    assert code not in CODES, code
    CODES[code] = CodeInfo(severity, meaning, remedy)


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
_FETCH = "Fetch the blob again."
_POOL = "The pool itself holds it so: tell its owner, and ask for a new blob under a new name."

# --- a blob as an entry of a folder or listing (plan/coverage, store/local) --------------------
_define("missing", _E, "A task needs this blob and the pool does not hold it.", _FETCH)
_define(
    "other-case", _E, "The pool holds the name only in another case.", "Correct the index or rename the blob."
)
_define("is-directory", _E, "The index names a directory.", "Correct the index: a task needs one file.")
_define("zero-byte", _E, "The file has no bytes.", _FETCH)
_define(
    "below-floor",
    _E,
    "The file is smaller than the manifest's min_bytes.",
    "Look at the file; fetch it again.",
)
_define("wrong-size", _E, "The file's size is not the recorded one.", _FETCH)
_define("wrong-hash", _E, "The file's sha256 is not the recorded one.", _FETCH)
_define(
    "wrong-arch",
    _E,
    "The image is for another architecture.",
    "Use an image built for the pool's architecture.",
)
_define("dangling-link", _E, "A symbolic link that leads nowhere.", "Restore its target or fetch the blob.")
_define(
    "outward-link",
    _E,
    "A symbolic link that leaves the pool.",
    "Put the file itself into the pool: bind mounts do not follow links.",
)
_define(
    "unreadable",
    _E,
    "This user may not read the file or a folder above it.",
    "Ask its owner for read permission.",
)
_define("not-a-file", _E, "The entry is a socket, pipe, device or folder.", "Remove it from the pool.")
_define(
    "unsafe-path",
    _E,
    "A path that would leave the pool or hide in it.",
    "Rename it; poolmgr never touches it.",
)
_define("case-clash", _E, "Two paths differ only in case or Unicode form.", "Rename one of the two.")
_define("orphan", _N, "No variant names this blob.", "Nothing, or 'poolmgr gc' on a mirror.")
_define(
    "directory-full",
    _W,
    "The directory has no room left under the Hub's 10,000 entries.",
    "'poolmgr push' opens the next batch by itself.",
)
_define("quarantined", _E, "The right bytes arrived, and they are no valid image.", _POOL)
_define(
    "changed-since-proven", _E, "The file is not the one that was proven.", "'poolmgr audit' hashes it again."
)
_define(
    "not-checked",
    _W,
    "A check that was asked for could not be carried out.",
    "See the message for what is missing.",
)

# --- a dataset against a variant (plan/coverage) -------------------------------------------------
_define(
    "row-without-assignment",
    _E,
    "The dataset has the task, the variant does not.",
    "Push the task's image, or drop the row.",
)
_define(
    "assignment-without-row",
    _E,
    "The variant has the task, the dataset does not.",
    "Use the dataset that belongs to this variant.",
)
_define("row-without-image", _E, "The row names no image anywhere.", "Rebuild the row's image and record it.")
_define(
    "generic-image",
    _E,
    "Unrelated tasks share a generic base image: their own build failed silently.",
    "Build the tasks' own images.",
)
_define(
    "bare-image",
    _W,
    "One task names a bare operating system as its image.",
    "Look at the task: its own build may have failed silently.",
)
_define("duplicate-row", _E, "Two rows have one task id.", "Drop one of them.")
_define("bad-row", _E, "A row that cannot be read.", "See the message.")
_define(
    "task-count",
    _E,
    "The variant has another number of tasks than the manifest expects.",
    "Update the manifest or find the lost tasks.",
)
