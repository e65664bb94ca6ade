"""What a trainer pays for ``Pool.resolve`` on a mirror of 7,015 tasks: import, open, answer.

python benchmarks/bench_resolve.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from poolmgr.ops.fetch import Fetch, Request
from poolmgr.ops.view import open_folder
from poolmgr.sif.write import minimal_image

TASKS, BLOBS, ROUNDS = 7015, 6968, 7

TRAINER = """
import time, sys
start = time.perf_counter()
from poolmgr import Pool
imported = time.perf_counter()
pool = Pool.open(sys.argv[1])
pool.resolve(task="task_00000", variant="solvable")
opened = time.perf_counter()
for i in range(1000):
    pool.resolve(task=f"task_{i:05d}", variant="solvable")
print(imported - start, opened - imported, (time.perf_counter() - opened) / 1000)
"""


def make_mirror(root: Path) -> Path:
    """A folder pool of ``BLOBS`` small images, fetched into a mirror."""
    pool, mirror = root / "pool", root / "sifs"
    paths = [f"images_b{i % 4:02d}/acme__env-v3__{i:012x}.sif" for i in range(BLOBS)]
    for i, path in enumerate(paths):
        (pool / path).parent.mkdir(parents=True, exist_ok=True)
        (pool / path).write_bytes(minimal_image(f"env {i}"))
    tasks = {f"task_{i:05d}": paths[i % BLOBS] for i in range(TASKS)}
    (pool / "task_to_blob.json").write_text(json.dumps({"solvable": tasks}))
    run = Fetch(open_folder(pool), Request(mirror, ("solvable",), reserve=0))
    run.carry_out(run.plan())
    return mirror


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mirror = make_mirror(Path(folder))
        runs = []
        bare = []
        for _ in range(ROUNDS):
            done = subprocess.run(
                [sys.executable, "-c", TRAINER, str(mirror)], capture_output=True, text=True, check=True
            )
            runs.append([float(x) for x in done.stdout.split()])
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            bare.append(time.perf_counter() - start)
    imported, opened, answer = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"python -c pass            {statistics.median(bare) * 1e3:8.1f} ms")
    print(f"from poolmgr import Pool  {imported * 1e3:8.1f} ms")
    print(f"open, and first answer    {opened * 1e3:8.1f} ms   ({TASKS:,} tasks, {BLOBS:,} blobs)")
    print(f"each further answer       {answer * 1e6:8.1f} us")


if __name__ == "__main__":
    main()
