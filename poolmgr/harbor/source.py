"""Where the tasks of a dataset lie, and all of them as one stream: folders, archives, registries.

Folders are read one level deep, as Harbor does; a folder of sub-datasets gives each its own
namespace. Nothing is dropped in silence: what is no task comes with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from poolmgr.errors import DatasetInvalidError
from poolmgr.harbor import registry
from poolmgr.harbor.archive import ArchiveError, Limits, open_archive
from poolmgr.harbor.parquet import ArchiveFile, NotArchiveError, rows
from poolmgr.harbor.tasks import Place, finding, read_task
from poolmgr.harbor.tree import FolderTree, Tree
from poolmgr.model.environment import NotTask, Scheme, Task

TASK_TOML = "task.toml"
MAX_DEPTH = 3
"""How many folders deep sub-datasets are looked for."""


@dataclass(frozen=True, slots=True)
class Part:
    """Tasks of one namespace that lie together: task folders here, or the rows of one archive."""

    dataset: str
    where: str
    folders: tuple[tuple[str, str], ...] = ()
    """(name, folder) of what may be a task."""
    archive: ArchiveFile | None = None
    refused: tuple[NotTask, ...] = ()
    """What was seen to be no task before it was opened."""


@dataclass(frozen=True, slots=True)
class Found:
    """One item of the stream; ``tree`` is the task's files, valid until the next item."""

    item: Task | NotTask
    tree: Tree | None = None


def discover(path: Path, label: str | None = None) -> list[Part]:
    """The parts of the dataset at ``path``: a task, a folder, a Parquet file, dataset.toml, registry.json.

    Raises ``DatasetInvalidError`` when nothing there is, or could hold, a task.
    """
    label = label or path.resolve().name
    if path.is_file():
        if path.suffix == ".parquet":
            return [_archive_part(path, label)]
        if path.name == TASK_TOML:
            return discover(path.parent, label)
        if path.suffix in (".toml", ".json"):
            listed = registry.read(path)
            return [Part(label, str(path), listed.folders, refused=listed.refused(label, str(path)))]
        raise DatasetInvalidError(
            f"{path}: expected a folder, a .parquet file, dataset.toml or registry.json",
            hint="name the folder that holds the task folders",
        )
    if not path.is_dir():
        raise DatasetInvalidError(f"{path}: no such file or folder")
    if (path / TASK_TOML).exists():
        return [Part(label, str(path), ((path.resolve().name, str(path)),))]
    parts = _folder(path, label, 0)
    if not parts:
        raise DatasetInvalidError(
            f"{path}: no task folder, no .parquet file and no sub-dataset in it",
            hint="a task is a folder with a task.toml; an archive is a Parquet file of path and task_binary",
        )
    return parts


def _archive_part(path: Path, label: str) -> Part:
    return Part(label, str(path), archive=ArchiveFile(str(path), lambda: open(path, "rb")))


def _folder(path: Path, label: str, depth: int) -> list[Part]:
    """The parts in a folder: its own tasks and archives, else those of the folders in it."""
    try:
        entries = sorted(os.scandir(path), key=lambda e: e.name)
    except OSError as e:
        raise DatasetInvalidError(f"{path}: {e.strerror or e}") from None
    folders = [e for e in entries if e.is_dir() and not e.name.startswith(".")]
    archives = [Path(e.path) for e in entries if e.name.endswith(".parquet") and e.is_file()]
    data = path / "data"
    is_sharded = data.is_dir() and not (data / TASK_TOML).exists()
    if is_sharded:
        archives += sorted(data.glob("*.parquet"))
    if any(os.path.lexists(f"{e.path}/{TASK_TOML}") for e in folders):
        # Harbor takes hidden folders too, and so does this.
        tasks = [e for e in entries if e.is_dir() and not (archives and e.name == "data")]
        parts = [Part(label, str(path), tuple((e.name, e.path) for e in tasks))]
        return parts + [_archive_part(a, label) for a in archives]
    if archives:
        return [_archive_part(a, label) for a in archives]
    if depth == MAX_DEPTH:
        return []
    return [
        part
        for e in folders
        if not e.is_symlink()
        for part in _folder(Path(e.path), f"{label}/{e.name}", depth + 1)
    ]


def tasks(parts: Iterable[Part], schemes: frozenset[Scheme], limits: Limits | None = None) -> Iterator[Found]:
    """Every folder and row of ``parts`` in order: a task with its environments hashed, or why not."""
    seen: dict[str, set[str]] = {}
    for part in parts:
        names = seen.setdefault(part.dataset, set())
        yield from (Found(refused) for refused in part.refused)
        for found in _open(part, schemes, limits or Limits()):
            item = found.item
            if isinstance(item, Task) and item.name in names:
                again = finding("duplicate-task", f"{item.name!r} was read before, from another place")
                yield Found(NotTask(item.dataset, item.name, item.where, again))
                continue
            names.add(item.name)
            yield found


def _open(part: Part, schemes: frozenset[Scheme], limits: Limits) -> Iterator[Found]:
    for name, folder in part.folders:
        tree = FolderTree(folder)
        yield Found(read_task(tree, Place(part.dataset, name, folder), schemes), tree)
    if part.archive is not None:
        yield from _rows(part, part.archive, schemes, limits)


def _rows(part: Part, file: ArchiveFile, schemes: frozenset[Scheme], limits: Limits) -> Iterator[Found]:
    count = 0
    try:
        for row in rows(file):
            count += 1
            where = f"{file.name} row {row.index}"
            trouble = name_trouble(row.path)
            if row.path is None or trouble:
                yield _refused(part, row.path or "", where, f"its path {trouble}")
                continue
            if row.data is None:
                yield _refused(part, row.path, where, "task_binary is null")
                continue
            try:
                tree = open_archive(row.data, limits)
            except ArchiveError as e:
                yield _refused(part, row.path, where, str(e))
                continue
            yield Found(read_task(tree, Place(part.dataset, row.path, where), schemes), tree)
    except NotArchiveError as e:
        yield Found(NotTask(part.dataset, "", file.name, finding("bad-archive", str(e))))
    else:
        if not count:
            yield Found(NotTask(part.dataset, "", file.name, finding("bad-archive", "has no rows")))


def _refused(part: Part, name: str, where: str, message: str) -> Found:
    return Found(NotTask(part.dataset, name, where, finding("bad-archive-row", message)))


def name_trouble(path: str | None) -> str | None:
    """Why a row's ``path`` cannot name a task, or None."""
    if path is None:
        return "is null"
    if not path:
        return "is empty"
    if path.startswith("/") or "\\" in path or ".." in path.split("/"):
        return f"{path!r} leaves the dataset"
    if len(path) > 1024 or not path.isprintable():
        return "is over-long or holds a control character"
    return None
