"""What it costs to start: ``poolmgr --help`` and ``from poolmgr import Pool``, against ``import click``.

    python benchmarks/bench_startup.py [ROUNDS]

Each row is a process of its own; rounds are interleaved, the first two are a warm-up.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

PEER = "import click"
ROWS = {
    PEER: PEER,
    "poolmgr --help": "from poolmgr.cli.main import run; run(['--help'])",
    "import poolmgr": "import poolmgr",
    "from poolmgr import Pool": "from poolmgr import Pool",
    "(python alone)": "pass",
}
WARM_UP = 2


def seconds(code: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times: dict[str, list[float]] = {name: [] for name in ROWS}
    for _ in range(rounds + WARM_UP):
        for name, code in ROWS.items():
            times[name].append(seconds(code))
    medians = {name: statistics.median(each[WARM_UP:]) for name, each in times.items()}
    print(f"{'':26}{'median':>10}{'ratio':>8}")
    for name, median in medians.items():
        print(f"{name:26}{median * 1000:>7.0f} ms{median / medians[PEER]:>8.2f}")


if __name__ == "__main__":
    main()
