"""verify against its peers on the same images, in one run: apptainer inspect, unsquashfs, sha256.

    PYTHONPATH=. python benchmarks/bench_verify.py [--quick] [--skip PART]...

Parts: mount, tables, data, many, memory. The images are made here, from this machine's own /usr, by
the real mksquashfs; every figure is the median of three after a warm-up, and of 25 in turn where two
are compared closely (tables, data and hash). --quick makes smaller ones.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from poolmgr.model.finding import Level
from poolmgr.sif.check import check_file
from poolmgr.sif.data import processors
from poolmgr.sif.header import read_container
from poolmgr.sif.source import FileSource

COMPRESSORS = ("gzip", "zstd", "xz", "lz4")
PARTS = ("mount", "tables", "data", "many", "memory")
ROUNDS = 3
SOURCES = ("/usr/lib", "/usr/share", "/usr/bin")


def timed(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median seconds of ``rounds`` runs, after one that does not count."""
    work()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


@dataclass(frozen=True)
class Took:
    """Seconds of one work."""

    wall: float
    processor: float


def together(*works: Callable[[], object], rounds: int) -> list[Took]:
    """Medians of each, run in turn and in a new order each round: a busy machine is as busy for all."""
    taken: list[list[Took]] = [[] for _ in works]
    order = list(range(len(works)))
    shuffle = random.Random(1).shuffle
    for number in range(rounds + 1):
        shuffle(order)
        for which in order:
            wall, cpu = time.perf_counter(), processor()
            works[which]()
            if number:
                taken[which].append(Took(time.perf_counter() - wall, processor() - cpu))
    return [
        Took(statistics.median(t.wall for t in times), statistics.median(t.processor for t in times))
        for times in taken
    ]


def processor() -> float:
    """Seconds of processor that this process and its ended children have had."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def row(what: str, ours: float, peer: float, peer_name: str, target: str) -> None:
    figures = f"{ours * 1000:10.2f} ms  {peer_name:28} {peer * 1000:10.2f} ms  {peer / ours:8.2f}x"
    print(f"  {what:40} {figures}  {target}", flush=True)


def files() -> Iterator[Path]:
    for source in SOURCES:
        for folder, names, entries in os.walk(source):
            names.sort()
            for name in sorted(entries):
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink() and path.stat().st_size < 20_000_000:
                    yield path


def content(to: Path, megabytes: int, count: int = 0) -> Path:
    """A root of that much content, or of that many small files."""
    left, number = megabytes * 1_000_000, 0
    while left > 0 and (not count or number < count):
        for path in files():
            size = path.stat().st_size
            if left <= 0 or (count and number >= count):
                break
            if count and size > 20_000:
                continue
            folder = to / f"d{number // 40}"
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / f"{number}-{path.name[:60]}")
            left -= size
            number += 1
    return to


def sif(root: Path, to: Path, compressor: str) -> Path:
    """A SIF by the real Apptainer, with the metadata that inspect reads."""
    subprocess.run(
        ["apptainer", "build", "--fakeroot", "-F", "--mksquashfs-args", f"-comp {compressor}", to, root],
        check=True, capture_output=True, env={**os.environ, "TMPDIR": str(to.parent)},
    )  # fmt: skip
    return to


def inspect(image: Path) -> None:
    subprocess.run(["apptainer", "inspect", image], check=True, capture_output=True)


def mount_part(corpus: dict[str, list[Path]], copies: int, work: Path) -> None:
    images = []
    for group in corpus.values():
        for image in group:
            for number in range(copies):
                copy = work / f"{image.stem}-{number}.sif"
                shutil.copyfile(image, copy)
                images.append(copy)
    total = sum(i.stat().st_size for i in images)
    print(f"\nmount: {len(images)} SIFs, {total / 1e9:.1f} GB, file by file")
    ours = timed(lambda: [check_file(i, Level.MOUNT, arch="amd64") for i in images])
    peer = timed(lambda: [inspect(i) for i in images], 1)
    row("mount, all", ours, peer, "apptainer inspect", "(aim: 100x)")
    for image in images:
        image.unlink()


def tables_part(work: Path, inodes: int) -> None:
    root = content(work / "inodes", 1_000_000, inodes)
    print(f"\ntables: one image of {sum(1 for _ in root.rglob('*')):,} inodes")
    for compressor in COMPRESSORS:
        image = sif(root, work / f"inodes-{compressor}.sif", compressor)
        works = partial(check_file, image, Level.TABLES), partial(inspect, image)
        ours, peer = together(*works, rounds=25)
        for what in ("wall", "processor"):
            times = getattr(ours, what), getattr(peer, what)
            row(f"tables, {compressor}, {what}", *times, "one apptainer inspect", "(aim: 1x)")
    shutil.rmtree(root)


def data_part(corpus: dict[str, list[Path]], tmpfs: Path) -> None:
    print(f"\ndata: every block, {processors()} processors; unsquashfs extracts to a tmpfs")
    for compressor, images in corpus.items():
        image = images[-1]
        data = timed(partial(check_file, image, Level.DATA))
        name = f"data, {compressor}, {image.stat().st_size / 1e6:.0f} MB"
        aim = "(aim: 1x)" if compressor == "xz" else "(aim: 2x)"
        row(name, data, timed(partial(unsquash, image, tmpfs / "out")), "unsquashfs", aim)
        # Of xz the hash is a fiftieth: to see it, many rounds are needed, and so a smaller image.
        image = images[-3] if compressor == "xz" and len(images) > 2 else image
        works = (
            partial(check_file, image, Level.DATA),
            partial(check_file, image, Level.DATA, hashing=True),
            partial(sha256, image),
        )
        apart, both, alone = together(*works, rounds=25)
        name = f"data and hash, {compressor}, {image.stat().st_size / 1e6:.0f} MB"
        for what in ("wall", "processor"):
            ours, peer = getattr(both, what), getattr(apart, what) + getattr(alone, what)
            row(f"{name}, {what}", ours, peer, "data + sha256, one by one", "(aim: 1x)")


def unsquash(image: Path, out: Path) -> None:
    with FileSource(image) as source:
        primary = read_container(source).primary
    assert primary is not None
    command = ["unsquashfs", "-q", "-n", "-p", str(processors()), "-o", str(primary.offset), "-d", out, image]
    subprocess.run(command, check=False, capture_output=True)
    shutil.rmtree(out)


def sha256(image: Path) -> None:
    with image.open("rb") as file:
        hashlib.file_digest(file, "sha256")


def many_part(work: Path, count: int) -> None:
    folder = work / "many"
    folder.mkdir()
    data = (work / "small.sif").read_bytes()
    for number in range(count):
        below = folder / f"images_b{number // 9000:02d}"
        below.mkdir(exist_ok=True)
        (below / f"{number:05}.sif").write_bytes(data)
    command = [sys.executable, "-m", "poolmgr", "verify", "-q", folder]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    seconds = timed(lambda: subprocess.run(command, check=True, env=env))
    print(f"\nmany: poolmgr verify on {count:,} small SIFs: {seconds:.1f} s (aim: 10 s)")
    shutil.rmtree(folder)


MEMORY = (
    "import resource, sys; from pathlib import Path; from poolmgr.sif.check import check_file;"
    "from poolmgr.model.finding import Level;"
    "r = check_file(Path(sys.argv[1]), Level.DATA, allow_legacy=True, hashing=True);"
    "print(r.verdict.value, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000)"
)


def memory_part(work: Path, megabytes: int) -> None:
    root = work / "memory"
    root.mkdir()
    noise = os.urandom(1 << 20)
    with (root / "big").open("wb") as file:
        for number in range(megabytes):
            file.write(number.to_bytes(8, "little") + noise[8:])
    image = work / "memory.sqfs"
    subprocess.run(
        ["mksquashfs", root, image, "-noappend", "-no-progress", "-quiet", "-comp", "lz4", "-no-duplicates"],
        check=True, capture_output=True,
    )  # fmt: skip
    shutil.rmtree(root)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, image], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    verdict, peak = done.stdout.split()
    size = image.stat().st_size / 1e9
    print(f"\nmemory: data and hash of {size:.1f} GB: peak {peak} MB, verdict {verdict} (aim: 150 MB)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--skip", action="append", choices=PARTS, default=[])
    options = parser.parse_args()
    quick = options.quick
    parts = [p for p in PARTS if p not in options.skip]
    with (
        tempfile.TemporaryDirectory(prefix="bench-verify-") as name,
        tempfile.TemporaryDirectory(prefix="bench-verify-", dir="/dev/shm") as shm,
    ):
        work = Path(name)
        (work / "one").mkdir()
        (work / "one/file").write_text("x")
        sif(work / "one", work / "small.sif", "gzip")
        sizes = (2, 12) if quick else (2, 12, 50, 120, 250)
        corpus: dict[str, list[Path]] = {c: [] for c in COMPRESSORS}
        if "mount" in parts or "data" in parts:
            for size in sizes:
                root = content(work / f"root{size}", size)
                for compressor in COMPRESSORS:
                    corpus[compressor].append(sif(root, work / f"{compressor}-{size}.sif", compressor))
                shutil.rmtree(root)
        if "mount" in parts:
            mount_part(corpus, 3 if quick else 10, work)
        if "tables" in parts:
            tables_part(work, 3_000 if quick else 24_000)
        if "data" in parts:
            data_part(corpus, Path(shm))
        if "many" in parts:
            many_part(work, 1_000 if quick else 16_203)
        if "memory" in parts:
            memory_part(work, 200 if quick else 3_500)


if __name__ == "__main__":
    main()
