"""One image file as it was seen: its bytes checked, and proof that they were one file's all the while."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Unpack

from poolmgr.model.finding import Finding, Level
from poolmgr.model.stamp import Stamp
from poolmgr.sif.check import How, Report, check
from poolmgr.sif.header import finding
from poolmgr.sif.sniff import sniff_path
from poolmgr.sif.source import FileSource


class Seen(NamedTuple):
    """``report`` of the file that had ``stamp`` before and after."""

    stamp: Stamp
    report: Report


class Unseen(NamedTuple):
    """Why there is no word on the bytes."""

    wrong: Finding


def see(file: str | Path, level: Level, **how: Unpack[How]) -> Seen | Unseen:
    """``check`` of the file at ``file``, and that it stayed the same meanwhile."""
    wrong = sniff_path(file)
    if wrong is not None:
        return Unseen(wrong)
    try:
        with FileSource(file) as source:
            before = Stamp.of(source.stat)
            report = check(source, level, **how)
            after = Stamp.of(os.fstat(source.fd))
        if before != after or after != Stamp.of(os.stat(file)):
            return Unseen(finding("not-checked", "it changed while it was being read"))
    except PermissionError as e:
        return Unseen(finding("unreadable", str(e.strerror)))
    except OSError as e:
        return Unseen(finding("io-error", f"reading failed: {e.strerror}"))
    return Seen(after, report)


def see_all(files: Sequence[str], level: Level, how: How) -> list[Seen | Unseen]:
    """``see`` of each, in order; equal reports are one object, and are sent to another process as one."""
    known: dict[object, Report] = {}
    result: list[Seen | Unseen] = []
    for file in files:
        seen = see(file, level, **how)
        if isinstance(seen, Seen):
            report = seen.report
            key = (
                tuple(report.checks.items()),
                report.findings,
                report.arch,
                report.unchecked,
                report.sha256,
            )
            seen = Seen(seen.stamp, known.setdefault(key, report))
        result.append(seen)
    return result
