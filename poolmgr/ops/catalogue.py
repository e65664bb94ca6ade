"""Builds a catalogue from pools, mirrors and datasets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from poolmgr.catalogue.build import CatalogueWriter, Row
from poolmgr.harbor.archive import Limits
from poolmgr.harbor.source import Found, tasks
from poolmgr.harbor.tree import OutwardLinkError, Tree, UnreadableError
from poolmgr.model.environment import Definition, Environment, NotTask, Scheme, Task, snapshot_name
from poolmgr.ops.progress import Progress, Silent
from poolmgr.ops.survey import find

MAX_DOCKERFILE = 1 << 20
"""A longer Dockerfile's text is left out of the table."""


def build(
    folder: Path,
    datasets: Sequence[str],
    pools: Iterable[object] = (),
    *,
    target: str | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the catalogue of ``datasets`` and ``pools`` (views) to the new ``folder``; errors found in them.

    ``target`` is DAYTONA_TARGET. Nothing is left behind when something raises.
    """
    progress = progress or Silent()
    errors = 0
    with CatalogueWriter(folder) as writer:
        for view in pools:
            _add_pool(writer, view)
        progress.begin("reading tasks", files=0)
        try:
            for found in tasks(find(datasets), frozenset(Scheme), limits):
                errors += _add_task(writer, found, target)
                progress.file_done(found.item.where)
        finally:
            progress.end()
    return errors


def _add_task(writer: CatalogueWriter, found: Found, target: str | None) -> int:
    item = found.item
    if isinstance(item, NotTask):
        writer.add("tasks", _task_row(item.dataset, item.name, item.where, False, None, [item.finding.code]))
        return int(item.finding.severity == "error")
    findings = [*item.findings, *(f for e in item.environments for f in e.findings)]
    writer.add(
        "tasks",
        _task_row(item.dataset, item.name, item.where, True, item.steps, [f.code for f in findings]),
    )
    for environment in item.environments:
        writer.add("environments", _environment_row(item, environment, found.tree, target))
    return sum(f.severity == "error" for f in findings)


def _task_row(
    dataset: str, task: str, where: str, is_task: bool, steps: int | None, codes: Sequence[str]
) -> Row:
    return {
        "dataset": dataset, "task": task, "where_read": where, "is_task": is_task, "steps": steps,
        "codes": " ".join(dict.fromkeys(codes)),
    }  # fmt: skip


def _environment_row(task: Task, e: Environment, tree: Tree | None, target: str | None) -> Row:
    builds = e.definition is Definition.DOCKERFILE and e.hash is not None
    return {
        "dataset": task.dataset,
        "task": task.name,
        "role": e.role,
        "definition": e.definition.value,
        "hash": e.hash,
        "hash_legacy": e.hashes.get(Scheme.LEGACY),
        "hash_dockerfile": e.hashes.get(Scheme.DOCKERFILE),
        "hash_build": e.hashes.get(Scheme.BUILD),
        "snapshot": snapshot_name(e.hash or "", target) if builds else None,
        "docker_image": e.docker_image,
        "dockerfile": _dockerfile(tree, e),
        "files": e.files,
        "size": e.size,
        **e.resources.as_json(),
    }


def _dockerfile(tree: Tree | None, e: Environment) -> str | None:
    if tree is None or e.definition is not Definition.DOCKERFILE:
        return None
    try:
        path = tree.resolve(f"{tree.resolve(e.folder)}/Dockerfile")
        return tree.read(path, MAX_DOCKERFILE).decode("utf-8", "replace")
    except (UnreadableError, OutwardLinkError):
        return None


def _add_pool(writer: CatalogueWriter, view: object) -> None:
    from poolmgr.ops.blob_hashes import trees_of
    from poolmgr.ops.view import PoolView

    assert isinstance(view, PoolView)
    trees = trees_of(view)
    listed = view.listing.blobs
    for path, blob in listed.items():
        recorded = view.recorded(path)
        writer.add(
            "blobs",
            {
                "pool": view.address,
                "path": path,
                "directory": path.rpartition("/")[0],
                "size": blob.size,
                "sha256": (recorded.sha256 if recorded else None) or blob.sha256,
                "tree_sha256": trees.get(path),
                "trouble": blob.trouble,
            },
        )
    for variant, assignments in view.index.variants.items():
        for task, path in assignments.items():
            writer.add("assignments", {"pool": view.address, "variant": variant, "task": task, "blob": path})
    for path, rows in view.attested.rows.items():
        for row in rows:
            for check, verdict in row.checks.items():
                writer.add(
                    "checks",
                    {
                        "pool": view.address,
                        "path": path,
                        "check_name": check,
                        "verdict": verdict.value,
                        "codes": " ".join(f.code for f in row.findings),
                        "sha256": row.sha256,
                        "size": row.stamp.size,
                        "time": row.time,
                    },
                )
