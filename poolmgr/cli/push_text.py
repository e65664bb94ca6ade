"""What ``poolmgr push`` says: the plan, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from poolmgr.cli import text
from poolmgr.cli.output import Output
from poolmgr.model.index import nearest
from poolmgr.ops.push import Push, Pushed
from poolmgr.plan.push import Action, Change, PlannedFile, PushPlan

SHOWN = 5
"""Names that the short form shows of each kind."""
_WORDS = {
    Action.ADD: "to be added",
    Action.REUSE: "there already, the same bytes",
    Action.SAME_TREE: "there already, the same tree",
    Action.TWIN: "the same as another file here",
}


def show_plan(out: Output, run: Push, plan: PushPlan, *, dry_run: bool, everything: bool) -> None:
    """The plan in text; under ``-n`` also as rows with a summary."""
    commit = run.view.store.commit
    out.line(f"pool     {text.name(run.view.address)}" + (f" at commit {commit[:12]}" if commit else ""))
    out.line(f"variant  {text.name(plan.variant)}" + (" (new)" if plan.is_new else ""))
    rows = []
    for action, words in _WORDS.items():
        files = plan.of(action)
        if files:
            rows.append([words, f"{len(files):,}", text.size(sum(f.candidate.size for f in files))])
    out.table(rows, ["files", "count", "size"], right=(1, 2))
    _list(out, plan.added, everything=everything)
    _same_trees(out, plan.of(Action.SAME_TREE), everything=everything)
    for folder, (added, entries) in plan.directories.items():
        limit = run.view.manifest.layout.max_entries
        out.line(f"into     {text.name(folder)}/: {added:,} more, {entries:,} of {limit:,} entries then")
    replaced = plan.replaced
    fresh = len(plan.changes) - len(replaced)
    out.line(f"tasks    {fresh:,} new, {plan.unchanged:,} as they are, {len(replaced):,} given another blob")
    show_changes(out, replaced, everything=everything)
    _twins(out, plan)
    _unmapped(out, run.unmapped, everything=everything)
    for note in run.notes:
        out.warn(note)
    if plan.is_new and run.pool.held.variants:
        close = nearest(plan.variant, run.pool.held.variants, 1)
        if close:
            out.warn(f"the pool has no variant {plan.variant!r} yet; it has {close[0]!r}")
    if dry_run:
        _rows(out, run, plan, done=False)
        out.row("summary", **_summary(run, plan), dry_run=True, verdict=_verdict(run, plan))
        for planned in plan.added:
            out.only_quiet(planned.path)


def show_pushed(out: Output, run: Push, pushed: Pushed) -> None:
    """What the run did."""
    plan = pushed.plan
    _rows(out, run, plan, done=True)
    for path in pushed.uploaded:
        out.only_quiet(path)
    size = sum(pushed.uploaded.values())
    if not pushed.uploaded and not pushed.written:
        out.line(out.styled("nothing to do", "green") + ": the pool has all of it already")
    else:
        where = f", commit {pushed.commit[:12]}" if pushed.commit else ""
        again = f", planned {pushed.rounds} times because others pushed" if pushed.rounds > 1 else ""
        out.line(
            out.styled("pushed", "green")
            + f": {text.counted(len(pushed.uploaded), 'blob')} ({text.size(size)}),"
            f" {text.counted(len(plan.changes), 'task')} of {text.name(plan.variant)}{where}{again}"
        )
    if pushed.pull_request is not None:
        out.line(f"pull request  {pushed.pull_request}")
    out.row(
        "summary", **_summary(run, plan), pull_request=pushed.pull_request,
        uploaded=len(pushed.uploaded), uploaded_bytes=size,
        written=list(pushed.written), commit=pushed.commit, rounds=pushed.rounds, verdict="ok",
    )  # fmt: skip


def _list(out: Output, files: Sequence[PlannedFile], *, everything: bool) -> None:
    rows = [
        [text.name(f.path), text.size(f.candidate.size), text.counted(len(f.tasks), "task")] for f in files
    ]
    out.table(rows if everything else rows[:SHOWN], right=(1, 2), indent=2)
    _more(out, len(rows), everything=everything)


def _same_trees(out: Output, files: Sequence[PlannedFile], *, everything: bool) -> None:
    """Whose bytes stay behind, and the blob that their tasks get."""
    for f in files if everything else files[:SHOWN]:
        out.line(f"  {text.name(f.candidate.key)}: {text.name(f.path)} has its tree")
    _more(out, len(files), everything=everything)


def show_changes(out: Output, changes: Sequence[Change], *, everything: bool) -> None:
    for c in changes if everything else changes[:SHOWN]:
        way = " -> ".join(text.name(path) for path in (c.old, c.new) if path)
        out.line(f"  {text.name(c.task)}: {way}")
    _more(out, len(changes), everything=everything)


def _more(out: Output, count: int, *, everything: bool) -> None:
    if count > SHOWN and not everything:
        out.line(f"  … and {count - SHOWN:,} more (--list names them)")


def _twins(out: Output, plan: PushPlan) -> None:
    alike = [f for f in plan.added if f.same_tree]
    if alike:
        size = text.size(sum(f.candidate.size for f in alike))
        one, other = alike[0].candidate.key, alike[0].same_tree[0]
        out.line(
            f"alike    {text.counted(len(alike), 'file')} of those ({size}) have the tree of another blob or"
            f" file: {text.name(one)} that of {text.name(other)}"
        )
        out.hint("--same-tree maps their tasks to what is there instead of adding them")


def _unmapped(out: Output, files: Sequence[str], *, everything: bool) -> None:
    """What stays behind; a small map beside a folder of thousands must not hide the plan."""
    for key in files if everything else files[:SHOWN]:
        out.warn(f"{key}: no task names it, so it is not pushed")
    if len(files) > SHOWN and not everything:
        out.warn(f"{len(files) - SHOWN:,} more files that no task names are not pushed (--list names them)")


def _rows(out: Output, run: Push, plan: PushPlan, *, done: bool) -> None:
    if not out.json:
        return
    for f in plan.files:
        c = f.candidate
        out.row(
            "image", file=c.key, path=f.path, action=f.action.value, size=c.size, sha256=c.sha256,
            tree_sha256=c.tree_sha256, blob_kind="derived" if c.derived else "plain", tasks=list(f.tasks),
            same_tree=list(f.same_tree),
        )  # fmt: skip
    for refused in run.refused:
        out.row("image", file=refused.key, action="refused", findings=[f.as_json() for f in refused.findings])
    for key in run.unmapped:
        out.row("image", file=key, action="unmapped")
    for change in plan.changes:
        out.row("task", variant=plan.variant, task=change.task, old=change.old, new=change.new, done=done)


def _summary(run: Push, plan: PushPlan) -> dict[str, object]:
    return {
        "pool": run.view.address,
        "variant": plan.variant,
        "new_variant": plan.is_new,
        "files": len(plan.files) + len(run.refused),
        "actions": {a.value: len(plan.of(a)) for a in Action},
        "refused": len(run.refused),
        "unmapped": len(run.unmapped),
        "bytes": plan.size,
        "directories": {d: {"added": a, "entries": n} for d, (a, n) in plan.directories.items()},
        "tasks": {
            "new": len(plan.changes) - len(plan.replaced),
            "unchanged": plan.unchanged,
            "replaced": len(plan.replaced),
        },
        "problems": [{"code": p.code, "message": p.message} for p in plan.problems],
    }


def _verdict(run: Push, plan: PushPlan) -> str:
    return "bad" if run.refused or plan.problems else "ok"
