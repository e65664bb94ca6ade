"""``poolmgr audit``: whether every task of a variant is covered by an image that really is valid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from poolmgr.cli import options
from poolmgr.cli.audit_text import show
from poolmgr.cli.output import Output
from poolmgr.errors import Exit, UsageError
from poolmgr.model.finding import Level, Severity, Verdict
from poolmgr.model.manifest import INSPECT
from poolmgr.model.task import Row
from poolmgr.ops.audit import Audit, Image, Request, VariantAudit, audit
from poolmgr.ops.view import open_pool
from poolmgr.settings import Settings


@click.command("audit")
@click.argument("variants", nargs=-1, metavar="[VARIANT...]")
@options.pool
@options.manifest
@options.level
@options.arch
@click.option("--inspect", type=click.Choice(INSPECT), help="Whether 'apptainer inspect' must pass too.")
@click.option("--dataset", metavar="ADDR", help="Compare with this dataset instead of the manifest's.")
@click.option("--no-dataset", is_flag=True, help="Do without the dataset that the manifest names.")
@options.tasks
@click.option("--rehash", is_flag=True, help="Hash and check again what was proven before.")
@click.option("--allow-legacy", is_flag=True, help="Take bare and Singularity 2 squashfs images for valid.")
@click.option("--list", "everything", is_flag=True, help="Name every difference, not the first few.")
@options.attest
@options.jobs()
@options.output(lines=True)
def command(
    variants: tuple[str, ...], pool: str | None, manifest: str | None, level: str | None, arch: str | None,
    inspect: str | None, dataset: str | None, no_dataset: bool, tasks: str | None, rehash: bool,
    allow_legacy: bool, everything: bool, attest: Path | None, jobs: int | None, out: Output,
) -> Exit:  # fmt: skip
    """Check that every task of a variant has an image, and that each image is valid.

    Compares sets, by name: the index, what the pool holds, the dataset's rows. Each distinct image
    is looked at once; what an attestation still vouches for is not read again. Without a VARIANT,
    all of them. Exit 3 when a gate that was asked for failed or could not be checked.
    """
    if dataset is not None and no_dataset:
        raise UsageError("--dataset and --no-dataset exclude each other")
    settings = Settings.read()
    progress = out.progress()
    view = open_pool(pool, settings, manifest=manifest, attest=attest, on_retry=progress.note)

    def rows_of(address: str) -> Sequence[Row]:
        from poolmgr.ops.dataset import open_dataset

        return open_dataset(address, settings, on_retry=progress.note).rows

    request = Request(
        variants=variants,
        level=Level(level) if level is not None else None,
        arch=arch,
        inspect=inspect,
        dataset=dataset,
        no_dataset=no_dataset,
        tasks=frozenset(options.read_tasks(tasks)) if tasks is not None else None,
        rehash=rehash,
        allow_legacy=allow_legacy,
        jobs=jobs,
    )
    result = audit(view, request, rows_of, progress)
    show(out, result, everything=everything)
    _rows(out, result)
    _names(out, result)
    for note in result.notes:
        out.warn(note)
    return Exit.GOOD if result.passed else Exit.BAD


# --- the JSON form: every difference by name, one row a thing ---------------------------------------


def _rows(out: Output, result: Audit) -> None:
    if not out.json:
        return
    for image in result.images.values():
        out.row("image", **_image_row(result, image))
    for variant in result.variants:
        for task, findings in variant.coverage.rowwise.items():
            out.row("task", variant=variant.name, task=task, findings=[f.as_json() for f in findings])
    for blob in result.orphans:
        out.row("orphan", path=blob.path, size=blob.size)
    for path, why in result.refused:
        out.row("refused", path=path, why=why)
    for group in result.clashes:
        out.row("clash", paths=list(group))
    for d in result.directories:
        out.row("directory", path=d.path, entries=d.entries, room=d.room, hard_room=d.hard_room, full=d.full)
    for variant in result.variants:
        for gate in variant.gates:
            out.row("gate", variant=variant.name, **gate.as_json())
        out.row("variant", **_variant_row(variant))
    out.row("summary", **_summary(result))


def _image_row(result: Audit, image: Image) -> dict[str, Any]:
    row: dict[str, Any] = {
        "path": image.path,
        "size": image.size,
        "variants": list(image.variants),
        "verdict": image.verdict.value,
    }
    if image.look is not None:
        row["checks"] = {check: verdict.value for check, verdict in image.look.checks.items()}
        row["arch"] = image.look.arch
        row["remembered"] = image.look.remembered
        if image.look.reasons:
            row["reasons"] = dict(image.look.reasons)
    row["findings"] = [f.as_json() for f in image.findings]
    if not image.verdict.passes:
        row["tasks"] = {
            v.name: list(v.coverage.needed[image.path])
            for v in result.variants
            if image.path in v.coverage.needed
        }
    return row


def _variant_row(variant: VariantAudit) -> dict[str, Any]:
    c = variant.coverage
    return {
        "variant": variant.name,
        "verdict": "passed" if variant.passed else "failed",
        "tasks": len(c.tasks),
        "total_tasks": c.total,
        "expected_tasks": variant.expected,
        "images": len(c.needed),
        "present": len(c.present),
        "dataset": variant.dataset,
        "dataset_tasks": None if c.dataset is None else len(c.dataset),
        "rows": None if c.dataset is None else c.rows,
        "differences": {code: list(names) for code, names in c.by_code().items()},
    }


def _summary(result: Audit) -> dict[str, Any]:
    return {
        "pool": result.address,
        "commit": result.commit,
        "mirror": result.mirror,
        "level": result.asked.level.value,
        "level_asked_by": result.asked.level_by,
        "arch": result.asked.arch,
        "variants": {v.name: "passed" if v.passed else "failed" for v in result.variants},
        "tasks": sum(len(v.coverage.tasks) for v in result.variants),
        "images": len(result.images),
        "verdicts": {v.value: n for v in Verdict if (n := result.count(v))},
        "remembered": result.remembered,
        "hashed_bytes": result.hashed,
        "orphans": len(result.orphans),
        "notes": list(result.notes),
        "verdict": "passed" if result.passed else "failed",
        "exit": int(Exit.GOOD if result.passed else Exit.BAD),
    }


def _names(out: Output, result: Audit) -> None:
    """``-q``: what is bad, one name a line: images first, then tasks."""
    names = [i.path for i in result.images.values() if not i.verdict.passes]
    for variant in result.variants:
        names += [
            task
            for task, findings in variant.coverage.rowwise.items()
            if any(f.severity is Severity.ERROR for f in findings)
        ]
    for name in dict.fromkeys(names):
        out.only_quiet(name)
