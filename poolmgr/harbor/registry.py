"""``dataset.toml`` and ``registry.json``: lists of tasks, of which those that lie here are read.

Formats: facts of Harbor 0.26. A dataset.toml names its tasks as ``org/name`` with a digest, and they
lie beside it in folders called ``name``; a registry.json gives each task a path, and the address
of another repository where the task lies there.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolmgr.errors import DatasetInvalidError
from poolmgr.harbor.tasks import finding
from poolmgr.model.environment import NotTask

MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Listed:
    folders: tuple[tuple[str, str], ...]
    """(name, folder) of the tasks that lie here."""
    others: tuple[tuple[str, str, str], ...]
    """(name, finding code, why) of those that do not."""

    def refused(self, dataset: str, where: str) -> tuple[NotTask, ...]:
        return tuple(NotTask(dataset, name, where, finding(code, why)) for name, code, why in self.others)


def read(path: Path) -> Listed:
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
    entries = _of_dataset(raw) if path.suffix == ".toml" else _of_registry(raw)
    if entries is None:
        raise DatasetInvalidError(
            f"{path}: names no tasks in the form of a dataset.toml or registry.json",
            hint="dataset.toml has [[tasks]] with a name, registry.json is a list of datasets with tasks",
        )
    root = path.parent.resolve()
    folders: list[tuple[str, str]] = []
    others: list[tuple[str, str, str]] = []
    for name, place, elsewhere in entries:
        if elsewhere:
            others.append((name, "not-local", f"lies in {elsewhere}"))
            continue
        folder = (root / place).resolve()
        if not folder.is_relative_to(root):
            others.append((name, "task-link", f"its path {place!r} leaves the folder of {path.name}"))
        elif not folder.is_dir():
            others.append((name, "task-incomplete", f"no folder {place!r} beside {path.name}"))
        else:
            folders.append((name, str(folder)))
    return Listed(tuple(folders), tuple(others))


def _of_dataset(raw: Any) -> list[tuple[str, str, str]] | None:
    """(name, folder, '') of every task of a dataset.toml."""
    tasks = raw.get("tasks")
    if not isinstance(tasks, list) or not all(isinstance(t, dict) and _is_text(t.get("name")) for t in tasks):
        return None
    return [(t["name"].rpartition("/")[2], t["name"].rpartition("/")[2], "") for t in tasks]


def _of_registry(raw: Any) -> list[tuple[str, str, str]] | None:
    """(name, path, repository) of every task of a registry.json."""
    if not isinstance(raw, list):
        return None
    found: list[tuple[str, str, str]] = []
    for dataset in raw:
        tasks = dataset.get("tasks") if isinstance(dataset, dict) else None
        if not isinstance(tasks, list):
            return None
        for task in tasks:
            if not isinstance(task, dict) or not _is_text(task.get("path")):
                return None
            name = task["name"] if _is_text(task.get("name")) else task["path"].rstrip("/").rpartition("/")[2]
            found.append((name, task["path"], "another repository" if task.get("git_url") else ""))
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
