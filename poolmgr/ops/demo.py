"""The demo: a small pool of real images, and the commands that show what poolmgr does with it.

It has the shape of the pool that poolmgr was made for (facts: pool card): batch directories that
continue each other, derived images beside plain ones, and variants that share their blobs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from poolmgr.errors import Exit
from poolmgr.model.blob import INDEX_NAME
from poolmgr.sif.write import write_sif
from poolmgr.sif.write_node import Link, Node, directory, file

BATCHES = {"images": 6, "images_b00": 4, "images_b01": 4}
DERIVED = 5
VARIANT = "solvable"
TASKS = {"original": 18, "hardened_prefilter": 16, VARIANT: 8}
CUT = 4096
"""Bytes that the demo cuts off one image."""


@dataclass(frozen=True, slots=True)
class DemoPool:
    folder: Path
    files: Mapping[str, int]
    """Directory -> images in it."""
    size: int
    """Bytes of all images."""
    tasks: Mapping[str, Mapping[str, str]]
    """The index: variant -> task -> blob path."""
    task: str
    """The task of ``VARIANT`` whose image is to be damaged."""

    @property
    def blob(self) -> str:
        return self.tasks[VARIANT][self.task]


@dataclass(frozen=True, slots=True)
class Scene:
    """One command of the demo, run in the folder that holds the pool."""

    why: str
    command: tuple[str, ...]
    """As a user would type it. ``truncate`` is carried out by the demo itself."""
    exit: Exit = Exit.GOOD
    names: tuple[str, ...] = ()
    """What the command's output has to name."""


def build_pool(folder: Path) -> DemoPool:
    """Fills the new ``folder`` with a pool of small images, the same bytes each time."""
    folder.mkdir()
    size = 0
    plain: list[str] = []
    for batch, count in BATCHES.items():
        for _ in range(count):
            number = len(plain)
            plain.append(f"{batch}/acme__env-v3__{_hex(f'image {number}', 12)}.sif")
            size += _write(folder / plain[-1], number, {"app/oracle": file(_noise(f"oracle {number}", 3000))})
    derived: list[str] = []
    for number in range(DERIVED):
        derived.append(f"derived/acme__env-v3__{_hex(f'image {number}', 12)}-hardened.sif")
        size += _write(folder / derived[-1], number, {"app/checks.py": file(b"import json\n")})
    names = [f"task_{n:06d}_{_hex(f'task {n}', 8)}" for n in range(TASKS["original"])]
    original = {name: plain[n % len(plain)] for n, name in enumerate(names)}
    hardened = {
        name: derived[n % len(plain)] if n % len(plain) < DERIVED else original[name]
        for n, name in enumerate(names[: TASKS["hardened_prefilter"]])
    }
    solvable = dict(list(hardened.items())[:: len(hardened) // TASKS[VARIANT]])
    index = {"original": original, "hardened_prefilter": hardened, VARIANT: solvable}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=1) + "\n")
    task = next(t for t, path in solvable.items() if path.startswith("images_b00/"))
    return DemoPool(folder, {**BATCHES, "derived": DERIVED}, size, index, task)


def scenes(pool: DemoPool) -> tuple[Scene, ...]:
    """What the demo shows, in order."""
    here = pool.folder.name
    fetch = ("poolmgr", "fetch", VARIANT, "-p", here, "--to", "sifs")
    audit = ("poolmgr", "audit", VARIANT, "-p", "sifs")
    resolve = ("poolmgr", "resolve", pool.task, "--variant", VARIANT, "-p", "sifs")
    name = pool.blob.rpartition("/")[2]
    return (
        Scene("What does the pool hold?", ("poolmgr", "status", "-p", here), names=tuple(pool.tasks)),
        Scene("Fetch one variant's images and nothing else.", fetch),
        Scene("Is every task of the variant covered by an image that works?", audit),
        Scene("Where is the image of one task?", resolve, names=(f"sifs/{pool.blob}",)),
        Scene(
            "Now damage that image the way an interrupted copy does.",
            ("truncate", f"--size=-{CUT}", f"sifs/{pool.blob}"),
        ),
        Scene("The audit names it, and ends with status 3.", audit, Exit.BAD, (name,)),
        Scene(
            "So does the resolver: there is no path that could be run by mistake.", resolve, Exit.BAD, (name,)
        ),
        Scene("Fetching again replaces what is wrong, and only that.", fetch),
        Scene("And the variant is whole again.", audit),
    )


def truncate(folder: Path, command: tuple[str, ...]) -> None:
    """Does what the scene's ``truncate`` says, below ``folder``."""
    target = folder / command[-1]
    os.truncate(target, target.stat().st_size - CUT)


def _write(path: Path, number: int, more: Mapping[str, Node | Link]) -> int:
    path.parent.mkdir(exist_ok=True)
    tree: dict[str, Node | Link] = {
        "app/instruction.md": file(b"# Task\n\nMake the tests pass.\n"),
        "etc/os-release": file(b'NAME="acme"\n'),
        "usr/share/data": file(_noise(f"data {number}", 150_000)),
        **{name: directory() for name in ("bin", "dev", "proc", "sys", "var")},
        "tmp": directory(0o1777),
        **more,
    }
    write_sif(path, tree, labels={"org.acme.env": str(number)})
    return path.stat().st_size


def _hex(word: str, digits: int) -> str:
    return hashlib.sha256(word.encode()).hexdigest()[:digits]


def _noise(word: str, size: int) -> bytes:
    """Bytes that do not compress, the same for the same word."""
    return hashlib.shake_128(word.encode()).digest(size)
