"""The text and the rows of ``poolmgr pull --check``."""

from __future__ import annotations

from collections.abc import Sequence

from poolmgr.cli import text
from poolmgr.cli.causes import SHOWN, causes, error_fields, more
from poolmgr.cli.output import Output
from poolmgr.errors import Exit, PoolError
from poolmgr.ops.progress import Progress
from poolmgr.ops.pull_check import Checks, PullCheck, Result, Sight, subjects
from poolmgr.ops.pull_facts import Request, exit_of
from poolmgr.ops.view import PoolView
from poolmgr.plan.pull import PullPlan, Refused
from poolmgr.plan.shard import Shard
from poolmgr.store.oci import Registries

ALL = "--all"


def check_all(
    out: Output, view: PoolView | None, paths: Sequence[str], chosen: PullPlan, request: Request,
    registries: Registries, progress: Progress, shard: Shard | None, *, dry_run: bool, everything: bool,
) -> Exit:  # fmt: skip
    """Compare, and say what came of it; with ``dry_run`` only which file would be compared with what."""
    wanted, refused, elsewhere = subjects(view, paths, chosen, shard)
    run = PullCheck(wanted, refused, request, registries, progress)
    plan = run.plan()
    if dry_run:
        return _dry(out, plan, refused, elsewhere, everything=everything)
    checks = run.carry_out(plan)
    _show(out, checks, elsewhere, everything=everything)
    return checks.exit


def _dry(
    out: Output, plan: Sequence[Sight], refused: Sequence[Refused], elsewhere: int, *, everything: bool
) -> Exit:  # fmt: skip
    rows = [
        [text.name(s.subject.path), _moved(s), s.subject.reference.canonical] for s in plan if not s.error
    ]
    out.table(rows if everything else rows[:SHOWN], ["file", "reference", "image"])
    more(out, len(rows), everything=everything, option=ALL)
    for s in plan:
        if s.error is None:
            out.only_quiet(s.subject.path)
        out.row("image", **_sight(s), result="failed" if s.error else "to-compare", **error_fields(s.error))
    errors = [s.error for s in plan if s.error]
    _told(out, errors, refused, everything=everything)
    out.line(f"{len(rows):,} to compare, {len(errors) + len(refused):,} cannot be{text.elsewhere(elsewhere)}")
    out.row(
        "summary", dry_run=True, to_compare=len(rows), failed=len(errors) + len(refused),
        other_shards=elsewhere, verdict="bad" if errors or refused else "ok",
    )  # fmt: skip
    return exit_of([*errors, *(r.error for r in refused)])


def _show(out: Output, checks: Checks, elsewhere: int, *, everything: bool) -> None:
    same = checks.of(Result.SAME)
    rows = [[text.name(c.sight.subject.path), "same", c.sight.subject.reference.canonical] for c in same]
    out.table(rows if everything else rows[:SHOWN], ["file", "tree", "image"])
    more(out, len(rows), everything=everything, option=ALL)
    for c in checks.checked:
        if c.result is Result.SAME:
            out.only_quiet(c.sight.subject.path)
        own = {"apptainers_own": list(c.own)} if c.own else {}
        out.row("image", **_sight(c.sight), result=c.result.value, **own, **error_fields(c.error))
    if count := sum(bool(c.own) for c in same):
        out.line(f"{count:,} of them were pulled under another name or by another version of Apptainer")
    errors = [c.error for c in checks.checked if c.error]
    _told(out, errors, checks.refused, everything=everything)
    differ = sum(e.code == "tree-differs" for e in errors)
    failed = len(errors) + len(checks.refused) - differ
    untried = len(checks.of(Result.UNTRIED))
    line = f"{len(same):,} same, {differ:,} differ, {failed:,} not compared"
    out.line(line + (f", {untried:,} not tried" if untried else "") + text.elsewhere(elsewhere))
    out.row(
        "summary", same=len(same), differ=differ, failed=failed, untried=untried,
        other_shards=elsewhere, verdict="ok" if checks.exit is Exit.GOOD and not untried else "bad",
    )  # fmt: skip


def _told(out: Output, errors: Sequence[PoolError], refused: Sequence[Refused], *, everything: bool) -> None:
    for r in refused:
        out.row("image", reference=r.given, tasks=list(r.tasks), result="failed", **error_fields(r.error))
    causes(out, [("", e) for e in (*errors, *(r.error for r in refused))], everything=everything, option=ALL)


def _moved(sight: Sight) -> str:
    return {True: "moved", False: "unmoved", None: "unknown"}[sight.moved]


def _sight(sight: Sight) -> dict[str, object]:
    s = sight.subject
    return {
        "file": s.path,
        "source": s.reference.canonical,
        "source_digest": s.digest,
        "digest_now": sight.digest,
        "moved": sight.moved,
    }
