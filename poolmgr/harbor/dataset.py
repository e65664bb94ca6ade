"""A task dataset as rows: Parquet, JSON lines, or a folder of task folders.

What lies in the dataset decides its shape, from the names alone (docs/cli/bind.md): folders with a
``task.toml`` or an ``image.txt`` are tasks and belong to nobody else; of the other files Parquet
is read before JSON lines. Files that look like rows and are not read are said in ``skipped``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from poolmgr.errors import DatasetInvalidError
from poolmgr.harbor.rows import Opener, RowTroubleError, image_of, read_rows
from poolmgr.model.index import name_trouble
from poolmgr.model.task import Row

TASK_FILE = "task.toml"
IMAGE_FILE = "image.txt"
MAX_TASK_FILE = 1024 * 1024
MAX_IMAGE_FILE = 64 * 1024
_LINES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")


class Kind(StrEnum):
    PARQUET = "parquet"
    JSON = "json"
    TASKS = "tasks"


@dataclass(frozen=True)
class Shape:
    """How a dataset is laid out."""

    kind: Kind
    files: tuple[str, ...] = ()
    """The row files, sorted."""
    tasks: tuple[str, ...] = ()
    """The task folders, sorted; ``''`` where the dataset itself is one task."""
    own_name: str = ""
    """The id of the task ``''``."""
    names: frozenset[str] = frozenset()
    """Every ``task.toml`` and ``image.txt`` of a task folder."""
    image_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Beside row files: task id -> its ``image.txt``."""
    skipped: tuple[tuple[str, str], ...] = ()
    """(name, why) of what looks like rows or tasks and is not read."""


def shape_of(names: Iterable[str], source: str, *, own_name: str = "") -> Shape:
    """The shape of the dataset that holds the files ``names``; raises ``DatasetInvalidError``.

    ``own_name`` is the task's id where the dataset is itself one task folder.
    """
    names = sorted(n for n in names if not any(part.startswith(".") for part in n.split("/")))
    marks = [n for n in names if n.rpartition("/")[2] in (TASK_FILE, IMAGE_FILE) and n != IMAGE_FILE]
    folders = _outermost({n.rpartition("/")[0] for n in marks})
    own = frozenset(n for n in marks if n.rpartition("/")[0] in folders)
    free = [n for n in names if not _inside(n, folders)]
    parquet = [n for n in free if n.endswith(".parquet")]
    lines = [n for n in free if n.endswith(_LINES)]
    json = [n for n in free if n.endswith((".json", ".json.gz")) and not _is_metadata(n)]
    images: dict[str, tuple[str, ...]] = {}
    for name in sorted(own):
        folder, _, file = name.rpartition("/")
        if file == IMAGE_FILE:
            task = folder.rpartition("/")[2]
            images[task] = (*images.get(task, ()), name)
    if parquet:
        skipped = tuple((n, "the dataset's rows are in Parquet") for n in lines)
        return Shape(Kind.PARQUET, tuple(parquet), image_files=images, skipped=skipped)
    if lines or (json and not folders):
        return Shape(Kind.JSON, tuple(lines or json), image_files=images)
    if folders:
        return Shape(
            Kind.TASKS,
            tasks=tuple(sorted(folders)),
            names=own,
            own_name=own_name,
            skipped=tuple((n, f"holds no {TASK_FILE} and no {IMAGE_FILE}") for n in _beside(free, folders)),
        )
    raise DatasetInvalidError(
        f"{source} holds no rows: no Parquet file, no JSON lines, no folder with a {TASK_FILE}",
        hint="name the file itself, or the folder that holds the task folders",
    )


def shape_of_file(name: str, source: str) -> Shape:
    """The shape of a dataset that is the one file ``name``."""
    if name.endswith(".parquet"):
        return Shape(Kind.PARQUET, (name,))
    if is_row_file(name):
        return Shape(Kind.JSON, (name,))
    raise DatasetInvalidError(
        f"{source} holds no rows: the name ends in neither .parquet, .jsonl nor .json",
        hint="name a Parquet or JSON file, or a folder",
    )


def is_row_file(name: str) -> bool:
    """Whether a file of this name is read as rows."""
    return name.endswith((".parquet", *_LINES, ".json", ".json.gz"))


def rows(shape: Shape, opener: Opener) -> Iterator[Row]:
    """Every row of the dataset, in order; what cannot be read is a row with ``trouble``."""
    if shape.kind is Kind.TASKS:
        for folder in shape.tasks:
            yield task_row(folder, shape.names, opener, task=folder.rpartition("/")[2] or shape.own_name)
        return
    for name in shape.files:
        for row in read_rows(name, opener):
            files = shape.image_files.get(row.task) if row.task is not None else None
            bare = files is not None and row.image is None and row.trouble is None
            yield _from_image_file(row, files, opener) if files is not None and bare else row


def task_row(folder: str, names: frozenset[str], opener: Opener, *, task: str) -> Row:
    """The row of one task folder; its id is the folder's name, as Harbor has it."""
    prefix = f"{folder}/" if folder else ""
    where = prefix + (TASK_FILE if prefix + TASK_FILE in names else IMAGE_FILE)
    if trouble := name_trouble(task):
        return Row(None, None, where, f"the folder's name {trouble}")
    row = Row(task, None, where)
    try:
        if prefix + TASK_FILE in names:
            image = docker_image(parse_task_file(_small(prefix + TASK_FILE, opener, MAX_TASK_FILE)))
            row = Row(task, image, where)
    except RowTroubleError as e:
        return Row(task, None, where, str(e))
    if row.image is None and prefix + IMAGE_FILE in names:
        row = _from_image_file(row, (prefix + IMAGE_FILE,), opener)
    return row


def parse_task_file(data: bytes) -> dict[str, Any]:
    """The tables of a ``task.toml``; raises ``RowTroubleError``."""
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as e:
        raise RowTroubleError(f"is not UTF-8 (byte {e.start})") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as e:
        raise RowTroubleError(f"is not TOML: {e}") from None


def docker_image(task: Mapping[str, Any]) -> str | None:
    """``[environment] docker_image`` of a task; None where there is none, as Harbor takes ``''`` too."""
    environment = task.get("environment", {})
    if not isinstance(environment, dict):
        raise RowTroubleError("[environment] is not a table")
    try:
        return image_of(environment.get("docker_image"))
    except RowTroubleError as e:
        raise RowTroubleError(f"[environment] docker_{e}") from None


def _from_image_file(row: Row, files: tuple[str, ...], opener: Opener) -> Row:
    try:
        if len(files) > 1:
            raise RowTroubleError(f"has {len(files)} image files: {', '.join(files)}")
        words = _small(files[0], opener, MAX_IMAGE_FILE).decode("utf-8").split()
        if len(words) > 1:
            raise RowTroubleError(f"{files[0]} holds {len(words)} words, not one image")
        return Row(row.task, image_of(words[0]) if words else None, f"{row.where} ({files[0]})")
    except UnicodeDecodeError:
        return Row(row.task, None, row.where, f"{files[0]} is not UTF-8")
    except RowTroubleError as e:
        return Row(row.task, None, row.where, str(e))


def _small(name: str, opener: Opener, limit: int) -> bytes:
    with opener(name) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise RowTroubleError(f"is longer than {limit} bytes")
    return data


def _outermost(folders: set[str]) -> set[str]:
    """Those that lie in no other: what a task holds belongs to the task."""
    return {f for f in folders if not _inside(f, folders)}


def _inside(name: str, folders: set[str]) -> bool:
    """Whether ``name`` lies in one of ``folders``."""
    while name:
        name = name.rpartition("/")[0]
        if name in folders:
            return True
    return False


def _beside(free: Iterable[str], folders: set[str]) -> list[str]:
    """Folders that lie beside task folders and are none, nor hold any."""
    parents = {f.rpartition("/")[0] for f in folders}
    above = {f[:i] for f in folders for i, char in enumerate(f) if char == "/"}
    found = set()
    for name in free:
        folder = name.rpartition("/")[0]
        while folder:
            if folder.rpartition("/")[0] in parents and folder not in above:
                found.add(folder)
            folder = folder.rpartition("/")[0]
    return sorted(found)


def _is_metadata(name: str) -> bool:
    return name.rpartition("/")[2] in ("dataset_infos.json", "dataset_info.json", "state.json")
