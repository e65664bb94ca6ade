"""Where a mirror's files get their final names: folders made on the way, and all of it put on disk."""

from __future__ import annotations

import threading
from pathlib import Path

from poolmgr.errors import DestinationError
from poolmgr.store.files import fsync_dir, mapped_os_errors


class Landing:
    """The tree of one mirror for one run; safe for several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._dirty: set[Path] = set()
        self._guard = threading.Lock()

    def make_parent(self, final: Path) -> None:
        """The folder of ``final``, made component by component; a link that leaves the mirror is refused."""
        folder = self.root
        for part in final.parent.relative_to(self.root).parts:
            folder = folder / part
            if folder.is_symlink():
                raise DestinationError(
                    f"{folder} is a symbolic link, so files in it would not lie in {self.root}",
                    hint="remove the link, or fetch into the folder that it leads to",
                )
            with mapped_os_errors(folder):
                if not folder.is_dir():
                    folder.mkdir(exist_ok=True)
                    self.changed(folder.parent)

    def changed(self, folder: Path) -> None:
        """Names in ``folder`` changed; ``settle`` syncs it, once for many."""
        with self._guard:
            self._dirty.add(folder)

    def settle(self) -> None:
        """Every name given so far is on disk when this returns."""
        with self._guard:
            folders, self._dirty = self._dirty, set()
        for folder in sorted(folders):
            fsync_dir(folder)
