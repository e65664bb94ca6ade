"""``verify --merge``: what all shards found together; no image is looked at."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from poolmgr.model.finding import Verdict
from poolmgr.ops.targets import Target
from poolmgr.ops.verified import Result, Verified, Wish, absent, for_another_machine
from poolmgr.sif.header import arch_finding, finding
from poolmgr.sif.sniff import sniff_path


def merge(targets: Sequence[Target], wish: Wish) -> Verified:
    """What the attestations of all shards say together, of every target as it is now.

    A target that no row covers, or whose file changed since, is unchecked.
    """
    results = []
    for target in targets:
        if target.wrong is not None:
            results.append(absent(target, target.wrong))
            continue
        result = Result(target, None, {}, (), {wish.level.value: "no shard covered it"})
        if target.file is not None and target.view is not None and target.path is not None:
            try:
                st = os.stat(target.file)
            except OSError:
                wrong = sniff_path(target.file) or finding("missing", "no such file")
                results.append(absent(target, wrong))
                continue
            attested = target.view.attested
            standing = attested.standing(target.path, st)
            if standing is not None:
                reasons = {}
                level = standing.level
                if standing.verdict.passes and (level is None or not level.includes(wish.level)):
                    reasons = {wish.level.value: f"only {level.value if level else 'less'} was looked at"}
                reasons |= {n: "no shard did it" for n in wish.asked[1:] if n not in standing.checks}
                result = Result(
                    target,
                    st.st_size,
                    standing.checks,
                    standing.findings,
                    reasons,
                    standing.arch,
                    standing.sha256,
                )
                result = for_another_machine(_compared(result, wish), arch_finding(standing.arch, wish.arch))
            elif target.path in attested.rows:
                why = "changed since a shard looked at it"
                result = Result(target, st.st_size, {}, (), {wish.level.value: why})
        results.append(result)
    views = {id(t.view): t.view for t in targets if t.view is not None and t.view.root is not None}
    notes = [note for view in views.values() for note in view.attested.notes]
    return Verified(wish, tuple(results), tuple(dict.fromkeys(notes)))


def _compared(result: Result, wish: Wish) -> Result:
    """What a shard found, and the sha256 that the caller gave for it now."""
    if wish.sums is None:
        return result
    expected = wish.sums.get(result.target.shown)
    checks = {n: v for n, v in result.checks.items() if n != "hash"}
    if expected is None or result.sha256 is None:
        why = "no shard hashed it" if expected is not None else "no sha256 is given for it"
        return replace(result, checks=checks, reasons={**result.reasons, "hash": why})
    if result.sha256 == expected:
        return replace(result, checks={**checks, "hash": Verdict.OK})
    wrong = finding("wrong-hash", f"sha256 {result.sha256}, given was {expected}")
    return replace(result, checks={**checks, "hash": Verdict.BAD}, findings=(*result.findings, wrong))
