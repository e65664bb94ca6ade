"""One blob of a fetch: how it stands in the destination, and where its bytes come from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from poolmgr.model.blob import Blob
from poolmgr.model.finding import Finding


class State(StrEnum):
    """How a needed blob stands in the destination."""

    PROVEN = "proven"
    """There, and an attestation that still holds says that it is right."""
    UNPROVEN = "unproven"
    """There with the right size; hashed where it lies."""
    WRONG = "wrong"
    """There with another size or hash; replaced when its successor is proven."""
    ELSEWHERE = "elsewhere"
    """Its bytes are proven here under another name; copied."""
    PARTIAL = "partial"
    """Begun by an earlier run; continued."""
    MISSING = "missing"
    QUARANTINED = "quarantined"
    """Its bytes were here before and are no valid image; not fetched again."""
    LACKING = "lacking"
    """The pool itself does not hold it."""


@dataclass(frozen=True, slots=True)
class Local:
    """What the destination holds of one blob; gathered by ops/holding.py."""

    size: int | None = None
    """Size of the file under the blob's own name; None if there is none."""
    proven: bool = False
    partial: int = 0
    """Bytes of the longest partial file of the same sha256."""
    elsewhere: str | None = None
    """Another path of the destination whose proven bytes have the same sha256."""
    quarantined: bool = False


class Piece(NamedTuple):
    """Bytes [start, end) of a blob, and where they lie in its base; None: they come from the pool."""

    start: int
    end: int
    base: int | None


@dataclass(frozen=True, slots=True)
class Base:
    """What a blob is made of."""

    path: str
    """Of the base, in the destination."""
    sha256: str
    size: int
    pieces: tuple[Piece, ...]
    """All of the blob, in order."""
    wave: int = 0
    """0: the base is here; n: it comes in this run, in wave n - 1."""

    def shared(self, start: int = 0) -> int:
        """Bytes from ``start`` on that the base has."""
        return sum(p.end - max(p.start, start) for p in self.pieces if p.base is not None and p.end > start)


@dataclass(frozen=True, slots=True)
class Item:
    blob: Blob
    state: State
    tasks: tuple[str, ...]
    """``variant/task`` of everybody who needs it, in the order of the index."""
    have: int = 0
    """Bytes that need not be transferred."""
    source: str | None = None
    """For ``ELSEWHERE``: the path to copy from."""
    finding: Finding | None = None
    """For ``LACKING``: why."""
    base: Base | None = None
    """What it is made of, if not of the pool's bytes alone."""

    @property
    def lacks(self) -> int:
        """Bytes that the destination does not have under this name, in a partial file or another."""
        if self.state in (State.MISSING, State.WRONG, State.PARTIAL):
            return self.blob.size - self.have
        return 0

    @property
    def wave(self) -> int:
        """Items of lower waves come first, so that bases are there before what is made of them."""
        return self.base.wave if self.base is not None else 0

    @property
    def saved(self) -> int:
        """Bytes that come from the base."""
        return self.base.shared(self.have) if self.base is not None else 0

    @property
    def transfer(self) -> int:
        """Bytes that have to come from the pool."""
        return self.lacks - self.saved

    @property
    def room(self) -> int:
        """Bytes that the destination will grow by at most."""
        return self.blob.size if self.state is State.ELSEWHERE else self.lacks
