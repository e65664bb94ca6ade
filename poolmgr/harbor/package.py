"""The digest of a task package, as Harbor's publisher computes it (0.26, ``harbor.publisher.packager``).

sha256 over a line ``PATH NUL SHA256`` for each file that would be published, sorted by path:
task.toml, instruction.md, README.md and trajectory.json, and what lies below environment/, tests/,
solution/ and steps/, less what ``.harborignore`` and the task's ``.gitignore`` leave out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from poolmgr.harbor import ignore
from poolmgr.harbor.tree import Kind, OutwardLinkError, Tree, UnreadableError

FILES = ("task.toml", "instruction.md", "README.md", "trajectory.json")
FOLDERS = ("environment", "tests", "solution", "steps")
IGNORED = ("__pycache__/", "*.pyc", ".DS_Store", "*.swp", "*.swo", "*~")
"""Where the task has no .gitignore."""

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def digest_trouble(tree: Tree, recorded: str) -> str | None:
    """Why the task in ``tree`` is not proven to be the package ``recorded`` (``sha256:…``), or None."""
    wanted = _DIGEST.fullmatch(recorded)
    if wanted is None:
        return f"no digest of the form sha256:<64 hex digits> is recorded for it, but {recorded!r}"
    try:
        found = package_digest(tree)
    except (OutwardLinkError, UnreadableError, ignore.IgnoreError) as e:
        return f"its digest cannot be computed: {e}"
    except UnicodeEncodeError as e:
        return f"its digest cannot be computed: {e.object!r} is not UTF-8"
    return None if found == wanted[1] else f"expected {recorded}, found sha256:{found}"


def package_digest(tree: Tree) -> str:
    """64 hex digits.

    Raises ``UnreadableError``, ``IgnoreError``, ``UnicodeEncodeError`` for a name on which Harbor
    fails too, and ``OutwardLinkError`` for a link that leaves the task, which Harbor would follow.
    """
    outer = hashlib.sha256()
    spec = _gitignore(tree)
    for path in sorted(_files(tree)):
        if not spec.match_file(path):
            outer.update(f"{path}\0{_sha256(tree, path)}\n".encode())
    return outer.hexdigest()


def _files(tree: Tree) -> Iterator[str]:
    for path in FILES:
        if tree.kind(path) is not None and tree.kind(tree.resolve(path)) is not None:
            yield path
    ignored = ignore.Ignored(tree)
    for top in FOLDERS:
        kind = None if tree.kind(top) is None else tree.kind(tree.resolve(top))
        if kind is None:
            continue
        if kind is not Kind.FOLDER:
            raise UnreadableError(f"{top} is a {kind.value}, not a folder")
        if ignored(top):
            continue
        folders = [top]
        while folders:
            folder = folders.pop()
            for name in tree.names(tree.resolve(folder)):
                path = f"{folder}/{name}"
                if ignored(path):
                    continue
                if tree.kind(tree.resolve(path)) is Kind.FILE:
                    yield path
                elif tree.kind(f"{tree.resolve(folder)}/{name}") is Kind.FOLDER:
                    folders.append(path)


def _gitignore(tree: Tree) -> Any:
    from pathspec import PathSpec

    lines: list[str] | tuple[str, ...] = IGNORED
    if tree.kind(".gitignore") is not None:
        path = tree.resolve(".gitignore")
        if tree.kind(path) is not None:
            lines = ignore.read_lines(tree, path)
    try:
        return PathSpec.from_lines("gitignore", lines)
    except ValueError as e:
        raise ignore.IgnoreError(f".gitignore: {e}") from None


def _sha256(tree: Tree, path: str) -> str:
    digest = hashlib.sha256()
    for chunk in tree.chunks(tree.resolve(path))[1]:
        digest.update(chunk)
    return digest.hexdigest()
