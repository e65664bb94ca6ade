"""Where the tasks of a dataset lie, and all of them as one stream: folders, archives, registries.

Folders are read one level deep, as Harbor does; a folder of sub-datasets gives each its own
namespace. Nothing is dropped in silence: what is no task comes with its reason.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from poolmgr.errors import DatasetInvalidError
from poolmgr.harbor import package, registry
from poolmgr.harbor.archive import ArchiveError, Limits, open_archive
from poolmgr.harbor.parquet import ArchiveFile, NotArchiveError, rows
from poolmgr.harbor.tasks import Place, finding, read_task
from poolmgr.harbor.tree import FolderTree, Tree
from poolmgr.model.environment import NotTask, Scheme, Task

TASK_TOML = "task.toml"
AT_ONCE = 8
"""Tasks read at once where their files lie afar."""
MAX_DEPTH = 3
"""How many folders deep sub-datasets are looked for."""


@dataclass(frozen=True, slots=True)
class Part:
    """Tasks of one namespace that lie together: task folders here, or the rows of one archive."""

    dataset: str
    where: str
    folders: tuple[tuple[str, str], ...] = ()
    """(name, folder) of what may be a task."""
    listed: tuple[tuple[str, str, Tree], ...] = ()
    """(name, address, tree) of folders in a repository, whose files are read from afar."""
    close: Callable[[], None] | None = None
    """Ends the reading from afar at once, for a run that stops."""
    archive: ArchiveFile | None = None
    refused: tuple[NotTask, ...] = ()
    """What was seen to be no task before it was opened."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Task -> the digest of its package, which a dataset.toml records."""


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
            return [_listed_part(listed, path, label) for listed in registry.read(path)]
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


def _listed_part(listed: registry.Listed, path: Path, label: str) -> Part:
    label = f"{label}/{listed.name}" if listed.name else label
    refused = listed.refused(label, str(path))
    return Part(label, str(path), listed.folders, refused=refused, digests=listed.digests)


def _archive_part(path: Path, label: str) -> Part:
    return Part(label, str(path), archive=ArchiveFile(str(path), lambda: open(path, "rb")))


def _folder(path: Path, label: str, depth: int) -> list[Part]:
    """The parts in a folder: its own tasks and archives, else those of the folders in it."""
    try:
        entries = sorted(os.scandir(path), key=lambda e: e.name)
    except OSError as e:
        raise DatasetInvalidError(f"{path}: {e.strerror or e}") from None
    folders = [e for e in entries if e.is_dir() and not e.name.startswith(".")]
    archives = [Path(e.path) for e in entries if _is_archive(e)]
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


@dataclass(frozen=True, slots=True)
class Work:
    """One folder or row, not opened yet; small enough to be handed to another process."""

    place: Place
    folder: str | None = None
    data: bytes | None = None
    tree: Tree | None = None
    refused: NotTask | None = None
    digest: str | None = None
    """What the task's package digest must be; None where nobody recorded one."""

    def slim(self, limits: Limits) -> Work:
        """The same for another process, to which nothing is sent that is too large to be a task."""
        if self.data is None or len(self.data) <= limits.task_bytes:
            return self
        trouble = f"{len(self.data):,} bytes, more than the {limits.task_bytes:,} that a task may have"
        return Work(self.place, refused=_not(self.place, "bad-archive-row", trouble))

    def open(self, schemes: frozenset[Scheme], limits: Limits) -> Found:
        """The task, or why it is none."""
        if self.refused is not None:
            return Found(self.refused)
        try:
            tree = self.tree or (
                FolderTree(self.folder) if self.folder is not None else open_archive(self.data or b"", limits)
            )
        except ArchiveError as e:
            return Found(_not(self.place, "bad-archive-row", str(e)))
        item = read_task(tree, self.place, schemes)
        if isinstance(item, Task) and self.digest is not None:
            trouble = package.digest_trouble(tree, self.digest)
            if trouble is not None:
                item = replace(item, findings=(*item.findings, finding("task-digest", trouble)))
        return Found(item, tree)


def open_all(works: Sequence[Work], schemes: frozenset[Scheme], limits: Limits) -> list[Task | NotTask]:
    """What each of ``works`` is, in order."""
    return [work.open(schemes, limits).item for work in works]


def tasks(parts: Sequence[Part], schemes: frozenset[Scheme], limits: Limits | None = None) -> Iterator[Found]:
    """Every folder and row of ``parts`` in order: a task with its environments hashed, or why not."""
    limits = limits or Limits()
    if any(part.listed for part in parts):
        return without_doubles(_ahead(parts, schemes, limits))
    return without_doubles(work.open(schemes, limits) for work in to_do(parts))


def _ahead(parts: Sequence[Part], schemes: frozenset[Scheme], limits: Limits) -> Iterator[Found]:
    """The stream in order, a few tasks at once: what lies afar takes its time to come."""
    pending: deque[Future[Found]] = deque()
    has_ended = False
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for work in to_do(parts):
                pending.append(pool.submit(work.open, schemes, limits))
                if len(pending) > 2 * AT_ONCE:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
            has_ended = True
        finally:
            if not has_ended:
                for close in filter(None, (part.close for part in parts)):
                    close()
                pool.shutdown(cancel_futures=True)


def without_doubles(stream: Iterable[Found]) -> Iterator[Found]:
    """The stream with every task whose name its dataset had before turned into a refusal."""
    seen: dict[str, set[str]] = {}
    for found in stream:
        item = found.item
        names = seen.setdefault(item.dataset, set())
        if isinstance(item, Task) and item.name in names:
            place = Place(item.dataset, item.name, item.where)
            yield Found(_not(place, "duplicate-task", f"{item.name!r} was read before, from another place"))
            continue
        if isinstance(item, Task):
            names.add(item.name)
        yield found


def to_do(parts: Iterable[Part]) -> Iterator[Work]:
    """Every folder and row of ``parts`` in order, unopened."""
    for part in parts:
        for refused in part.refused:
            yield Work(Place(part.dataset, refused.name, refused.where), refused=refused)
        for name, folder in part.folders:
            yield Work(Place(part.dataset, name, folder), folder=folder, digest=part.digests.get(name))
        for name, address, tree in part.listed:
            yield Work(Place(part.dataset, name, address), tree=tree)
        if part.archive is not None:
            yield from _rows(part.dataset, part.archive)


def _rows(dataset: str, file: ArchiveFile) -> Iterator[Work]:
    count = 0
    trouble: str | None
    try:
        for row in rows(file):
            count += 1
            place = Place(dataset, row.path or "", f"{file.name} row {row.index}")
            if trouble := name_trouble(row.path):
                yield Work(place, refused=_not(place, "bad-archive-row", f"its path {trouble}"))
            elif row.data is None:
                yield Work(place, refused=_not(place, "bad-archive-row", "task_binary is null"))
            else:
                yield Work(place, data=row.data)
        trouble = None if count else "has no rows"
    except NotArchiveError as e:
        trouble = str(e)
    if trouble:
        place = Place(dataset, "", file.name)
        yield Work(place, refused=_not(place, "bad-archive", trouble))


def _not(place: Place, code: str, message: str) -> NotTask:
    row = place.where.rpartition(" row ")[2]
    found = finding(code, message, f"row {row}" if row.isdecimal() else "")
    return NotTask(place.dataset, place.name, place.where, found)


def _is_archive(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".parquet") and not entry.name.startswith(".") and entry.is_file()


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
