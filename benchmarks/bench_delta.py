"""A derived image with its base in the mirror: bytes and time of fetching it, against fetching it whole.

    PYTHONPATH=. python benchmarks/bench_delta.py [--megabytes 100] [--repeat 3]

A base of incompressible files, an overlay that adds a file and a rebuild that removes one, derived,
pushed and served by a loopback hub in a process of its own. A loopback is the worst case for the
time: over a real line the bytes decide. Also what finding the shared ranges costs, against one
sha256 of the file, and what a table of 16,203 rows adds to a plan.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.loopback import ADDRESS, REPO, serving
from poolmgr.ops.derive import Derive
from poolmgr.ops.derive_facts import Request as DeriveRequest
from poolmgr.ops.push import Push
from poolmgr.ops.push import Request as PushRequest
from poolmgr.ops.shared import shared_ranges
from poolmgr.ops.view import open_folder
from poolmgr.sif.identity import file_sha256
from poolmgr.sif.source import FileSource
from poolmgr.sif.write import write_sif
from poolmgr.sif.write_node import file
from poolmgr.store.blobs_table import read_relatives
from poolmgr.store.local import LocalStore

STEPS = {
    "overlay": '[[step]]\nfiles = [{ from = "a", to = "/app/a" }]\n',
    "rebuild": '[[step]]\nremove = ["/app/oracle"]\n',
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-delta-", dir=os.environ.get("BENCH_DIR")) as name:
        run(Path(name), options.megabytes, options.repeat)
    return 0


def run(folder: Path, megabytes: int, repeat: int) -> None:
    pool = folder / "root/datasets" / REPO
    make_pool(pool, folder, megabytes)
    base = pool / "images/base.sif"
    print(f"base: {base.stat().st_size / 2**20:.0f} MiB; {os.cpu_count()} cores")
    print(
        f"{'':10} {'bytes':>12} {'of whole':>9} {'seconds':>8} {'whole':>8} {'ratio':>7} {'find/sha256':>12}"
    )
    with serving(folder / "root") as env:
        os.environ.update(env)
        for kind in STEPS:
            to = folder / "mirror"
            fetch(to, "original")
            kept = {p.name for p in to.rglob("*.sif")}
            delta, moved = measure(lambda _, kind=kind, to=to, kept=kept: again(to, kind, kept), repeat)
            whole, size = measure(lambda n, kind=kind: fetch(folder / f"whole-{kind}-{n}", kind), repeat)
            (made,) = pool.glob(f"derived/base--{kind}-*.sif")
            print(
                f"{kind:10} {moved:12,} {100 * moved / size:8.3f}% {delta:8.2f} {whole:8.2f} "
                f"{whole / delta:6.1f}x {finding(made, base):12.1f}"
            )
            shutil.rmtree(to)
    table_cost(folder)


def make_pool(pool: Path, folder: Path, megabytes: int) -> None:
    (pool / "images").mkdir(parents=True)
    luck = random.Random(5)
    tree = {f"data/{n}": file(luck.randbytes(1 << 20)) for n in range(megabytes)}
    tree |= {f"small/{n}": file(luck.randbytes(5_000)) for n in range(400)}
    write_sif(pool / "images/base.sif", {**tree, "app/oracle": file(luck.randbytes(60_000))})
    (pool / "task_to_blob.json").write_text(json.dumps({"original": {"t": "images/base.sif"}}))
    for kind, steps in STEPS.items():
        recipe = folder / kind / "recipe.toml"
        recipe.parent.mkdir()
        (recipe.parent / "a").write_text("a")
        recipe.write_text(f'schema = 1\nname = "{kind}"\nbase = {{ variant = "original" }}\n{steps}')
        derive = Derive(open_folder(pool), DeriveRequest(recipe, folder / kind / "out"))
        if derive.carry_out(derive.plan()).exit:
            raise SystemExit(f"{kind}: derive failed")
        push = Push(open_folder(pool), PushRequest(kind, (str(folder / kind / "out"),)))
        push.carry_out(push.plan())
    shutil.rmtree(pool / ".poolmgr", ignore_errors=True)


def fetch(to: Path, variant: str) -> int:
    """Bytes that came from the hub."""
    said = subprocess.run(
        [sys.executable, "-m", "poolmgr", "fetch", variant, "-p", ADDRESS, "--to", to, "--json"],
        capture_output=True,
        check=True,
    ).stdout
    return int(json.loads(said.splitlines()[-1])["transferred_bytes"])


def again(to: Path, variant: str, kept: set[str]) -> int:
    for path in to.rglob("*.sif"):
        if path.name not in kept:
            path.unlink()
    return fetch(to, variant)


def measure(work: Callable[[int], int], repeat: int) -> tuple[float, int]:
    """(median seconds, bytes), after a warm-up."""
    work(-1)
    times = []
    moved = 0
    for n in range(repeat):
        start = time.perf_counter()
        moved = work(n)
        times.append(time.perf_counter() - start)
    return statistics.median(times), moved


def finding(made: Path, base: Path) -> float:
    """Time of finding what is shared, in times of one sha256 of the file."""
    with FileSource(made) as target, FileSource(base) as source:
        file_sha256(target)
        start = time.perf_counter()
        file_sha256(target)
        hashed = time.perf_counter() - start
        start = time.perf_counter()
        shared_ranges(target, source)
        return (time.perf_counter() - start) / hashed


def table_cost(folder: Path) -> None:
    """Reading bases and ranges of 1,713 wanted blobs out of a table of 16,203 rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 16_203
    paths = [f"images/task_{n:06}.sif" for n in range(rows)]
    derived = [n % 9 == 0 for n in range(rows)]
    sink = io.BytesIO()
    columns = {
        "path": paths,
        "size": list(range(rows)),
        "sha256": [f"{n:064x}" for n in range(rows)],
        "base_sha256": [f"{n + 1:064x}" if d else None for n, d in enumerate(derived)],
        "shared_ranges": [f"6000+{10**8 + n}" if d else None for n, d in enumerate(derived)],
    }
    pq.write_table(pa.table(columns), sink, compression="zstd")
    place = folder / "table"
    place.mkdir()
    (place / "blobs.parquet").write_bytes(sink.getvalue())
    wanted = set(paths[:15_417])
    store = LocalStore(place)
    read_relatives(store, wanted)
    start = time.perf_counter()
    found = read_relatives(store, wanted)
    print(
        f"a table of {rows:,} rows ({len(sink.getvalue()):,} bytes) read for {len(found):,} derived blobs: "
        f"{time.perf_counter() - start:.3f} s"
    )


if __name__ == "__main__":
    raise SystemExit(main())
