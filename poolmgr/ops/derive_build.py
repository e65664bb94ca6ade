"""One derived image, from its base to a file that has passed every check and has no name yet."""

from __future__ import annotations

import fcntl
import shlex
import shutil
import string
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import poolmgr
from poolmgr.errors import DeriveFailedError
from poolmgr.model.finding import Level, Severity
from poolmgr.model.recipe import Expect, Files, Pip, Remove, Run, Step
from poolmgr.model.recipe_lock import LockedWheel
from poolmgr.ops.shared import shared_ranges
from poolmgr.ops.wheels import Wheel, install_wheel
from poolmgr.sif.apptainer import Apptainer, Cause, cause_of, last_word
from poolmgr.sif.changes import Changes
from poolmgr.sif.check import check_file
from poolmgr.sif.derived import PROVENANCE, Base, append, append_overlay, write_rebuilt
from poolmgr.sif.draft import Draft
from poolmgr.sif.identity import file_sha256, tree_sha256
from poolmgr.sif.image import open_image
from poolmgr.sif.python import find_interpreter
from poolmgr.sif.rules import Rules, check_content
from poolmgr.sif.source import FileSource
from poolmgr.sif.squashfs import DamageError
from poolmgr.sif.write import DataType, blob
from poolmgr.sif.write_node import Kind, Node

_FICLONE = 0x40049409
_PLAIN = frozenset(string.ascii_letters + string.digits + " _-+=./,:;@<>()|&$")
MAX_POST = 60_000
"""Bytes; a section of 64 KB is "token too long" to Apptainer 1.4."""
TOOLS = {"poolmgr": poolmgr.__version__, "zlib": zlib.ZLIB_RUNTIME_VERSION}


@dataclass(frozen=True, slots=True)
class Materials:
    """What the steps need besides the base."""

    contents: Mapping[str, bytes]
    """``from`` -> bytes."""
    wheels: Sequence[Sequence[LockedWheel]]
    """The locked wheels of each step; empty for steps that install none."""
    folders: Mapping[str, Path]
    """``wheels`` of a step -> the folder."""


def build(
    base: Path, where: str, steps: Sequence[Step], method: str, materials: Materials, provenance: bytes,
    scratch: Path, target: Path,
) -> None:  # fmt: skip
    """Writes the derived image to ``target``, which is empty or does not exist.

    ``scratch`` is a folder of its own for what lies between. Raises ``DeriveFailedError``,
    ``BadFileError``, ``MissingToolError``, ``ToolFailedError``, and ``OSError`` on a full disk.
    """
    parts = _segments(steps, materials.wheels)
    here = base
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        there = target if last else scratch / f"{number}.sif"
        if isinstance(part[0][0], Run):
            _run(here, [step for step, _ in part if isinstance(step, Run)], scratch, there)
            if last:
                with FileSource(there) as source, there.open("r+b") as out:
                    append(out, Base(source, where), [blob(DataType.JSON, PROVENANCE, provenance)])
        else:
            with FileSource(here) as source:
                opened = Base(source, where)
                changes = _changes(opened, part, materials)
                if method == "overlay":
                    with there.open("w+b") as out:
                        copy(source, out)
                        append_overlay(opened, changes, out, provenance)
                else:
                    with there.open("w+b") as out:
                        write_rebuilt(opened, changes, out, provenance)
        here = there


def rehearse(base: Path, where: str, steps: Sequence[Step], materials: Materials) -> None:
    """Carry out the steps before the first command on the base's tree alone. Raises what ``build`` does."""
    parts = _segments(steps, materials.wheels)
    if parts and not isinstance(parts[0][0][0], Run):
        with FileSource(base) as source:
            _changes(Base(source, where), parts[0], materials)


def _segments(
    steps: Sequence[Step], wheels: Sequence[Sequence[LockedWheel]]
) -> list[list[tuple[Step, Sequence[LockedWheel]]]]:
    """Runs of steps that one pass can do: commands apart from the rest."""
    parts: list[list[tuple[Step, Sequence[LockedWheel]]]] = []
    for step, locked in zip(steps, wheels, strict=True):
        if parts and isinstance(parts[-1][0][0], Run) == isinstance(step, Run):
            parts[-1].append((step, locked))
        else:
            parts.append([(step, locked)])
    return parts


def _changes(base: Base, part: Sequence[tuple[Step, Sequence[LockedWheel]]], materials: Materials) -> Changes:
    draft = Draft(base)
    for step, locked in part:
        match step:
            case Remove():
                for pattern in step.paths:
                    if not draft.remove(pattern) and not step.optional:
                        raise DeriveFailedError(
                            f"{base.where}: remove {pattern!r} matches nothing in the image",
                            hint="correct the path, or mark the step with optional = true",
                        )
            case Files():
                for f in step.files:
                    draft.put(f.to, Node(Kind.FILE, f.mode, data=materials.contents[f.source]))
            case Pip():
                _install(draft, step, locked, materials.folders[step.wheels])
            case Run():
                raise AssertionError("a command is a part of its own")
    return draft.changes


def _install(draft: Draft, step: Pip, locked: Sequence[LockedWheel], folder: Path) -> None:
    interpreter = find_interpreter(draft.image, step.python)
    asked = {pin.name for pin in step.pins}
    for row in sorted(locked):
        wheel = Wheel.of(folder / row.file)
        if wheel is None or not wheel.path.is_file():
            raise DeriveFailedError(
                f"{folder / row.file}: the locked wheel is not there",
                hint="run 'poolmgr derive --lock' again, or copy the wheel",
            )
        if wheel.sha256 != row.sha256:
            raise DeriveFailedError(
                f"{wheel.path}: sha256 {row.sha256} is locked, the file has {wheel.sha256}",
                hint="restore the wheel, or lock again if the change is meant",
            )
        install_wheel(draft, wheel, interpreter, requested=row.name in asked)


def _run(base: Path, steps: Sequence[Run], scratch: Path, target: Path) -> None:
    """The commands in the image, by a build of Apptainer's own."""
    apptainer = Apptainer.need()
    post = post_section(step.command for step in steps)
    definition = scratch / "run.def"
    definition.write_text(f"Bootstrap: localimage\nFrom: {base.absolute()}\n\n%post\n{post}\n")
    target.unlink(missing_ok=True)
    apptainer.build(definition, target, scratch=scratch, env={"SOURCE_DATE_EPOCH": "0"})


def post_section(commands: Iterable[str]) -> str:
    """The commands as the text of a definition file's %post section.

    Apptainer takes any line that begins with ``%``, even inside a here-document, for a section, and
    ``{{ }}`` for a variable of its own, so every byte that is not plain is escaped for the
    ``printf %b`` of POSIX. ``DeriveFailedError`` for more than Apptainer reads of a section.
    """
    script = "\n".join(("set -eu", *commands)).encode()
    escaped = "".join(chr(b) if chr(b) in _PLAIN else f"\\0{b:03o}" for b in script)
    if len(escaped) > MAX_POST:
        raise DeriveFailedError(
            f"the run steps take {len(escaped):,} bytes, and Apptainer reads {MAX_POST:,} of a section",
            hint="bring the script into the image by a files step, and run it from there",
        )
    return f"    eval \"$(printf %b '{escaped}')\""


def copy(source: FileSource, out: BinaryIO) -> None:
    """The file's bytes into the empty file ``out``: shared where the filesystem can, else copied."""
    try:
        fcntl.ioctl(out.fileno(), _FICLONE, source.fd)
    except OSError:
        with open(f"/proc/self/fd/{source.fd}", "rb") as plain:
            shutil.copyfileobj(plain, out, 1 << 20)


def check_made(target: Path, expect: Expect, where: str) -> list[str]:
    """Raises ``DeriveFailedError`` unless the new image is valid and what the recipe expects.

    Returns what could not be checked here, in words.
    """
    report = check_file(target, Level.TABLES)
    if not report.verdict.passes:
        raise DeriveFailedError(
            f"{where}: what was made is not valid", details=[*map(str, report.findings), *report.unchecked]
        )
    rules = Rules(expect.require, expect.forbid, expect.modules)
    if rules != Rules():
        with FileSource(target) as source:
            try:
                found = check_content(open_image(source, where), rules, threads=1)
            except DamageError as e:
                raise DeriveFailedError(f"{where}: what was made cannot be read: {e}") from None
        wrong = [str(f) for group in found.values() for f in group if f.severity is Severity.ERROR]
        if wrong:
            raise DeriveFailedError(f"{where}: what was made is not what the recipe expects", details=wrong)
    return _try(target, expect, where) if expect.run else []


def _try(target: Path, expect: Expect, where: str) -> list[str]:
    command = shlex.join(expect.run)
    apptainer = Apptainer.find()
    if apptainer is None:
        return [f"{command!r} was not run: Apptainer is not installed"]
    done = apptainer.execute(target, expect.run)
    if done.timed_out:
        raise DeriveFailedError(f"{where}: {command!r} did not end in time")
    if done.status == 0:
        return []
    if cause_of(done.err) is Cause.MACHINE:
        return [f"{command!r} was not run: this machine cannot: {last_word(done)}"]
    lines = (done.err or done.out).strip().splitlines()[-5:]
    raise DeriveFailedError(f"{where}: {command!r} failed with status {done.status}", details=lines)


def identify(made: Path, base: Path, *, tree: bool) -> tuple[str, int, str | None, str]:
    """sha256, size, tree identity where it is asked for, and the ranges shared with ``base``, of ``made``."""
    with FileSource(made) as source:
        identity = tree_sha256(open_image(source, made.name), threads=1) if tree else None
        try:
            with FileSource(base) as before:
                shared = shared_ranges(source, before).text()
        except OSError:
            shared = ""  # only a saving is lost
        return file_sha256(source), source.size, identity, shared
