"""``poolmgr adopt``: an existing folder of images becomes a pool, where it lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from poolmgr.cli import options, text
from poolmgr.cli.output import Output
from poolmgr.errors import Exit
from poolmgr.model.manifest import NAMING_RULES, Naming
from poolmgr.ops.adopt import Adopt, Adopted, Request
from poolmgr.ops.view import open_pool
from poolmgr.plan.adopt import Adoption, Unmatched
from poolmgr.settings import Settings

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--variant", metavar="VARIANT", help="The variant that the rows make.")
@click.option("--images", metavar="TSV", type=_FILE,
              help="Which file holds which image: reference, tab, file; without --dataset the "
              "references are the tasks.")  # fmt: skip
@click.option("--dataset", metavar="ADDRESS",
              help="The rows whose images are looked for, by --images or by the naming rule.")  # fmt: skip
@click.option("--index", metavar="FILE", type=_FILE,
              help="A task_to_blob.json to begin with; the folder's own keeps its variants.")  # fmt: skip
@click.option("--rule", type=click.Choice(NAMING_RULES), help="Naming rule, in place of the manifest's.")
@click.option("--by-name", is_flag=True,
              help="Look for a path that is not there by its file name, in all directories.")  # fmt: skip
@click.option("--hash", "hashing", is_flag=True,
              help="Hash and check every blob, and write blobs.parquet; resumable.")  # fmt: skip
@click.option("--allow-unmatched", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
              help="Leave out at most N rows that have no file, each listed.")  # fmt: skip
@options.manifest
@options.jobs()
@options.dry_run
@options.output()
def adopt(
    folder: Path, variant: str | None, images: Path | None, dataset: str | None, index: Path | None,
    rule: str | None, by_name: bool, hashing: bool, allow_unmatched: int, manifest: str | None,
    jobs: int | None, dry_run: bool, out: Output,
) -> Exit:  # fmt: skip
    """Make a pool of an existing folder of images, where it lies; nothing is moved or renamed.

    What is missing is an index, task_to_blob.json. It is made from a map of references and files
    (--images), from a dataset and a naming rule (--dataset), or from an index that is there. Rows
    without a file, collisions and files that no task names are listed; with rows that have no file
    nothing is written (exit 3), unless --allow-unmatched.
    """
    settings, progress = Settings.read(), out.progress()
    view = open_pool(str(folder), settings, manifest=manifest, on_retry=progress.note)
    if rule is not None:
        view.manifest = replace(
            view.manifest, naming=Naming(rule, view.manifest.naming.trailing_hash and rule != "sha256")
        )
    request = Request(variant, images, dataset, index, by_name, hashing, allow_unmatched, jobs)
    run = Adopt(view, request, settings, progress, progress.note)
    plan = run.plan()
    adopted = Adopted(plan) if dry_run else run.carry_out(plan)
    _show(out, run, adopted, dry_run)
    out.document(_document(run, adopted, dry_run))
    for path in sorted(plan.blobs):
        out.only_quiet(path)
    return run.exit(adopted)


def _show(out: Output, run: Adopt, adopted: Adopted, dry_run: bool) -> None:
    plan = adopted.adoption
    listed = run.view.listing.blobs
    size = sum(blob.size for blob in listed.values())
    out.line(f"folder  {text.name(str(run.root))}: {text.counted(len(listed), 'file')}, {text.size(size)}")
    rows = [
        [variant, f"{total:,}", f"{len(plan.variants.get(variant, {})):,}",
         f"{len(set(plan.variants.get(variant, {}).values())):,}",
         f"{sum(u.variant == variant for u in plan.unmatched):,}"]
        for variant, total in plan.rows.items()
    ]  # fmt: skip
    out.table(rows, ["variant", "rows", "tasks", "blobs", "unmatched"], right=(1, 2, 3, 4))
    _list(out, "row", "without a file", (_unmatched(u) for u in plan.unmatched), "red")
    clashes = [" and ".join(map(text.name, group)) for group in plan.clashes]
    _list(out, "clash", "of names that differ only in case", clashes, "yellow")
    _list(out, "file", "that no task names", map(text.name, plan.unmapped), "yellow")
    _list(out, "line", "of the map that no task uses", map(str, plan.unused), "yellow")
    aliases = [f"{text.name(p)}: {text.name(', '.join(refs))}" for p, refs in plan.aliases.items()]
    _list(out, "image", "under several references", aliases, "dim")
    _list(
        out,
        "group",
        "of files with the same bytes",
        (" = ".join(map(text.name, group)) for group in adopted.equal),
        "dim",
    )
    bad = [f"{text.name(path)}: {'; '.join(map(str, found))}" for path, found in adopted.bad.items()]
    _list(out, "bad image", "", bad, "red")
    for note in adopted.notes:
        out.warn(note)
    out.line()
    _verdict(out, run, adopted, dry_run)


def _verdict(out: Output, run: Adopt, adopted: Adopted, dry_run: bool) -> None:
    plan = adopted.adoption
    said = f"{text.counted(plan.tasks, 'task')} on {text.counted(len(plan.blobs), 'blob')}"
    if run.refused(plan):
        allowed = (
            f", --allow-unmatched is {run.request.allow_unmatched:,}" if run.request.allow_unmatched else ""
        )
        out.line(
            out.styled("not adopted", "red")
            + f": {text.counted(len(plan.unmatched), 'row')} without a file{allowed}; nothing was written"
        )
        out.hint("correct the rows or the map, or leave them out with --allow-unmatched N")
        return
    if adopted.hashed or adopted.remembered:
        out.line(
            f"hashed {text.counted(adopted.hashed, 'blob')} ({text.size(adopted.hashed_bytes)}), "
            f"{adopted.remembered:,} hashed before"
        )
    if dry_run:
        out.line(f"would adopt {said}")
        return
    out.line(out.styled("adopted", "green") + f": {said}")
    if adopted.index_written:
        out.line(f"wrote {text.name(str(run.own_index))}")
    else:
        out.line(f"{text.name(str(run.own_index))} is there already and stays as it is")
    if adopted.table_written:
        out.line(f"wrote {text.name(str(run.root / 'blobs.parquet'))}")
    elif not run.request.hashing:
        out.hint(
            f"no sha256 is on record yet: 'poolmgr adopt {text.name(str(run.root))} --hash' writes them down"
        )


def _list(out: Output, noun: str, rest: str, lines: Iterable[str], style: str) -> None:
    found = list(lines)
    if found:
        out.line()
        out.line(
            out.styled(
                f"{text.counted(len(found), noun, 'clashes' if noun == 'clash' else '')} {rest}".rstrip(),
                style,
            )
        )
        for line in found:
            out.line(f"  {line}")


def _unmatched(u: Unmatched) -> str:
    row = f"{u.task} ({u.where})" if u.task else u.where
    image = f" {u.image}" if u.image and u.image != u.task else ""
    return text.name(f"{row}{image}: {u.finding.code}: {u.finding.message}")


def _document(run: Adopt, adopted: Adopted, dry_run: bool) -> dict[str, object]:
    plan: Adoption = adopted.adoption
    return {
        "kind": "adoption",
        "folder": str(run.root),
        "dry_run": dry_run,
        "files": len(run.view.listing.blobs),
        "variants": {
            v: {"rows": rows, "tasks": len(plan.variants.get(v, {})),
                "blobs": len(set(plan.variants.get(v, {}).values()))}
            for v, rows in plan.rows.items()
        },
        "unmatched": [
            {"variant": u.variant, "task": u.task, "image": u.image, "where": u.where,
             **u.finding.as_json()}
            for u in plan.unmatched
        ],
        "unmapped": list(plan.unmapped),
        "case_clashes": _lists(plan.clashes),
        "unused_lines": [f.as_json() for f in plan.unused],
        "aliases": {path: list(refs) for path, refs in plan.aliases.items()},
        "equal_bytes": _lists(adopted.equal),
        "hashed": adopted.hashed,
        "hashed_bytes": adopted.hashed_bytes,
        "hashed_before": adopted.remembered,
        "bad": {path: [f.as_json() for f in found] for path, found in adopted.bad.items()},
        "wrote": ["blobs.parquet"] * adopted.table_written + ["task_to_blob.json"] * adopted.index_written,
        "exit": int(run.exit(adopted)),
    }  # fmt: skip


def _lists(groups: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(group) for group in groups]
