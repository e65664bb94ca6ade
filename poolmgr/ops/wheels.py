"""Wheels: whether one fits an interpreter, what it needs, and installing it as pip would.

pypa's ``installer`` unpacks, makes scripts and RECORD; ``packaging`` judges tags and versions. The
files go into a draft, not onto a disk.
"""

from __future__ import annotations

import base64
import csv
import email
import hashlib
import io
import posixpath
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from installer import install
from installer.destinations import WheelDestination
from installer.records import Hash, RecordEntry
from installer.scripts import Script
from installer.sources import WheelFile
from installer.utils import Scheme, construct_record_file, fix_shebang
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from poolmgr.errors import DeriveFailedError
from poolmgr.sif.draft import Draft
from poolmgr.sif.python import Interpreter
from poolmgr.sif.write_node import file

if TYPE_CHECKING:
    from installer.scripts import ScriptSection

MAX_WHEEL = 4 << 30
"""Bytes that a wheel may unpack to."""
MAX_ENTRIES = 200_000
_MAX_RECORD = 64 << 20


def supported_tags(interpreter: Interpreter) -> dict[Tag, int]:
    """Tag -> rank, 0 the best, of every wheel tag that the interpreter takes."""
    version = interpreter.version
    platforms = interpreter.platforms
    abi = f"cp{version[0]}{version[1]}{'t' * interpreter.free_threaded}"
    ranks: dict[Tag, int] = {}
    for tag in (
        *cpython_tags(version, [abi], platforms),
        *compatible_tags(version, f"cp{version[0]}{version[1]}", platforms),
    ):
        ranks.setdefault(tag, len(ranks))
    return ranks


@dataclass(frozen=True)
class Wheel:
    """A wheel in a folder. Its name is parsed at once, its inside when asked."""

    path: Path
    name: str
    """Canonical."""
    version: Version
    tags: frozenset[Tag]

    @staticmethod
    def of(path: Path) -> Wheel | None:
        """None for a file whose name is no wheel's."""
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            return None
        return Wheel(path, name, version, tags)

    @cached_property
    def sha256(self) -> str:
        with self.path.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()

    @cached_property
    def metadata(self) -> Any:
        """The METADATA headers. ``DeriveFailedError`` when it is not a readable wheel."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                _check_size(self.path, archive)
                with WheelFile.open(self.path) as source:
                    return email.message_from_string(source.read_dist_info("METADATA"))
        except (OSError, zipfile.BadZipFile, KeyError, ValueError, RuntimeError) as e:
            raise DeriveFailedError(f"{self.path}: not a readable wheel: {e}") from None

    def rank(self, tags: dict[Tag, int]) -> int | None:
        """How well it fits, 0 the best; None when it does not."""
        return min((tags[tag] for tag in self.tags if tag in tags), default=None)

    def check_python(self, interpreter: Interpreter) -> None:
        """``DeriveFailedError`` when the wheel refuses the interpreter's version."""
        wanted = self.metadata.get("Requires-Python")
        try:
            fits = not wanted or SpecifierSet(wanted).contains(interpreter.full_version, prereleases=True)
        except InvalidSpecifier:
            fits = True  # as pip: what cannot be read does not bind
        if not fits:
            raise DeriveFailedError(
                f"{self.path.name} needs Python {wanted}; {interpreter.path} is {interpreter.full_version}"
            )

    def requirements(self, interpreter: Interpreter, extras: Iterable[str]) -> list[Requirement]:
        """What it needs in the interpreter's environment, with ``extras``."""
        result = []
        for text in self.metadata.get_all("Requires-Dist") or []:
            try:
                requirement = Requirement(text)
            except InvalidRequirement as e:
                raise DeriveFailedError(
                    f"{self.path.name}: its requirement {text!r} cannot be read: {e}"
                ) from None
            marker = requirement.marker
            if marker is None or any(
                marker.evaluate({**interpreter.markers(), "extra": extra}) for extra in ("", *extras)
            ):
                result.append(requirement)
        return result


def wheels_in(folder: Path) -> list[Wheel]:
    """Every wheel of a folder, in the order of their names."""
    found = [Wheel.of(path) for path in sorted(folder.glob("*.whl")) if path.is_file()]
    return [wheel for wheel in found if wheel is not None]


def install_wheel(draft: Draft, wheel: Wheel, interpreter: Interpreter, *, requested: bool) -> None:
    """Installs ``wheel`` into the draft in the place of any other version of it in the same site-packages.

    ``DeriveFailedError`` when it does not fit the interpreter or is no sound wheel.
    """
    if wheel.rank(supported_tags(interpreter)) is None:
        raise DeriveFailedError(
            f"{wheel.path.name} does not fit {interpreter.path} of the image ({interpreter.key})",
            hint="lock the recipe again for this image: poolmgr derive --lock",
        )
    wheel.check_python(interpreter)
    uninstall(draft, wheel.name, interpreter)
    try:
        with WheelFile.open(wheel.path) as source:
            source.validate_record(validate_contents=True)
            extra = {"INSTALLER": b"poolmgr\n"}
            if requested:
                extra["REQUESTED"] = b""
            install(source, _Destination(draft, interpreter, wheel.name), extra)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, RuntimeError) as e:
        raise DeriveFailedError(f"{wheel.path.name}: not a sound wheel: {e}") from None


def uninstall(draft: Draft, name: str, interpreter: Interpreter) -> None:
    """Takes away what the RECORD of an installed version names, as pip does before it upgrades."""
    for folder in sorted(draft.names(interpreter.site)):
        stem, dot, _ = folder.rpartition(".dist-info")
        if not dot or canonicalize_name(stem.rpartition("-")[0]) != name:
            continue
        record = draft.read(f"{interpreter.site}/{folder}/RECORD", _MAX_RECORD) or b""
        for row in csv.reader(io.StringIO(record.decode(errors="surrogateescape"))):
            target = posixpath.normpath(posixpath.join(interpreter.site, row[0])) if row and row[0] else ""
            if _below(target, interpreter):
                draft.discard(target)
        draft.remove(f"{interpreter.site}/{folder}")


def _below(path: str, interpreter: Interpreter) -> bool:
    return any(
        path.startswith(place.rstrip("/") + "/")
        for place in (
            interpreter.site,
            interpreter.scripts,
            f"{interpreter.prefix}/share",
            f"{interpreter.prefix}/etc",
        )
    )


def _check_size(path: Path, archive: zipfile.ZipFile) -> None:
    entries = archive.infolist()
    if len(entries) > MAX_ENTRIES or sum(e.file_size for e in entries) > MAX_WHEEL:
        raise DeriveFailedError(
            f"{path.name} unpacks to more than {MAX_WHEEL:,} bytes or {MAX_ENTRIES:,} files"
        )


class _Destination(WheelDestination):
    """Puts what ``installer`` unpacks into the draft."""

    def __init__(self, draft: Draft, interpreter: Interpreter, name: str) -> None:
        self.draft = draft
        self.interpreter = interpreter
        x, y = interpreter.version
        self.roots = {
            "purelib": interpreter.site,
            "platlib": interpreter.site,
            "scripts": interpreter.scripts,
            "data": posixpath.dirname(interpreter.scripts),
            "headers": f"{interpreter.prefix}/include/site/python{x}.{y}/{name}",
        }

    def write_file(
        self, scheme: Scheme, path: str | PathLike[str], stream: BinaryIO, is_executable: bool
    ) -> RecordEntry:
        name = fspath(path)
        if scheme == "scripts":
            with fix_shebang(stream, self.interpreter.path) as fixed:
                return self._put(scheme, name, fixed.read(), executable=is_executable)
        return self._put(scheme, name, stream.read(), executable=is_executable)

    def write_script(self, name: str, module: str, attr: str, section: ScriptSection) -> RecordEntry:
        made, data = Script(name, module, attr, section).generate(self.interpreter.path, "posix")
        return self._put(Scheme("scripts"), made, data, executable=True)

    def finalize_installation(
        self, scheme: Scheme, record_file_path: str, records: Iterable[tuple[Scheme, RecordEntry]]
    ) -> None:
        def prefix(other: Scheme) -> str | None:
            if self.roots[other] == self.roots[scheme]:
                return None
            return posixpath.relpath(self.roots[other], self.roots[scheme]) + "/"

        with construct_record_file(records, prefix) as stream:
            self._put(scheme, record_file_path, stream.read(), executable=False)

    def _put(self, scheme: Scheme, name: str, data: bytes, *, executable: bool) -> RecordEntry:
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise ValueError(f"the path {name!r} leaves its folder")
        self.draft.put(f"{self.roots[scheme]}/{name}", file(data, 0o755 if executable else 0o644))
        return RecordEntry(name, _record_hash(data), len(data))


def _record_hash(data: bytes) -> Hash:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return Hash("sha256", digest.decode())
