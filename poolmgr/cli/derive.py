"""``poolmgr derive``: images made of others by a recipe, one or thousands."""

from __future__ import annotations

import os
from pathlib import Path

import click

from poolmgr.cli import options, text
from poolmgr.cli.causes import SHOWN, causes, error_fields, more
from poolmgr.cli.output import Output
from poolmgr.errors import Exit, UsageError
from poolmgr.model.recipe import METHODS
from poolmgr.ops.derive import Derive
from poolmgr.ops.derive_facts import Derived, Outcome, Planned, Request, Result
from poolmgr.ops.pip_lock import pip_download
from poolmgr.ops.view import open_pool
from poolmgr.settings import Settings


@click.command()
@click.argument("recipe", metavar="RECIPE", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--to",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder for the images; 'push' takes it as it is.",
)
@click.option(
    "--map",
    "map_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the map of tasks to files goes. Default: NAME.tasks.json in DIR.",
)
@click.option("--method", type=click.Choice(METHODS), help="Instead of the recipe's own.")
@click.option(
    "--lock",
    "lock",
    is_flag=True,
    help="Resolve all pins to wheels and write RECIPE.lock.json; derive nothing.",
)
@click.option("--offline", is_flag=True, help="With --lock: use only the wheels that are there.")
@click.option("--no-identity", is_flag=True, help="Do not compute the tree identity of what is made.")
@click.option("--list", "everything", is_flag=True, help="Name every image, not the first few.")
@options.pool
@options.manifest
@options.jobs(max(1, os.cpu_count() or 1))
@options.dry_run
@options.output(lines=True)
def derive(
    recipe: Path,
    to: Path | None,
    map_file: Path | None,
    method: str | None,
    lock: bool,
    offline: bool,
    no_identity: bool,
    everything: bool,
    pool: str | None,
    manifest: str | None,
    jobs: int,
    dry_run: bool,
    out: Output,
) -> Exit:
    """Make images of others by a recipe, reproducibly.

    Bases come from the pool (a folder or a mirror). Each result is checked down to its tables and
    against the recipe's expectations before it gets its name; a failure stops no other image. Run
    again after any interruption: what is made is kept.
    """
    if lock and (to or dry_run or map_file):
        raise UsageError("--lock derives nothing, so --to, --map and --dry-run do not go with it")
    if offline and not lock:
        raise UsageError("--offline belongs to --lock; deriving itself never uses the network")
    if not lock and to is None:
        raise UsageError("no folder was named", hint="give --to DIR")
    progress = out.progress()
    view = open_pool(pool, Settings.read(), manifest=manifest, on_retry=progress.note)
    request = Request(recipe, to or Path(), method, jobs, map_file, identity=not no_identity)
    run = Derive(view, request, progress)
    if lock:
        return _lock(out, run, offline=offline)
    plan = run.plan()
    if dry_run:
        return _dry(out, run.rehearse(plan), everything=everything)
    derived = run.carry_out(plan)
    _show(out, derived, everything=everything)
    return derived.exit


def _lock(out: Output, run: Derive, *, offline: bool) -> Exit:
    lock, new = run.lock(None if offline else pip_download)
    for (interpreter, pins), wheels in sorted(lock.sets.items()):
        mark = "new" if (interpreter, pins) in new else "unchanged"
        out.line(f"{interpreter}  {mark}")
        out.table([[w.name, w.version, w.file, w.sha256[:12]] for w in wheels], indent=2)
        out.row(
            "lock",
            interpreter=interpreter,
            pins=list(pins),
            new=mark == "new",
            wheels=[
                {"name": w.name, "version": w.version, "file": w.file, "sha256": w.sha256} for w in wheels
            ],
        )
    out.answer(str(run.files.lock_path))
    out.row("summary", file=str(run.files.lock_path), sets=len(lock.sets), new=len(new), verdict="ok")
    return Exit.GOOD


def _dry(out: Output, plan: tuple[Planned, ...], *, everything: bool) -> Exit:
    good = [p for p in plan if p.error is None]
    bad = [p for p in plan if p.error is not None]
    rows = [
        [text.name(p.name), p.method, "there" if p.there else "to make", str(len(p.work.tasks))] for p in good
    ]
    out.table(rows if everything else rows[:SHOWN], ["file", "method", "state", "tasks"], right=(3,))
    more(out, len(rows), everything=everything)
    for p in plan:
        out.only_quiet(p.name or p.work.base)
        out.row(
            "image",
            **_planned(p),
            result="failed" if p.error else "kept" if p.there else "to-make",
            **error_fields(p.error),
        )
    causes(out, [(p.work.base, p.error) for p in bad if p.error], everything=everything)
    tasks = sum(len(p.work.tasks) for p in plan)
    there = sum(p.there for p in good)
    out.line(f"{len(good):,} images for {tasks:,} tasks; {there:,} are there, {len(bad):,} cannot be made")
    out.row(
        "summary",
        dry_run=True,
        images=len(plan),
        there=there,
        failed=len(bad),
        tasks=tasks,
        verdict="bad" if bad else "ok",
    )
    return Exit.BAD if bad else Exit.GOOD


def _show(out: Output, derived: Derived, *, everything: bool) -> None:
    good = [o for o in derived.outcomes if o.result is not Result.FAILED]
    failed = derived.of(Result.FAILED)
    rows = [
        [
            text.name(o.planned.name),
            o.planned.method,
            o.result.value,
            text.size(o.size),
            str(len(o.planned.work.tasks)),
        ]
        for o in good
    ]
    out.table(
        rows if everything else rows[:SHOWN], ["file", "method", "result", "size", "tasks"], right=(3, 4)
    )
    more(out, len(rows), everything=everything)
    for o in derived.outcomes:
        if o.result is not Result.FAILED:
            out.only_quiet(o.planned.name)
        out.row("image", **_planned(o.planned), **_result(o))
    for note in sorted({note for o in good for note in o.notes}):
        out.warn(f"{sum(note in o.notes for o in good):,} images: {note}")
    causes(out, [(o.planned.work.base, o.error) for o in failed if o.error], everything=everything)
    made, kept = len(derived.of(Result.MADE)), len(derived.of(Result.KEPT))
    out.line(
        f"{made:,} made, {kept:,} kept, {len(failed):,} failed; {len(derived.tasks):,} tasks have an image"
    )
    if derived.map is not None:
        out.line(f"map  {text.name(str(derived.map))}")
    out.row(
        "summary",
        made=made,
        kept=kept,
        failed=len(failed),
        tasks=len(derived.tasks),
        map=str(derived.map) if derived.map else None,
        verdict="bad" if failed else "ok",
    )


def _planned(p: Planned) -> dict[str, object]:
    return {
        "file": p.name or None,
        "base": p.work.base,
        "base_sha256": p.sha256 or None,
        "method": p.method or None,
        "recipe_sha256": p.digest or None,
        "tasks": list(p.work.tasks),
    }


def _result(o: Outcome) -> dict[str, object]:
    if o.error is not None:
        return {"result": o.result.value, **error_fields(o.error)}
    return {
        "result": o.result.value,
        "sha256": o.sha256,
        "size": o.size,
        "tree_sha256": o.tree_sha256,
        "notes": list(o.notes),
    }
