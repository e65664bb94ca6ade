"""A claim on a folder: one writer at a time, without flock, and a dead writer's claim can be taken over.

Claims are numbered files that are made by a link, which never replaces, and hold their owner's mark.
The highest number is the claim that counts; it is free when its owner has released it or is surely
dead. Whoever wants it makes the next number: of two, one wins. Numbers never go back and a file is
removed only when a higher one is there, so somebody who was asleep between looking and making finds
a higher number when he looks again, and gives way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from poolmgr.errors import AlreadyExistsError, PoolBusyError
from poolmgr.owner import Owner
from poolmgr.store.files import create_durable, make_dirs

RELEASED = "released"
PATIENCE = 60.0
"""Seconds to wait for a live owner; the claim is held only while an index is being written."""
_PAUSE = 0.05


@contextmanager
def claimed(
    folder: Path, patience: float = PATIENCE, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """The block runs while this run alone holds the claim that lies in ``folder``.

    ``PoolBusyError`` when a live owner, or one on another machine, keeps it for ``patience`` seconds.
    """
    owner = Owner.begin()
    try:
        make_dirs(folder)
        number = _take(folder, owner, patience, waiting)
        try:
            yield
        finally:
            with suppress(AlreadyExistsError):
                create_durable(_file(folder, number + 1), RELEASED.encode())
            _forget(folder, number + 1)
    finally:
        owner.close()


def _take(folder: Path, owner: Owner, patience: float, waiting: Callable[[str], None] | None) -> int:
    until = time.monotonic() + patience
    told = False
    while True:
        last = _last(folder)
        holder = _holder(folder, last)
        if holder is None or holder.surely_dead():
            with suppress(AlreadyExistsError):
                create_durable(_file(folder, last + 1), str(owner).encode())
                if _last(folder) == last + 1:
                    _forget(folder, last + 1)
                    return last + 1
                _file(folder, last + 1).unlink(missing_ok=True)  # a higher one was made and we slept
            continue
        if time.monotonic() > until:
            raise PoolBusyError(
                f"{folder.parent.parent}: process {holder.pid} is writing the index, and has been for"
                f" {patience:.0f} s ({_file(folder, last)})",
                hint="run the command again when it is done; if that process ran on another machine and is"
                " gone, remove the file",
            )
        if not told and waiting is not None:
            waiting(f"waiting for process {holder.pid}, which is writing the index")
            told = True
        time.sleep(_PAUSE)


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:012d}"


def _last(folder: Path) -> int:
    return max((int(name) for name in os.listdir(folder) if len(name) == 12 and name.isdecimal()), default=0)


def _holder(folder: Path, number: int) -> Owner | None:
    """The owner of the claim of that number; None where it is free."""
    if number == 0:
        return None
    try:
        text = _file(folder, number).read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return None  # a higher one is there by now; making this number's next will fail or be seen
    # Text that is no mark is a claim that is being made on a filesystem without links: held, by nobody known.
    return None if text == RELEASED else Owner.parse(text) or Owner("", 0, 0, "")


def _forget(folder: Path, below: int) -> None:
    for name in os.listdir(folder):
        if len(name) == 12 and name.isdecimal() and int(name) < below:
            with suppress(OSError):
                (folder / name).unlink()
