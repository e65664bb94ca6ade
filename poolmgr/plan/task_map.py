"""Which file, or which blob of the pool, each task of a map means."""

from __future__ import annotations

import posixpath
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from poolmgr.model.index import nearest
from poolmgr.model.task_map import TaskMap


@dataclass(frozen=True)
class Meant:
    """What a map comes to."""

    files: Mapping[str, str]
    """Task -> file, as the push names it."""
    blobs: Mapping[str, str]
    """Task -> blob path."""
    images: Mapping[str, tuple[str, str | None]]
    """File -> (image reference, registry digest), where the map says them."""


def resolve_map(
    task_map: TaskMap,
    files: Mapping[str, str],
    blobs: Container[str],
    *,
    bases: Sequence[str] = (),
    own: str | None = None,
) -> Meant:
    """What every row means. ``files``: absolute path -> the file as the push names it.

    A row may name a file by its path (relative to one of ``bases``), by its name alone, or a blob by
    its path; never a file that was not given to the push, so that a map from somebody else cannot
    reach for one. ``own``: the pool's folder, where it is one. ``MapInvalidError`` lists every row
    that is wrong in itself, or means nothing or two things.
    """
    named: dict[str, list[str]] = {}
    for path in files:
        named.setdefault(posixpath.basename(path), []).append(path)
    problems: list[str] = []
    tasks: dict[str, str] = {}
    held: dict[str, str] = {}
    images: dict[str, tuple[str, str | None]] = {}
    for row in task_map.rows:
        value = row.file.removeprefix("./")
        found = _found(value, files, named, bases)
        is_blob = value in blobs
        if len(found) > 1:
            problems.append(f"task {row.task!r}: {value!r} is the name of {', '.join(sorted(found))}")
        elif found and is_blob and (own is None or found[0] != posixpath.join(own, value)):
            problems.append(f"task {row.task!r}: {value!r} is a file here and also a blob of the pool")
        elif found:
            key = files[found[0]]
            tasks[row.task] = key
            if row.image is not None:
                told = (row.image, row.digest)
                if images.setdefault(key, told) != told:
                    problems.append(
                        f"{key}: made of {images[key][0]!r} in one row, of {row.image!r} in another"
                    )
        elif is_blob:
            held[row.task] = value
        else:
            close = nearest(posixpath.basename(value), named, 1) if len(problems) < 20 else []
            also = f"; nearest: {close[0]}" if close else ""
            problems.append(
                f"task {row.task!r}: {value!r} is none of the {len(files):,} files and no blob{also}"
            )
    unknown = "name a file that is given to push (PATH…), or the path of a blob as 'poolmgr ls' shows it"
    task_map.refuse(problems, hint=unknown if problems else "")
    return Meant(tasks, held, images)


def _found(
    value: str, files: Mapping[str, str], named: Mapping[str, list[str]], bases: Sequence[str]
) -> list[str]:
    """The files that ``value`` may mean, as absolute paths."""
    if value.startswith("/"):
        return [value] if value in files else []
    exact = list(dict.fromkeys(p for base in bases if (p := posixpath.join(base, value)) in files))
    if exact or "/" in value:
        return exact
    return named.get(value, [])
