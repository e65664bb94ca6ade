"""Copy a folder as it is: modes, times, links, hard links among its files, empty folders."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection
from pathlib import Path

from poolmgr.errors import DatasetInvalidError


def copy_folder(source: Path, target: Path, *, without: Collection[str], real: Collection[str]) -> None:
    """Copy ``source`` to ``target``, which is not there yet.

    ``without``: folders that are left out, by relative name, with entries of the root that begin
    with a dot. ``real``: names that become files and folders of their own where they are links.
    Any other link is kept as a link; a relative one that leaves the folder is kept too if it
    leads to no file, else it becomes a copy of that file, for the link would break.
    """
    _Copy(source, without, real).folder("", target)


class _Copy:
    def __init__(self, root: Path, without: Collection[str], real: Collection[str]) -> None:
        self.root = root
        self.inside = root.resolve()
        self.without = frozenset(without)
        self.real = frozenset(real)
        for name in real:  # the folders above are real too
            self.real |= {name[:i] for i, char in enumerate(name) if char == "/"}
        self.hard: dict[tuple[int, int], Path] = {}

    def folder(self, name: str, target: Path) -> None:
        source = self.root / name
        target.mkdir()
        with os.scandir(source) as scan:
            entries = sorted(scan, key=lambda e: e.name)
        for entry in entries:
            inner = f"{name}/{entry.name}" if name else entry.name
            if inner in self.without or (not name and entry.name.startswith(".")):
                continue
            self.entry(inner, entry, target / entry.name)
        shutil.copystat(source, target)
        target.chmod(stat.S_IMODE(target.stat().st_mode) | stat.S_IRWXU)

    def entry(self, name: str, entry: os.DirEntry[str], target: Path) -> None:
        if entry.is_symlink() and name not in self.real:
            source = Path(entry.path)
            link = os.readlink(source)
            # realpath, not Path.resolve: the latter fails on a loop of links.
            leads = Path(os.path.realpath(source))
            leaves = not os.path.isabs(link) and not leads.is_relative_to(self.inside)
            if not (leaves and source.is_file()):
                target.symlink_to(link)
                return
        if entry.is_dir():
            self.folder(name, target)
            return
        st = entry.stat()
        if not stat.S_ISREG(st.st_mode):
            raise DatasetInvalidError(f"{entry.path} is a pipe, socket or device, which no copy can hold")
        first = self.hard.setdefault((st.st_dev, st.st_ino), target)
        if first is not target:
            os.link(first, target)
        else:
            shutil.copy2(entry.path, target)
