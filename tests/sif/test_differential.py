"""Agreement with the real unsquashfs and the real Apptainer, over random damage.

Whatever they refuse because of the image, ``data`` refuses too. The other way round every
disagreement is of a kind that ``EXPLAINED`` names: they do not look there.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from poolmgr.model.finding import Level, Verdict
from poolmgr.sif.check import Report, check
from poolmgr.sif.source import BytesSource
from tests import images
from tests.sif.damage import Base, random_damage

EXPLAINED = {
    "sif-truncated": "unsquashfs reads the filesystem only, and the loss is behind it",
    "sif-object-range": "the same",
    "sq-export": "unsquashfs does not read the export table",
    "sq-index": "the kernel wants the tables back to back, unsquashfs does not",
    "sq-meta": "in the export table, or a block that unsquashfs does not visit",
    "sq-decompress": "in the export table, or a block that unsquashfs does not visit",
    "sq-directory": "unsquashfs follows positions; it does not compare numbers, types and parents",
    "sq-inode": "unsquashfs does not count the inodes, nor look at those in no directory",
    "sq-counts": "unsquashfs does not need the count",
    "sq-truncated": "unsquashfs warns only",
    "sq-block-size": "unsquashfs takes the logarithm from the size",
    "sq-unpadded": "only the kernel's loop device minds",
    "sq-options": "unsquashfs ignores them",
    "sq-xattr": "unsquashfs counts it as not fatal",
    "sq-range": "in a table that unsquashfs does not read",
    "sq-reference": "in a table that unsquashfs does not read",
    "sq-data": "a block that unpacks to another size than its file needs",
    "sq-block": "unsquashfs does not compare a block's size with its file's",
    "sq-fragment": "unsquashfs does not look at fragments that no file uses",
    "sq-overlap": "unsquashfs does not compare the places of blocks",
    "sq-root": "unsquashfs follows positions",
}
SAME_REFUSALS = re.compile(
    r"Failed to (create|set|write|chown)|create_inode: could not create"
    r"|because you're not superuser|Operation not permitted"
)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Base]:
    folder = tmp_path_factory.mktemp("diff")
    root = images.make_root(folder / "root", files=60)
    return {
        c: Base(
            images.build(root, folder / f"{c}.sif", "--mksquashfs-args", f"-comp {c} -b 32K").read_bytes()
        )
        for c in ("gzip", "xz", "zstd", "lz4")
    }


def unsquashed(data: bytes, offset: int, folder: Path) -> tuple[bool, str]:
    """(whether the real unsquashfs extracts all of it without an error, what it said)."""
    file = folder / "x.sif"
    file.write_bytes(data)
    target = folder / "out"
    done = subprocess.run(
        ["unsquashfs", "-n", "-o", str(offset), "-d", target, file],
        capture_output=True, text=True, timeout=60, check=False, errors="replace",
    )  # fmt: skip
    subprocess.run(["rm", "-rf", target], check=True)
    said = done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip() and not SAME_REFUSALS.search(line)]
    return done.returncode == 0 or (done.returncode == 2 and not lines), said


def undetectable(base: Base, data: bytes) -> bool:
    """Whether the damage lies in compressed bytes that carry no checksum."""
    return not base.checksummed and len(data) == len(base.data)


def compare(bases: dict[str, Base], count: int, folder: Path, seed: int) -> Counter[str]:
    images.need("unsquashfs")
    chance = random.Random(seed)
    tally: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count):
        name = chance.choice(list(bases))
        base = bases[name]
        what, data = random_damage(base, chance)
        report = check(BytesSource(data), Level.DATA, threads=1)
        fine, said = unsquashed(data, base.at, folder)
        bad = report.verdict is Verdict.BAD
        if fine == (not bad):
            tally["agree"] += 1
        elif not fine and undetectable(base, data):
            tally["theirs only, no checksum"] += 1
        elif not fine:
            wrong.append(f"{number} {name} {what}: passed, unsquashfs: {said[-300:]}")
        else:
            codes = {f.code for f in report.findings if f.severity == "error"}
            tally["ours only"] += 1
            if not codes & set(EXPLAINED):
                wrong.append(f"{number} {name} {what}: ours only, {codes}")
    assert wrong == []
    return tally


def test_two_hundred_random_damages(bases: dict[str, Base], tmp_path: Path) -> None:
    tally = compare(bases, 200, tmp_path, seed=7)
    assert tally["agree"] >= 150
    assert tally["theirs only, no checksum"] <= 4


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
def test_many_random_damages(bases: dict[str, Base], tmp_path: Path) -> None:
    seed = int(os.environ.get("FUZZ_SEED", "1"))
    tally = compare(bases, 1500, tmp_path, seed)
    print(seed, tally)
    assert tally["agree"] >= 1000


def executed(data: bytes, folder: Path) -> tuple[bool, str]:
    file = folder / "e.sif"
    file.write_bytes(data)
    done = subprocess.run(
        ["apptainer", "exec", "--no-privs", "--containall", "--no-home", file, "true"],
        capture_output=True, text=True, timeout=60, check=False, errors="replace",
    )  # fmt: skip
    return done.returncode == 0, done.stderr


def verdicts(report: Report) -> set[str]:
    return {f.code for f in report.findings}


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel mount needs root")
def test_what_apptainer_cannot_run_is_refused(bases: dict[str, Base], tmp_path: Path) -> None:
    images.need("apptainer")
    chance = random.Random(11)
    wrong = []
    refused = 0
    for number in range(40):
        name = chance.choice(list(bases))
        base = bases[name]
        what, data = random_damage(base, chance)
        runs, said = executed(data, tmp_path)
        report = check(BytesSource(data), Level.DATA, arch="amd64", threads=1)
        refused += not runs
        if not runs and report.verdict is not Verdict.BAD and not undetectable(base, data):
            wrong.append(f"{number} {name} {what}: {said[-300:]}")
    assert wrong == []
    assert refused >= 5
