"""``poolmgr diff``: what changed between two pools, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from poolmgr.cli import options, text
from poolmgr.cli.output import Output
from poolmgr.errors import Exit
from poolmgr.model.blob import Blob
from poolmgr.ops.diff import Compared, compare_pools
from poolmgr.ops.view import PoolView, open_pool
from poolmgr.plan.diff import Bytes, Diff, VariantDiff
from poolmgr.settings import Settings

_BYTES = {Bytes.SAME: "same bytes", Bytes.OTHER: "other bytes", Bytes.UNKNOWN: "bytes not compared"}


@click.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--variant", "variants", multiple=True, metavar="VARIANT",
              help="Only this variant and the blobs that it needs; may be given again.")  # fmt: skip
@click.option("--tasks", "quiet_tasks", is_flag=True, help="With -q: ids of tasks in place of blobs.")
@options.output()
def diff(before: str, after: str, variants: tuple[str, ...], quiet_tasks: bool, out: Output) -> Exit:
    """Show what changed from pool A to pool B: tasks and blobs, by name.

    A and B are pools, mirrors, or commits of one pool (hf://datasets/ORG/NAME@REVISION). Blobs are
    compared by the sha256 on record; where one has none, that is said, and nothing is called equal.
    Ends with 0 when nothing differs, with 3 when something does or could not be compared.
    """
    settings = Settings.read()
    views = [open_pool(address, settings, on_retry=out.note) for address in (before, after)]
    compared = compare_pools(views[0], views[1], variants)
    found = compared.diff
    exit_ = Exit.GOOD if found.same and found.proven else Exit.BAD
    _show(out, compared)
    out.document(_document(compared, exit_))
    for name in _tasks(found) if quiet_tasks else _blobs(found):
        out.only_quiet(name)
    return exit_


def _show(out: Output, compared: Compared) -> None:
    found = compared.diff
    for sign, view in (("A", compared.before), ("B", compared.after)):
        commit = view.store.commit
        out.line(f"{sign}  {text.name(view.address)}" + (f" at commit {commit[:12]}" if commit else ""))
    for note in compared.notes:
        out.warn(note)
    for name, variant in found.variants.items():
        _variant(out, name, variant)
    out.line()
    parts = [
        f"{len(items):,} {word}" + (f" ({text.size(_size(items))})" if items else "")
        for word, items in (("added", found.added), ("removed", found.removed))
    ]
    parts += [
        f"{len(found.replaced):,} replaced", f"{len(found.renamed):,} under another name",
        f"{found.equal:,} equal",
    ]  # fmt: skip
    if found.unknown:
        parts.append(f"{len(found.unknown):,} not compared")
    out.line(out.styled("blobs", "bold") + f": {', '.join(parts)}")
    for path, blob in found.added.items():
        out.line(out.styled("  + ", "green") + f"{text.name(path)}  {text.size(blob.size)}")
    for path, blob in found.removed.items():
        out.line(out.styled("  - ", "red") + f"{text.name(path)}  {text.size(blob.size)}")
    for path, (a, b) in found.replaced.items():
        out.line(out.styled("  ~ ", "yellow") + f"{text.name(path)}  {_known(a)} -> {_known(b)}")
    for renamed in found.renamed.values():
        old, new = (text.name(", ".join(p)) for p in (renamed.before, renamed.after))
        out.line(out.styled("  = ", "cyan") + f"{old} -> {new}  {renamed.sha256[:12]}")
    for path in found.unknown:
        out.line(out.styled("  ? ", "yellow") + text.name(path))
    out.line()
    _verdict(out, compared)


def _variant(out: Output, name: str, variant: VariantDiff) -> None:
    out.line()
    head = out.styled(text.name(name), "bold")
    if variant.only is not None:
        out.line(f"{head}: only in {'A' if variant.only == 'before' else 'B'}, "
                 f"{text.counted(len(variant.added) + len(variant.removed), 'task')}")  # fmt: skip
    elif variant.same:
        out.line(f"{head}: the same {text.counted(variant.unchanged, 'task')}")
    else:
        out.line(
            f"{head}: tasks: {len(variant.added):,} added, {len(variant.removed):,} removed, "
            f"{len(variant.remapped):,} remapped, {variant.unchanged:,} the same"
        )
    for task, path in variant.added.items():
        out.line(out.styled("  + ", "green") + text.name(f"{task}  {path}"))
    for task, path in variant.removed.items():
        out.line(out.styled("  - ", "red") + text.name(f"{task}  {path}"))
    for task, r in variant.remapped.items():
        words = text.name(f"{task}  {r.before} -> {r.after}")
        out.line(out.styled("  ~ ", "yellow") + f"{words}  ({_BYTES[r.bytes]})")


def _verdict(out: Output, compared: Compared) -> None:
    found = compared.diff
    if not found.same:
        out.line(out.styled("different", "yellow"))
    elif found.proven:
        out.line(out.styled("equal", "green"))
    else:
        out.line(
            out.styled("not proven equal", "yellow") + ": no difference was found in what could be compared"
        )
    if found.unknown:
        for sign, view, count in zip("AB", (compared.before, compared.after), compared.unproven, strict=True):
            if count:
                out.hint(f"{sign} has no sha256 on record of {text.counted(count, 'blob')}: {_remedy(view)}")


def _remedy(view: PoolView) -> str:
    if view.root is None:
        return "a blobs.parquet in the pool would record them"
    return f"'poolmgr adopt {text.name(view.address)} --hash' writes them down"


def _known(blob: Blob) -> str:
    return f"{blob.sha256[:12] if blob.sha256 else 'no sha256'} {text.size(blob.size)}"


def _size(blobs: Mapping[str, Blob]) -> int:
    return sum(blob.size for blob in blobs.values())


def _blobs(found: Diff) -> Iterable[str]:
    """Every path that is not proven to be the same file on both sides."""
    moved = {p for r in found.renamed.values() for p in set(r.before) ^ set(r.after)}
    return sorted({*found.added, *found.removed, *found.replaced, *found.unknown, *moved})


def _tasks(found: Diff) -> Iterable[str]:
    """Every task that came, went, or is mapped otherwise, once."""
    names = (t for v in found.variants.values() for group in (v.added, v.removed, v.remapped) for t in group)
    return dict.fromkeys(names)


def _document(compared: Compared, exit_: Exit) -> dict[str, Any]:
    found = compared.diff
    return {
        "kind": "diff",
        "before": {"pool": compared.before.address, "commit": compared.before.store.commit},
        "after": {"pool": compared.after.address, "commit": compared.after.store.commit},
        "notes": list(compared.notes),
        "variants": {
            name: {
                "only": v.only, "added": dict(v.added), "removed": dict(v.removed),
                "remapped": {
                    t: {"before": r.before, "after": r.after, "bytes": r.bytes.value}
                    for t, r in v.remapped.items()
                },
                "unchanged": v.unchanged,
            }
            for name, v in found.variants.items()
        },
        "blobs": {
            "added": [_row(b) for b in found.added.values()],
            "removed": [_row(b) for b in found.removed.values()],
            "replaced": [{"before": _row(a), "after": _row(b)} for a, b in found.replaced.values()],
            "renamed": [
                {"sha256": r.sha256, "before": list(r.before), "after": list(r.after)}
                for r in found.renamed.values()
            ],
            "unknown": [{"before": _row(a), "after": _row(b)} for a, b in found.unknown.values()],
            "equal": found.equal,
        },
        "verdict": "different" if not found.same else "equal" if found.proven else "not proven equal",
        "exit": int(exit_),
    }  # fmt: skip


def _row(blob: Blob) -> dict[str, Any]:
    return {"path": blob.path, "size": blob.size, "sha256": blob.sha256}
