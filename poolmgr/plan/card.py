"""The table in a pool's card (README.md), which push keeps between two markers and touches nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from poolmgr.model.blob import Blob
from poolmgr.model.index import Assignments

CARD_NAME = "README.md"
BEGIN = "<!-- poolmgr:begin -->"
END = "<!-- poolmgr:end -->"


def with_table(card: str, variants: Mapping[str, Assignments], blobs: Mapping[str, Blob]) -> str | None:
    """The card with a current table between its markers; None for a card without one pair of them."""
    if card.count(BEGIN) != 1 or card.count(END) != 1:
        return None
    head, _, rest = card.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        return None
    return f"{head}{BEGIN}\n{table(variants, blobs)}{END}{tail}"


def table(variants: Mapping[str, Assignments], blobs: Mapping[str, Blob]) -> str:
    """What the pool holds, in Markdown: its variants, and the directories of the images they name."""
    needed = {path for tasks in variants.values() for path in tasks.values()}
    lines = ["", "| variant | tasks | blobs | bytes |", "|---|---:|---:|---:|"]
    for name, tasks in sorted(variants.items()):
        paths = set(tasks.values())
        lines.append(f"| {_cell(name)} | {len(tasks):,} | {len(paths):,} | {_size(paths, blobs):,} |")
    folders: Counter[str] = Counter()
    for path in needed:
        folders[path.rpartition("/")[0]] += 1
    lines += ["", "| directory | blobs that a variant names |", "|---|---:|"]
    lines += [f"| {_cell(folder)}/ | {count:,} |" for folder, count in sorted(folders.items())]
    lines += ["", f"{len(needed):,} blobs, {_size(needed, blobs):,} bytes.", "", ""]
    return "\n".join(lines)


def _size(paths: set[str], blobs: Mapping[str, Blob]) -> int:
    return sum(blobs[path].size for path in paths if path in blobs)


def _cell(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
