"""``poolmgr ls``: blobs or tasks as lines, for pipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from poolmgr.cli import options, text
from poolmgr.cli.output import Output
from poolmgr.errors import Exit
from poolmgr.model.index import Assignments, tasks_by_blob
from poolmgr.ops.view import PoolView, open_pool
from poolmgr.plan.coverage import orphans
from poolmgr.settings import Settings


@click.command()
@click.argument("variants", nargs=-1, metavar="[VARIANT]...")
@click.option("--blobs", "what", flag_value="blobs", default="blobs", help="Paths of blobs. The default.")
@click.option("--tasks", "what", flag_value="tasks", help="Ids of tasks.")
@click.option("-l", "--long", "detailed", is_flag=True, help="Sizes, hashes, and what belongs to what.")
@options.pool
@options.manifest
@options.output()
def ls(
    variants: tuple[str, ...], what: str, detailed: bool, pool: str | None, manifest: str | None, out: Output
) -> Exit:
    """List the blobs or the tasks of variants, one a line.

    Without a VARIANT: every blob of the pool, also those that no variant names; every task. Ends
    with 3 when a blob that is to be listed is not there.
    """
    view = open_pool(pool, Settings.read(), manifest=manifest, on_retry=out.note)
    chosen = {name: view.index.variant(name) for name in variants or view.index.variants}
    if what == "tasks":
        return _tasks(out, view, chosen, detailed)
    return _blobs(out, view, chosen, detailed, everything=not variants)


def _tasks(out: Output, view: PoolView, chosen: Mapping[str, Assignments], detailed: bool) -> Exit:
    rows = [(v, task, path) for v, tasks in chosen.items() for task, path in tasks.items()]
    out.document(
        {
            "kind": "tasks",
            "pool": view.address,
            "commit": view.store.commit,
            "tasks": [{"task": task, "variant": v, "path": path} for v, task, path in rows],
        }
    )
    if detailed and out.is_text:
        out.table(rows, ["variant", "task", "blob"])
    else:
        for task in dict.fromkeys(task for _, task, _ in rows):
            out.answer(task)
    for variant, tasks in chosen.items():
        total = view.total_tasks(variant)
        if total > len(tasks):
            out.warn(f"{text.name(variant)}: this mirror holds {len(tasks):,} of {total:,} tasks")
    return Exit.GOOD


def _blobs(
    out: Output, view: PoolView, chosen: Mapping[str, Assignments], detailed: bool, *, everything: bool
) -> Exit:
    users: dict[str, dict[str, list[str]]] = {}
    for variant, assignments in chosen.items():
        for path, tasks in tasks_by_blob(assignments).items():
            users.setdefault(path, {})[variant] = tasks
    paths = sorted(users)
    if everything:
        paths = sorted({*paths, *orphans(view.listing, frozenset(paths))})
    missing = [path for path in paths if path not in view.listing.blobs or view.listing.blobs[path].trouble]
    out.document(
        {
            "kind": "blobs",
            "pool": view.address,
            "commit": view.store.commit,
            "blobs": [_row(view, path, users.get(path, {}), path in set(missing)) for path in paths]
            if out.json
            else [],
        }
    )
    if detailed and out.is_text:
        out.table(_long(out, view, paths, users), ["size", "sha256", "tasks", "blob"], right=(0, 2))
    else:
        for path in paths:
            out.answer(path)
    if missing:
        out.warn(f"{len(missing):,} of {text.counted(len(paths), 'blob')} are not there")
        out.hint("'poolmgr audit' names them and the tasks that need them")
    return Exit.BAD if missing else Exit.GOOD


def _long(
    out: Output, view: PoolView, paths: Sequence[str], users: Mapping[str, Mapping[str, Sequence[str]]]
) -> list[list[str]]:
    rows = []
    for path in paths:
        blob, record = view.listing.blobs.get(path), view.recorded(path)
        there = blob is not None and blob.trouble is None
        size = text.size(blob.size) if blob is not None and there else out.styled("missing", "red")
        sha256 = (blob and blob.sha256) or (record and record.sha256) or "-"
        tasks = len({task for tasks in users.get(path, {}).values() for task in tasks})
        rows.append([size, sha256[:12], f"{tasks:,}", path])
    return rows


def _row(view: PoolView, path: str, users: Mapping[str, Sequence[str]], missing: bool) -> dict[str, Any]:
    blob, record = view.listing.blobs.get(path), view.recorded(path)
    return {
        "path": path,
        "there": not missing,
        "size": blob.size if blob else record.size if record else None,
        "sha256": (blob and blob.sha256) or (record and record.sha256) or None,
        "variants": {variant: list(tasks) for variant, tasks in users.items()},
    }
