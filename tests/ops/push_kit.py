"""What the tests of push share: files to push, pools to push to, and one way to do it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poolmgr.model.index import Index
from poolmgr.model.manifest import Manifest
from poolmgr.ops.push import Push, Pushed, Request
from poolmgr.ops.view import PoolView, open_folder
from poolmgr.plan.push import PushPlan
from poolmgr.sif.write import minimal_image
from poolmgr.store.local import LocalStore


def image(number: int, version: str = "") -> bytes:
    return minimal_image(f"env {number} {version}", bytes([number]) * 3000)


def name_of(number: int) -> str:
    return f"acme__env__{number:012x}.sif"


def make_files(folder: Path, *numbers: int, version: str = "") -> list[str]:
    """Images of these numbers in ``folder``; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (folder / name_of(number)).write_bytes(image(number, version))
    return [str(folder / name_of(n)) for n in numbers]


def write_map(folder: Path, tasks: Mapping[str, str], name: str = "first.tasks.json") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(tasks))
    return str(folder / name)


def batch(folder: Path, *numbers: int, version: str = "") -> str:
    """A folder as ``derive`` leaves one: images and a map of ``task_N`` to each."""
    make_files(folder, *numbers, version=version)
    write_map(folder, {f"task_{n}": name_of(n) for n in numbers})
    return str(folder)


def run_of(view: PoolView, *paths: str, variant: str = "v", tasks: str | None = None, **how: Any) -> Push:
    return Push(view, Request(variant, paths, tasks, **how))


def push(view: PoolView, *paths: str, variant: str = "v", tasks: str | None = None, **how: Any) -> Pushed:
    """Everything that the command does."""
    run = run_of(view, *paths, variant=variant, tasks=tasks, **how)
    run.ready()
    return run.carry_out(run.plan())


def planned(
    view: PoolView, *paths: str, variant: str = "v", tasks: str | None = None, **how: Any
) -> PushPlan:
    return run_of(view, *paths, variant=variant, tasks=tasks, **how).plan()


def folder_view(root: Path, manifest: str | None = None) -> PoolView:
    root.mkdir(exist_ok=True)
    view = open_folder(root)
    if manifest is not None:
        view.manifest = Manifest.parse(manifest, "test")
    return view


def index_of(root: Path) -> dict[str, dict[str, str]]:
    file = root / "task_to_blob.json"
    return {v: dict(t) for v, t in Index.parse(file.read_bytes(), str(file)).variants.items()}


def table_of(data: bytes) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).to_pylist()
    return rows


def blobs_of(root: Path) -> dict[str, bytes]:
    return {p: (root / p).read_bytes() for p in LocalStore(root).list().blobs if p.endswith(".sif")}


def state_of(root: Path) -> object:
    """What the pool holds, apart from when each blob was added."""
    rows = table_of((root / "blobs.parquet").read_bytes())
    return blobs_of(root), index_of(root), [{**row, "added_at": None} for row in rows]


def whole(root: Path) -> None:
    """What a reader may rely on at any moment: every blob that the index names is there, and complete."""
    if not (root / "task_to_blob.json").exists():
        return
    sizes = {row["path"]: row["size"] for row in table_of((root / "blobs.parquet").read_bytes())}
    for tasks in index_of(root).values():
        for path in tasks.values():
            assert (root / path).stat().st_size == sizes[path], path
