"""fetch: one test a promise, with the real Hub client against a loopback Hub that misbehaves."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from poolmgr.errors import (
    CredentialsError,
    DestinationError,
    Exit,
    IndexInvalidError,
    NoSpaceError,
    NotAMirrorError,
    PoolLacksBlobsError,
    PoolNotFoundError,
    UnknownTaskError,
    UnknownVariantError,
    UsageError,
)
from poolmgr.model.manifest import Manifest
from poolmgr.ops import bringing
from poolmgr.ops.fetch import Fetch, Request
from poolmgr.ops.partials import Partials
from poolmgr.ops.resolve import resolve_task
from poolmgr.ops.state import State as Folder
from poolmgr.ops.transfer import Result
from poolmgr.ops.view import PoolView, open_folder
from poolmgr.plan.item import State
from poolmgr.sif.write import minimal_image
from tests.loopback.hub import Hub
from tests.ops.fetch_kit import BAD, IMAGES, INDEX, PATHS, codes, fetch, files, fill, only, view_of
from tests.store.hub_kit import hurry

SHA = {path: hashlib.sha256(data).hexdigest() for path, data in IMAGES.items()}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(bringing, "BACKOFF", 0.001)


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "sifs"


# --- the main job --------------------------------------------------------------------------------------


def test_a_variants_blobs_arrive_and_nothing_else(hub: Hub, to: Path) -> None:
    fill(hub)
    fetched = fetch(hub, to)
    assert fetched.exit is Exit.GOOD
    assert files(to) == only(*PATHS[:4])
    assert fetched.transferred == sum(len(IMAGES[p]) for p in PATHS[:4])
    lock = Folder(to).locks()["original"]
    assert (dict(lock.tasks), lock.complete, lock.subset) == (INDEX["original"], True, False)
    assert {p: b.sha256 for p, b in lock.blobs.items()} == {p: SHA[p] for p in PATHS[:4]}
    assert not list((to / ".poolmgr/partial").iterdir())


def test_one_listing_and_no_request_a_file_but_its_transfer(hub: Hub, to: Path) -> None:
    fill(hub)
    fetch(hub, to)
    assert len(hub.requests("/tree/")) == 1
    assert len(hub.requests(".sif", origin="api")) == len(hub.requests(".sif", origin="cdn")) == 4
    assert not hub.requests(method="HEAD")


def test_a_second_run_asks_for_no_file_and_hashes_nothing(
    hub: Hub, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(hub)
    fetch(hub, to)
    hub.log.clear()
    monkeypatch.setattr(bringing.Bringer, "hash", lambda *a: pytest.fail("a proven file was hashed"))
    again = fetch(hub, to)
    assert again.exit is Exit.GOOD
    assert (again.transferred, len(again.plan.of(State.PROVEN))) == (0, 4)
    assert not hub.requests(".sif")


def test_rehash_proves_again_what_attestations_vouch_for(hub: Hub, to: Path) -> None:
    fill(hub)
    fetch(hub, to)
    again = fetch(hub, to, rehash=True)
    assert [o.result for o in again.outcomes] == [Result.KEPT] * 4


def test_several_variants_share_their_blobs_and_lose_nothing(hub: Hub, to: Path) -> None:
    fill(hub)
    fetch(hub, to, "original")
    fetched = fetch(hub, to, "solvable")
    assert [o.item.blob.path for o in fetched.outcomes] == [PATHS[4]]
    assert files(to) == IMAGES
    mirror = open_folder(to)
    assert {v: dict(t) for v, t in mirror.index.variants.items()} == INDEX
    assert json.loads((to / "task_to_blob.json").read_bytes()) == INDEX


def test_the_mirror_resolves_without_a_network(hub: Hub, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(hub)
    fetch(hub, to)
    hub.close()
    monkeypatch.setattr(socket.socket, "connect", lambda *a: pytest.fail("a connection was tried"))
    path = resolve_task(open_folder(to), "task_4", "original")
    assert path.read_bytes() == IMAGES[PATHS[0]]
    assert path.is_absolute()


def test_names_are_names_and_never_patterns(hub: Hub, to: Path) -> None:
    odd = [
        f"images/{n}.sif"
        for n in ("x[1]", "x1", "what?", "with space", "ünïcode-日本", "per%41+plus&amp=#hash")
    ]
    images = {name: minimal_image(name) for name in odd}
    fill(hub, images, {"v": {f"t{i}": name for i, name in enumerate(odd) if name != "images/x1.sif"}})
    assert fetch(hub, to, "v").exit is Exit.GOOD
    assert files(to) == {n: d for n, d in images.items() if n != "images/x1.sif"}


# --- the plan ------------------------------------------------------------------------------------------


def test_the_pools_own_gaps_stop_the_run_before_the_first_byte(hub: Hub, to: Path) -> None:
    fill(hub, only(*PATHS[:2]))
    with pytest.raises(PoolLacksBlobsError) as caught:
        fetch(hub, to)
    assert len(caught.value.details) == 2
    assert "original/task_2" in caught.value.details[0]
    assert not hub.requests(".sif")
    assert not to.exists()


def test_allow_missing_goes_on_and_still_ends_bad(hub: Hub, to: Path) -> None:
    fill(hub, only(*PATHS[:2]))
    fetched = fetch(hub, to, allow_missing=True)
    assert fetched.exit is Exit.BAD
    assert files(to) == only(*PATHS[:2])
    assert not Folder(to).locks()["original"].complete


def test_a_subset_is_a_subset_and_two_of_them_add_up(hub: Hub, to: Path) -> None:
    fill(hub)
    fetch(hub, to, tasks=("task_1",))
    assert files(to) == only(PATHS[1])
    fetch(hub, to, tasks=("task_2",))
    lock = Folder(to).locks()["original"]
    assert (set(lock.tasks), lock.total_tasks, lock.subset) == ({"task_1", "task_2"}, 5, True)
    fetch(hub, to)
    assert not Folder(to).locks()["original"].subset


@pytest.mark.parametrize("there_before", [False, True])
def test_two_subsets_that_end_in_one_moment_both_hold(
    hub: Hub, to: Path, monkeypatch: pytest.MonkeyPatch, there_before: bool
) -> None:
    fill(hub)
    if there_before:
        fetch(hub, to, tasks=("task_0",))
    real = Folder._read_lock
    meanwhile = [("task_1",)]

    def read(self: Folder, file: Path) -> Any:
        seen = real(self, file)
        if meanwhile:  # another run ends between this one's look and its write
            fetch(hub, to, tasks=meanwhile.pop())
        return seen

    monkeypatch.setattr(Folder, "_read_lock", read)
    fetch(hub, to, tasks=("task_2",))
    lock = Folder(to).locks()["original"]
    assert set(lock.tasks) == {"task_1", "task_2"} | ({"task_0"} if there_before else set())
    assert json.loads((to / "task_to_blob.json").read_bytes()) == {"original": dict(lock.tasks)}
    assert [f.name for f in (to / ".poolmgr/lock").iterdir()] == ["original.json"]


def test_unknown_names_are_refused_and_nothing_is_written(hub: Hub, to: Path) -> None:
    fill(hub)
    with pytest.raises(UnknownVariantError, match="original"):
        fetch(hub, to, "orignal")
    with pytest.raises(UnknownTaskError) as caught:
        fetch(hub, to, tasks=("task_1", "task_x", "task_y"))
    assert caught.value.details == ("task_x", "task_y")
    assert not to.exists()


def test_another_task_count_than_the_manifests_ends_bad_with_everything_fetched(hub: Hub, to: Path) -> None:
    fill(hub)
    rules = Manifest.parse('schema = 1\n[pool]\nurl = "x"\n[variants.original]\ntasks = 6\n', "m")
    fetched = fetch(hub, to, manifest=rules)
    assert fetched.exit is Exit.BAD
    assert [f.code for f in fetched.plan.findings] == ["task-count"]
    assert fetched.locked == ("original",)


def test_too_little_room_is_said_before_the_first_byte(hub: Hub, to: Path) -> None:
    fill(hub)
    with pytest.raises(NoSpaceError, match="in reserve"):
        fetch(hub, to, reserve=1 << 60)
    assert not hub.requests(".sif")


# --- bytes that go wrong -------------------------------------------------------------------------------

TROUBLE: dict[str, dict[str, Any]] = {
    "cut": {"truncate": 5000},
    "cut by a polite server": {"short": 5000},
    "stalls": {"stall": 5000},
    "flips a bit": {"flip": 5000},
    "repeats": {"repeat": 5000},
    "an HTML page with status 200": {"html": True},
    "dropped": {"drop": True},
    "busy": {"status": 503},
    "too many requests": {"status": 429, "headers": {"Retry-After": "0"}},
    "no length announced, and cut": {"chunked": True, "truncate": 5000},
}


@pytest.mark.parametrize("what", TROUBLE)
def test_passing_trouble_with_one_blob_ends_well(hub: Hub, to: Path, what: str) -> None:
    fill(hub)
    hub.fault(PATHS[1], origin="cdn", **TROUBLE[what])
    fetched = fetch(hub, to)
    assert fetched.exit is Exit.GOOD, codes(fetched)
    assert files(to) == only(*PATHS[:4])


@pytest.mark.parametrize("what", ["flips a bit", "repeats", "an HTML page with status 200"])
def test_wrong_bytes_are_fetched_once_more_then_reported_and_the_rest_goes_on(
    hub: Hub, to: Path, what: str
) -> None:
    fill(hub)
    hub.fault(PATHS[1], origin="cdn", times=None, **TROUBLE[what])
    fetched = fetch(hub, to)
    assert fetched.exit is Exit.BAD
    assert list(codes(fetched)) == [PATHS[1]]
    assert files(to) == only(PATHS[0], *PATHS[2:4])
    assert not Folder(to).locks()
    if what == "flips a bit":
        assert codes(fetched) == {PATHS[1]: ["wrong-hash"]}
        assert len(hub.requests(PATHS[1], origin="cdn")) == 2


def test_trouble_that_stays_is_exit_5_and_the_rest_goes_on(hub: Hub, to: Path) -> None:
    fill(hub)
    hub.fault(PATHS[1], origin="cdn", times=None, status=503)
    fetched = fetch(hub, to)
    assert fetched.exit is Exit.AGAIN
    assert files(to) == only(PATHS[0], *PATHS[2:4])
    hub.faults.clear()
    assert fetch(hub, to).exit is Exit.GOOD


def test_a_broken_body_is_continued_at_the_byte_reached(hub: Hub, to: Path) -> None:
    fill(hub)
    hub.fault(PATHS[1], origin="cdn", truncate=5000)
    fetched = fetch(hub, to)
    assert fetched.exit is Exit.GOOD
    assert [r.range for r in hub.requests(PATHS[1], origin="cdn")] == [None, "bytes=5000-"]
    assert fetched.transferred == sum(len(IMAGES[p]) for p in PATHS[:4])


def test_a_server_that_ignores_range_does_not_corrupt_the_file(hub: Hub, to: Path) -> None:
    fill(hub)
    hub.fault(PATHS[1], origin="cdn", truncate=5000)
    hub.fault(PATHS[1], origin="cdn", ignore_range=True, times=None)
    assert fetch(hub, to).exit is Exit.GOOD
    assert files(to)[PATHS[1]] == IMAGES[PATHS[1]]


def leave_partial(to: Path, path: str, data: bytes) -> None:
    folder = Folder(to)
    folder.partial.mkdir(parents=True)
    dead = Partials(folder.partial)
    dead.mine(SHA[path]).write_bytes(data)
    dead.close()


def test_a_partial_of_an_earlier_process_is_continued_by_range(hub: Hub, to: Path) -> None:
    fill(hub)
    leave_partial(to, PATHS[1], IMAGES[PATHS[1]][:7000])
    fetched = fetch(hub, to)
    assert fetched.exit is Exit.GOOD
    assert [r.range for r in hub.requests(PATHS[1], origin="cdn")] == ["bytes=7000-"]
    assert files(to) == only(*PATHS[:4])


def test_a_partial_with_wrong_bytes_costs_a_second_transfer_and_nothing_else(hub: Hub, to: Path) -> None:
    fill(hub)
    leave_partial(to, PATHS[1], b"\0" * 7000)
    assert fetch(hub, to).exit is Exit.GOOD
    assert files(to) == only(*PATHS[:4])


def test_a_whole_partial_needs_no_request(hub: Hub, to: Path) -> None:
    fill(hub)
    leave_partial(to, PATHS[1], IMAGES[PATHS[1]])
    assert fetch(hub, to).exit is Exit.GOOD
    assert not hub.requests(PATHS[1])


def test_right_bytes_that_are_no_image_are_quarantined_once(hub: Hub, to: Path) -> None:
    broken = IMAGES[PATHS[0]][:-4096]
    fill(hub, {**IMAGES, BAD: broken}, {"v": {"t": BAD, "u": PATHS[1]}})
    fetched = fetch(hub, to, "v")
    assert fetched.exit is Exit.BAD
    assert codes(fetched)[BAD][0] == "quarantined"
    assert files(to) == only(PATHS[1])
    held = list(Folder(to).quarantine.glob("*.sif"))
    assert [f.read_bytes() for f in held] == [broken]
    hub.log.clear()
    again = fetch(hub, to, "v")
    assert again.exit is Exit.BAD
    assert codes(again)[BAD][0] == "quarantined"
    assert not hub.requests(BAD)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_exit_4(hub: Hub, to: Path, status: int) -> None:
    fill(hub)
    hub.fault(".sif", origin="api", times=None, status=status)
    assert fetch(hub, to).exit is Exit.CREDENTIALS


def test_one_forbidden_file_does_not_stop_the_others(hub: Hub, to: Path) -> None:
    fill(hub)
    hub.fault(PATHS[1], origin="api", times=None, status=403)
    fetched = fetch(hub, to)
    assert fetched.exit is Exit.CREDENTIALS
    assert files(to) == only(PATHS[0], *PATHS[2:4])


def test_a_gated_pool_and_one_that_is_not_there(hub: Hub, to: Path) -> None:
    fill(hub, gated=True)
    with pytest.raises(CredentialsError, match="authorized list"):
        Fetch(view_of(hub, token=False), Request(to, ("original",), reserve=0)).plan()
    hub.repos.clear()
    with pytest.raises(PoolNotFoundError):
        fetch(hub, to)


def test_a_pool_that_changes_during_the_run_is_read_at_one_commit(hub: Hub, to: Path) -> None:
    repo = fill(hub)
    run = Fetch(view_of(hub), Request(to, ("original",), reserve=0), transfer="http")
    plan = run.plan()
    repo.remove(PATHS[1])
    repo.add({PATHS[0]: minimal_image("another")})
    assert run.carry_out(plan).exit is Exit.GOOD
    assert files(to) == only(*PATHS[:4])


# --- what is there already -----------------------------------------------------------------------------


def test_good_bytes_that_somebody_else_left_are_hashed_and_kept(hub: Hub, to: Path) -> None:
    fill(hub)
    for path in PATHS[:2]:
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        (to / path).write_bytes(IMAGES[path])
    inode = (to / PATHS[0]).stat().st_ino
    fetched = fetch(hub, to)
    assert fetched.exit is Exit.GOOD
    assert {r.result for r in fetched.outcomes[:2]} == {Result.KEPT}
    assert not hub.requests(PATHS[0])
    assert (to / PATHS[0]).stat().st_ino == inode


@pytest.mark.parametrize(
    "wrong", [b"", b"short", b"x" * len(IMAGES[PATHS[0]])], ids=["empty", "short", "same size"]
)
def test_a_wrong_file_is_replaced_only_when_its_successor_is_proven(hub: Hub, to: Path, wrong: bytes) -> None:
    fill(hub)
    (to / "images").mkdir(parents=True)
    (to / PATHS[0]).write_bytes(wrong)
    hub.fault(PATHS[0], origin="cdn", times=None, status=503)
    assert fetch(hub, to).exit is Exit.AGAIN
    assert (to / PATHS[0]).read_bytes() == wrong
    hub.faults.clear()
    assert fetch(hub, to).exit is Exit.GOOD
    assert files(to) == only(*PATHS[:4])


def test_a_changed_file_with_its_mtime_restored_is_noticed(hub: Hub, to: Path) -> None:
    fill(hub)
    fetch(hub, to)
    victim = to / PATHS[0]
    before = victim.stat()
    data = bytearray(victim.read_bytes())
    data[-9] ^= 1
    victim.write_bytes(data)
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    fetched = fetch(hub, to)
    assert fetched.exit is Exit.GOOD
    assert [(o.item.blob.path, o.result) for o in fetched.outcomes] == [(PATHS[0], Result.TRANSFERRED)]
    assert files(to) == only(*PATHS[:4])


def test_the_same_bytes_under_another_name_are_copied(hub: Hub, to: Path) -> None:
    repo = fill(hub)
    fetch(hub, to)
    repo.add(
        {
            "images_b02/moved.sif": IMAGES[PATHS[0]],
            "task_to_blob.json": b'{"v": {"t": "images_b02/moved.sif"}}',
        }
    )
    hub.log.clear()
    fetched = fetch(hub, to, "v")
    assert [o.result for o in fetched.outcomes] == [Result.COPIED]
    assert not hub.requests("moved.sif")


def test_a_copied_mirror_is_hashed_again(hub: Hub, to: Path, tmp_path: Path) -> None:
    fill(hub)
    fetch(hub, to)
    shutil.copytree(to, tmp_path / "copy", copy_function=shutil.copy2)
    fetched = fetch(hub, tmp_path / "copy")
    assert [o.result for o in fetched.outcomes] == [Result.KEPT] * 4
    assert fetched.transferred == 0


# --- the destination -----------------------------------------------------------------------------------


def test_somebody_elses_pool_is_refused_and_adopted_on_request(hub: Hub, to: Path) -> None:
    fill(hub)
    (to / "images").mkdir(parents=True)
    (to / PATHS[0]).write_bytes(IMAGES[PATHS[0]])
    (to / "task_to_blob.json").write_text('{"theirs": {"t": "images/x.sif"}}')
    with pytest.raises(NotAMirrorError):
        fetch(hub, to)
    fetched = fetch(hub, to, adopt_existing=True)
    assert fetched.exit is Exit.GOOD
    assert not hub.requests(PATHS[0])
    (kept,) = (to / ".poolmgr/adopted").iterdir()
    assert "theirs" in kept.read_text()


def test_destinations_that_cannot_be_filled(hub: Hub, tmp_path: Path) -> None:
    fill(hub)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DestinationError, match="not a folder"):
        fetch(hub, tmp_path / "file")
    with pytest.raises(DestinationError, match="file is not a folder"):
        fetch(hub, tmp_path / "file" / "below" / "it")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(DestinationError, match="leads nowhere"):
        fetch(hub, tmp_path / "dangling")
    (tmp_path / "linked").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked/images").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DestinationError, match="symbolic link"):
        fetch(hub, tmp_path / "linked")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_pool_itself_is_no_destination(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / PATHS[0]).write_bytes(IMAGES[PATHS[0]])
    (tmp_path / "task_to_blob.json").write_text(json.dumps({"v": {"t": PATHS[0]}}))
    with pytest.raises(UsageError, match="itself"):
        Fetch(open_folder(tmp_path), Request(tmp_path, ("v",))).plan()


def test_another_fetchs_unfinished_blob_is_waited_for(
    hub: Hub, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live run's partial defers the blob; when that run falls silent it is fetched here."""
    monkeypatch.setattr("poolmgr.ops.fetch.QUIET_HOLDER", 0.3)
    fill(hub)
    folder = Folder(to)
    folder.partial.mkdir(parents=True)
    other = Partials(folder.partial)
    other.mine(SHA[PATHS[1]]).write_bytes(IMAGES[PATHS[1]][:100])
    try:
        assert fetch(hub, to).exit is Exit.GOOD
    finally:
        other.close()
    assert files(to) == only(*PATHS[:4])
    assert other.mine(SHA[PATHS[1]]).read_bytes() == IMAGES[PATHS[1]][:100]


def test_what_another_run_brought_since_the_plan_is_not_fetched_again(hub: Hub, to: Path) -> None:
    fill(hub)
    run = Fetch(view_of(hub), Request(to, ("original",), reserve=0), transfer="http")
    plan = run.plan()
    fetch(hub, to)
    hub.log.clear()
    late = run.carry_out(plan)
    assert [o.result for o in late.outcomes] == [Result.KEPT] * 4
    assert late.exit is Exit.GOOD
    assert not hub.requests(".sif")


# --- pools whose listing shows no sha256 ---------------------------------------------------------------


def folder_pool(root: Path, **columns: Any) -> PoolView:
    """``PATHS[0]`` for one task in a folder, with these columns of ``blobs.parquet``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (root / PATHS[0]).parent.mkdir(parents=True)
    (root / PATHS[0]).write_bytes(IMAGES[PATHS[0]])
    (root / "task_to_blob.json").write_text(json.dumps({"v": {"t": PATHS[0]}}))
    table = pa.table({"path": [PATHS[0]], "size": [len(IMAGES[PATHS[0]])], **columns})
    pq.write_table(table, root / "blobs.parquet")
    return open_folder(root)


def test_a_folders_recorded_sha256_is_what_its_blobs_are_proven_by(tmp_path: Path, to: Path) -> None:
    good = Fetch(folder_pool(tmp_path / "good", sha256=[SHA[PATHS[0]]]), Request(to, ("v",), reserve=0))
    fetched = good.carry_out(good.plan())
    assert (fetched.exit, fetched.plan.items[0].blob.sha256) == (Exit.GOOD, SHA[PATHS[0]])
    bad = Fetch(folder_pool(tmp_path / "bad", sha256=["ab" * 32]), Request(tmp_path / "x", ("v",), reserve=0))
    assert codes(bad.carry_out(bad.plan())) == {PATHS[0]: ["wrong-hash"]}


def test_a_table_that_cannot_be_trusted_stops_a_folders_fetch(tmp_path: Path, to: Path) -> None:
    run = Fetch(folder_pool(tmp_path / "pool", sha256=["short"]), Request(to, ("v",), reserve=0))
    with pytest.raises(IndexInvalidError):
        run.plan()
