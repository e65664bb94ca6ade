"""Whether a file may be used as it lies there: the one rule that audit and resolve share.

What ``audit`` passes, ``resolve`` finds, because both ask ``judge`` (design, section 1, point 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from poolmgr.model.arch import runs_on
from poolmgr.model.attestation import Standing
from poolmgr.model.blob import Blob
from poolmgr.model.finding import Finding, Level, Severity, Verdict


class Need(StrEnum):
    """What still has to be looked at before the file counts as proven."""

    NOTHING = "nothing"
    HASH = "hash"
    """A sha256 is on record and nothing that still holds says that these bytes have it."""
    CHECK = "check"
    """The image has not been checked to the level asked for."""


@dataclass(frozen=True, slots=True)
class Judgement:
    need: Need
    finding: Finding | None = None
    """Set when the file is bad whatever else is looked at."""


def judge(
    recorded: Blob | None,
    size: int,
    standing: Standing | None,
    level: Level = Level.MOUNT,
    arch: str | None = None,
) -> Judgement:
    """Judge a file of ``size`` bytes, given what is on record and what attestations say of it now.

    ``recorded`` is the lock's or table's word (None: nobody wrote anything down), ``standing`` the
    sum of the attestation rows that hold for the file's present stamp, ``arch`` the architecture
    that the pool demands (None: any).
    """
    if size == 0:
        return _bad(Finding("zero-byte", "the file has 0 bytes"))
    if recorded is not None and recorded.size != size:
        return _bad(Finding("wrong-size", f"{recorded.size:,} bytes are on record, the file has {size:,}"))
    if standing is not None and standing.verdict is Verdict.BAD:
        worst = next((f for f in standing.findings if f.severity is Severity.ERROR), None)
        return _bad(worst or Finding("changed-since-proven", "an attestation says that the file is bad"))
    if (
        standing is not None
        and arch is not None
        and standing.arch is not None
        and not runs_on(standing.arch, arch)
    ):
        return _bad(Finding("wrong-arch", f"the image is for {standing.arch}, the pool demands {arch}"))
    sha256 = recorded.sha256 if recorded is not None else None
    if sha256 is not None and (standing is None or standing.sha256 is None):
        return Judgement(Need.HASH)
    if sha256 is not None and standing is not None and standing.sha256 != sha256:
        return _bad(Finding("wrong-hash", f"sha256 {sha256} is on record, the file has {standing.sha256}"))
    if standing is None or not standing.proves(level, None):
        return Judgement(Need.CHECK)
    return Judgement(Need.NOTHING)


def _bad(finding: Finding) -> Judgement:
    return Judgement(Need.NOTHING, finding)
