"""Gates: what an audit was asked to make sure of, by whom, and whether it did.

A gate that was asked for and could not be checked has not passed, and neither has one that
compared nothing. Only a gate that nobody demanded (``inspect = "available"``) may stay unchecked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from poolmgr.model.finding import Finding, Level, Verdict
from poolmgr.model.manifest import Gates, VariantRules
from poolmgr.plan.coverage import ROW_CODES, Coverage

ENTRY_CODES = frozenset(
    (
        "missing", "other-case", "is-directory", "unsafe-path", "zero-byte", "dangling-link",
        "outward-link", "unreadable", "not-a-file",
    )
)  # fmt: skip
"""What keeps a blob from being there at all."""

_RECORD_CODES = frozenset(("wrong-size", "wrong-hash"))


class GateVerdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Gate:
    name: str
    asked_by: str
    """Who asked: ``audit`` (always), ``manifest``, an option's name, ``record``, ``mirror``, ``default``."""
    verdict: GateVerdict
    compared: int
    """Things that were looked at."""
    wanted: int
    """Things that were to be looked at."""
    bad: int
    unit: str
    """What is counted: ``images``, ``tasks``, ``rows``."""
    why: str = ""
    """What to know of the verdict: what was not compared and why, what was expected."""
    required: bool = True
    """Whether ``not checked`` fails the audit."""

    @property
    def holds(self) -> bool:
        return self.verdict is GateVerdict.PASSED or (
            self.verdict is GateVerdict.NOT_CHECKED and not self.required
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "gate": self.name,
            "asked_by": self.asked_by,
            "required": self.required,
            "verdict": self.verdict.value,
            "compared": self.compared,
            "wanted": self.wanted,
            "bad": self.bad,
            "unit": self.unit,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of one image, from this run or from valid attestations."""

    checks: Mapping[str, Verdict]
    """Check (the asked level's name, ``hash``, ``inspect``, or a content gate) -> verdict.
    A check that is not in it was not carried out."""
    findings: tuple[Finding, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Check -> why its verdict is ``unchecked``, ``unsupported`` or missing."""
    arch: str | None = None
    remembered: bool = False
    """Every check came from attestations; the file was not read in this run."""

    def proven(self, level: Level) -> bool:
        """Whether the image passed ``level``, and its bytes are not known to be wrong."""
        known = self.checks.get(level.value)
        return known is not None and known.passes and self.checks.get("hash") is not Verdict.BAD


_Chosen = Sequence[tuple[str, Look]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the images are to be checked for, and by whom."""

    level: Level
    level_by: str
    arch: str | None = None
    arch_by: str = "manifest"
    hash: bool = True
    """Whether files are to be hashed where a sha256 is on record (not in a remote pool)."""
    inspect: str = "off"
    """``off``, ``available`` or ``required``."""
    inspect_by: str = "manifest"


def judge(
    name: str,
    asked_by: str,
    *,
    unit: str,
    wanted: int,
    compared: int,
    bad: int,
    why: str = "",
    required: bool = True,
) -> Gate:
    """The one rule: bad things fail; nothing to compare fails; less compared than wanted is not checked."""
    if bad:
        verdict = GateVerdict.FAILED
    elif wanted == 0:
        verdict, why = GateVerdict.FAILED, why or "there was nothing to compare"
    elif compared < wanted:
        verdict = GateVerdict.NOT_CHECKED
    else:
        verdict = GateVerdict.PASSED
    return Gate(name, asked_by, verdict, compared, wanted, bad, unit, why, required)


def coverage_gates(
    c: Coverage,
    rules: VariantRules,
    gates: Gates,
    *,
    dataset: str | None = None,
    dataset_by: str = "manifest",
    dataset_trouble: str | None = None,
    subset_asked: bool = False,
    mirror: bool = False,
) -> list[Gate]:
    """The gates that need no look into an image.

    ``dataset``: its printable address, where one was named; ``dataset_trouble``: why it could not
    be read. ``mirror``: the pool is a mirror, which must hold the whole variant unless a subset
    was asked for.
    """
    result = []
    if mirror and not subset_asked:
        lost = c.total - len(c.tasks)
        why = (
            f"{len(c.tasks):,} of {c.total:,} tasks were fetched; --tasks audits that subset" if lost else ""
        )
        result.append(
            judge("whole", "mirror", unit="tasks", wanted=c.total, compared=c.total, bad=lost, why=why)
        )
    if rules.tasks is not None:
        off = abs(c.total - rules.tasks)
        why = f"{c.total:,} tasks, {rules.tasks:,} expected" if off else f"{rules.tasks:,} expected"
        result.append(
            judge(
                "tasks", "manifest", unit="tasks", wanted=rules.tasks, compared=c.total or 0, bad=off, why=why
            )
        )
    absent = sum(1 for fs in c.images.values() if any(f.code in ENTRY_CODES for f in fs))
    needed = len(c.needed)
    result.append(judge("present", "audit", unit="images", wanted=needed, compared=needed, bad=absent))
    if c.sized:
        lacking = len(c.present) - len(c.sized)
        result.append(
            judge(
                "record", "record", unit="images", wanted=len(c.sized), compared=len(c.sized),
                bad=sum(1 for fs in c.images.values() if any(f.code in _RECORD_CODES for f in fs)),
                why=f"{lacking:,} are not on record" if lacking else "",
            )
        )  # fmt: skip
    if gates.min_bytes:
        small = len(c.named("below-floor"))
        result.append(
            judge(
                "floor", "manifest", unit="images", wanted=needed, compared=len(c.present), bad=small,
                why=f"{gates.min_bytes:,} bytes at least",
            )
        )  # fmt: skip
    if dataset is not None:
        result.extend(_dataset_gates(c, dataset, dataset_by, dataset_trouble))
    return result


def _dataset_gates(c: Coverage, dataset: str, asked_by: str, trouble: str | None) -> list[Gate]:
    if trouble is not None or c.dataset is None:
        wanted = max(1, len(c.tasks))
        why = trouble or "it was not read"
        return [
            judge("dataset", asked_by, unit="rows", wanted=wanted, compared=0, bad=0, why=why),
            judge("own-images", asked_by, unit="rows", wanted=wanted, compared=0, bad=0, why="no dataset"),
        ]
    bad = sum(1 for fs in c.rowwise.values() if any(f.code in ROW_CODES for f in fs))
    generic = len(c.named("generic-image"))
    return [
        judge("dataset", asked_by, unit="rows", wanted=c.rows, compared=c.rows, bad=bad,
              why=dataset if c.rows else f"{dataset} holds no row to compare"),
        judge("own-images", asked_by, unit="rows", wanted=c.rows, compared=c.rows, bad=generic,
              why="generic images stand for tasks' own" if generic else ""),
    ]  # fmt: skip


def image_gates(
    c: Coverage,
    looks: Mapping[str, Look],
    asked: Asked,
    rules: VariantRules,
    content: Mapping[str, str] | None = None,
    why_not: Mapping[str, str] | None = None,
) -> list[Gate]:
    """The gates that need a look into the images; ``looks`` by path, for every blob that was looked at.

    ``content``: content gate -> the name under which looks hold its verdict, where they differ.
    ``why_not``: gate -> why this audit does not carry it out at all.
    """
    why_not = why_not or {}
    chosen = [(path, looks[path]) for path in c.needed if path in looks]
    wanted = len(c.needed)
    result = []
    if asked.level is not Level.LISTED:
        result.append(_level_gate(c, chosen, asked))
        if asked.arch is not None:
            known = [look for _, look in chosen if look.arch is not None]
            wrong = sum(1 for _, look in chosen if any(f.code == "wrong-arch" for f in look.findings))
            unread = wanted - len(known)
            why = f"{asked.arch} wanted" + (f"; {unread:,} without a header that tells it" if unread else "")
            result.append(
                judge(
                    "arch",
                    asked.arch_by,
                    unit="images",
                    wanted=wanted,
                    compared=len(known),
                    bad=wrong,
                    why=why,
                )
            )
        if asked.hash and c.digested:
            result.append(_hash_gate(c, chosen))
    if asked.inspect != "off":
        result.append(
            _check_gate(
                c, "inspect", asked.inspect_by, chosen, why_not=why_not.get("inspect", ""),
                required=asked.inspect == "required",
            )
        )  # fmt: skip
    for name, rule in (("require", rules.require), ("forbid", rules.forbid), ("modules", rules.modules)):
        if rule:
            check = (content or {}).get(name, name)
            result.append(
                _check_gate(c, name, "manifest", chosen, check=check, why_not=why_not.get(name, ""))
            )
    return result


def _hash_gate(c: Coverage, chosen: _Chosen) -> Gate:
    """Over the images that have a sha256 on record."""
    verdicts = [look.checks.get("hash", Verdict.UNCHECKED) for path, look in chosen if path in c.digested]
    bad = verdicts.count(Verdict.BAD)
    compared = bad + sum(1 for v in verdicts if v.passes)
    reasons = Counter(
        {
            "could not be read": len(c.digested) - compared,
            "without a sha256 on record": len(c.present) - len(c.digested),
        }
    )
    return judge(
        "hash",
        "record",
        unit="images",
        wanted=len(c.digested),
        compared=compared,
        bad=bad,
        why=_told(reasons),
    )


def _level_gate(c: Coverage, chosen: _Chosen, asked: Asked) -> Gate:
    name = asked.level.value
    bad = passed = 0
    reasons: Counter[str] = Counter()
    for _, look in chosen:
        verdict = look.checks.get(name, Verdict.UNCHECKED)
        if verdict is Verdict.BAD:
            bad += 1
        elif verdict is Verdict.PARTIAL and look.checks.get("hash") is not Verdict.OK:
            # data passed on blocks without checksums: only a hash or signature confirms the bytes
            reasons["no checksum inside, and no sha256 on record to confirm the bytes"] += 1
        elif verdict.passes:
            passed += 1
        else:
            reasons[look.reasons.get(name, verdict.value)] += 1
    return _judged(c, name, asked.level_by, chosen, bad, passed, reasons)


def _check_gate(
    c: Coverage, name: str, asked_by: str, chosen: _Chosen, *, check: str = "", why_not: str = "",
    required: bool = True,
) -> Gate:  # fmt: skip
    bad = passed = 0
    reasons: Counter[str] = Counter()
    for _, look in chosen:
        verdict = look.checks.get(check or name, Verdict.UNCHECKED)
        if verdict is Verdict.BAD:
            bad += 1
        elif verdict.passes:
            passed += 1
        else:
            reasons[look.reasons.get(check or name) or why_not or "bad already"] += 1
    return _judged(c, name, asked_by, chosen, bad, passed, reasons, why_not, required)


def _judged(
    c: Coverage, name: str, asked_by: str, chosen: _Chosen, bad: int, passed: int, reasons: Counter[str],
    why_not: str = "", required: bool = True,
) -> Gate:  # fmt: skip
    """A gate over every needed image, with the reasons of those that were not looked at."""
    wanted = len(c.needed)
    reasons["not there"] += wanted - len(c.present)
    reasons[why_not or "not looked into"] += len(c.present) - len(chosen)
    return judge(
        name, asked_by, unit="images", wanted=wanted, compared=bad + passed, bad=bad, why=_told(reasons),
        required=required,
    )  # fmt: skip


def _told(reasons: Mapping[str, int]) -> str:
    """``reasons`` with the number of things that each holds for, the commonest first."""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{reason} ({count:,})" for reason, count in ordered if count)
