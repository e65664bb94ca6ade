"""An attestation: the record that one file passed (or failed) some checks, bound to that file.

One JSON object a line. A row counts only for the pool and path it names, and only while the
file's stamp still holds (or a new hash agrees with its sha256).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from poolmgr.model.digest import parse_sha256
from poolmgr.model.finding import Finding, Level, Severity, Verdict
from poolmgr.model.stamp import Stamp

SCHEMA = 1
_LAST = 1e12
"""Seconds that no clock shows; a row of a later time would be the newest for ever."""
LEVELS = tuple(level.value for level in Level)
CHECKS = (*LEVELS, "hash", "inspect", "run")
"""The names a check may have: the levels, and the three beside them."""
_BY_NAME = {level.value: level for level in Level}
_VERDICTS = {verdict.value: verdict for verdict in Verdict}
_CONTENT = re.compile(r"(require|forbid|modules):[0-9a-f]{16}")
"""A content rule that the file obeys, with a digest of the rule (ops/image_checks.py)."""


@dataclass(frozen=True, slots=True)
class Attestation:
    pool: str
    """The pool's identity (``.poolmgr/pool.json``), not its address."""
    path: str
    stamp: Stamp
    checks: Mapping[str, Verdict]
    """Check (of ``CHECKS``, or a content rule) -> verdict. A level stands for every level below it."""
    sha256: str | None = None
    """Known only when every byte was hashed in the run that wrote the row."""
    findings: tuple[Finding, ...] = ()
    arch: str | None = None
    """The image's architecture, such as ``amd64``, where the header was read."""
    versions: Mapping[str, str] = field(default_factory=dict)
    time: float = 0.0
    """Unix seconds when the check ended."""
    placed: bool = False
    """Whether the run that wrote the row gave the file its name, so that ``gc`` may take it away."""

    def to_line(self) -> str:
        """One line of JSON, with its newline."""
        s = self.stamp
        row: dict[str, Any] = {
            "schema": SCHEMA,
            "kind": "attestation",
            "pool": self.pool,
            "path": self.path,
            "size": s.size,
            "mtime_ns": s.mtime_ns,
            "ctime_ns": s.ctime_ns,
            "inode": s.inode,
            "checks": {k: v.value for k, v in self.checks.items()},
            "time": self.time,
        }
        if self.sha256:
            row["sha256"] = self.sha256
        if self.arch:
            row["arch"] = self.arch
        if self.findings:
            row["findings"] = [f.as_json() for f in self.findings]
        if self.placed:
            row["placed"] = True
        if self.versions:
            row["versions"] = dict(self.versions)
        return json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n"

    @staticmethod
    def from_line(line: str) -> Attestation:
        """The attestation of one line; ``ValueError`` when it is none of this schema."""
        try:
            row = json.loads(line)
            if row["schema"] != SCHEMA or row["kind"] != "attestation":
                raise ValueError("another schema")
            checks = row["checks"]
            return Attestation(
                pool=_text(row["pool"]),
                path=_text(row["path"]),
                stamp=Stamp(
                    _int(row["size"]), _int(row["mtime_ns"]), _int(row["ctime_ns"]), _int(row["inode"])
                ),
                checks={_check(k): _VERDICTS[v] for k, v in checks.items()},
                sha256=_digest(row.get("sha256")),
                findings=tuple(
                    Finding(
                        _text(f["code"]),
                        _text(f["message"]),
                        Severity(f["severity"]),
                        _text(f.get("where", "")),
                    )
                    for f in row.get("findings", ())
                ),
                arch=_optional(row.get("arch")),
                versions=dict(row.get("versions", {})),
                time=_time(row["time"]),
                placed=row.get("placed") is True,
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as e:
            raise ValueError(f"not an attestation row: {e!r}") from None


@dataclass(frozen=True, slots=True)
class Standing:
    """All that valid rows say together of one file as it is now."""

    stamp: Stamp
    checks: Mapping[str, Verdict]
    sha256: str | None
    findings: tuple[Finding, ...]
    arch: str | None
    placed: bool = False
    """Whether one of the rows is of the run that gave this very file its name."""

    @property
    def level(self) -> Level | None:
        """The deepest level that passed, if no level failed since."""
        if self.verdict is Verdict.BAD:
            return None
        passed = [_BY_NAME[c] for c, v in self.checks.items() if c in _BY_NAME and v.passes]
        return max(passed, key=lambda level: level.depth, default=None)

    @property
    def verdict(self) -> Verdict:
        """``BAD`` while any check's newest word is bad; else the deepest level's word."""
        if Verdict.BAD in self.checks.values():
            return Verdict.BAD
        levels = [c for c in LEVELS if c in self.checks]
        return self.checks[levels[-1]] if levels else Verdict.UNCHECKED

    def proves(self, level: Level, sha256: str | None) -> bool:
        """Whether nothing is bad, ``level`` passed, and the bytes hashed to ``sha256`` (when given)."""
        have = self.level
        return have is not None and have.includes(level) and (sha256 is None or self.sha256 == sha256)


def standing(rows: Iterable[Attestation], stamp: Stamp) -> Standing | None:
    """The newest word of every check among the ``rows`` of one path that hold for ``stamp``.

    A newer row replaces what it looked at again and no more: a newer pass at ``mount`` does not
    clear an older failure at ``data``, a newer pass at ``data`` clears one at ``mount``.
    """
    checks: dict[str, Verdict] = {}
    findings: dict[str, tuple[Finding, ...]] = {}
    sha256 = arch = None
    found = placed = False
    for row in sorted((r for r in rows if r.stamp == stamp), key=lambda r: r.time):
        found = True
        looked = [_BY_NAME[c] for c in row.checks if c in _BY_NAME]
        deepest = max((level.depth for level in looked), default=-1)
        for check in LEVELS[: deepest + 1]:
            checks.pop(check, None)
            findings.pop(check, None)
        for check, verdict in row.checks.items():
            checks[check] = verdict
            findings[check] = row.findings
        sha256 = row.sha256 or sha256
        arch = row.arch or arch
        placed = placed or row.placed
    if not found:
        return None
    seen = dict.fromkeys(f for group in findings.values() for f in group)
    return Standing(stamp, checks, sha256, tuple(seen), arch, placed)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, found {value!r}")
    return value


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)


def _digest(value: object) -> str | None:
    text = _optional(value)
    return None if text is None else parse_sha256(text)


def _int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"integer expected, found {value!r}")
    return value


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LAST:
        raise TypeError(f"a time in seconds expected, found {str(value)[:40]}")
    return float(value)


def _check(value: object) -> str:
    name = _text(value)
    if name not in CHECKS and not _CONTENT.fullmatch(name):
        raise TypeError(f"unknown check {value!r}")
    return name
