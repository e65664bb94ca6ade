"""Options that several commands take, spelt and explained once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from poolmgr.errors import BadFileError, UsageError
from poolmgr.model.finding import Level
from poolmgr.model.manifest import ARCHS

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

pool = click.option(
    "-p", "--pool", metavar="POOL",
    help="The pool: a folder, a manifest, hf://datasets/ORG/NAME[@REVISION] or any fsspec URL. "
    "Default: POOLMGR_POOL.",
)  # fmt: skip
manifest = click.option(
    "--manifest", metavar="FILE", help="Rules to use instead of those that the pool came with."
)
tasks = click.option("--tasks", metavar="FILE", help="Only the tasks named in FILE, one a line ('-': stdin).")
dry_run = click.option("-n", "--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
yes = click.option("-y", "--yes", is_flag=True, help="Go on without being asked.")
level = click.option(
    "--level", type=click.Choice([*Level], case_sensitive=False),
    help="How deep to look into each image; each level includes the ones before.",
)  # fmt: skip
arch = click.option(
    "--arch", type=click.Choice(ARCHS), metavar="ARCH",
    help="Architecture that every image must have. Default: the manifest's, else this machine's.",
)  # fmt: skip
attest = click.option(
    "--attest", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Keep the records of what passed in DIR, for a pool that cannot be written.",
)  # fmt: skip


def jobs(default: int | None = None) -> Decorator:
    """``-j/--jobs``: how many at once; ``default`` None leaves the number to the verb."""
    said = "Default: what suits this machine." if default is None else f"Default: {default}."
    return click.option(
        "-j", "--jobs", type=click.IntRange(1, 256), default=default, metavar="N",
        help=f"How many at once. {said}",
    )  # fmt: skip


def output(*, lines: bool = False) -> Decorator:
    """``--json`` and ``-q/--quiet``; the command gets the sink that they choose as ``out``.

    ``lines``: the JSON form is JSON Lines with a summary as the last row, not one document.
    """
    form = "JSON Lines, a summary last" if lines else "one JSON document"

    def decorate(function: Command) -> Command:
        @click.option("--json", "as_json", is_flag=True, help=f"Print {form}.")
        @click.option("-q", "--quiet", is_flag=True, help="Print ids or paths only, and no progress.")
        @click.pass_obj
        @functools.wraps(function)
        def command(session: Any, /, *args: Any, as_json: bool, quiet: bool, **kwargs: Any) -> Any:
            if as_json and quiet:
                raise UsageError("--json and -q/--quiet exclude each other")
            return function(*args, out=session.output(json=as_json, quiet=quiet), **kwargs)

        return command

    return decorate


def read_tasks(name: str, option: str = "--tasks") -> tuple[str, ...]:
    """The task ids in the file ``name`` (``-``: stdin), one a line, each once; what ``tasks`` takes."""
    try:
        with click.open_file(name, encoding="utf-8") as file:
            ids = tuple(dict.fromkeys(line.strip() for line in file if line.strip()))
    except (OSError, UnicodeDecodeError) as e:
        raise BadFileError(f"{option} {name}: {getattr(e, 'strerror', None) or e}") from None
    if not ids:
        raise UsageError(f"{option} {name} names no task", hint="the list holds one task id a line")
    return ids
