"""Small wheels and images with an interpreter, made for tests."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from poolmgr.sif.write import write_sif
from poolmgr.sif.write_node import Link, Node, directory, file, symlink

PYTHON = Path("/usr/bin/python3")


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes] | None = None,
    *,
    requires: tuple[str, ...] = (),
    scripts: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
    python: str = "",
    extras: tuple[str, ...] = (),
) -> Path:
    """A wheel whose module ``name`` has ``VERSION``; ``files`` are added as they are."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Python: {python}\n" if python else ""
    metadata += "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    metadata += "".join(f"Requires-Dist: {r}\n" for r in requires)
    members: dict[str, bytes] = {f"{name}/__init__.py": f"VERSION = {version!r}\n".encode(), **(files or {})}
    members[f"{info}/METADATA"] = metadata.encode()
    members[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    )
    if scripts:
        lines = "".join(f"{k} = {v}\n" for k, v in scripts.items())
        members[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}".encode()
    record = ""
    for path, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    members[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            entry = zipfile.ZipInfo(member)
            entry.external_attr = (0o755 if ".data/scripts/" in member else 0o644) << 16
            archive.writestr(entry, data)
    return path


@functools.cache
def python_tree() -> Mapping[str, Node | Link]:
    """A root with this machine's own /usr/bin/python3, its libraries and busybox: it really runs."""
    real = PYTHON.resolve()
    busybox = shutil.which("busybox")
    if not re.fullmatch(r"python3\.\d+", real.name) or busybox is None:
        message = "needs Debian's python3 and busybox: apt-get install python3 busybox-static"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    tree: dict[str, Node | Link] = {
        "bin/busybox": file(Path(busybox).read_bytes(), 0o755),
        **{f"bin/{n}": symlink("busybox") for n in ("sh", "true", "cat", "ls", "env", "rm", "mkdir", "echo")},
        **{
            n: directory()
            for n in ("dev", "proc", "sys", "root", "home", "var/tmp", "usr/lib/python3/dist-packages")
        },
        "tmp": directory(0o1777),
        "etc/passwd": file(b"root:x:0:0:root:/root:/bin/sh\n"),
        "etc/group": file(b"root:x:0:\n"),
        f"usr/bin/{real.name}": file(real.read_bytes(), 0o755),
        "usr/bin/python3": symlink(real.name),
        "app/oracle": file(b"the oracle's secret " * 50),
        "app/task.txt": file(b"task\n"),
    }
    said = subprocess.run(["ldd", real], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(/\S+)", said):
        tree[library.lstrip("/")] = file(Path(library).resolve().read_bytes(), 0o755)
    standard = Path("/usr/lib") / real.name
    skipped = {"test", "idlelib", "lib2to3", "__pycache__", "ensurepip", "pydoc_data", "tkinter", "unittest"}
    for folder, names, members in os.walk(standard):
        names[:] = [n for n in names if n not in skipped and not n.startswith("config-")]
        for member in members:
            path = Path(folder, member)
            if path.is_file():
                tree[str(path).lstrip("/")] = file(path.read_bytes())
    return tree


@functools.cache
def python_image_bytes() -> bytes:
    import io

    buffer = io.BytesIO()
    write_sif(buffer, python_tree(), level=1, labels={"kind": "python"})
    return buffer.getvalue()
