"""The full closure of pins for one interpreter: which wheels, at which version, with which sha256.

Not a general resolver: every requirement is taken at the highest version that all requirements
found so far allow; when a later one forbids it, the search starts again with all that is known.
Pins always win, and two that cannot both hold are an error that names who wants what.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from poolmgr.errors import DeriveFailedError, MissingToolError
from poolmgr.model.pin import Pin
from poolmgr.model.recipe_lock import LockedWheel
from poolmgr.ops.wheels import Wheel, supported_tags, wheels_in
from poolmgr.sif.python import Interpreter

MAX_ROUNDS = 100
PIP_TIMEOUT = 600
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")

Download = Callable[[str, Interpreter, Path], None]
"""(requirement, interpreter, folder): puts the best wheel into the folder, or raises."""


@dataclass(slots=True)
class _Want:
    specifiers: SpecifierSet = field(default_factory=SpecifierSet)
    by: list[str] = field(default_factory=list)
    """Who wants it, and how, in words."""
    extras: set[str] = field(default_factory=set)
    url: str | None = None
    sha256: str | None = None


def close(
    pins: Iterable[Pin], interpreter: Interpreter, folder: Path, download: Download | None
) -> tuple[LockedWheel, ...]:
    """Every wheel that ``pins`` need; what is not in ``folder`` is downloaded, where ``download`` is given.

    ``DeriveFailedError`` when no set of wheels can be found.
    """
    tags = supported_tags(interpreter)
    pins = tuple(pins)
    wants = _pinned(pins, interpreter)
    for _ in range(MAX_ROUNDS):
        known = {name: (str(w.specifiers), set(w.extras)) for name, w in wants.items()}
        chosen: dict[str, Wheel] = {}
        ahead = sorted(wants)
        while ahead:
            name = ahead.pop(0)
            want = wants[name]
            if name not in chosen:
                chosen[name] = _choose(name, want, tags, interpreter, folder, download)
            wheel = chosen[name]
            wheel.check_python(interpreter)
            for requirement in wheel.requirements(interpreter, want.extras):
                other = canonicalize_name(requirement.name)
                need = wants.setdefault(other, _Want())
                need.specifiers &= requirement.specifier
                need.extras |= {canonicalize_name(e) for e in requirement.extras}
                said = f"{wheel.name} {wheel.version} wants {other}{requirement.specifier}"
                if said not in need.by:
                    need.by.append(said)
                if other not in chosen and other not in ahead:
                    ahead.append(other)
        if known == {name: (str(w.specifiers), set(w.extras)) for name, w in wants.items()}:
            needed = _reached(pins, chosen, wants, interpreter)
            return tuple(
                sorted(LockedWheel(n, str(w.version), w.path.name, w.sha256) for n, w in needed.items())
            )
    raise DeriveFailedError("no set of wheels was found that fits together", hint="pin more of them")


def _reached(
    pins: Iterable[Pin], chosen: dict[str, Wheel], wants: dict[str, _Want], interpreter: Interpreter
) -> dict[str, Wheel]:
    """Those of ``chosen`` that the pins lead to; a version that gave way may have wanted others."""
    reached: dict[str, Wheel] = {}
    ahead = list(_pinned(pins, interpreter))
    while ahead:
        name = ahead.pop()
        if name in reached:
            continue
        reached[name] = chosen[name]
        for requirement in chosen[name].requirements(interpreter, wants[name].extras):
            ahead.append(canonicalize_name(requirement.name))
    return reached


def _pinned(pins: Iterable[Pin], interpreter: Interpreter) -> dict[str, _Want]:
    wants: dict[str, _Want] = {}
    for pin in pins:
        if pin.marker and not Marker(pin.marker).evaluate({**interpreter.markers(), "extra": ""}):
            continue
        want = wants.setdefault(pin.name, _Want())
        if pin.version is not None:
            want.specifiers &= SpecifierSet(f"=={pin.version}")
        want.url, want.sha256 = pin.url, pin.sha256
        want.extras.update(pin.extras)
        want.by.append(f"the recipe pins {pin.text}")
    return wants


def _choose(
    name: str, want: _Want, tags: dict[Tag, int], interpreter: Interpreter, folder: Path,
    download: Download | None,
) -> Wheel:  # fmt: skip
    found = _best(name, want, tags, folder)
    if found is None and download is not None:
        extras = f"[{','.join(sorted(want.extras))}]" if want.extras else ""
        download(
            f"{name} @ {want.url}" if want.url else f"{name}{extras}{want.specifiers}", interpreter, folder
        )
        found = _best(name, want, tags, folder)
    if found is None:
        wanted = f" that meets {want.specifiers}" if str(want.specifiers) else ""
        raise DeriveFailedError(
            f"no wheel of {name}{wanted} for {interpreter.key} in {folder}",
            hint="put it there, or let 'poolmgr derive --lock' download it (without --offline)",
            details=want.by,
        )
    return found


def _best(name: str, want: _Want, tags: dict[Tag, int], folder: Path) -> Wheel | None:
    """The highest version in the folder that is allowed, by its best tag."""
    fitting: list[tuple[Version, int, Wheel]] = []
    for wheel in wheels_in(folder) if folder.is_dir() else []:
        rank = wheel.rank(tags)
        if wheel.name != name or rank is None:
            continue
        if want.sha256 is not None and wheel.sha256 != want.sha256:
            continue
        pinned = any(s.operator == "==" for s in want.specifiers)
        if want.specifiers.contains(wheel.version, prereleases=True if pinned else None):
            fitting.append((wheel.version, -rank, wheel))
    return max(fitting, key=lambda row: row[:2])[2] if fitting else None


def pip_download(requirement: str, interpreter: Interpreter, folder: Path) -> None:
    """``pip download`` of one wheel for an interpreter that is not this one."""
    x, y = interpreter.version
    abi = f"cp{x}{y}{'t' * interpreter.free_threaded}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder)]
    command += ["--implementation", "cp", "--python-version", f"{x}.{y}"]
    command += ["--abi", abi, "--abi", "abi3", "--abi", "none"]
    for platform in interpreter.platforms:
        command += ["--platform", platform]
    environment = {
        k: v
        for k, v in os.environ.items()
        if k in _ENVIRONMENT or k.startswith("PIP_") or k.lower().endswith("_proxy")
    }
    folder.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            [*command, "--", requirement],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PIP_TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise DeriveFailedError(f"pip download of {requirement} took more than {PIP_TIMEOUT} s") from None
    if "No module named pip" in done.stderr:
        raise MissingToolError(
            "pip is not installed beside poolmgr", hint="python -m ensurepip, or lock --offline"
        )
    if done.returncode:
        lines = [
            line for line in done.stderr.splitlines() if line.startswith("ERROR")
        ] or done.stderr.splitlines()
        raise DeriveFailedError(f"pip could not download {requirement}", details=lines[-3:])
