"""Planning a push of 14,488 files: from hashes and names to places, beside what a plain script does.

    python -m benchmarks.bench_push

The peer is the least that any script has to do, and knows of no collision, batch or hash that is
there already: sort the names, cut them into directories of 9,000, write the index as JSON. The
ratio says what the checks of the plan cost; the five that are added later show that nothing moves.
"""

from __future__ import annotations

import gc
import hashlib
import json
import statistics
import time
from collections.abc import Callable

from poolmgr.model.blob import Blob
from poolmgr.plan.push import Candidate, Held, PushPlan, Wish, apply, plan_push

FILES = 14_488
RUNS = 5


def candidates(count: int, prefix: str = "acme__env-v3__") -> list[Candidate]:
    result = []
    for n in range(count):
        digest = hashlib.sha256(f"{prefix}{n}".encode()).hexdigest()
        name = f"{prefix}{digest[:12]}.sif"
        result.append(Candidate(f"new/{name}", name, 150_000_000, digest, digest[::-1], derived=n % 9 == 0))
    return result


def wish(files: list[Candidate]) -> Wish:
    return Wish("original", {f"task_{n:06}": c.key for n, c in enumerate(files)})


def after(held: Held, plan: PushPlan) -> Held:
    blobs = {f.path: Blob(f.path, f.candidate.size, f.candidate.sha256) for f in plan.added}
    trees = {f.path: f.candidate.tree_sha256 for f in plan.added if f.candidate.tree_sha256}
    entries = dict(held.entries) | {d: count for d, (_, count) in plan.directories.items()}
    return Held(
        apply(held.variants, plan.variant, plan.changes),
        {**held.blobs, **blobs},
        {**held.trees, **trees},
        entries,
    )


def peer(files: list[Candidate]) -> str:
    index = {}
    for n, c in enumerate(sorted(files, key=lambda c: c.name)):
        index[f"task_{n:06}"] = f"images_{n // 9000}/{c.name}"
    return json.dumps({"original": index}, indent=1)


def median(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(RUNS):
        gc.collect()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    files = candidates(FILES)
    empty = Held({}, {}, {}, {"": 0})
    first = plan_push(files, empty, wish(files))
    full = after(empty, first)
    more = [*files, *candidates(5, "acme__later__")]
    second = plan_push(more, full, wish(more))
    shuffled = plan_push(reversed(files), empty, wish(files))
    assert shuffled == first, "the order of the files must decide nothing"
    assert len(second.added) == len(second.changes) == 5, "placed blobs must stay where they are"
    base = median(lambda: peer(files))
    rows = [
        ("sort, cut, write JSON (no checks)", base),
        (f"plan {FILES:,} files into an empty pool", median(lambda: plan_push(files, empty, wish(files)))),
        ("plan them again, all there", median(lambda: plan_push(files, full, wish(files)))),
        ("plan them and 5 more", median(lambda: plan_push(more, full, wish(more)))),
    ]
    print(f"{'work':<40} {'seconds':>9} {'ratio':>7}")
    for what, seconds in rows:
        print(f"{what:<40} {seconds:>9.3f} {seconds / base:>6.1f}x")


if __name__ == "__main__":
    main()
