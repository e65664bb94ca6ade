"""Which of a task's inputs ``.harborignore`` leaves out, by Harbor's rules (0.26, ``TaskFileFilter``).

Rules count below tests/ and solution/, also those of a step, and are inherited from folder to
folder. What they leave out is not looked at when links are judged, and is in no package digest.
A link that leaves the task is never looked behind, so a rule for folders alone never fits one.
"""

from __future__ import annotations

from typing import Any

from poolmgr.harbor.tree import Kind, OutwardLinkError, Tree

NAME = ".harborignore"
MAX_BYTES = 1 << 20
TOPS = ("tests", "solution")


class IgnoreError(ValueError):
    """An ignore file that Harbor cannot use either: it drops the task. The text says why."""


class Ignored:
    """The rules of one task, read as they are needed."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._rules: dict[str, Any] = {}

    def __call__(self, path: str) -> bool:
        """Whether the rules leave out ``path``, as it is written or where its links lead.

        Raises ``IgnoreError``, ``OutwardLinkError`` for rules behind a link that leaves, and
        ``UnreadableError``.
        """
        if self._matches(path):
            return True
        try:
            real = self._tree.resolve(path)
        except OutwardLinkError:
            return False
        return real != path and self._matches(real)

    def _matches(self, path: str) -> bool:
        if path.rpartition("/")[2] == NAME:
            return True
        is_folder = self._tree.final_kind(path) is Kind.FOLDER
        if not _is_governed(path, is_folder):
            return False
        rules: list[tuple[str, Any]] = []
        above = ""
        for part in path.split("/"):
            if _is_governed(above, True):
                rules.append((above, self._read(above)))
            here = f"{above}/{part}" if above else part
            folder = here != path or is_folder
            above = here
            if not _is_governed(here, folder):
                continue
            excluded = False
            for base, spec in rules:
                found = spec.check_file(here[len(base) + 1 :] + ("/" if folder else "")).include
                excluded = excluded if found is None else found
            if excluded:
                return True
        return False

    def _read(self, folder: str) -> Any:
        if folder not in self._rules:
            self._rules[folder] = self._parse(f"{folder}/{NAME}")
        return self._rules[folder]

    def _parse(self, path: str) -> Any:
        from pathspec import GitIgnoreSpec

        folder, _, name = path.rpartition("/")
        if self._tree.kind(f"{self._tree.resolve(folder)}/{name}") is None:
            return GitIgnoreSpec.from_lines([])
        real = self._tree.resolve(path)
        if self._tree.kind(real) is not Kind.FILE:
            raise IgnoreError(f"{path} is no regular file")
        try:
            return GitIgnoreSpec.from_lines(read_lines(self._tree, real))
        except IgnoreError:
            raise
        except ValueError as e:
            raise IgnoreError(f"{path}: {e}") from None


def read_lines(tree: Tree, path: str) -> list[str]:
    """The lines of a file of rules; ``IgnoreError`` where it is no UTF-8 text, as Harbor fails on it."""
    try:
        text = tree.read(path, MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError as e:
        raise IgnoreError(f"{path} is not UTF-8 text (byte {e.start})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n").splitlines()


def _is_governed(path: str, is_folder: bool) -> bool:
    """Whether rules may speak of ``path``: tests/, solution/, steps/*/tests/, steps/*/solution/."""
    parts = path.split("/")
    depth = 3 if parts[0] == "steps" else 1
    if len(parts) < depth or parts[depth - 1] not in TOPS:
        return False
    return len(parts) > depth or is_folder
