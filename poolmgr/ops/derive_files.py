"""A recipe as it lies on disk: its text, the files and wheels that it names, its lock."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from poolmgr.errors import AlreadyExistsError, RecipeInvalidError
from poolmgr.model.recipe import Files, Recipe, Step
from poolmgr.model.recipe_lock import RecipeLock
from poolmgr.store.files import write_durable

MAX_RECIPE = 16 << 20
MAX_LOCK = 256 << 20


@dataclass(frozen=True)
class RecipeFiles:
    path: Path
    recipe: Recipe
    contents: Mapping[str, bytes] = field(default_factory=dict)
    """``from`` -> the file's bytes."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """``from`` -> sha256."""
    lock: RecipeLock | None = None

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def lock_path(self) -> Path:
        return self.path.with_suffix(".lock.json")

    def write_lock(self, lock: RecipeLock) -> None:
        write_durable(self.lock_path, lock.to_bytes())

    def inside(self, name: str) -> Path:
        """The path of something in the recipe's folder; refused where a link leads out of it."""
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise RecipeInvalidError(
                f"{self.path}: {name!r} leads out of the recipe's folder to {path.resolve()}",
                hint="put the file itself beside the recipe",
            )
        return path

    def task_list(self) -> tuple[str, ...] | None:
        """The tasks that the recipe's own list names; None where it has no list."""
        name = self.recipe.base.tasks
        if name is None:
            return None
        text = _read(self.inside(name), self.path, MAX_RECIPE).decode("utf-8", "replace")
        tasks = tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
        if not tasks:
            raise RecipeInvalidError(f"{self.path}: {name} names no task", hint="one task id a line")
        return tasks


def load_recipe(path: Path) -> RecipeFiles:
    """The recipe at ``path`` with all that it names. ``RecipeInvalidError`` says what is wrong where."""
    text = _read(path, path, MAX_RECIPE)
    try:
        recipe = Recipe.parse(text.decode(), str(path))
    except UnicodeDecodeError as e:
        raise RecipeInvalidError(f"{path}: not UTF-8 at byte {e.start}") from None
    found = RecipeFiles(path, recipe)
    steps: list[Step] = [*recipe.steps, *(step for own in recipe.tasks.values() for step in own)]
    contents = {
        f.source: _read(found.inside(f.source), path)
        for step in steps
        if isinstance(step, Files)
        for f in step.files
    }
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    lock = None
    if found.lock_path.is_file():
        lock = RecipeLock.parse(_read(found.lock_path, path, MAX_LOCK), str(found.lock_path))
    return RecipeFiles(path, recipe, contents, digests, lock)


def _read(file: Path, recipe: Path, limit: int | None = None) -> bytes:
    try:
        if not file.is_file():
            why = "is not a file" if file.exists() else "does not exist"
            raise RecipeInvalidError(
                f"{recipe}: {file} {why}", hint="paths are relative to the recipe's folder"
            )
        if limit is not None and file.stat().st_size > limit:
            raise RecipeInvalidError(f"{recipe}: {file} has more than {limit:,} bytes")
        return file.read_bytes()
    except OSError as e:
        raise RecipeInvalidError(f"{recipe}: {file}: {e.strerror}") from None


def check_map(file: Path) -> None:
    """Refuses a place for the map where something lies that ``derive`` did not write."""
    if not os.path.lexists(file):
        return
    try:
        if file.stat().st_size > MAX_LOCK:
            raise ValueError
        rows = json.loads(file.read_bytes())
        if not isinstance(rows, dict) or not all(isinstance(v, str) and "/" not in v for v in rows.values()):
            raise ValueError
    except (OSError, ValueError, RecursionError):
        raise AlreadyExistsError(
            f"{file} is there and is no map of tasks to files that derive wrote",
            hint="name another place with --map; nothing is overwritten",
        ) from None


def write_map(file: Path, tasks: Mapping[str, str]) -> None:
    """The map of tasks to file names, as ``push`` takes it."""
    text = json.dumps(dict(sorted(tasks.items())), indent=1, ensure_ascii=False)
    write_durable(file, (text + "\n").encode())
