"""``poolmgr bind``: a copy of a dataset whose rows name local images."""

from __future__ import annotations

from pathlib import Path

import click

from poolmgr.cli import options
from poolmgr.cli.output import Output
from poolmgr.ops.resolve import resolve_task
from poolmgr.ops.view import open_pool
from poolmgr.settings import Settings


@click.command()
@click.argument("dataset", metavar="DATASET")
@click.option("--variant", metavar="VARIANT", required=True, help="The variant whose images are named.")
@click.option(
    "--out", "target", metavar="NEW", required=True, type=click.Path(path_type=Path),
    help="The copy: a file for a dataset that is one file, else a folder. Nothing is overwritten.",
)  # fmt: skip
@click.option(
    "--drop-missing", metavar="N", type=click.IntRange(0), default=0, show_default=True,
    help="Leave out at most N tasks that have no image, each listed.",
)  # fmt: skip
@options.pool
@options.manifest
@options.attest
@options.dry_run
@options.output()
def bind(
    dataset: str, variant: str, target: Path, drop_missing: int, pool: str | None,
    manifest: str | None, attest: Path | None, dry_run: bool, out: Output,
) -> None:  # fmt: skip
    """Copy a dataset so that its rows name the local image of each task.

    DATASET is a Parquet or JSON file, a folder of them, a folder of Harbor tasks, or
    hf://datasets/ORG/NAME[@REVISION][/PATH]. Everything but the image stays as it is. A task that does not
    resolve is an error (exit 3), and then nothing is written.
    """
    from poolmgr.ops.bind import bind as carry_out

    settings = Settings.read()
    view = open_pool(pool, settings, manifest=manifest, attest=attest)
    view.index.variant(variant)
    result = carry_out(
        dataset, lambda task: resolve_task(view, task, variant), target, settings,
        drop_missing=drop_missing, dry_run=dry_run, on_retry=out.note,
    )  # fmt: skip
    for dropped in result.dropped:
        out.warn(f"dropped {dropped.task} ({dropped.where}): {dropped.message}")
    for name, why in result.skipped:
        out.note(f"not read: {name}: {why}")
    does = "would name" if dry_run else "names"
    out.line(
        f"{result.out} {does} {result.images:,} images for {result.tasks:,} tasks of {result.rows:,} rows"
        + (f"; {len(result.dropped):,} tasks dropped" if result.dropped else "")
    )
    out.only_quiet(str(result.out))
    out.document(
        {
            "dataset": result.address,
            "variant": variant,
            "out": str(result.out),
            "written": result.written,
            "rows": result.rows,
            "tasks": result.tasks,
            "images": result.images,
            "dropped": [
                {"task": d.task, "where": d.where, "code": d.code, "message": d.message}
                for d in result.dropped
            ],
            "skipped": [{"name": name, "why": why} for name, why in result.skipped],
        }
    )
