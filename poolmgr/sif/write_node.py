"""What a file tree to be written holds: nodes by path, and the inode graph that a writer walks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

from poolmgr.sif.squashfs import NO_FRAGMENT

_NONE: Mapping[str, bytes] = MappingProxyType({})


class Kind(IntEnum):
    """What a node is; the numbers are those of squashfs's basic inodes."""

    DIR = 1
    FILE = 2
    SYMLINK = 3
    BLOCK = 4
    CHAR = 5
    FIFO = 6
    SOCKET = 7


@dataclass(frozen=True, slots=True)
class Node:
    """One inode of a tree. ``mode`` holds the twelve permission bits only."""

    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    """Unix seconds; 0 keeps images of one tree byte-identical on any day."""
    data: bytes = b""
    target: str = ""
    rdev: tuple[int, int] = (0, 0)
    """Major and minor number of a device."""
    xattrs: Mapping[str, bytes] = field(default_factory=lambda: _NONE)
    """Full names (``user.``, ``trusted.`` or ``security.``) -> values."""


@dataclass(frozen=True, slots=True)
class Link:
    """Another name of the node at the path ``to``."""

    to: str


Tree = Mapping[str, Node | Link]
"""Path -> node. Paths are relative POSIX; '' is the root; bytes that are no UTF-8 stand as
surrogates (``os.fsdecode``). Directories that only follow from a path are made with mode 0755."""


def file(data: bytes = b"", mode: int = 0o644) -> Node:
    return Node(Kind.FILE, mode, data=data)


def directory(mode: int = 0o755) -> Node:
    return Node(Kind.DIR, mode)


def symlink(target: str) -> Node:
    return Node(Kind.SYMLINK, 0o777, target=target)


def whiteout() -> Node:
    """What hides a lower layer's path in an overlay: a character device 0/0."""
    return Node(Kind.CHAR, 0)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a file's content lies in a squashfs."""

    size: int = 0
    start: int = 0
    """First data block, counted from the superblock."""
    words: tuple[int, ...] = ()
    """Size word of each data block: bytes, bit 24 set when stored, 0 for a hole."""
    fragment: int = NO_FRAGMENT
    offset: int = 0
    """Place inside the unpacked fragment."""
    sparse: int = 0
    """Bytes in holes."""


@dataclass(slots=True, eq=False)
class Inode:
    """A node on its way into an image; two directory entries may share one (a hard link)."""

    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    target: bytes = b""
    rdev: int = 0
    """As stored: the kernel's 32-bit encoding of major and minor."""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    place: Placement = field(default_factory=Placement)
    children: dict[bytes, Inode] = field(default_factory=dict)


def encode_rdev(major: int, minor: int) -> int:
    """The kernel's ``new_encode_dev``: 12 bits of major, 20 of minor."""
    if not (0 <= major < 1 << 12 and 0 <= minor < 1 << 20):
        raise ValueError(f"device number {major}:{minor} does not fit")
    return (minor & 0xFF) | major << 8 | (minor & ~0xFF) << 12


def raw_name(text: str) -> bytes:
    """The bytes of a name or target as they stand in the image."""
    return text.encode("utf-8", "surrogateescape")


def inode_of(node: Node, place: Callable[[bytes], Placement]) -> Inode:
    """The inode of ``node``; ``place`` stores a file's content and says where."""
    if node.mode & ~0o7777:
        raise ValueError(f"mode {node.mode:o} holds more than permission bits")
    inode = Inode(
        node.kind,
        node.mode,
        node.uid,
        node.gid,
        node.mtime,
        xattrs=tuple(sorted((raw_name(k), bytes(v)) for k, v in node.xattrs.items())),
    )
    if node.kind is Kind.FILE:
        inode.place = place(node.data)
    elif node.kind is Kind.SYMLINK:
        inode.target = raw_name(node.target)
        if not 0 < len(inode.target) < 4096:
            raise ValueError(f"a link's target has 1 to 4,095 bytes, not {len(inode.target)}")
    elif node.kind in (Kind.BLOCK, Kind.CHAR):
        inode.rdev = encode_rdev(*node.rdev)
    return inode


def split(path: str) -> tuple[bytes, ...]:
    """The names along ``path``; ``ValueError`` when one cannot stand in a directory."""
    if path in ("", "/"):
        return ()
    parts = tuple(raw_name(p) for p in path.removeprefix("/").split("/"))
    for part in parts:
        if part in (b"", b".", b"..") or b"\0" in part or len(part) > 255:
            raise ValueError(f"{path!r}: {part!r} cannot name a file")
    return parts


def graph(tree: Tree, place: Callable[[bytes], Placement]) -> Inode:
    """The root inode of ``tree``; contents are placed in the order of the sorted paths."""
    root = Inode(Kind.DIR, 0o755)
    ordered = sorted((split(path), path) for path in tree)
    for parts, path in ordered:
        node = tree[path]
        if isinstance(node, Link):
            continue
        inode = inode_of(node, place)
        if not parts:
            if node.kind is not Kind.DIR:
                raise ValueError("the root of a tree is a directory")
            root = inode
        else:
            _attach(root, parts, inode, path)
    for parts, path in ordered:
        node = tree[path]
        if isinstance(node, Link):
            target = find(root, split(node.to))
            if target is None or target.kind is Kind.DIR or not parts:
                raise ValueError(f"{path!r}: no file at {node.to!r} to link to")
            _attach(root, parts, target, path)
    return root


def _attach(root: Inode, parts: tuple[bytes, ...], inode: Inode, path: str) -> None:
    here = root
    for part in parts[:-1]:
        here = here.children.setdefault(part, Inode(Kind.DIR, 0o755))
        if here.kind is not Kind.DIR:
            raise ValueError(f"{path!r}: {part!r} is not a directory")
    if parts[-1] in here.children:
        raise ValueError(f"{path!r} stands twice in the tree")
    here.children[parts[-1]] = inode


def find(root: Inode, parts: tuple[bytes, ...]) -> Inode | None:
    """The inode at ``parts``, without following links."""
    here: Inode | None = root
    for part in parts:
        here = here.children.get(part) if here is not None else None
    return here
