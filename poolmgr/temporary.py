"""Temporary names that tell whose they are, and the sweep of what killed processes left.

Whoever is killed removes nothing. The next run in the same folder does: a temporary name carries its
``Owner``, and what a surely dead one left is removed; what a live or unseen process may still use stays.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from poolmgr.owner import MARK, Owner, this_process

TEMP_PREFIX = ".poolmgr-tmp-"
"""Begins every temporary name; dot-leading, so no listing shows one that a crash left."""

_NAME = re.compile(rf"{re.escape(TEMP_PREFIX)}({MARK})-[0-9a-f]{{1,12}}(?:\.[\w.]{{1,40}})?")
_numbers = itertools.count()


def temp_name(folder: str | os.PathLike[str]) -> Path:
    """A name in ``folder`` that no other process uses; nothing is created."""
    return Path(folder) / f"{TEMP_PREFIX}{this_process()}-{next(_numbers):x}"


def temp_owner(name: str) -> Owner | None:
    """Who made the temporary file or folder of this name; None for any other name."""
    match = _NAME.fullmatch(name)
    return Owner.parse(match[1]) if match else None


@contextlib.contextmanager
def scratch_folder(beside: Path | None = None) -> Iterator[Path]:
    """A new folder of this user alone, in ``beside`` where that is given, removed at the end."""
    if beside is None:
        import tempfile

        beside = Path(tempfile.gettempdir())
    folder = temp_name(beside)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        remove_tree(folder)


def sweep(folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Remove what dead processes left directly in ``folder``, and say what that was.

    What cannot be removed is left: the sweep is a courtesy, and the next one tries again.
    """
    gone = []
    try:
        with os.scandir(folder) as entries:
            left = [Path(e.path) for e in entries if e.name.startswith(TEMP_PREFIX)]
    except OSError:
        return ()
    for path in left:
        owner = temp_owner(path.name)
        if owner is None or not owner.surely_dead():
            continue
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
        if not os.path.lexists(path):
            gone.append(path)
    return tuple(gone)


def remove_tree(folder: Path) -> None:
    """Remove a folder as far as it can be; a container's own folders may forbid their owner to write."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for path, folders, _ in os.walk(folder):
            for name in folders:
                with contextlib.suppress(OSError):
                    os.chmod(Path(path, name), 0o700, follow_symlinks=False)
        shutil.rmtree(folder, ignore_errors=True)
