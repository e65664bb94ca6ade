"""Audit of a pool on the Hub, by the real client against the loopback Hub."""

from __future__ import annotations

import json
import random

import pytest

from poolmgr.errors import CredentialsError, UsageError
from poolmgr.model.finding import Level, Verdict
from poolmgr.model.manifest import Manifest
from poolmgr.ops import look
from poolmgr.ops.audit import Audit, Request, audit
from poolmgr.ops.view import PoolView
from poolmgr.plan.gates import GateVerdict
from poolmgr.sif.write import minimal_image
from poolmgr.store.hub import HubStore
from tests.loopback.hub import TOKEN, Hub

BIG = random.Random(1).randbytes(1_000_000)
"""Does not compress, so that an image is much larger than what a check reads."""
INDEX = {"v": {"t1": "images/a.sif", "t2": "images_b00/b.sif", "t3": "images_b00/b.sif"}}


def fill(hub: Hub, spoiled: dict[str, bytes] | None = None) -> dict[str, bytes]:
    files = {p: minimal_image(p, BIG) for p in {p for tasks in INDEX.values() for p in tasks.values()}}
    files |= spoiled or {}
    hub.add_repo("datasets", "acme/pool", {**files, "task_to_blob.json": json.dumps(INDEX).encode()})
    return files


def run(hub: Hub, rules: str = "", token: str | bool = TOKEN, **wish: object) -> Audit:
    store = HubStore("acme/pool", endpoint=hub.url, token=token)
    text = f'schema = 1\n[pool]\nurl = "hf://datasets/acme/pool"\n{rules}'
    view = PoolView(store.address, store, Manifest.parse(text, "test"))
    wish.setdefault("arch", "amd64")
    return audit(view, Request(**wish), lambda address: [])  # type: ignore[arg-type]


def test_a_remote_pool_is_listed_by_default_and_what_more_costs_is_said(hub: Hub) -> None:
    fill(hub)
    result = run(hub)
    assert result.passed
    assert result.asked.level is Level.LISTED
    assert result.commit is not None
    assert len(result.commit) == 40
    (note,) = result.notes
    assert note.startswith("validity was not looked at; --level mount would look, by about 8 range requests")
    assert not hub.requests("a.sif")


def test_mount_reads_ranges_only(hub: Hub) -> None:
    files = fill(hub)
    result = run(hub, level=Level.MOUNT)
    assert result.passed
    assert {i.verdict for i in result.images.values()} == {Verdict.OK}
    reads = [r for r in hub.requests(origin="cdn") if r.method == "GET"]
    assert reads
    assert all(r.range for r in reads)
    for path, data in files.items():
        spans = [r.range.removeprefix("bytes=").split("-") for r in reads if r.range]
        assert sum(int(b) - int(a) + 1 for a, b in spans) < 200_000 < len(data) / 4, path


def test_a_truncated_remote_blob_is_found(hub: Hub) -> None:
    fill(hub, {"images/a.sif": minimal_image("a", BIG)[:-9_000]})
    result = run(hub, level=Level.MOUNT)
    assert not result.passed
    assert result.images["images/a.sif"].verdict is Verdict.BAD
    assert [f.code for f in result.images["images/a.sif"].findings] == ["sif-truncated"]
    assert result.images["images_b00/b.sif"].verdict is Verdict.OK


def test_what_the_listing_lacks_is_missing(hub: Hub) -> None:
    files = fill(hub)
    hub.add_repo(
        "datasets", "acme/pool",
        {"images/a.sif": files["images/a.sif"], "task_to_blob.json": json.dumps(INDEX).encode()},
    )  # fmt: skip
    result = run(hub)
    assert result.variants[0].coverage.named("missing") == ("images_b00/b.sif",)
    assert result.variants[0].coverage.needed["images_b00/b.sif"] == ("t2", "t3")


def test_the_manifests_level_holds_for_remote_pools_too(hub: Hub) -> None:
    fill(hub)
    assert run(hub, '[gates]\nlevel = "header"\n').asked.level is Level.HEADER
    with pytest.raises(UsageError, match="reads images whole"):
        run(hub, level=Level.DATA)
    with pytest.raises(UsageError, match="--rehash"):
        run(hub, rehash=True)


def test_reading_that_fails_is_unchecked_and_the_server_is_not_asked_for_ever(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from poolmgr.errors import RemoteTroubleError

    fill(hub)
    asked = []

    def failing(self: object, path: str, start: int, length: int) -> bytes:
        asked.append(path)
        raise RemoteTroubleError("503 after 5 tries")

    monkeypatch.setattr(HubStore, "read_range", failing)
    monkeypatch.setattr(look, "GIVE_UP_AFTER", 1)
    result = run(hub, level=Level.MOUNT, jobs=1)
    assert not result.passed
    assert len(asked) == 1
    gate = next(g for g in result.variants[0].gates if g.name == "mount")
    assert (gate.verdict, gate.compared) == (GateVerdict.NOT_CHECKED, 0)
    assert {i.verdict for i in result.images.values()} == {Verdict.UNCHECKED}


def test_credentials_end_the_audit(hub: Hub) -> None:
    hub.add_repo("datasets", "acme/pool", {"task_to_blob.json": json.dumps(INDEX).encode()}, gated=True)
    with pytest.raises(CredentialsError):
        run(hub, token=False)
