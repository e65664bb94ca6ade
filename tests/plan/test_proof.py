"""The one rule by which a file counts as proven."""

from __future__ import annotations

import pytest

from poolmgr.model.attestation import Standing
from poolmgr.model.blob import Blob
from poolmgr.model.finding import Finding, Level, Verdict
from poolmgr.model.stamp import Stamp
from poolmgr.plan.proof import Need, judge

SHA, OTHER = "a" * 64, "b" * 64
RECORD = Blob("x.sif", 5, SHA)


def stands(
    sha256: str | None = SHA, arch: str | None = "amd64", findings: tuple[Finding, ...] = (), **checks: str
) -> Standing:
    checks = checks or {"mount": "ok", "hash": "ok"}
    return Standing(Stamp(5, 1, 1, 1), {k: Verdict(v) for k, v in checks.items()}, sha256, findings, arch)


@pytest.mark.parametrize(
    ("recorded", "size", "standing", "need", "code"),
    [
        (RECORD, 5, stands(), Need.NOTHING, None),
        (RECORD, 0, stands(), Need.NOTHING, "zero-byte"),
        (RECORD, 4, stands(), Need.NOTHING, "wrong-size"),
        (RECORD, 5, None, Need.HASH, None),
        (RECORD, 5, stands(sha256=None, mount="ok"), Need.HASH, None),
        (RECORD, 5, stands(sha256=OTHER), Need.NOTHING, "wrong-hash"),
        (RECORD, 5, stands(hash="ok"), Need.CHECK, None),
        (
            RECORD,
            5,
            stands(findings=(Finding("sif-truncated", "cut"),), mount="bad"),
            Need.NOTHING,
            "sif-truncated",
        ),
        (RECORD, 5, stands(arch="arm64"), Need.NOTHING, "wrong-arch"),
        (RECORD, 5, stands(arch="386"), Need.NOTHING, None),
        (None, 5, None, Need.CHECK, None),
        (None, 5, stands(sha256=None, mount="ok"), Need.NOTHING, None),
        (Blob("x.sif", 5), 5, None, Need.CHECK, None),
        (None, 0, None, Need.NOTHING, "zero-byte"),
    ],
)
def test_judgement(
    recorded: Blob | None, size: int, standing: Standing | None, need: Need, code: str | None
) -> None:
    judged = judge(recorded, size, standing, Level.MOUNT, "amd64")
    assert (judged.need, judged.finding.code if judged.finding else None) == (need, code)


def test_a_deeper_level_than_was_attested_needs_a_check() -> None:
    assert judge(RECORD, 5, stands(), Level.TABLES).need is Need.CHECK
    assert judge(RECORD, 5, stands(data="ok", hash="ok"), Level.TABLES).need is Need.NOTHING
