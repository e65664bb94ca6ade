"""``poolmgr gc``: free what a mirror no longer needs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from poolmgr.cli import options, text
from poolmgr.cli.output import Output
from poolmgr.errors import Exit, UsageError
from poolmgr.ops.gc import Freed, Gc, GcPlan, Request
from poolmgr.settings import Settings


@click.command()
@click.option("--variant", "variants", multiple=True, metavar="VARIANT",
              help="Forget this variant first: its lock goes, then what only it named.")  # fmt: skip
@click.option("--found-too", is_flag=True,
              help="Free also files that fetch found there and proved, and did not put there.")  # fmt: skip
@click.option("--read-pool", is_flag=True,
              help="Read blobs whole from a pool that lists no sha256, to prove them.")  # fmt: skip
@click.option("-p", "--pool", metavar="MIRROR", help="A folder that fetch filled. Default: POOLMGR_POOL.")
@options.dry_run
@options.yes
@options.output()
def gc(
    variants: tuple[str, ...], found_too: bool, read_pool: bool, pool: str | None, dry_run: bool, yes: bool,
    out: Output,
) -> Exit:  # fmt: skip
    """Free what a mirror no longer needs, once the pool is proven to hold it.

    Frees the blobs that fetch put there and that no fetched variant names any more, and what killed
    runs and quarantine left. Each blob is first proven to be in the pool it came from, at the
    recorded commit and sha256; what is not proven stays (exit 3).
    """
    settings, progress = Settings.read(), out.progress()
    address = pool or settings.pool
    if not address:
        raise UsageError("no mirror was named", hint="give -p MIRROR, or set POOLMGR_POOL")
    root = Path(address).expanduser()
    if not root.is_dir():
        raise UsageError(f"{address} is no folder", hint="gc works on a folder that 'poolmgr fetch' filled")
    run = Gc(root, Request(variants, found_too, read_pool), settings, progress, progress.note)
    plan = run.plan()
    _show(out, root, plan)
    if dry_run or plan.empty:
        freed = None
        if not plan.empty:
            out.line(f"would free {text.size(plan.size)}")
        else:
            out.line("nothing to free")
    else:
        files = text.counted(len(plan.free) + len(plan.debris), "file")
        forget = f"forget {', '.join(map(text.name, plan.forget))} and " if plan.forget else ""
        out.confirm(f"{forget}free {files}, {text.size(plan.size)}?", yes=yes)
        freed = run.carry_out(plan)
        for kept in freed.kept:
            out.warn(f"{text.name(kept.path)} stays: {kept.finding}")
        out.line(out.styled("freed", "green") + f" {text.counted(len(freed.files), 'blob')} and "
                 f"{text.counted(freed.debris, 'leftover')}, {text.size(freed.size)}")  # fmt: skip
    for path in (c.path for c in plan.free) if freed is None else freed.files:
        out.only_quiet(path)
    out.document(_document(root, plan, freed, dry_run))
    return plan.exit


def _show(out: Output, root: Path, plan: GcPlan) -> None:
    out.line(f"mirror  {text.name(str(root))}")
    for variant in plan.forget:
        out.line(f"forget  {text.name(variant)}")
    rows = [["blobs that no lock names, proven to be in the pool", f"{len(plan.free):,}",
             text.size(sum(c.size for c in plan.free))]]  # fmt: skip
    for kind, count in sorted(Counter(d.kind for d in plan.debris).items()):
        size = sum(d.size for d in plan.debris if d.kind == kind)
        rows.append([_KINDS[kind], f"{count:,}", text.size(size)])
    out.table(rows, ["to free", "count", "size"], right=(1, 2))
    for c in plan.free:
        out.line(f"  {text.name(c.path)}  {text.size(c.size)}  {c.origins[0].source}")
    for d in plan.debris:
        out.line(f"  {text.name(str(d.path.relative_to(root)))}  {text.size(d.size)}")
    if plan.kept:
        out.line()
        out.line(f"{text.counted(len(plan.kept), 'file')} that no lock names and that stay")
        for kept in plan.kept:
            style = "red" if kept.finding.code == "gc-unproven" else "dim"
            out.line(f"  {text.name(kept.path)}: {out.styled(kept.finding.code, style)}: {kept.finding}")
    if plan.unseen:
        unseen = text.counted(plan.unseen, "unfinished file")
        out.line(f"{unseen} of runs that live, or that this machine cannot see, stay")
    out.line()


_KINDS = {
    "partial": "partial files of killed fetches",
    "quarantine": "files in quarantine",
    "temporary": "temporary files of killed runs",
    "busy": "notes of killed fetches",
}


def _document(root: Path, plan: GcPlan, freed: Freed | None, dry_run: bool) -> dict[str, object]:
    return {
        "kind": "gc",
        "mirror": str(root),
        "dry_run": dry_run,
        "forget": list(plan.forget),
        "free": [
            {"path": c.path, "size": c.size, "sha256": c.sha256,
             "origins": [{"source": o.source, "commit": o.commit} for o in c.origins]}
            for c in plan.free
        ],
        "debris": [
            {"path": str(d.path.relative_to(root)), "size": d.size, "kind": d.kind} for d in plan.debris
        ],
        "kept": [{"path": k.path, "size": k.size, **k.finding.as_json()} for k in plan.kept],
        "unseen": plan.unseen,
        "bytes": plan.size,
        "freed": None if freed is None else {
            "blobs": list(freed.files), "debris": freed.debris, "bytes": freed.size,
            "kept": [{"path": k.path, **k.finding.as_json()} for k in freed.kept],
        },
        "exit": int(plan.exit),
    }  # fmt: skip
