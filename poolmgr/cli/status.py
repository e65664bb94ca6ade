"""``poolmgr status``: what a pool holds, and what fetching one variant of it saves."""

from __future__ import annotations

import time
from typing import Any

import click

from poolmgr.cli import options, text
from poolmgr.cli.output import Output
from poolmgr.errors import Exit
from poolmgr.model.blob import STATE_DIR
from poolmgr.ops.view import PoolView, open_pool
from poolmgr.plan.summary import PoolSummary, VariantSummary, summarize
from poolmgr.settings import Settings


@click.command()
@options.pool
@options.manifest
@options.output()
def status(pool: str | None, manifest: str | None, out: Output) -> Exit:
    """Show what a pool holds: variants, tasks, blobs, bytes, and room in its directories.

    Looks at the index and one listing, never into an image; 'poolmgr audit' does that. Ends with 3
    when a task needs a blob that is not there.
    """
    view = open_pool(pool, Settings.read(), manifest=manifest, on_retry=out.note)
    summary = summarize(
        view.index,
        view.listing,
        recorded=view.recorded,
        totals={variant: view.total_tasks(variant) for variant in view.index.variants},
        max_entries=view.manifest.layout.max_entries,
    )
    out.document(_document(view, summary))
    for variant in summary.variants:
        out.only_quiet(variant.variant)
    _text(out, view, summary)
    for variant in summary.variants:
        if variant.missing:
            out.warn(
                f"{text.name(variant.variant)}: {len(variant.missing):,} of the "
                f"{text.counted(variant.blobs, 'blob')} that its tasks need are not there"
            )
    return Exit.BAD if summary.missing else Exit.GOOD


def _text(out: Output, view: PoolView, summary: PoolSummary) -> None:
    if not out.is_text:
        return
    commit = f" at commit {view.store.commit[:12]}" if view.store.commit else ""
    out.line(f"{text.name(view.address)}{commit}")
    kind = "mirror" if view.is_mirror else "pool"
    out.line(f"  {kind} of {text.counted(summary.blobs, 'blob')}, {text.size(summary.size)}")
    out.line(
        f"  {text.counted(len(summary.variants), 'variant')} with {text.counted(summary.assignments, 'task')}"
        f" on {summary.named:,} of them"
        + (f", {summary.shared:,} shared between variants" if len(summary.variants) > 1 else "")
    )
    out.line()
    header = ["variant", "tasks", "blobs", "only here", "missing", "size"]
    rows = [
        [v.variant, _tasks(v), f"{v.blobs:,}", f"{v.own:,}", f"{len(v.missing):,}" if v.missing else "-",
         text.size(v.size) + ("+" if v.unsized else "")]
        for v in summary.variants
    ]  # fmt: skip
    if not view.is_mirror:
        header.append("alone saves")
        for row, variant in zip(rows, summary.variants, strict=True):
            saved = summary.saved_by(variant)
            row.append(f"{text.size(saved)} ({saved / summary.size:.0%})" if summary.size else "-")
    out.table(rows, header, right=range(1, len(header)), indent=2)
    if view.is_mirror:
        out.line()
        _locks(out, view)
    out.line()
    out.table(
        [
            [d.path or "(root)", f"{d.entries:,}", f"{d.room:,}" if d.room else "full"]
            for d in summary.directories
        ],
        ["directory", "entries", "room"], right=(1, 2), indent=2,
    )  # fmt: skip
    if summary.orphans:
        out.line()
        out.line(
            f"  {text.counted(summary.orphans, 'orphan')}, {text.size(summary.orphan_size)}: "
            "named by no variant"
        )


def _locks(out: Output, view: PoolView) -> None:
    rows = []
    for variant, lock in view.locks.items():
        commit = f" at {lock.commit[:12]}" if lock.commit else ""
        state = "whole" if lock.complete else out.styled("not whole", "red")
        if lock.subset:
            state += ", a subset"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(lock.time))
        rows.append([variant, f"{lock.source}{commit}", when, state])
    out.table(rows, ["variant", f"fetched from (see {STATE_DIR}/lock)", "when", "state"], indent=2)


def _tasks(variant: VariantSummary) -> str:
    return f"{variant.tasks:,}" + (f" of {variant.total_tasks:,}" if variant.subset else "")


def _document(view: PoolView, summary: PoolSummary) -> dict[str, Any]:
    variants = []
    for v in summary.variants:
        row: dict[str, Any] = {
            "variant": v.variant,
            "tasks": v.tasks,
            "of": v.total_tasks,
            "subset": v.subset,
            "blobs": v.blobs,
            "shared": v.shared,
            "bytes": v.size,
            "missing": list(v.missing),
            "saves_bytes": summary.saved_by(v),
        }
        if lock := view.locks.get(v.variant):
            row["lock"] = {
                "source": lock.source,
                "commit": lock.commit,
                "complete": lock.complete,
                "time": lock.time,
            }
        variants.append(row)
    return {
        "kind": "status",
        "pool": view.address,
        "commit": view.store.commit,
        "mirror": view.is_mirror,
        "blobs": summary.blobs,
        "bytes": summary.size,
        "tasks": summary.assignments,
        "named": summary.named,
        "shared": summary.shared,
        "missing": list(summary.missing),
        "orphans": summary.orphans,
        "orphan_bytes": summary.orphan_size,
        "variants": variants,
        "directories": [
            {"directory": d.path, "entries": d.entries, "room": d.room} for d in summary.directories
        ],
    }
