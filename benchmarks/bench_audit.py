"""audit against what pool owners do by hand: ``apptainer inspect`` on every image, one after another.

    PYTHONPATH=. python benchmarks/bench_audit.py [IMAGES] [WANTED]

One pool of small SIFs (default 16,203, of which the variant needs 6,968), made here. ``inspect`` is
timed on 40 images and scaled; every other row is timed on all of its images, median of three.
"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from poolmgr.ops.audit import Request, audit
from poolmgr.ops.view import open_folder
from poolmgr.sif.apptainer import Apptainer
from poolmgr.sif.write import minimal_image

SAMPLE = 40
BATCHES = ("images", "images_b00", "images_b01", "derived")


def make(root: Path, images: int, wanted: int) -> None:
    paths = [f"{BATCHES[i * len(BATCHES) // images]}/acme__env__{i:012x}.sif" for i in range(images)]
    for directory in BATCHES:
        (root / directory).mkdir()
    data = minimal_image("small")
    for path in paths:
        (root / path).write_bytes(data)
    index = {"all": {f"task_{i}": p for i, p in enumerate(paths)}}
    index["wanted"] = {f"task_{i}": p for i, p in enumerate(paths[:wanted])}
    (root / "task_to_blob.json").write_text(json.dumps(index))


def run(root: Path, variant: str, **wish: object) -> None:
    result = audit(open_folder(root), Request((variant,), inspect="off", **wish), lambda _: [])  # type: ignore[arg-type]
    assert result.passed, result.images


def timed(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    took = []
    for _ in range(3):
        before()
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def main() -> None:
    images, wanted = (int(a) for a in (*sys.argv[1:], "16203", "6968")[:2])
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root, images, wanted)
        apptainer = Apptainer.find()
        peer = None
        if apptainer is not None:
            sample = sorted((root / BATCHES[0]).iterdir())[:SAMPLE]
            peer = timed(lambda: [apptainer.inspect(f) for f in sample]) / SAMPLE * wanted

        def forget() -> None:
            shutil.rmtree(root / ".poolmgr", ignore_errors=True)

        rows = [
            (f"mount on {images:,} that nothing vouches for", timed(lambda: run(root, "all"), forget)),
            (f"mount on {wanted:,} that nothing vouches for", timed(lambda: run(root, "wanted"), forget)),
            (f"audit of {wanted:,} attested", timed(lambda: run(root, "wanted"))),
        ]
        if peer is not None:
            print(f"{'apptainer inspect of ' + f'{wanted:,}':48} {peer:8.2f} s")
        for name, took in rows:
            ratio = f"{peer / took:6.0f} times faster" if peer is not None and f"{wanted:,}" in name else ""
            print(f"{name:48} {took:8.2f} s  {ratio}")
        print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
