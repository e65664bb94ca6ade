"""What each check catches: the corruption matrix against Apptainer, unsquashfs and verify's levels.

    PYTHONPATH=. python benchmarks/bench_matrix.py [COMPRESSOR]...

Prints a table a compressor (default: gzip zstd): how many of a group's cases each check refuses.
Only cases that must be refused are counted. As root, ``exec`` mounts with the kernel.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from poolmgr.model.finding import Level, Verdict
from poolmgr.sif.check import check
from poolmgr.sif.source import BytesSource
from tests import images
from tests.sif.damage import Base, Case, Until, matrix

TOOLS = ("sha256", "inspect", "sif list", "unsquashfs -s", "unsquashfs -l", "unsquashfs", "exec")
LEVELS = (Level.HEADER, Level.MOUNT, Level.TABLES, Level.DATA)
PASSING = (Until.WARN, Until.ANY, Until.HASH, Until.UNSUPPORTED)
"""Cases that no check has to refuse; only a hash finds the ones that change a byte unseen."""


def commands(file: Path, offset: int, out: Path) -> dict[str, list[str]]:
    squashfs = ["unsquashfs", "-n", "-o", str(offset)]
    return {
        "inspect": ["apptainer", "inspect", str(file)],
        "sif list": ["apptainer", "sif", "list", str(file)],
        "unsquashfs -s": [*squashfs, "-s", str(file)],
        "unsquashfs -l": [*squashfs, "-l", str(file)],
        "unsquashfs": [*squashfs, "-d", str(out), str(file)],
        "exec": ["apptainer", "exec", "--no-privs", "--containall", "--no-home", str(file), "true"],
    }


def refused(case: Case, offset: int, work: Path) -> set[str]:
    """The tools and levels that refuse a case."""
    found = {"sha256"}
    file = work / "x.sif"
    file.write_bytes(case.data)
    for name, command in commands(file, offset, work / "out").items():
        try:
            status = subprocess.run(command, capture_output=True, timeout=60, check=False).returncode
        except subprocess.TimeoutExpired:
            status = -1
        if status:
            found.add(name)
        subprocess.run(["rm", "-rf", work / "out"], check=True)
    for level in LEVELS:
        if check(BytesSource(case.data), level, arch="amd64").verdict is Verdict.BAD:
            found |= {deeper.value for deeper in LEVELS if deeper.includes(level)}
            break
    return found


def main() -> None:
    for compressor in sys.argv[1:] or ["gzip", "zstd"]:
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            root = images.make_root(work / "root", files=200)
            (root / "usr/lib/noise").write_bytes(hashlib.shake_128(b"noise").digest(300_000))
            sif = images.build(root, work / "good.sif", "--mksquashfs-args", f"-comp {compressor}")
            base = Base(sif.read_bytes())
            counts: dict[str, Counter[str]] = {}
            for case in matrix(base):
                if case.until not in PASSING:
                    group = counts.setdefault(case.group, Counter())
                    group["n"] += 1
                    group.update(refused(case, base.at, work))
        total: Counter[str] = sum(counts.values(), Counter())
        columns = ("n", *TOOLS, *(level.value for level in LEVELS))
        print(f"\n{compressor}, {len(base.data) / 1e6:.1f} MB, cases that must be refused:\n")
        print("| group | " + " | ".join(columns) + " |")
        print("|---|" + "---|" * len(columns))
        for name, group in [*counts.items(), ("**all**", total)]:
            print(f"| {name} | " + " | ".join(str(group[c]) for c in columns) + " |")


if __name__ == "__main__":
    main()
