"""What the tests of the Hub store share: one small pool, and a store that does not wait for long."""

from __future__ import annotations

import time
from types import SimpleNamespace

import huggingface_hub.constants
import huggingface_hub.utils._http
import pytest

from poolmgr.store import hub_client, hub_http, hub_pace
from poolmgr.store.hub import HubStore
from tests.loopback.hub import TOKEN, Hub
from tests.loopback.repos import Repo

A = bytes(range(256)) * 400
B = b"second blob" * 900
FILES = {
    "task_to_blob.json": b'{"v": {"t1": "images/a.sif", "t2": "images_batch_01/b.sif"}}',
    "README.md": b"# a pool\n",
    "images/a.sif": A,
    "images_batch_01/b.sif": B,
}
POOL = "hf://datasets/acme/pool"


def hurry(patch: pytest.MonkeyPatch, *, read_timeout: float = 0.5) -> None:
    """Waits and time-outs that a test can afford."""
    patch.setattr(hub_pace, "BACKOFF", 0.01)
    patch.setattr(hub_http, "READ_TIMEOUT", read_timeout)
    patch.setattr(hub_client, "READ_TIMEOUT", read_timeout)
    patch.setattr(hub_client, "SLOW_READ_TIMEOUT", read_timeout)
    patch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    nap = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, 0.01)))
    patch.setattr(huggingface_hub.utils._http, "time", nap)


def fill(hub: Hub, **how: bool) -> Repo:
    return hub.add_repo("datasets", "acme/pool", FILES, **how)


def store_of(
    hub: Hub, *, token: str | bool = TOKEN, revision: str | None = None
) -> tuple[HubStore, list[str]]:
    """A store, and the list to which everything it tells its user is added."""
    told: list[str] = []
    return HubStore("acme/pool", endpoint=hub.url, token=token, revision=revision, on_retry=told.append), told
