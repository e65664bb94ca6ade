"""A pool like the real one, served by the tests' loopback hub in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poolmgr.sif.write import minimal_image

ROOT = Path(__file__).resolve().parent.parent
REPO = "acme/pool"
ADDRESS = f"hf://datasets/{REPO}"
BATCH = 8000


def make_pool(root: Path, *, blobs: int, wanted: int, payload: bytes = b"") -> dict[str, str]:
    """``blobs`` blobs in batches of 8,000; variant ``wanted`` needs every so-manieth of them.

    Wanted blobs are small valid images with ``payload`` in them; the others, which nobody fetches,
    are a few bytes. Variant ``other`` takes 28,213 tasks, so that the index is as large as the
    real pool's (35,181 assignments). Returns the wanted variant's assignments.
    """
    folder = root / "datasets" / REPO
    chosen = {n * blobs // wanted for n in range(wanted)}
    index: dict[str, dict[str, str]] = {"wanted": {}, "other": {}}
    paths = []
    for number in range(blobs):
        path = f"images_batch_{number // BATCH:02}/task_{number:06}_{number * 2654435761 % 2**32:08x}.sif"
        paths.append(path)
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if number in chosen:
            file.write_bytes(minimal_image(path, payload))
            index["wanted"][f"task_{number:06}"] = path
        else:
            file.write_bytes(path.encode())
    for number in range(28_213):
        index["other"][f"other_{number:06}"] = paths[number % len(paths)]
    (folder / "task_to_blob.json").write_text(json.dumps(index))
    return index["wanted"]


@contextmanager
def serving(root: Path) -> Iterator[dict[str, str]]:
    """The environment for a client of the hub that serves ``root``."""
    command = [sys.executable, "-m", "tests.loopback.hub", str(root)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        try:
            yield {
                "HF_ENDPOINT": said["url"],
                "HF_TOKEN": said["token"],
                "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_DISABLE_TELEMETRY": "1",
                "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            }
        finally:
            process.kill()
