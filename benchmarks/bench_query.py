"""``query`` over a catalogue of 1,700,000 tasks, beside DuckDB alone on the same files, in one run.

    PYTHONPATH=. python benchmarks/bench_query.py [--rows N]

The difference is what the fences cost: a process of its own, sealed copies of the tables, a checked
statement, and the answer's way back. Every environment has a Dockerfile of some 400 bytes.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.corpus import DOCKERFILE
from poolmgr.catalogue.build import CatalogueWriter
from poolmgr.catalogue.schema import EXAMPLES

ROUNDS = 5
DATASETS = 40
QUESTION, SQL = EXAMPLES[0]
PEER = """
import duckdb, sys
print(duckdb.sql(sys.argv[1].replace("FROM environments", f"FROM '{sys.argv[2]}'")))
"""


def write(folder: Path, rows: int) -> None:
    with CatalogueWriter(folder) as catalogue:
        for i in range(rows):
            dataset, task = f"org/dataset-{i % DATASETS}", f"task-{i:07d}"
            environment = i * 2654435761 % (rows // (1 + i % DATASETS))
            catalogue.add(
                "tasks",
                {
                    "dataset": dataset,
                    "task": task,
                    "where_read": f"{dataset}/{task}",
                    "is_task": True,
                    "steps": 0,
                },
            )
            catalogue.add(
                "environments",
                {
                    "dataset": dataset,
                    "task": task,
                    "role": "agent",
                    "definition": "dockerfile",
                    "hash": f"{environment:064x}",
                    "snapshot": f"harbor__{environment:012x}__snapshot",
                    "dockerfile": DOCKERFILE.format(repo=i % 40, commit=f"{environment:040x}"),
                    "files": 4,
                    "size": 2000,
                },
            )


def median(command: list[str]) -> float:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    times = []
    for _ in range(ROUNDS + 1):
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=env)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_700_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "catalogue"
        begin = time.perf_counter()
        write(folder, rows)
        size = sum(f.stat().st_size for f in folder.iterdir())
        seconds = time.perf_counter() - begin
        print(f"{rows:,} tasks and environments: {size / 1e6:.0f} MB, written in {seconds:.0f} s")
        peer = median([sys.executable, "-c", PEER, SQL, str(folder / "environments.parquet")])
        ours = median([sys.executable, "-m", "poolmgr", "query", SQL, "--catalogue", str(folder)])
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"{QUESTION}: query {ours:.2f} s (aim: 2 s), {peak:.0f} MB at most")
        print(f"DuckDB alone: {peer:.2f} s, the fences cost {ours / peer:.1f}x")


if __name__ == "__main__":
    main()
