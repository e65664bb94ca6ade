"""What ``verify`` was asked, and what it found, image by image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from poolmgr.model.finding import Finding, Level, Verdict
from poolmgr.ops.targets import Target

_WORST = (Verdict.BAD, Verdict.UNSUPPORTED, Verdict.UNCHECKED, Verdict.PARTIAL)
_FOREIGN = ("sandbox-folder",)
_UNREADABLE = ("unreadable", "io-error")


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be known of every image."""

    level: Level = Level.MOUNT
    hashing: bool = False
    """Compare the sha256 with the one on record, and the signatures' digests."""
    inspect: bool = False
    run: bool = False
    identities: bool = False
    """Compute the three identities of every image that passes; they judge nothing."""
    arch: str | None = None
    allow_legacy: bool = False
    jobs: int | None = None
    processes: bool = False
    """Many images may be checked by several processes, which the caller can start (``ops.processes``)."""
    sums: Mapping[str, str] | None = None
    """Target, as it is shown -> the sha256 that the caller gave for it."""

    @property
    def asked(self) -> tuple[str, ...]:
        """The checks that every image must pass."""
        more = {"hash": self.hashing, "inspect": self.inspect, "run": self.run}
        return (self.level.value, *(name for name, wanted in more.items() if wanted))

    @property
    def left_out(self) -> tuple[str, ...]:
        """What is not looked at, though it could be."""
        deeper = [level.value for level in Level if level.depth > self.level.depth]
        return (*deeper, *(name for name in ("hash", "inspect", "run") if name not in self.asked))


@dataclass(frozen=True, slots=True)
class Result:
    """What was found of one image."""

    target: Target
    size: int | None
    """Bytes; None when there is no file."""
    checks: Mapping[str, Verdict]
    """Check -> its verdict: the levels looked at, and hash, inspect and run where they were done."""
    findings: tuple[Finding, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Check that was asked for and not done -> why."""
    arch: str | None = None
    sha256: str | None = None
    identities: Mapping[str, str] = field(default_factory=dict)
    """``file_sha256``, ``partition_sha256`` and ``tree_sha256``, where they were asked for and exist."""

    @property
    def path(self) -> str:
        return self.target.shown

    @property
    def verdict(self) -> Verdict:
        """The worst word of any check; ``UNCHECKED`` when one that was asked for was not done."""
        said = set(self.checks.values())
        if self.reasons:
            said.add(Verdict.UNCHECKED)
        elif said == {Verdict.OK}:
            return Verdict.OK
        return next((v for v in _WORST if v in said), Verdict.OK)


@dataclass(frozen=True)
class Verified:
    """All results of one run, in the order of the targets."""

    wish: Wish
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def counts(self) -> Counter[Verdict]:
        """How many images each verdict has."""
        return Counter(r.verdict for r in self.results)

    @property
    def passed(self) -> bool:
        """Whether something was looked at and all of it passes."""
        return bool(self.results) and all(verdict.passes for verdict in self.counts)


def absent(target: Target, wrong: Finding) -> Result:
    """The result of a path that leads to no file whose bytes could be read."""
    verdict = Verdict.BAD
    if wrong.code in _FOREIGN:
        verdict = Verdict.UNSUPPORTED
    elif wrong.code in _UNREADABLE:
        verdict = Verdict.UNCHECKED
    return Result(target, None, {Level.LISTED.value: verdict}, (wrong,))


def for_another_machine(result: Result, foreign: Finding | None) -> Result:
    """The result where the image is wanted; what is attested does not depend on that."""
    if foreign is None:
        return result
    checks = {**result.checks, Level.HEADER.value: Verdict.BAD}
    return replace(result, checks=checks, findings=(foreign, *result.findings))


def of_this_machine(result: Result, name: str, verdict: Verdict) -> bool:
    """Whether a bad word of Apptainer's is only that this machine has another architecture."""
    return (
        name in ("inspect", "run")
        and verdict is Verdict.BAD
        and any(f.code == "wrong-arch" for f in result.findings)
    )
