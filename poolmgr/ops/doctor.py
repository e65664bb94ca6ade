"""What is installed here, and what each thing that is not would add. Sends nothing anywhere."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata

import poolmgr
from poolmgr.errors import PoolError
from poolmgr.sif import codecs
from poolmgr.sif.apptainer import INSTALL, Apptainer
from poolmgr.sif.child import run_child


class State(StrEnum):
    FOUND = "found"
    ABSENT = "absent"
    """Not installed, and poolmgr does its work without: ``adds`` says what is left out."""
    BROKEN = "broken"
    """Needed and not there, or there and not working."""


@dataclass(frozen=True, slots=True)
class Part:
    kind: str
    """``python``, ``library``, ``extra``, ``codec`` or ``program``."""
    name: str
    state: State
    version: str
    """'' where there is none to tell."""
    adds: str
    """What it is for."""
    install: str = ""
    """How to get it, where it is absent or broken."""
    trouble: str = ""
    """Why it is broken."""


_LIBRARIES = {
    "click": "the command line",
    "huggingface_hub": "pools on the Hub",
    "pyarrow": "datasets and tables in Parquet",
    "duckdb": "queries over tables",
    "fsspec": "pools at other URLs",
    "xxhash": "cheap detection of change",
    "zstandard": "images compressed with zstd",
    "lz4": "images compressed with lz4",
    "tomlkit": "task.toml files, their comments kept",
    "dockerfile": "Dockerfiles as BuildKit's own parser reads them",
    "tqdm": "progress bars",
}
_EXTRAS = {
    "hf_xet": ("the Xet transfer (--transfer xet), for few requests", "pip install hf_xet"),
    "isal": ("gzip images checked more than twice as fast", "pip install 'poolmgr[fast]'"),
    "s3fs": ("pools at s3:// URLs", "pip install 'poolmgr[s3]'"),
    "daytona": ("Daytona snapshots", "pip install daytona"),
}


def examine() -> tuple[Part, ...]:
    """Every part that poolmgr uses or could use, in the order to be shown."""
    return (*_python(), *_libraries(), *_codecs(), _apptainer(), _unsquashfs())


def _python() -> Iterator[Part]:
    yield Part("python", "poolmgr", State.FOUND, poolmgr.__version__, "this program")
    yield Part("python", "python", State.FOUND, platform.python_version(), sys.executable)


def _libraries() -> Iterator[Part]:
    for name, adds in _LIBRARIES.items():
        version = _version(name)
        state = State.FOUND if version else State.BROKEN
        trouble = "" if version else "not installed, although poolmgr depends on it"
        yield Part("library", name, state, version, adds, "pip install poolmgr", trouble)
    for name, (adds, install) in _EXTRAS.items():
        version = _version(name)
        yield Part("extra", name, State.FOUND if version else State.ABSENT, version, adds, install)


def _codecs() -> Iterator[Part]:
    for number, name in sorted(codecs.NAMES.items(), key=lambda item: item[1]):
        why = codecs.missing(number)
        state = State.ABSENT if why else State.FOUND
        adds = f"images compressed with {name}, checked deeper than 'mount'"
        yield Part("codec", f"codec {name}", state, "", adds, why or "")


def _apptainer() -> Part:
    adds = "the checks 'inspect' and 'run', and pulling from registries"
    found = Apptainer.find()
    if found is None:
        return Part("program", "apptainer", State.ABSENT, "", adds, INSTALL)
    try:
        return Part("program", "apptainer", State.FOUND, found.version.removeprefix("apptainer "), adds)
    except PoolError as e:
        return Part("program", "apptainer", State.BROKEN, "", adds, e.hint, e.message)


def _unsquashfs() -> Part:
    adds = "looking into an image by hand; poolmgr reads images itself"
    program = shutil.which("unsquashfs")
    if program is None:
        return Part("program", "unsquashfs", State.ABSENT, "", adds, "apt-get install squashfs-tools")
    try:
        said = run_child([program, "-version"], timeout=10).out.split()
    except OSError as e:
        return Part("program", "unsquashfs", State.BROKEN, "", adds, "", f"it does not start: {e.strerror}")
    version = said[2] if said[1:2] == ["version"] else ""
    return Part("program", "unsquashfs", State.FOUND, version, adds)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
