"""Which files one of n workers looks at: a stable slice by path.

A path's slice depends on the path alone, so that running one worker again repeats exactly its
slice, whatever was added meanwhile. Workers may be counted from 0 or from 1: slice ``i modulo n``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from poolmgr.errors import UsageError

_HINT = "--shard 3/32, or --shard auto/32 inside a Slurm array"


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """What Slurm tells a task of a job array."""

    task: int
    least: int
    most: int
    count: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class Shard:
    index: int
    """0 to ``count`` - 1."""
    count: int

    def holds(self, path: str) -> bool:
        """Whether this worker looks at ``path``."""
        digest = hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str, array: ArrayTask | None) -> Shard:
    """The shard that ``i/n``, ``auto/n`` or ``auto`` names; ``UsageError`` when it cannot be told.

    ``auto`` takes i from the array's task id. n is taken from Slurm only when the array is 0 to
    n-1 and complete: Slurm reports the bounds of a resubmitted subset, and a shard of the wrong n
    would leave files unseen.
    """
    first, slash, second = text.partition("/")
    count: int | None = None
    if slash and second != "auto":
        count = _number(second, text)
        if count < 1:
            raise UsageError(f"--shard {text}: n is at least 1", hint=_HINT)
    if first != "auto":
        index = _number(first, text)
        if count is None:
            raise UsageError(f"--shard {text}: which of how many?", hint=_HINT)
    elif array is None:
        raise UsageError(f"--shard {text}: this is no task of a Slurm array", hint=_HINT)
    else:
        index = array.task
        if count is None:
            whole = array.least == 0 and array.step == 1 and array.count == array.most + 1
            if not whole:
                raise UsageError(
                    f"--shard {text}: the array is {array.least}-{array.most} with {array.count} tasks, "
                    "so the number of shards cannot be told from it",
                    hint=f"say it: --shard auto/N; {_HINT}",
                )
            count = array.count
    if not 0 <= index <= count:
        raise UsageError(f"--shard {text}: {index} is not one of {count}", hint="count from 0 or from 1")
    return Shard(index % count, count)


def _number(word: str, text: str) -> int:
    if not word.isascii() or not word.isdigit() or len(word) > 9:
        raise UsageError(f"--shard {text}: {word!r} is no number", hint=_HINT)
    return int(word)
