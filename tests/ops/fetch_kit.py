"""What the tests of fetch share: a pool of real images on the loopback Hub, and one way to fetch it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from poolmgr.model.manifest import Manifest
from poolmgr.ops.fetch import Fetch, Fetched, Request
from poolmgr.ops.view import PoolView
from poolmgr.sif.write import minimal_image
from poolmgr.store.hub import HubStore
from tests.loopback.hub import TOKEN, Hub
from tests.loopback.repos import Repo

NAME = "acme/pool"
ADDRESS = "hf://datasets/acme/pool"
IMAGES = {
    f"{folder}/acme__env-v3__{i:012x}.sif": minimal_image(f"env {i}", bytes([i]) * 3000)
    for i, folder in enumerate(["images", "images", "images_b00", "images_b01", "derived"])
}
PATHS = list(IMAGES)
INDEX = {
    "original": {f"task_{i}": path for i, path in enumerate(PATHS[:4])} | {"task_4": PATHS[0]},
    "solvable": {"task_0": PATHS[4], "task_2": PATHS[2]},
}
BAD = "images/bad.sif"


def fill(
    hub: Hub, images: dict[str, bytes] | None = None, index: dict[str, Any] | None = None, **how: bool
) -> Repo:
    files = {
        "task_to_blob.json": json.dumps(index or INDEX).encode(),
        **(IMAGES if images is None else images),
    }
    return hub.add_repo("datasets", NAME, files, **how)


def view_of(hub: Hub, manifest: Manifest | None = None, token: str | bool = TOKEN) -> PoolView:
    store = HubStore(NAME, endpoint=hub.url, token=token)
    return PoolView(ADDRESS, store, manifest or Manifest())


def fetch(
    hub: Hub, to: Path, *variants: str, manifest: Manifest | None = None, transfer: str = "http", **how: Any
) -> Fetched:
    """Plan and carry out a fetch of ``variants`` (default: ``original``)."""
    how.setdefault("reserve", 0)
    run = Fetch(view_of(hub, manifest), Request(to, variants or ("original",), **how), transfer=transfer)
    return run.carry_out(run.plan())


def files(to: Path) -> dict[str, bytes]:
    """Every file of a mirror that is not poolmgr's own."""
    return {
        path.relative_to(to).as_posix(): path.read_bytes()
        for path in sorted(to.rglob("*"))
        if path.is_file() and ".poolmgr" not in path.parts and path.name != "task_to_blob.json"
    }


def only(*paths: str) -> dict[str, bytes]:
    return {path: IMAGES[path] for path in paths}


def codes(fetched: Fetched) -> dict[str, list[str]]:
    """Path -> finding codes of what is not proven."""
    return {o.item.blob.path: [f.code for f in o.findings] for o in fetched.bad}
