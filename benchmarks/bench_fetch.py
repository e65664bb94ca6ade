"""``poolmgr fetch`` against what people run today: planning, a cold fetch, a second one, large files, memory.

A pool like the real one (16,203 small blobs, 6,968 of them wanted, an index of 35,181 assignments)
on a loopback hub in a process of its own; each contender in a process of its own, in turns, in one
run. ``--scale 0.1`` makes a tenth of it (the ratios that grow with the pool shrink with it).
Run as ``python -m benchmarks.bench_fetch``; prints times, the ratio, and the ratio aimed at.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.loopback import ADDRESS, REPO, ROOT, make_pool, serving

BLOBS, WANTED = 16_203, 6_968
LARGE_FILES, LARGE_SIZE = 40, 64 << 20

COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
"""Compiled modules are kept, as they are of what pip installs, whatever this shell forbids."""


@dataclass(frozen=True)
class Took:
    wall: float
    cpu: float
    memory: int
    """Peak resident bytes."""


def timed(command: list[str], env: dict[str, str], home: Path) -> Took:
    """One contender in a process of its own, which must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, **env, "HF_HOME": str(home), "PYTHONPATH": str(ROOT), **COMPILED},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            assert process.stderr is not None
            raise SystemExit(f"{command[:3]}: exit {process.returncode}\n{process.stderr.read()[-3000:]}")
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(wall, cpu, usage.ru_maxrss * 1024)


class Bench:
    def __init__(self, work: Path, env: dict[str, str], runs: int) -> None:
        self.work, self.env, self.runs = work, env, runs

    def poolmgr(self, variant: str, to: Path) -> Took:
        command = [
            "-m",
            "poolmgr",
            "fetch",
            variant,
            "--to",
            str(to),
            "-p",
            ADDRESS,
            "-q",
            "--transfer",
            "http",
        ]
        return timed(command, self.env, self.work / "home")

    def peer(self, name: str, wanted: list[str], to: Path) -> Took:
        names = self.work / "names.json"
        names.write_text(json.dumps(wanted))
        return timed(
            ["-m", "benchmarks.peers", name, REPO, str(names), str(to)], self.env, self.work / "home"
        )

    def compare(
        self, title: str, target: str, peer: Callable[[Path], Took], ours: Callable[[Path], Took]
    ) -> None:
        """Both in turns, each into a new folder; the medians of ``runs`` after one warm-up of each."""
        theirs_, ours_ = [], []
        for run in range(self.runs + 1):
            for contender, times in ((peer, theirs_), (ours, ours_)):
                to = self.work / "to"
                took = contender(to)
                shutil.rmtree(to)
                if run or self.runs == 1:
                    times.append(took.wall)
        line(title, statistics.median(theirs_), statistics.median(ours_), target)


def line(title: str, theirs: float, ours: float, target: str) -> None:
    print(f"{title:58} {theirs:9.3f} s {ours:9.3f} s {theirs / ours:9.2f}   {target}", flush=True)


def planning(root: Path) -> None:
    """CPU of the plan alone, the listing in hand, against the client's pattern filter."""
    from huggingface_hub.utils import filter_repo_objects

    from poolmgr.model.blob import Blob, Listing
    from poolmgr.model.index import Index
    from poolmgr.plan.item import Local
    from poolmgr.plan.transfer import plan_fetch

    data = (root / "datasets" / REPO / "task_to_blob.json").read_bytes()
    index = Index.parse(data, "index")
    tasks = index.variant("wanted")
    paths = [str(p.relative_to(root / "datasets" / REPO)) for p in (root / "datasets" / REPO).rglob("*.sif")]
    listing = Listing(ADDRESS, "0" * 40, {p: Blob(p, 1, "0" * 64) for p in paths})
    ours = []
    for _ in range(5):
        began = time.process_time()
        absent = dict.fromkeys(tasks.values(), Local())
        plan = plan_fetch({"wanted": tasks}, {"wanted": len(tasks)}, listing, absent, {"wanted": None})
        ours.append(time.process_time() - began)
    assert len(plan.items) == len(set(tasks.values()))
    began = time.process_time()
    assert len(list(filter_repo_objects(paths, allow_patterns=list(tasks.values())))) == len(plan.items)
    theirs = time.process_time() - began
    line("planning, CPU (filter_repo_objects)", theirs, statistics.median(ours), ">= 300")


def second_fetch(bench: Bench, wanted: list[str]) -> None:
    """Everything is there already."""
    mirror, snapshot = bench.work / "mirror", bench.work / "snapshot"
    bench.poolmgr("wanted", mirror)
    bench.peer("snapshot", wanted, snapshot)
    ours = statistics.median(bench.poolmgr("wanted", mirror).wall for _ in range(3))
    line(
        "second fetch, all present (snapshot_download)",
        bench.peer("snapshot", wanted, snapshot).wall,
        ours,
        ">= 15",
    )
    shutil.rmtree(mirror)
    shutil.rmtree(snapshot)


def small_things(bench: Bench) -> None:
    """Memory of a plan, and the start of the command line."""
    to = bench.work / "to"
    command = ["-m", "poolmgr", "fetch", "wanted", "--to", str(to), "-p", ADDRESS, "-n", "-q"]
    plan = timed(command, bench.env, bench.work / "home")
    print(f"peak memory of a plan over the whole pool: {plan.memory / 1e6:.0f} MB   < 250")
    starts: dict[str, list[float]] = {"click": [], "help": []}
    for _ in range(11):
        starts["click"].append(timed(["-c", "import click"], {}, bench.work / "home").wall)
        starts["help"].append(timed(["-m", "poolmgr", "--help"], {}, bench.work / "home").wall)
    click, help_ = (statistics.median(times) for times in starts.values())
    print(f"poolmgr --help takes {help_ / click:.2f} times as long as python -c 'import click'   <= 1.5")


def large_files(bench: Bench, root: Path, count: int) -> None:
    """A few large blobs: the bytes themselves."""
    shutil.rmtree(root)
    index = make_pool(root, blobs=count, wanted=count, payload=os.urandom(LARGE_SIZE))
    wanted = list(index.values())
    with serving(root) as env:
        large = Bench(bench.work, env, bench.runs)
        large.compare(
            f"cold fetch of {count} blobs of 64 MB (snapshot_download)", ">= 0.91",
            lambda to: large.peer("snapshot", wanted, to), lambda to: large.poolmgr("wanted", to),
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=["planning", "cold", "second", "large", "small"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as temporary:
        work, root = Path(temporary), Path(temporary) / "root"
        count = max(1, int(WANTED * options.scale))
        wanted = list(make_pool(root, blobs=int(BLOBS * options.scale), wanted=count).values())
        print(f"{len(wanted):,} wanted of {int(BLOBS * options.scale):,} blobs, {os.cpu_count()} cores")
        print(f"{'':58} {'peer':>11} {'poolmgr':>11} {'ratio':>9}   target")

        def asked(name: str) -> bool:
            return options.only in (None, name)

        with serving(root) as env:
            bench = Bench(work, env, options.runs)
            if asked("planning"):
                planning(root)
            if asked("cold"):
                bench.compare(
                    "cold fetch (8 threads of hf_hub_download)", ">= 2",
                    lambda to: bench.peer("loop", wanted, to), lambda to: bench.poolmgr("wanted", to),
                )  # fmt: skip
            if asked("second"):
                second_fetch(bench, wanted)
            if asked("small"):
                small_things(bench)
        if asked("large"):
            large_files(bench, root, max(1, int(LARGE_FILES * options.scale)))


if __name__ == "__main__":
    main()
