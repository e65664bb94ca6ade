"""Packs task folders into a Parquet archive, the same bytes every time, and unpacks archives.

The format is the one that task archives have: ``path`` and ``task_binary``, a gzipped tar with
members relative to the task. Here they are sorted, their times and owners are fixed, and exec
bits, links and empty folders are kept. (The compressed bytes depend on the zlib and Arrow versions.)
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from poolmgr.errors import AlreadyExistsError, BadFileError, DestinationError, NothingComparedError
from poolmgr.harbor.archive import ArchiveTree, Limits
from poolmgr.harbor.parquet import BINARY, PATH
from poolmgr.harbor.source import Part, discover, name_trouble, tasks
from poolmgr.harbor.tree import FolderTree, Kind, Tree, UnreadableError
from poolmgr.model.environment import NotTask, Scheme, Task
from poolmgr.ops.progress import Progress, Silent
from poolmgr.store.files import mapped_os_errors, publish_durable, publish_folder_durable
from poolmgr.temporary import sweep, temp_name

GROUP_BYTES = 64 << 20
GROUP_ROWS = 1000
HARBOR = frozenset({Scheme.HARBOR})


@dataclass
class Packed:
    """What was written, and what was not."""

    tasks: int = 0
    size: int = 0
    """Bytes of the archive."""
    not_tasks: list[NotTask] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    """(task, why) of tasks that cannot be stored."""


def pack(
    source: Path, target: Path, *, limits: Limits | None = None, progress: Progress | None = None
) -> Packed:
    """Write every task of ``source`` to the new Parquet file ``target``, and read it back to be sure.

    Raises ``AlreadyExistsError`` when ``target`` is there, ``NothingComparedError`` when there is no
    task, ``BadFileError`` when the archive does not give back the environments that went in.
    """
    progress = progress or Silent()
    parts = to_pack(source, target)
    result = Packed()
    hashes: dict[str, tuple[str | None, ...]] = {}
    progress.begin("packing", files=sum(len(p.folders) for p in parts))
    sweep(target.parent)
    temporary = temp_name(target.parent).with_suffix(".parquet")  # the reader goes by the name's ending
    try:
        with _Writer(temporary) as writer:
            for found in tasks(parts, HARBOR, limits):
                item = found.item
                if isinstance(item, NotTask):
                    result.not_tasks.append(item)
                    continue
                assert isinstance(found.tree, FolderTree)
                if trouble := name_trouble(item.name):
                    result.refused.append((item.name, f"its name {trouble}"))
                    continue
                try:
                    writer.add(item.name, _tar(found.tree))
                except UnreadableError as e:
                    result.refused.append((item.name, str(e)))
                    continue
                hashes[item.name] = tuple(e.hash for e in item.environments)
                progress.file_done(item.name)
        if not hashes:
            raise NothingComparedError(f"{source}: no task to pack", hint="see 'poolmgr env count'")
        _read_back(temporary, hashes)
        result.tasks = len(hashes)
        result.size = temporary.stat().st_size
        publish_durable(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
        progress.end()
    return result


def to_pack(source: Path, target: Path) -> list[Part]:
    """The parts of ``source``; an error where ``pack`` would refuse it or ``target`` unread."""
    _refuse_existing(target)
    parts = discover(source)
    if any(p.archive for p in parts) or len({p.dataset for p in parts}) > 1:
        raise DestinationError(
            f"{source} is no single folder of tasks", hint="pack one folder of task folders"
        )
    return parts


class _Writer:
    """Writes rows in groups, so that memory stays flat."""

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        self._arrow = pyarrow
        self._schema = pyarrow.schema([(PATH, pyarrow.string()), (BINARY, pyarrow.binary())])
        try:
            self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="NONE")
        except OSError as e:
            raise DestinationError(f"{path.parent}: {e.strerror or e}") from None
        self._rows: list[tuple[str, bytes]] = []
        self._size = 0

    def add(self, name: str, data: bytes) -> None:
        self._rows.append((name, data))
        self._size += len(data)
        if len(self._rows) == GROUP_ROWS or self._size > GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            names, cells = zip(*self._rows, strict=True)
            columns = [
                self._arrow.array(names, self._arrow.string()),
                self._arrow.array(cells, self._arrow.binary()),
            ]
            self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
        self._rows, self._size = [], 0

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self._flush()
        self._writer.close()


def _tar(tree: FolderTree) -> bytes:
    """The task as a gzipped tar: sorted, with times and owners fixed, exec bits and links kept."""
    out = io.BytesIO()
    entries = tree.entries("")
    with (
        gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path, kind in sorted(entries.items()):
            member = tarfile.TarInfo(path)
            member.mode = 0o755
            if kind is Kind.FOLDER:
                member.type = tarfile.DIRTYPE
                tar.addfile(member)
            elif kind is Kind.LINK:
                member.type = tarfile.SYMTYPE
                member.mode = 0o777
                member.linkname = tree.target(path)
                tar.addfile(member)
            elif kind is Kind.FILE:
                size, chunks = tree.chunks(path)
                member.size = size
                member.mode = 0o755 if tree.mode(path) & stat.S_IXUSR else 0o644
                tar.addfile(member, io.BytesIO(b"".join(chunks)))
            else:
                raise UnreadableError(f"{path}: a {kind.value} cannot be stored")
    return out.getvalue()


def _read_back(path: Path, expected: dict[str, tuple[str | None, ...]]) -> None:
    found = {}
    for item in tasks(discover(path), HARBOR):
        if not isinstance(item.item, Task):
            raise BadFileError(f"{path}: reads back as no task: {item.item.finding}")
        found[item.item.name] = tuple(e.hash for e in item.item.environments)
    if found != expected:
        wrong = sorted(n for n in found.keys() | expected.keys() if found.get(n) != expected.get(n))
        raise BadFileError(
            f"{path.name}: {len(wrong):,} tasks read back otherwise than they went in; nothing was written",
            hint="did the folder change meanwhile?",
            details=wrong,
        )


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise AlreadyExistsError(f"{target} is there already, and nothing is ever overwritten")
    if not target.parent.is_dir():
        raise DestinationError(f"{target.parent} is not a folder")


def unpack(
    source: Path, target: Path, *, limits: Limits | None = None, progress: Progress | None = None
) -> Packed:
    """Write every task of the archive ``source`` as a folder under the new folder ``target``.

    Modes, links and empty folders are kept. Rows that are no sound task are refused, by name, and
    the rest is written. Raises ``AlreadyExistsError`` when ``target`` is there and not empty.
    """
    progress = progress or Silent()
    parts = to_unpack(source, target)
    sweep(target.parent)
    temporary = temp_name(target.parent)
    temporary.mkdir()
    result = Packed()
    places = _Places()
    progress.begin("unpacking", files=0)
    try:
        for found in tasks(parts, HARBOR, limits):
            if isinstance(found.item, NotTask):
                result.not_tasks.append(found.item)
                continue
            assert isinstance(found.tree, ArchiveTree)
            name = found.item.name
            if trouble := places.trouble(name):
                result.refused.append((name, trouble))
                continue
            try:
                (temporary / name).mkdir(parents=True)
            except OSError as e:
                result.refused.append((name, f"no folder can be made for it: {e.strerror or e}"))
                continue
            try:
                result.size += _lay(found.tree, temporary / name)
            except (OSError, ValueError, UnreadableError) as e:
                result.refused.append((name, str(e).replace(f"{temporary}/", "")))
                shutil.rmtree(temporary / name, ignore_errors=True)
                continue
            result.tasks += 1
            progress.file_done(found.item.name)
        if not result.tasks:
            raise NothingComparedError(
                f"{source}: no task to unpack",
                details=[f"{n.where}: {n.finding}" for n in result.not_tasks],
            )
        if target.is_dir():
            with mapped_os_errors(target):
                target.rmdir()  # it was empty; with something in it by now, it stays and this fails
        publish_folder_durable(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        progress.end()
    return result


def to_unpack(source: Path, target: Path) -> list[Part]:
    """The parts of ``source``; an error where ``unpack`` would refuse it or ``target`` unread."""
    if os.path.lexists(target) and not (
        target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    ):
        raise AlreadyExistsError(f"{target} is there already, and nothing is ever overwritten")
    parts = discover(source)
    if not all(p.archive for p in parts) or len({p.dataset for p in parts}) > 1:
        raise DestinationError(
            f"{source} is no archive of one dataset", hint="unpack sub-datasets one by one"
        )
    if not target.parent.is_dir():
        raise DestinationError(f"{target.parent} is not a folder")
    return parts


class _Places:
    """The folders that tasks have taken: no task may lie in another one, under whose links it could leave."""

    def __init__(self) -> None:
        self._tasks: dict[str, str] = {}
        """Path, its case folded as some file systems do -> the task's own name."""
        self._above: dict[str, str] = {}
        """The same of the folders above: -> a task inside."""

    def trouble(self, name: str) -> str | None:
        """Why the task ``name`` gets no folder, or None: then it has it."""
        if not {"", ".", ".."}.isdisjoint(name.split("/")):
            return f"its path {name!r} is not written as a folder's plain path"
        path = name.casefold()
        above = [path[:i] for i, char in enumerate(path) if char == "/"]
        if path in self._above:
            return f"the task {self._above[path]!r} lies in it"
        if inside := next((self._tasks[folder] for folder in above if folder in self._tasks), None):
            return f"it lies in the task {inside!r}"
        self._tasks[path] = name
        self._above.update(dict.fromkeys(above, name))
        return None


def _lay(tree: Tree, folder: Path) -> int:
    """Write one task into its new folder; links come last, so that nothing is ever written through one."""
    entries = tree.entries("")
    size = 0
    for path, kind in sorted(entries.items()):
        place = folder / path
        if kind is Kind.FOLDER:
            place.mkdir()
        elif kind is Kind.FILE:
            size += _write(place, tree.chunks(path)[1], 0o755 if tree.mode(path) & stat.S_IXUSR else 0o644)
        elif kind is Kind.OTHER:
            raise UnreadableError(f"{path}: a {kind.value} is never made")
    for path, kind in sorted(entries.items()):
        if kind is Kind.LINK:
            os.symlink(tree.target(path), folder / path)
    return size


def _write(place: Path, chunks: Iterator[bytes], mode: int) -> int:
    size = 0
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        for chunk in chunks:
            size += file.write(chunk)
    return size
