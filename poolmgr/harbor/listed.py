"""Task folders in a repository's listing, whose files are read one by one when they are needed.

A listing has neither links nor modes nor empty folders: what is read here is what a download of the
repository would put on disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from poolmgr.harbor.tree import Kind, NamedTree, UnreadableError

TASK_TOML = "task.toml"
MAX_DEPTH = 3
"""How many folders deep sub-datasets are looked for, as in folders here."""

Reader = Callable[[str, int], tuple[int, Iterator[bytes]]]
"""(path in the repository, its size) -> its size and bytes."""


class ListedTree(NamedTree):
    """One task folder of a repository."""

    def __init__(self, folder: str, sizes: Mapping[str, int], read: Reader) -> None:
        """``sizes``: path inside the task -> bytes, below 0 where the listing is not to be trusted."""
        super().__init__()
        self._prefix = f"{folder}/" if folder else ""
        self._sizes = sizes
        self._read = read
        for path in sizes:
            parent = path.rpartition("/")[0]
            if self._put_folder(parent) or path in self._kinds:
                continue  # a file and a folder of one name, which git cannot hold
            self._kinds[path] = Kind.FILE
            self._inside_of[parent].append(path)

    def chunks(self, path: str) -> tuple[int, Iterator[bytes]]:
        if self._kinds.get(path) is not Kind.FILE:
            raise UnreadableError(f"{path}: no such file in the listing")
        if self._sizes[path] < 0:
            raise UnreadableError(f"{path}: the listing gives it no size that could be")
        return self._read(self._prefix + path, self._sizes[path])

    def mode(self, path: str) -> int:
        return 0o755 if self._kinds.get(path) is Kind.FOLDER else 0o644

    def target(self, path: str) -> str:
        raise UnreadableError(f"{path}: no link")


def task_folders(paths: Iterable[str], below: str, archives: Collection[str]) -> dict[str, list[str]]:
    """Folder -> the folders in it that may be tasks, where at least one is; by the rules for folders here.

    ``below`` is where to look, '' for the root; where it is itself a task it stands for itself.
    """
    inside: dict[str, set[str]] = defaultdict(set)
    marked: set[str] = set()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name == TASK_TOML:
            marked.add(folder)
        while folder:
            above = folder.rpartition("/")[0]
            if folder in inside[above]:
                break
            inside[above].add(folder)
            folder = above
    if below in marked:
        return {below: [below]}
    with_archives = {a[:i] for a in archives for i, char in enumerate(a) if char == "/"}
    found: dict[str, list[str]] = {}

    def look(folder: str, depth: int) -> None:
        folders = sorted(inside.get(folder, ()))
        if any(f in marked for f in folders):
            found[folder] = [f for f in folders if f in marked or f not in with_archives]
        elif depth < MAX_DEPTH:
            for f in folders:
                if not f.rpartition("/")[2].startswith("."):
                    look(f, depth + 1)

    look(below, 0)
    return found
