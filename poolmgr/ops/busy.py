"""What a running fetch counts on, written down so that a gc beside it leaves it alone.

A fetch says what it needs before it looks whether that is there; a gc takes a file out of sight before
it looks (again) who needs it, and puts it back if somebody does. So of the two at least one sees the
other, whoever comes first, without a lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from poolmgr.errors import PoolChangedError
from poolmgr.ops.state import State as Folder
from poolmgr.owner import Owner
from poolmgr.plan.item import State
from poolmgr.plan.transfer import FetchPlan
from poolmgr.store.files import create_durable, mapped_os_errors


@contextmanager
def busy(folder: Folder, paths: Collection[str], hashes: Collection[str]) -> Iterator[None]:
    """While the block runs, no gc frees the files at ``paths``, or what is in quarantine with ``hashes``."""
    owner = Owner.begin()
    file = folder.busy / f"{owner}.json"
    with mapped_os_errors(folder.busy):
        folder.busy.mkdir(parents=True, exist_ok=True)
    row = {"schema": 1, "kind": "busy", "paths": sorted(paths), "sha256": sorted(hashes)}
    try:
        create_durable(file, json.dumps(row).encode())
        yield
    finally:
        file.unlink(missing_ok=True)
        owner.close()


@dataclass(frozen=True)
class Wanted:
    """What the fetches that run into the folder count on."""

    paths: frozenset[str] = frozenset()
    hashes: frozenset[str] = frozenset()
    everything: bool = False
    """One of them cannot be read, so it may count on anything."""
    dead: tuple[Path, ...] = ()
    """What killed ones left."""


def wanted(folder: Folder) -> Wanted:
    paths: set[str] = set()
    hashes: set[str] = set()
    dead = []
    everything = False
    try:
        names = sorted(os.listdir(folder.busy))
    except (FileNotFoundError, NotADirectoryError):
        return Wanted()
    for name in names:
        owner = Owner.parse(name.removesuffix(".json"))
        if owner is None:
            continue
        if owner.surely_dead():
            dead.append(folder.busy / name)
            continue
        try:
            row = json.loads((folder.busy / name).read_bytes())
            paths.update(row["paths"])
            hashes.update(row["sha256"])
        except FileNotFoundError:
            continue  # it ended since the look at the folder
        except (OSError, ValueError, KeyError, TypeError):
            everything = True
    return Wanted(frozenset(paths), frozenset(hashes), everything, tuple(dead))


def still_there(root: Path, plan: FetchPlan) -> FetchPlan:
    """The plan with what vanished since it was made to be fetched again."""
    items = tuple(
        replace(item, state=State.MISSING, have=0)
        if item.state in (State.PROVEN, State.UNPROVEN) and not os.path.lexists(f"{root}/{item.blob.path}")
        else item
        for item in plan.items
    )
    return replace(plan, items=items)


def nothing_vanished(root: Path, plan: FetchPlan) -> None:
    """``PoolChangedError`` if a file that the lock would call proven is not there any more."""
    gone = [i.blob.path for i in plan.of(State.PROVEN) if not os.path.lexists(f"{root}/{i.blob.path}")]
    if gone:
        raise PoolChangedError(
            f"{root}: {len(gone):,} files vanished while this fetch ran", hint="run it again", details=gone
        )
