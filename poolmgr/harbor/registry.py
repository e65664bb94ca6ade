"""``dataset.toml`` and ``registry.json``: lists of tasks, of which those that lie here are read.

Formats: Harbor 0.26 (``harbor.models.dataset.manifest``, ``harbor.models.registry``). A dataset.toml
names packages (``org/name``) with their digests: a folder beside it is the task whose task.toml
has that ``[task] name``, or, where it has none, the one called ``name``. A registry.json lists
datasets; each of their tasks has a path, and the address of a repository where it lies elsewhere.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poolmgr.errors import DatasetInvalidError
from poolmgr.harbor.tasks import MAX_TASK_TOML, finding
from poolmgr.model.environment import NotTask

MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Listed:
    """The tasks of one dataset in the file."""

    name: str
    """The dataset's own name, with its version; '' where the file is about one dataset."""
    folders: tuple[tuple[str, str], ...]
    """(name, folder) of the tasks that lie here."""
    others: tuple[tuple[str, str, str], ...]
    """(name, finding code, why) of those that do not."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Task -> the digest recorded for it; '' where the file should record one and does not."""

    def refused(self, dataset: str, where: str) -> tuple[NotTask, ...]:
        return tuple(NotTask(dataset, name, where, finding(code, why)) for name, code, why in self.others)


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    path: str
    refusal: tuple[str, str] | None = None
    """Finding code and why, where it is known before anything is looked for."""


def read(path: Path) -> list[Listed]:
    """The tasks that the file names; ``DatasetInvalidError`` when it is neither of the two formats."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DatasetInvalidError(f"{path}: larger than the {MAX_BYTES:,} bytes that are read")
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as e:
        raise DatasetInvalidError(f"{path}: {e.strerror or e}") from None
    except (ValueError, RecursionError) as e:
        raise DatasetInvalidError(f"{path}: cannot be read: {e}") from None
    listed = _of_dataset(raw, path) if path.suffix == ".toml" else _of_registry(raw, path)
    if listed is None:
        raise DatasetInvalidError(
            f"{path}: names no tasks in the form of a dataset.toml or registry.json",
            hint="dataset.toml has [[tasks]] with a name, registry.json is a list of datasets with tasks",
        )
    return listed


def _of_dataset(raw: Any, path: Path) -> list[Listed] | None:
    tasks = raw.get("tasks")
    if not isinstance(tasks, list) or not all(isinstance(t, dict) and _is_text(t.get("name")) for t in tasks):
        return None
    named = _packages(path.parent)
    shorts = Counter(t["name"].rpartition("/")[2] for t in tasks)
    entries: list[_Entry] = []
    digests: dict[str, str] = {}
    for task in tasks:
        package, digest = task["name"], task.get("digest")
        short = package.rpartition("/")[2]
        name = short if shorts[short] == 1 else package
        digests[name] = digest if isinstance(digest, str) else ""
        if package in named:
            entries.append(_Entry(name, named[package]))
        elif short in named.values():
            other = next(known for known, folder in named.items() if folder == short)
            entries.append(
                _Entry(
                    name, short, ("task-incomplete", f"the task in {short!r} is {other!r}, not {package!r}")
                )
            )
        else:
            entries.append(_Entry(name, short))
    return [_placed("", entries, path, digests)]


def _packages(root: Path) -> dict[str, str]:
    """``[task] name`` -> its folder, of the tasks that lie in ``root``."""
    found: dict[str, str] = {}
    try:
        with os.scandir(root) as entries:
            folders = sorted(e.name for e in entries if e.is_dir())
    except OSError as e:
        raise DatasetInvalidError(f"{root}: {e.strerror or e}") from None
    for folder in folders:
        name = _package_name(root / folder / "task.toml")
        if name is not None:
            found[name] = folder  # of two the later one, as Harbor has it
    return found


def _package_name(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            table = tomllib.loads(file.read(MAX_TASK_TOML).decode("utf-8")).get("task")
    except (OSError, ValueError, RecursionError):
        return None  # said when the task is read
    name = table.get("name") if isinstance(table, dict) else None
    return name if isinstance(name, str) else None


def _of_registry(raw: Any, path: Path) -> list[Listed] | None:
    if not isinstance(raw, list) or not raw:
        return None
    found: list[Listed] = []
    for dataset in raw:
        tasks = dataset.get("tasks") if isinstance(dataset, dict) else None
        if not isinstance(tasks, list):
            return None
        entries: list[_Entry] = []
        for task in tasks:
            if not isinstance(task, dict) or not _is_text(task.get("path")):
                return None
            name = task["name"] if _is_text(task.get("name")) else task["path"].rstrip("/").rpartition("/")[2]
            elsewhere = ("not-local", "lies in another repository") if task.get("git_url") else None
            entries.append(_Entry(name, task["path"], elsewhere))
        words = [dataset.get("name"), dataset.get("version")]
        label = "@".join(filter(_is_text, words)) or str(len(found) + 1)
        found.append(_placed(label if len(raw) > 1 else "", entries, path, {}))
    return found


def _placed(name: str, entries: list[_Entry], path: Path, digests: Mapping[str, str]) -> Listed:
    """Which of ``entries`` lie below the folder of ``path``."""
    root = path.parent.resolve()
    folders: list[tuple[str, str]] = []
    others: list[tuple[str, str, str]] = []
    for entry in entries:
        task, place = entry.name, entry.path
        if entry.refusal is not None:
            others.append((task, *entry.refusal))
            continue
        try:
            folder = (root / place).resolve()
            is_inside, is_folder = folder.is_relative_to(root), folder.is_dir()
        except (OSError, ValueError, RuntimeError) as e:  # a NUL, an over-long name, a ring of links
            others.append((task, "task-unreadable", f"its path {place!r}: {e}"))
            continue
        if not is_inside:
            others.append((task, "task-link", f"its path {place!r} leaves the folder of {path.name}"))
        elif not is_folder:
            others.append((task, "task-incomplete", f"no folder {place!r} beside {path.name}"))
        else:
            folders.append((task, str(folder)))
    return Listed(name, tuple(folders), tuple(others), digests)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
