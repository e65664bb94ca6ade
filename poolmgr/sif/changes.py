"""What a derivation does to a tree: names that go, nodes that come; and where they really lie."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from poolmgr.sif.graph import canonical
from poolmgr.sif.write_node import Inode, Kind, Link, Node, Placement, find, inode_of, raw_name, split

Path = tuple[bytes, ...]


@dataclass(slots=True)
class Changes:
    """Removals happen first. Paths are canonical: no symbolic link leads through them."""

    remove: set[Path] = field(default_factory=set)
    add: dict[Path, Node] = field(default_factory=dict)

    def put(self, root: Inode, path: str, node: Node) -> None:
        """Adds ``node`` at ``path``, followed through the links of the tree under ``root``."""
        self.add[canonical(root, split(path))] = node


def matches(root: Inode, pattern: str) -> list[Path]:
    """The paths that ``pattern`` names: an absolute path, whose parts may be shell patterns.

    Links that lead to a directory on the way are followed; the last part is taken as it stands.
    """
    names = [raw_name(p) for p in pattern.strip("/").split("/") if p]
    found: list[Path] = [()]
    for name in names:
        following: list[Path] = []
        for place in found:
            where = canonical(root, (*place, b"."))  # follows the link that ``place`` may be
            here = find(root, where)
            if here is None or here.kind is not Kind.DIR:
                continue
            following += [
                (*where, child) for child in sorted(here.children) if fnmatch.fnmatchcase(child, name)
            ]
        found = following
    return found if names else []


def apply(root: Inode, changes: Changes, place: Callable[[bytes], Placement]) -> None:
    """Carries out ``changes`` on the graph; ``place`` stores the content of what is new."""
    drop(root, changes)
    for path, node in sorted(changes.add.items()):
        here = root
        for name in path[:-1]:
            child = here.children.get(name)
            if child is None:
                child = here.children[name] = Inode(Kind.DIR, 0o755)
            if child.kind is not Kind.DIR:
                raise ValueError(f"{shown(path)}: {shown((name,))} is not a directory")
            here = child
        old = here.children.get(path[-1])
        new = inode_of(node, place)
        if old is not None and old.kind is Kind.DIR and new.kind is Kind.DIR:
            new.children = old.children
        elif old is not None and old.kind is Kind.DIR:
            raise ValueError(f"{shown(path)} is a directory in the image; remove it first")
        here.children[path[-1]] = new


def drop(root: Inode, changes: Changes) -> None:
    """Takes the removed names out of the graph, and those that something new replaces."""
    for path in changes.remove | {p for p, n in changes.add.items() if n.kind is not Kind.DIR}:
        above = find(root, path[:-1])
        if above is None or path[-1] not in above.children:
            continue
        if path in changes.remove or above.children[path[-1]].kind is not Kind.DIR:
            del above.children[path[-1]]


def overlay_tree(root: Inode, changes: Changes) -> Mapping[str, Node | Link]:
    """The upper layer that makes the same tree out of ``root``: new nodes and whiteouts.

    Directories on the way keep their attributes. A removed directory in which something new is
    put loses its old entries one by one: the opaque mark would need an attribute that cannot be
    read in a user namespace.
    """
    upper: dict[Path, Node] = {}

    def parents(path: Path) -> None:
        gone = False
        for n in range(len(path)):
            part = path[:n]
            gone = gone or part in changes.remove
            old = None if gone else find(root, part)
            if part not in upper or upper[part].kind is not Kind.DIR:
                upper[part] = (
                    _as_node(old) if old is not None and old.kind is Kind.DIR else Node(Kind.DIR, 0o755)
                )

    for path in sorted(changes.add):
        parents(path)
        upper[path] = changes.add[path]
    for path in sorted(changes.remove):
        old = find(root, path)
        if old is None or any(path[:n] in changes.remove for n in range(1, len(path))):
            continue  # not there, or gone with what holds it
        parents(path)
        if path not in upper:
            upper[path] = Node(Kind.CHAR, 0)
        elif upper[path].kind is Kind.DIR and old.kind is Kind.DIR:
            _hide(old, path, upper)
    return {"/".join(os.fsdecode(p) for p in path): node for path, node in upper.items()}


def _hide(old: Inode, path: Path, upper: dict[Path, Node]) -> None:
    for name, child in old.children.items():
        below = (*path, name)
        known = upper.get(below)
        if known is None:
            upper[below] = Node(Kind.CHAR, 0)
        elif known.kind is Kind.DIR and child.kind is Kind.DIR:
            _hide(child, below, upper)


def _as_node(inode: Inode) -> Node:
    attrs = {os.fsdecode(k): v for k, v in inode.xattrs}
    return Node(inode.kind, inode.mode, inode.uid, inode.gid, inode.mtime, xattrs=attrs)


def shown(path: Path) -> str:
    """The path as people write it."""
    return "/" + b"/".join(path).decode("utf-8", "backslashreplace")
