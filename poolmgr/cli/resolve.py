"""``poolmgr resolve``: from a task or an image reference to one absolute path."""

from __future__ import annotations

from pathlib import Path

import click

from poolmgr.cli import options
from poolmgr.cli.output import Output
from poolmgr.errors import MissError, UsageError
from poolmgr.ops.resolve import is_path, resolve_reference, resolve_task
from poolmgr.ops.view import PoolView, open_pool
from poolmgr.settings import Settings


@click.command()
@click.argument("name", metavar="REF|TASK")
@click.option("--variant", metavar="VARIANT", help="REF|TASK is a task of this variant.")
@click.option("--task", "is_task", is_flag=True, help="REF|TASK is a task, of whichever variant has it.")
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Where no file answers to a reference, print the reference itself, with a warning.",
)
@options.pool
@options.manifest
@options.attest
@options.output()
def resolve(
    name: str, variant: str | None, is_task: bool, allow_remote: bool, pool: str | None,
    manifest: str | None, attest: Path | None, out: Output,
) -> None:  # fmt: skip
    """Print the one image file of a task or reference.

    The answer is an absolute path, and the file is the one that was proven. A miss, an ambiguous
    match, an empty, invalid or changed file is an error (exit 3); nothing is ever guessed.
    """
    if allow_remote and (variant or is_task):
        raise UsageError("--allow-remote is for references; a task has no other image than its own")
    view = open_pool(pool, Settings.read(), manifest=manifest, attest=attest)
    try:
        path = _find(view, name, variant, is_task)
    except MissError as e:
        if not allow_remote or is_path(name) or _is_task(view, name, is_task):
            raise
        out.warn(f"{e.message}; printing the reference itself, as --allow-remote asks: it will be pulled")
        out.answer(name)
        out.document({"reference": name, "path": None, "remote": name})
        return
    out.answer(str(path))
    out.document({"name": name, "variant": variant, "path": str(path), "remote": None})


def _find(view: PoolView, name: str, variant: str | None, is_task: bool) -> Path:
    if variant is not None or _is_task(view, name, is_task):
        return resolve_task(view, name, variant)
    return resolve_reference(view, name)


def _is_task(view: PoolView, name: str, is_task: bool) -> bool:
    """A name that some variant knows is a task; any other is a reference."""
    return is_task or any(name in tasks for tasks in view.index.variants.values())
