"""Counting environments: the real Harbor and poolmgr on the same datasets, wall clock, in one run.

    python benchmarks/bench_count.py [--tasks N] [--rounds N] [--large N]

Needs Harbor (scripts/install_harbor.sh). Harbor's side is its task discovery and its hash, and for the
archive the usual extraction to disk before that. Both sides start a new process each time.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.corpus import DOCKERFILE, TASK_TOML, write_folder, write_swegym  # noqa: E402

HARBOR = ROOT / ".harbor" / "bin" / "python"

ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
"""Both sides find their modules compiled, as an installed package is."""

HARBOR_COUNT = """
import asyncio, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from harbor.models.job.config import DatasetConfig
from harbor.environments.definition import environment_content_hash
from harbor.models.task.paths import TaskPaths
tasks = asyncio.run(DatasetConfig(path=Path(sys.argv[1])).get_task_configs(disable_verification=True))
print(len({environment_content_hash(TaskPaths(t.path).environment_dir) for t in tasks}))
"""

EXTRACT = """
import io, sys, tarfile
from pathlib import Path
import pyarrow.parquet as pq
for batch in pq.ParquetFile(sys.argv[1]).iter_batches(256):
    for path, data in zip(batch.column("path"), batch.column("task_binary")):
        folder = Path(sys.argv[2]) / path.as_py()
        folder.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(data.as_py()), mode="r:*") as tar:
            for member in tar.getmembers():
                place = folder / member.name
                if member.isdir():
                    place.mkdir(parents=True, exist_ok=True)
                elif member.isfile():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(tar.extractfile(member).read())
"""


def run(*args: str | Path) -> str:
    done = subprocess.run(
        [str(a) for a in args], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 3):
        sys.exit(done.stderr)
    return done.stdout


def poolmgr(*args: str | Path) -> str:
    return run(sys.executable, "-m", "poolmgr", "env", *args)


def median(rounds: int, work: Callable[[], object]) -> float:
    """Seconds, the median of ``rounds`` after one run that warms the caches."""
    times = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def write_archive(folder: Path, archive: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names, cells = [], []
    for task in sorted(folder.iterdir()):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as tar:
            for child in sorted(task.iterdir()):
                tar.add(child, arcname=child.name)
        names.append(task.name)
        cells.append(out.getvalue())
    pq.write_table(pa.table({"path": names, "task_binary": pa.array(cells, pa.binary())}), archive)


def write_large(archive: Path, tasks: int) -> None:
    """An archive of small tasks, every environment another."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("path", pa.string()), ("task_binary", pa.binary())])
    with pq.ParquetWriter(archive, schema) as writer:
        for begin in range(0, tasks, 1000):
            rows: dict[str, list[object]] = {"path": [], "task_binary": []}
            for i in range(begin, min(begin + 1000, tasks)):
                out = io.BytesIO()
                with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                    for name, text in (
                        ("task.toml", TASK_TOML.format(i=i)),
                        ("instruction.md", "Do it.\n"),
                        ("environment/Dockerfile", DOCKERFILE.format(repo=i % 40, commit=f"{i:040x}")),
                    ):
                        info = tarfile.TarInfo(name)
                        info.size = len(text)
                        tar.addfile(info, io.BytesIO(text.encode()))
                rows["path"].append(f"task-{i:07d}")
                rows["task_binary"].append(gzip.compress(out.getvalue(), 1))
            writer.write_table(pa.table(rows, schema=schema))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=3566)
    parser.add_argument("--files", type=int, default=15767, help="files in all the environments")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--large", type=int, default=0, help="also the memory for an archive of so many tasks"
    )
    options = parser.parse_args()
    if not HARBOR.exists():
        sys.exit("the real Harbor is not here: run scripts/install_harbor.sh")
    with tempfile.TemporaryDirectory() as place:
        compare(Path(place), options)
        if options.large:
            write_large(Path(place) / "large.parquet", options.large)
            large(Path(place) / "large.parquet", options.large)


def large(archive: Path, tasks: int) -> None:
    """Time and peak memory of one process that counts the archive."""
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "poolmgr", "env", "count", str(archive), "-j", "1"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begin
    print(f"{tasks:,} tasks in an archive: {seconds:.1f} s, {usage.ru_maxrss / 1024:.0f} MB at most")


def compare(place: Path, options: argparse.Namespace) -> None:
    folder, archive = place / "folder", place / "archive.parquet"
    write_folder(folder, options.tasks, options.files)
    write_archive(folder, archive)
    expected = run(HARBOR, "-c", HARBOR_COUNT, folder).strip()
    found = len(poolmgr("count", folder, "-q").split())
    assert str(found) == expected, f"Harbor counts {expected}, poolmgr {found}"
    print(f"{options.tasks:,} tasks, {options.files:,} environment files, {found:,} environments")
    extracted = iter(range(1000))

    def extract_and_count() -> None:
        target = place / f"extracted-{next(extracted)}"
        run(sys.executable, "-c", EXTRACT, archive, target)
        run(HARBOR, "-c", HARBOR_COUNT, target)

    rows = [
        (
            "a folder",
            median(options.rounds, lambda: run(HARBOR, "-c", HARBOR_COUNT, folder)),
            median(options.rounds, lambda: poolmgr("count", folder, "-q")),
        ),
        (
            "an archive",
            median(options.rounds, extract_and_count),
            median(options.rounds, lambda: poolmgr("count", archive, "-q")),
        ),
    ]
    print(f"{'':12}{'Harbor':>10}{'poolmgr':>10}{'ratio':>8}")
    for name, theirs, ours in rows:
        print(f"{name:12}{theirs:9.2f}s{ours:9.2f}s{theirs / ours:7.1f}x")
    swegym = place / "swegym"
    write_swegym(swegym, 1000)
    print(f"explain 1,000 tasks: {median(1, lambda: poolmgr('explain', swegym)):.1f} s")


if __name__ == "__main__":
    main()
