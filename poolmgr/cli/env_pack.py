"""``poolmgr env pack`` and ``unpack``: task folders as a Parquet archive, and back."""

from __future__ import annotations

from pathlib import Path

import click

from poolmgr.cli import options, text
from poolmgr.cli.env_options import limits_option
from poolmgr.cli.output import Output
from poolmgr.errors import Exit
from poolmgr.harbor.archive import Limits
from poolmgr.model.finding import Severity
from poolmgr.ops import pack as ops
from poolmgr.ops.pack import Packed


@click.command("pack")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("archive", metavar="OUT.parquet", type=click.Path(path_type=Path))
@options.dry_run
@limits_option
@options.output()
def pack(folder: Path, archive: Path, dry_run: bool, limits: Limits, out: Output) -> Exit:
    """Pack a folder of tasks into a Parquet archive.

    The same folder gives the same bytes: members are sorted, times and owners fixed; exec bits,
    links and empty folders are kept. The archive is read back before it gets its name, and nothing
    is overwritten. Exit 3 when something in the folder could not be packed.
    """
    if dry_run:
        ops.to_pack(folder, archive)
        return _preview(folder, archive, limits, out)
    return _report(ops.pack(folder, archive, limits=limits, progress=out.progress()), archive, "packed", out)


@click.command("unpack")
@click.argument("archive", metavar="ARCHIVE", type=click.Path(path_type=Path))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@options.dry_run
@limits_option
@options.output()
def unpack(archive: Path, folder: Path, dry_run: bool, limits: Limits, out: Output) -> Exit:
    """Unpack a Parquet archive into task folders under a new folder.

    Nothing is written outside it, and rows that cannot be trusted are refused, by name; exit 3 then.
    """
    if dry_run:
        ops.to_unpack(archive, folder)
        return _preview(archive, folder, limits, out)
    return _report(
        ops.unpack(archive, folder, limits=limits, progress=out.progress()), folder, "unpacked", out
    )


def _preview(source: Path, target: Path, limits: Limits, out: Output) -> Exit:
    from poolmgr.ops.environments import count
    from poolmgr.plan.environments import union

    found = union(count([str(source)], limits=limits, progress=out.progress()))
    out.line(f"would write {text.counted(found.tasks, 'task')} of {source} to {target}")
    out.document({"kind": "env-pack", "dry_run": True, "tasks": found.tasks, "target": str(target)})
    return Exit.BAD if found.errors else Exit.GOOD


def _report(done: Packed, target: Path, verb: str, out: Output) -> Exit:
    bad = [n for n in done.not_tasks if n.finding.severity is Severity.ERROR]
    out.line(f"{verb} {text.counted(done.tasks, 'task')}, {text.size(done.size)}:")
    out.answer(str(target))
    for n in done.not_tasks:
        out.line(f"left out: {text.name(n.name or n.where)}: {text.name(str(n.finding))}")
    for name, why in done.refused:
        out.line(f"left out: {text.name(name)}: {text.name(why)}")
    out.document(
        {
            "kind": "env-pack",
            "dry_run": False,
            "target": str(target),
            "tasks": done.tasks,
            "size": done.size,
            "left_out": [{"name": n.name, "where": n.where, **n.finding.as_json()} for n in done.not_tasks]
            + [{"name": name, "message": why} for name, why in done.refused],
        }
    )
    return Exit.BAD if bad or done.refused else Exit.GOOD
