"""Programs that tests compare with, and the descriptions of trees that they are compared by."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from poolmgr.sif.write_node import Kind, Link, Node, Tree, directory


def tool(name: str, how: str) -> str:
    """The program's path; the test fails in CI and is skipped elsewhere when it is not installed."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing: {how}")
        pytest.skip(f"{name} is missing: {how}")
    return found


def run(*args: str | Path) -> str:
    done = subprocess.run([*args], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def unsquashfs(image: Path, into: Path, offset: int = 0) -> None:
    program = tool("unsquashfs", "apt-get install squashfs-tools")
    run(program, "-no-progress", "-o", str(offset), "-d", into, image)


def mksquashfs(folder: Path, image: Path, *options: str) -> None:
    program = tool("mksquashfs", "apt-get install squashfs-tools")
    run(program, folder, image, "-no-progress", "-noappend", *options)


def apptainer(*args: str | Path) -> str:
    """What Apptainer writes to stdout."""
    return apptainer_said(*args)[0]


def apptainer_said(*args: str | Path) -> tuple[str, str]:
    """What Apptainer writes to stdout, and to stderr."""
    program = tool("apptainer", "run scripts/install_apptainer.sh as root")
    env = {**os.environ, "APPTAINER_NO_PRIVS": "true"} if os.geteuid() == 0 else None
    done = subprocess.run([program, *args], capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def seen(root: Path) -> dict[str, tuple[object, ...]]:
    """What stands under ``root``: path -> (type, mode, owners, content or target or device)."""
    result: dict[str, tuple[object, ...]] = {}
    top = os.fsencode(root)
    for folder, names, files in os.walk(top):
        for name in [b"", *names, *files] if folder == top else [*names, *files]:
            path = os.path.join(folder, name) if name else folder
            info = os.lstat(path)
            body: object = None
            if stat.S_ISREG(info.st_mode):
                body = Path(os.fsdecode(path)).read_bytes()
            elif stat.S_ISLNK(info.st_mode):
                body = os.fsdecode(os.readlink(path))
            elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
                body = (os.major(info.st_rdev), os.minor(info.st_rdev))
            owner = (info.st_uid, info.st_gid) if os.geteuid() == 0 else (0, 0)
            key = os.fsdecode(os.path.relpath(path, top))
            mode = info.st_mode
            result["" if key == "." else key] = (stat.S_IFMT(mode), stat.S_IMODE(mode), owner, body)
    return result


FORMATS = {
    Kind.DIR: stat.S_IFDIR,
    Kind.FILE: stat.S_IFREG,
    Kind.SYMLINK: stat.S_IFLNK,
    Kind.BLOCK: stat.S_IFBLK,
    Kind.CHAR: stat.S_IFCHR,
    Kind.FIFO: stat.S_IFIFO,
    Kind.SOCKET: stat.S_IFSOCK,
}


def meant(tree: Tree) -> dict[str, tuple[object, ...]]:
    """The same description, from the tree itself."""
    result: dict[str, tuple[object, ...]] = {"": (stat.S_IFDIR, 0o755, (0, 0), None)}
    full: dict[str, Node | Link] = {}
    for path in tree:
        parts = path.split("/")
        for n in range(1, len(parts)):
            full.setdefault("/".join(parts[:n]), directory())
    full.update(tree)
    for path, node in full.items():
        while isinstance(node, Link):
            node = full[node.to]
        body: object = None
        if node.kind is Kind.FILE:
            body = node.data
        elif node.kind is Kind.SYMLINK:
            body = node.target
        elif node.kind in (Kind.CHAR, Kind.BLOCK):
            body = node.rdev
        owner = (node.uid, node.gid) if os.geteuid() == 0 else (0, 0)
        result[path] = (FORMATS[node.kind], node.mode, owner, body)
    return result
