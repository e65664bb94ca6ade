"""What goes into a run of ``derive``, what is planned, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from poolmgr.errors import Exit, PoolError
from poolmgr.model.recipe_lock import LockedWheel
from poolmgr.plan.derive import Work


@dataclass(frozen=True, slots=True)
class Request:
    recipe: Path
    to: Path
    method: str | None = None
    """Overrides the recipe's own."""
    jobs: int = 2
    map: Path | None = None
    """Where the map of tasks to files goes; None: beside the files, named after the recipe."""
    identity: bool = True
    """Whether the tree identity of each image is computed."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One image to make, or why it cannot be."""

    work: Work
    file: Path | None = None
    sha256: str = ""
    """Of the base."""
    method: str = ""
    wheels: tuple[tuple[LockedWheel, ...], ...] = ()
    """Of each step."""
    digest: str = ""
    """Of the recipe's steps for this base."""
    name: str = ""
    there: bool = False
    """Whether a file of that name is in the folder already."""
    error: PoolError | None = None


class Result(StrEnum):
    MADE = "made"
    KEPT = "kept"
    """It was there, made of the same base by the same steps."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    planned: Planned
    result: Result
    sha256: str = ""
    size: int = 0
    tree_sha256: str | None = None
    shared: str = ""
    """The ranges that it shares with its base, as text (model/ranges.py)."""
    notes: tuple[str, ...] = ()
    error: PoolError | None = None


@dataclass(frozen=True)
class Derived:
    outcomes: tuple[Outcome, ...]
    map: Path | None
    """The map that was written; None when no task has an image."""
    tasks: Mapping[str, str] = field(default_factory=dict)
    """Task -> file name."""

    def of(self, result: Result) -> tuple[Outcome, ...]:
        return tuple(o for o in self.outcomes if o.result is result)

    @property
    def exit(self) -> Exit:
        return Exit.BAD if self.of(Result.FAILED) else Exit.GOOD
