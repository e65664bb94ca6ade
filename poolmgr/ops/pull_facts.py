"""What a pull is asked for, what it plans, and what came of it: facts that all of its parts share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from poolmgr.errors import BadFileError, Exit, FileMissingError, PoolError
from poolmgr.model.pulled import Pulled
from poolmgr.ops.view import PoolView
from poolmgr.plan.pull import Item, Refused
from poolmgr.plan.resolve import Names


@dataclass(frozen=True)
class Request:
    to: Path
    arch: str
    """Go's name of the architecture that every image must be for."""
    jobs: int = 4
    per_registry: int = 4
    """Builds at once from one registry."""
    identity: bool = True
    tries: int = 4
    there: Names | None = None
    """The names of a pool: what answers to a reference there is not pulled."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One image, with what is known of it before anything is built."""

    item: Item
    there: bool = False
    """A file of its name is in the folder."""
    in_pool: str | None = None
    """The blob of the pool that answers to it."""
    digest: str | None = None
    """What the registry has for the reference."""
    error: PoolError | None = None


class Result(StrEnum):
    PULLED = "pulled"
    KEPT = "kept"
    """It was there, as it was recorded."""
    IN_POOL = "in-pool"
    FAILED = "failed"
    UNTRIED = "untried"
    """The run ended before its turn."""


@dataclass(frozen=True, slots=True)
class Outcome:
    item: Item
    result: Result
    row: Pulled | None = None
    error: PoolError | None = None
    blob: str | None = None
    """Path in the pool, for ``IN_POOL``."""


@dataclass(frozen=True)
class Pulls:
    outcomes: tuple[Outcome, ...]
    refused: tuple[Refused, ...] = ()
    elsewhere: int = 0
    """Images of other shards."""
    listing: Path | None = None
    """``pull.jsonl``, where it was written."""
    map: Path | None = None
    """``pull.tasks.jsonl``: task -> file, for ``push --tasks``."""
    stopped_by: PoolError | None = None
    """Why images were left untried."""

    def of(self, result: Result) -> tuple[Outcome, ...]:
        return tuple(o for o in self.outcomes if o.result is result)

    @property
    def exit(self) -> Exit:
        """The one exit status that all failures share, else 3."""
        errors = [o.error for o in self.outcomes if o.error] + [r.error for r in self.refused]
        return exit_of(errors)


def exit_of(errors: Iterable[PoolError]) -> Exit:
    """0 without errors; the status of all of them where it is one; else 3 (docs/exit-status.md)."""
    found = {error.exit for error in errors}
    if not found:
        return Exit.GOOD
    return found.pop() if len(found) == 1 else Exit.BAD


def names_in(view: PoolView) -> Names:
    """What answers to a reference in the pool; one that has no index yet is looked at by its files alone."""
    if not view.is_mirror:
        try:
            view.store.read(view.manifest.index, limit=1)
        except FileMissingError:
            return Names(view.listing.blobs, view.manifest, place=view.address)
        except BadFileError:
            pass  # longer than a byte: it is there
    return view.names
