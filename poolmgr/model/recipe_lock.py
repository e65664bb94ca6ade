"""A recipe's lock: the full closure of its pins for each interpreter, every wheel by its sha256."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from poolmgr.errors import RecipeInvalidError
from poolmgr.model.digest import parse_sha256
from poolmgr.model.pin import Pin

SCHEMA = 1
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl")


@dataclass(frozen=True, slots=True, order=True)
class LockedWheel:
    name: str
    """Canonical."""
    version: str
    file: str
    sha256: str


Key = tuple[str, tuple[str, ...]]
"""(interpreter, pins as written, sorted)."""


def lock_key(interpreter: str, pins: Iterable[Pin]) -> Key:
    return interpreter, tuple(sorted(pin.text for pin in pins))


@dataclass(frozen=True)
class RecipeLock:
    sets: Mapping[Key, tuple[LockedWheel, ...]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        rows = [
            {
                "interpreter": interpreter,
                "pins": list(pins),
                "wheels": [
                    {"name": w.name, "version": w.version, "file": w.file, "sha256": w.sha256}
                    for w in sorted(wheels)
                ],
            }
            for (interpreter, pins), wheels in sorted(self.sets.items())
        ]
        return (json.dumps({"schema": SCHEMA, "kind": "recipe-lock", "sets": rows}, indent=1) + "\n").encode()

    @staticmethod
    def parse(data: bytes, source: str) -> RecipeLock:
        """The lock in ``data``; ``RecipeInvalidError`` naming ``source`` when it is none."""
        try:
            row: dict[str, Any] = json.loads(data)
            if row["schema"] != SCHEMA or row["kind"] != "recipe-lock":
                raise ValueError("another kind of file, or another schema")
            return RecipeLock(
                {
                    (str(s["interpreter"]), tuple(map(str, s["pins"]))): tuple(_wheel(w) for w in s["wheels"])
                    for s in row["sets"]
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise RecipeInvalidError(
                f"{source}: not a lock of a recipe: {e}", hint="write it again with 'poolmgr derive --lock'"
            ) from None


def _wheel(row: Mapping[str, Any]) -> LockedWheel:
    file = str(row["file"])
    if not _FILE.fullmatch(file):
        raise ValueError(f"{file!r} is not the name of a wheel")
    return LockedWheel(str(row["name"]), str(row["version"]), file, parse_sha256(str(row["sha256"])))
