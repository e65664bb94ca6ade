"""``push --retract`` and ``push --regroup``: changes of the index alone, shown, asked for, and made."""

from __future__ import annotations

from collections.abc import Sequence

from poolmgr.cli import text
from poolmgr.cli.output import Output
from poolmgr.cli.push_text import show_changes
from poolmgr.errors import Exit
from poolmgr.ops.push_edit import Edit
from poolmgr.plan.push import Change


def retract_tasks(
    out: Output, edit: Edit, tasks: Sequence[str], *, dry_run: bool, yes: bool, everything: bool
) -> Exit:
    """Take tasks out of the variant."""
    changes = edit.retraction(tasks)
    out.line(f"pool     {text.name(edit.view.address)}")
    out.line(f"variant  {text.name(edit.variant)}: {text.counted(len(changes), 'task')} taken out")
    show_changes(out, changes, everything=everything)
    question = f"take {text.counted(len(changes), 'task')} out of {edit.variant}? No blob is deleted."
    message = f"Retract {len(changes):,} tasks of {edit.variant}"
    return _carry_out(out, edit, changes, question, message, {}, dry_run=dry_run, yes=yes)


def regroup_variant(out: Output, edit: Edit, *, dry_run: bool, yes: bool, everything: bool) -> Exit:
    """Put the variant on the fewest blobs."""
    found = edit.regrouping()
    saved = found.size[0] - found.size[1]
    out.line(f"pool     {text.name(edit.view.address)}")
    out.line(
        f"variant  {text.name(edit.variant)}: {found.blobs[0]:,} blobs now, {found.blobs[1]:,} where equal"
        f" trees share one; a fetch of it saves {text.size(saved)} of {text.size(found.size[0])}"
    )
    show_changes(out, found.changes, everything=everything)
    if found.unknown:
        out.warn(f"{text.counted(len(found.unknown), 'blob')} without a tree on record stay as they are")
    question = (
        f"give {text.counted(len(found.changes), 'task')} of {edit.variant} another blob with the same tree?"
    )
    message = f"Regroup {edit.variant}: {found.blobs[0]:,} blobs become {found.blobs[1]:,}"
    told: dict[str, object] = {
        "blobs_before": found.blobs[0], "blobs_after": found.blobs[1], "saved_bytes": saved,
        "unknown_trees": list(found.unknown),
    }  # fmt: skip
    return _carry_out(out, edit, found.changes, question, message, told, dry_run=dry_run, yes=yes)


def _carry_out(
    out: Output, edit: Edit, changes: Sequence[Change], question: str, message: str, told: dict[str, object],
    *, dry_run: bool, yes: bool,
) -> Exit:  # fmt: skip
    commit: str | None = None
    written: tuple[str, ...] = ()
    url: str | None = None
    if changes and not dry_run:
        out.confirm(question, yes=yes)
        done = edit.carry_out(changes, message)
        commit, written, url = done.commit, done.written, done.pull_request
    for c in changes:
        out.only_quiet(c.task)
        out.row("task", variant=edit.variant, task=c.task, old=c.old, new=c.new, done=not dry_run)
    if written:
        where = f", commit {commit[:12]}" if commit else ""
        out.line(out.styled("done", "green") + f": {text.counted(len(changes), 'task')}{where}")
    if url is not None:
        out.line(f"pull request  {url}")
    if not changes:
        out.line("nothing to do")
    out.row(
        "summary", pool=edit.view.address, variant=edit.variant, tasks=len(changes), dry_run=dry_run,
        commit=commit, written=list(written), pull_request=url, verdict="ok", **told,
    )  # fmt: skip
    return Exit.GOOD
