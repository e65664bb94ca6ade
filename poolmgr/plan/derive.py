"""What a recipe comes to: which bases, which steps for which tasks, by which method, under which name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poolmgr.errors import RecipeInvalidError, UnknownTaskError
from poolmgr.model.index import nearest
from poolmgr.model.recipe import Files, Pip, Recipe, Remove, Run, Step
from poolmgr.model.recipe_lock import LockedWheel

_DERIVED = re.compile(r"(.+)--[a-z0-9][a-z0-9._-]*-[0-9a-f]{12}\.sif")
FORMAT = 1
"""Goes up when the same recipe gives other bytes than before."""


@dataclass(frozen=True, slots=True)
class Work:
    """One derived image: what it is made of, and the tasks that it is for."""

    base: str
    """Blob path."""
    steps: tuple[Step, ...]
    tasks: tuple[str, ...] = ()


def works(recipe: Recipe, assignments: Mapping[str, str]) -> tuple[Work, ...]:
    """The distinct (base, steps) pairs of ``assignments`` (task -> blob path), in order of the base.

    Tasks that need the same image share one. ``UnknownTaskError`` when the recipe has a table for a
    task that is not among them: a misspelt id would else do nothing, unseen.
    """
    unknown = sorted(set(recipe.tasks) - set(assignments))
    if unknown:
        close = nearest(unknown[0], assignments)
        raise UnknownTaskError(
            f"the recipe has tables for {len(unknown):,} tasks that it does not derive",
            hint=f"nearest to {unknown[0]!r}: {', '.join(close)}"
            if close
            else "add them to the base's tasks",
            details=unknown,
        )
    found: dict[tuple[str, tuple[Step, ...]], list[str]] = {}
    for task, blob in sorted(assignments.items()):
        found.setdefault((blob, recipe.steps_of(task)), []).append(task)
    return tuple(
        sorted(
            (Work(blob, steps, tuple(tasks)) for (blob, steps), tasks in found.items() if steps),
            key=lambda work: (work.base, work.tasks),
        )
    )


def method_of(asked: str, steps: Iterable[Step]) -> str:
    """``overlay`` or ``rebuild``. What removes something is rebuilt, so that the bytes are really gone."""
    steps = tuple(steps)
    if any(isinstance(step, Run) for step in steps):
        if asked == "overlay":
            raise RecipeInvalidError(
                "method: a recipe that runs a command cannot be an overlay",
                hint="leave method out; Apptainer builds a new filesystem",
            )
        return "rebuild"
    if asked != "auto":
        return asked
    return "rebuild" if any(isinstance(step, Remove) for step in steps) else "overlay"


def reproducible(steps: Iterable[Step]) -> bool:
    """Whether the same base and steps give the same bytes: every ``run`` would have to be declared so."""
    return all(step.reproducible for step in steps if isinstance(step, Run))


def described(
    steps: Sequence[Step], contents: Mapping[str, str], wheels: Sequence[Sequence[LockedWheel]]
) -> list[dict[str, Any]]:
    """The steps as plain data: what provenance records, and what the digest covers.

    ``contents``: sha256 of each ``from`` file. ``wheels``: the locked wheels of each step.
    """
    rows: list[dict[str, Any]] = []
    for step, locked in zip(steps, wheels, strict=True):
        match step:
            case Remove():
                rows.append({"remove": list(step.paths)})
            case Pip():
                rows.append(
                    {
                        "pip": sorted(pin.text for pin in step.pins),
                        "python": step.python,
                        "wheels": [{"file": w.file, "sha256": w.sha256} for w in sorted(locked)],
                    }
                )
            case Files():
                rows.append(
                    {
                        "files": [
                            {"to": f.to, "mode": f"{f.mode:04o}", "sha256": contents[f.source]}
                            for f in step.files
                        ]
                    }
                )
            case Run():
                rows.append({"run": step.command, "reproducible": step.reproducible})
    return rows


def recipe_digest(rows: Sequence[Mapping[str, Any]], method: str) -> str:
    """sha256 of everything that decides what is done to a base."""
    body = json.dumps({"format": FORMAT, "method": method, "steps": list(rows)}, sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()


def file_name(base: str, recipe: str, base_sha256: str, digest: str) -> str:
    """The derived image's file name: the base's, the recipe's, and a digest of both contents.

    A base with other bytes gives another name, so a stale derivation is never taken for a new one.
    """
    stem = base.rpartition("/")[2].removesuffix(".sif")
    both = hashlib.sha256(f"{base_sha256} {digest}".encode()).hexdigest()
    return f"{stem[:180]}--{recipe}-{both[:12]}.sif"


def base_of(path: str) -> str | None:
    """The name of the base, without ``.sif``, in the name that ``file_name`` gave; None for other names."""
    match = _DERIVED.fullmatch(path.rpartition("/")[2])
    return match[1] if match else None


def provenance(
    recipe: str, base_sha256: str, digest: str, method: str, rows: Sequence[Mapping[str, Any]],
    tools: Mapping[str, str], *, is_reproducible: bool,
) -> bytes:  # fmt: skip
    """The text of the descriptor that says what a derived image was made of. No time, no path."""
    body = {
        "schema": 1,
        "kind": "derivation",
        "recipe": recipe,
        "recipe_sha256": digest,
        "base_sha256": base_sha256,
        "method": method,
        "reproducible": is_reproducible,
        "steps": list(rows),
        "tools": dict(tools),
    }
    return (json.dumps(body, sort_keys=True, indent=1) + "\n").encode()
