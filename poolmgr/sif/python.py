"""The Python interpreter of an image, told from its files alone: version, platform, site-packages.

Nothing of the image is run. What is decided here is what ``sysconfig`` would say inside it.
"""

from __future__ import annotations

import posixpath
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from poolmgr.errors import DeriveFailedError
from poolmgr.sif.image import Image
from poolmgr.sif.squashfs import DamageError

_BINARY = re.compile(r"python(3)\.(\d+)(t?)")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "386": "i686", "ppc64le": "ppc64le", "s390x": "s390x",
             "riscv64": "riscv64", "arm": "armv7l", "loong64": "loongarch64"}  # fmt: skip
_GLIBC = re.compile(rb"GNU C Library [^\n]{0,80}?version (\d+)\.(\d+)")
_MUSL = re.compile(rb"\0(1)\.(\d+)\.\d+\0")
_LIMIT = 64 << 20
_MAX_ELF_HEADERS = 64


@dataclass(frozen=True, slots=True)
class Interpreter:
    path: str
    """As the recipe names it; what scripts are started with."""
    version: tuple[int, int]
    full_version: str
    """Such as ``3.11.7``; only X.Y where the image does not tell."""
    free_threaded: bool
    libc: str
    """``glibc_2_36`` or ``musl_1_2``."""
    machine: str
    """As in wheel tags: x86_64, aarch64, …"""
    site: str
    """Where pip would install to, absolute in the image."""
    scripts: str
    prefix: str

    @property
    def key(self) -> str:
        """What decides which wheels fit; the name under which a lock keeps them."""
        return f"cp{self.version[0]}{self.version[1]}{'t' * self.free_threaded}-{self.libc}-{self.machine}"

    @property
    def platforms(self) -> list[str]:
        """Platform tags that fit, the best first (PEP 600, PEP 656)."""
        kind, major, minor = self.libc.split("_")
        last = int(minor)
        if kind == "musl":
            return [f"musllinux_{major}_{n}_{self.machine}" for n in range(last, -1, -1)] + [
                f"linux_{self.machine}"
            ]
        named = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
        lowest = 5 if self.machine in ("x86_64", "i686") else 17
        tags = []
        for n in range(last, lowest - 1, -1):
            tags.append(f"manylinux_{major}_{n}_{self.machine}")
            if n in named:
                tags.append(f"{named[n]}_{self.machine}")
        return [*tags, f"linux_{self.machine}"]

    def markers(self) -> Mapping[str, str]:
        """The environment that requirement markers are judged in (PEP 508)."""
        return {
            "implementation_name": "cpython",
            "implementation_version": self.full_version,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": self.full_version,
            "python_version": f"{self.version[0]}.{self.version[1]}",
            "sys_platform": "linux",
        }


def find_interpreter(image: Image, path: str) -> Interpreter:
    """The CPython at ``path``. ``DeriveFailedError`` says what is missing or cannot be told."""
    try:
        return _find(image, path)
    except DamageError as e:
        raise DeriveFailedError(f"{path}: cannot be read: {e}") from None


def _find(image: Image, path: str) -> Interpreter:
    entry = image.find(path)
    if entry is None or not entry.is_file:
        raise _trouble(path, "is not in the image", 'name the interpreter with python = "/path/in/the/image"')
    name = posixpath.basename(entry.path)
    match = _BINARY.fullmatch(name)
    if match is None:
        raise _trouble(
            path, f"leads to {name!r}, which is not named python3.N", "only CPython 3 is supported"
        )
    version, free = (3, int(match[2])), bool(match[3])
    binary = image.read(path, limit=_LIMIT)
    machine, loader = _elf(binary, image.arch)
    if not machine:
        raise _trouble(path, "is not a program for the image's architecture")
    prefix, venv = _prefix(image, path, entry.path)
    lib = f"python3.{version[1]}{'t' * free}"
    site, scripts = _places(image, prefix, lib, venv=venv)
    return Interpreter(
        path, version, _full_version(image, binary, prefix, lib, version), free, _libc(image, loader),
        machine, site, scripts, prefix,
    )  # fmt: skip


def _trouble(path: str, what: str, hint: str = "") -> DeriveFailedError:
    return DeriveFailedError(f"the interpreter {path} {what}", hint=hint)


def _prefix(image: Image, path: str, real: str) -> tuple[str, bool]:
    """``sys.prefix`` of the interpreter, and whether it is a virtual environment."""
    folder = posixpath.dirname(posixpath.normpath(path))
    above = posixpath.dirname(folder)
    for place in (folder, above):
        if image.find(f"{place}/pyvenv.cfg") is not None:
            return place, True
    return posixpath.dirname(posixpath.dirname("/" + real)), False


def _places(image: Image, prefix: str, lib: str, *, venv: bool) -> tuple[str, str]:
    """(site-packages that pip installs to, folder for scripts)."""
    if not venv and prefix == "/usr" and image.find("/usr/lib/python3/dist-packages") is not None:
        # Debian's own patch: what the administrator installs goes below /usr/local.
        return f"/usr/local/lib/{lib.rstrip('t')}/dist-packages", "/usr/local/bin"
    for folder in ("lib", "lib64"):
        if image.find(f"{prefix}/{folder}/{lib}") is not None:
            return f"{prefix}/{folder}/{lib}/site-packages", f"{prefix}/bin"
    raise _trouble(prefix, f"has no lib/{lib}, so its site-packages cannot be told")


def _full_version(image: Image, binary: bytes, prefix: str, lib: str, version: tuple[int, int]) -> str:
    wanted = f"{version[0]}.{version[1]}"
    pattern = re.compile(rb"\0(" + re.escape(wanted.encode()) + rb"\.\d+)(?:[^\w.]|\0)")
    candidates = [binary]
    for name in (f"lib{lib}.so.1.0", f"lib{lib}.so"):
        for folder in (
            f"{prefix}/lib",
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
        ):
            try:
                candidates.append(image.read(f"{folder}/{name}", limit=_LIMIT))
            except KeyError:
                continue
    for data in candidates:
        found = pattern.search(data)
        if found:
            return found[1].decode()
    return wanted


def _elf(data: bytes, arch: str | None) -> tuple[str, str]:
    """(machine by wheel tags, program interpreter) of a 64-bit little-endian ELF; ('', '') for others."""
    if data[:6] != b"\x7fELF\x02\x01" or arch not in _MACHINES or len(data) < 64:
        return "", ""
    offset = struct.unpack_from("<Q", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 54)
    for n in range(min(count, _MAX_ELF_HEADERS)):
        at = offset + n * size
        if at + 56 > len(data):
            break
        if struct.unpack_from("<I", data, at)[0] == 3:  # PT_INTERP
            start, length = (
                struct.unpack_from("<Q", data, at + 8)[0],
                struct.unpack_from("<Q", data, at + 32)[0],
            )
            return _MACHINES[arch], data[start : start + min(length, 256)].rstrip(b"\0").decode(
                errors="replace"
            )
    return _MACHINES[arch], ""


def _libc(image: Image, loader: str) -> str:
    """The C library's kind and version, from the library that the program's loader belongs to."""
    if "ld-musl" in loader:
        data = _read(image, loader)
        found = _MUSL.search(data)
        return f"musl_1_{found[2].decode()}" if found else "musl_1_1"
    for folder in _library_folders(loader):
        found = _GLIBC.search(_read(image, f"{folder}/libc.so.6"))
        if found:
            return f"glibc_{found[1].decode()}_{found[2].decode()}"
    raise DeriveFailedError(
        f"the C library of the image cannot be told (loader {loader or 'none'!r})",
        hint="a wheel's tags cannot be judged without it",
    )


def _library_folders(loader: str) -> list[str]:
    triplet = {"x86-64": "x86_64", "aarch64": "aarch64"}
    machine = next((name for mark, name in triplet.items() if mark in loader), "x86_64")
    multiarch = [f"{root}/{machine}-linux-gnu" for root in ("/lib", "/usr/lib")]
    return [*multiarch, "/lib64", "/usr/lib64", "/lib", "/usr/lib", posixpath.dirname(loader) or "/lib"]


def _read(image: Image, path: str) -> bytes:
    try:
        return image.read(path, limit=_LIMIT)
    except KeyError:
        return b""
