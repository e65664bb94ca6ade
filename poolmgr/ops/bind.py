"""``bind``: a copy of a dataset whose rows name the absolute local image of each task.

Every task is resolved before a byte is written; the copy is made beside its final name, read
again and compared, and only then gets that name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from poolmgr.errors import (
    AlreadyExistsError,
    DatasetInvalidError,
    DestinationError,
    NothingComparedError,
    UnboundTasksError,
)
from poolmgr.harbor.dataset import IMAGE_FILE, TASK_FILE, rows
from poolmgr.harbor.rewrite import rewrite
from poolmgr.harbor.rows import RowTroubleError
from poolmgr.harbor.splice import set_docker_image
from poolmgr.model.task import Row
from poolmgr.ops.copytree import copy_folder
from poolmgr.ops.dataset import Origin, origin_of
from poolmgr.ops.resolve import MISSES
from poolmgr.settings import Settings
from poolmgr.store.files import mapped_os_errors, publish_durable, publish_folder_durable
from poolmgr.temporary import sweep, temp_name

Resolve = Callable[[str], Path]
"""Task id -> its absolute image; raises one of ``resolve.MISSES`` for one that has none."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A task whose rows the copy does not have."""

    task: str
    where: str
    code: str
    message: str


@dataclass(frozen=True)
class Bound:
    address: str
    """The dataset's, printable."""
    out: Path
    rows: int
    """Rows of the dataset."""
    tasks: int
    """Distinct tasks that the copy names an image for."""
    images: int
    """Distinct images that it names."""
    dropped: tuple[Dropped, ...]
    skipped: tuple[tuple[str, str], ...]
    """(name, why) of what looks like rows or tasks and is copied as it is, or left out."""
    written: bool


def bind(
    address: str,
    resolve: Resolve,
    out: Path,
    settings: Settings,
    *,
    drop_missing: int = 0,
    dry_run: bool = False,
    on_retry: Callable[[str], None] | None = None,
) -> Bound:
    """Copy the dataset at ``address`` to ``out`` with every row's image resolved.

    Raises ``UnboundTasksError`` that lists every task without an image when they are more than
    ``drop_missing``, ``DatasetInvalidError`` for rows that cannot be read or written,
    ``AlreadyExistsError`` when ``out`` is there, ``NothingComparedError`` when no row would be left.
    What ``resolve`` raises of other kinds (the pool cannot be read, say) is passed on at once.
    """
    origin = origin_of(address, settings, on_retry=on_retry)
    _check_out(origin, out)
    given = list(rows(origin.shape, origin.opener))
    images, dropped = _resolve_all(origin, given, resolve, drop_missing)
    result = Bound(
        origin.address, out, len(given), len(images), len(set(images.values())), dropped,
        origin.shape.skipped, not dry_run,
    )  # fmt: skip
    if dry_run:
        return result
    sweep(out.absolute().parent)
    temp = temp_name(out.absolute().parent)
    if origin.is_file:  # the name's ending says how to read it
        temp = temp.with_name(temp.name + "".join(Path(origin.names[0]).suffixes[-2:]))
    try:
        with mapped_os_errors(out):
            _write(origin, temp, images)
            _prove(origin, temp, given, images, settings)
            if origin.is_file:
                publish_durable(temp, out)
            else:
                publish_folder_durable(temp, out)
    finally:
        if temp.is_dir():
            shutil.rmtree(temp, ignore_errors=True)
        else:
            temp.unlink(missing_ok=True)
    return result


def _check_out(origin: Origin, out: Path) -> None:
    if os.path.lexists(out):
        raise AlreadyExistsError(f"{out}: the name is taken", hint="nothing is overwritten: give a new --out")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise DestinationError(f"{parent}: no such folder", hint="make it first")
    if origin.root is not None and not origin.is_file:
        inside = parent.resolve()
        if inside == origin.root.resolve() or inside.is_relative_to(origin.root.resolve()):
            raise DestinationError(
                f"{out} lies inside the dataset itself", hint="give an --out outside the dataset"
            )
    if origin.is_file and _endings(out.name) != _endings(origin.names[0]):
        raise DestinationError(
            f"{out}: the copy of {origin.names[0]} is a file that ends in {_endings(origin.names[0])}",
            hint="give --out the same ending",
        )


def _endings(name: str) -> str:
    stem = name.removesuffix(".gz")
    return Path(stem).suffix + name[len(stem) :]


def _resolve_all(
    origin: Origin, given: list[Row], resolve: Resolve, drop_missing: int
) -> tuple[dict[str, str], tuple[Dropped, ...]]:
    broken = [row for row in given if row.trouble is not None or row.task is None]
    if broken:
        raise DatasetInvalidError(
            f"{origin.address}: {len(broken):,} of {len(given):,} rows cannot be read; nothing was written",
            hint="correct the dataset: a row that cannot be read is never left out",
            details=[f"{row.where}: {row.trouble}" for row in broken],
        )
    images: dict[str, str] = {}
    dropped: dict[str, Dropped] = {}
    for row in given:
        task = row.task
        if task is None or task in images or task in dropped:
            continue
        try:
            images[task] = str(resolve(task))
        except MISSES as e:
            dropped[task] = Dropped(task, row.where, e.code, e.message)
    if len(dropped) > drop_missing:
        allowed = f", and --drop-missing allows {drop_missing:,}" if drop_missing else ""
        raise UnboundTasksError(
            f"{len(dropped):,} of {len(images) + len(dropped):,} tasks of {origin.address} have no image"
            f"{allowed}; nothing was written",
            hint="run 'poolmgr audit' on the pool, or leave them out with --drop-missing N",
            details=[f"{d.task} ({d.where}): {d.message}" for d in dropped.values()],
        )
    if not images:
        raise NothingComparedError(
            f"{origin.address}: no row was bound, of {len(given):,}", hint="is this the right variant?"
        )
    return images, tuple(dropped.values())


def _write(origin: Origin, temp: Path, images: dict[str, str]) -> None:
    shape = origin.shape
    if origin.is_file:
        _rewrite(origin, origin.names[0], temp, images)
        return
    kept = {f for f in shape.tasks if _task_of(origin, f) in images}
    left_out = {f for f in shape.tasks if f not in kept}
    if origin.root is not None:
        copy_folder(origin.root, temp, without=left_out, real={*shape.files, *shape.names, *kept})
    else:
        for name in origin.names:
            if name not in shape.files and not any(name.startswith(f"{f}/") for f in left_out if f):
                _fetch(origin, name, temp / name)
    for name in shape.files:
        file = temp / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        _rewrite(origin, name, file, images)
        if origin.root is not None:
            shutil.copymode(origin.root / name, file)
    for folder in sorted(kept):
        _set_task(temp / folder, images[_task_of(origin, folder)])


def _task_of(origin: Origin, folder: str) -> str:
    return folder.rpartition("/")[2] or origin.shape.own_name


def _rewrite(origin: Origin, name: str, file: Path, images: dict[str, str]) -> None:
    with file.open("xb") as out:
        rewrite(name, origin.opener, out, images.get)


def _fetch(origin: Origin, name: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with origin.opener(name) as source, file.open("xb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


def _set_task(folder: Path, image: str) -> None:
    task, text = folder / TASK_FILE, folder / IMAGE_FILE
    if task.exists():
        try:
            _replace(task, set_docker_image(task.read_bytes(), image))
        except RowTroubleError as e:
            raise DatasetInvalidError(f"{folder.name}/{TASK_FILE}: {e}") from None
    if text.exists():
        _replace(text, f"{image}\n".encode())


def _replace(file: Path, data: bytes) -> None:
    """New content under a new inode, so that no hard link elsewhere changes with it."""
    mode = file.stat().st_mode & 0o7777
    file.unlink()
    with file.open("xb") as out:
        out.write(data)
    file.chmod(mode)


def _prove(origin: Origin, temp: Path, given: list[Row], images: dict[str, str], settings: Settings) -> None:
    """Read the copy as a trainer will, and compare it row by row with what was wanted."""
    wanted = [(row.task, images[row.task]) for row in given if row.task is not None and row.task in images]
    copy = origin_of(str(temp), settings)
    own = copy.shape.own_name
    found = [
        (origin.shape.own_name if row.task == own and origin.shape.tasks == ("",) else row.task, row.image)
        for row in rows(copy.shape, copy.opener)
    ]
    if found != wanted:
        at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), len(wanted))
        raise DatasetInvalidError(
            f"{origin.address}: the copy does not read back as it was written (row {at + 1}); it was removed",
            hint="the dataset may have changed while it was read: run the command again",
        )
