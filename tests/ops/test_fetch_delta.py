"""fetch of blobs that are made of others: what their bases save, and what happens when nothing is as told."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolmgr.errors import Exit
from poolmgr.model.attestation import Attestation
from poolmgr.model.ranges import SharedRanges
from poolmgr.model.stamp import Stamp
from poolmgr.ops import bringing
from poolmgr.ops.attest import AttestWriter, load
from poolmgr.ops.derive import Derive
from poolmgr.ops.derive_facts import Request as DeriveRequest
from poolmgr.ops.fetch import Fetch, Fetched, Request
from poolmgr.ops.partials import Partials
from poolmgr.ops.shared import shared_ranges
from poolmgr.ops.state import State as Folder
from poolmgr.ops.transfer import Result
from poolmgr.ops.view import open_folder
from poolmgr.plan.item import State
from poolmgr.sif.source import BytesSource
from poolmgr.sif.write import write_sif
from poolmgr.sif.write_node import directory, file
from poolmgr.store import hub_xet
from tests.loopback.hub import Hub
from tests.ops.fetch_kit import codes, fetch, files, fill, view_of
from tests.ops.push_kit import folder_view, push, table_of
from tests.store.hub_kit import hurry

BASE, OVERLAY, REBUILT = "images/base.sif", "derived/overlay.sif", "derived/rebuilt.sif"
INDEX = {"original": {"t": BASE}, "hardened": {"t": OVERLAY}, "rebuilt": {"t": REBUILT}}


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A base of some megabytes that do not compress, and what both methods of derive make of it."""
    folder = tmp_path_factory.mktemp("family")
    (folder / "pool/images").mkdir(parents=True)
    luck = random.Random(7)
    tree = {f"data/{n}": file(luck.randbytes(1_500_000)) for n in range(6)}
    tree |= {f"small/{n}": file(luck.randbytes(9_000)) for n in range(40)}
    write_sif(
        folder / "pool" / BASE, {"app/oracle": file(luck.randbytes(70_000)), "bin": directory(), **tree}
    )
    (folder / "pool/task_to_blob.json").write_text(json.dumps({"original": {"t": BASE}}))
    made = {BASE: (folder / "pool" / BASE).read_bytes()}
    steps = {OVERLAY: 'files = [{ from = "a", to = "/app/a" }]', REBUILT: 'remove = ["/app/oracle"]'}
    for path, step in steps.items():
        recipe = folder / path.rpartition("/")[2] / "recipe.toml"
        recipe.parent.mkdir()
        (recipe.parent / "a").write_text("a")
        recipe.write_text(f'schema = 1\nname = "hard"\nbase = {{ blob = "{BASE}" }}\n[[step]]\n{step}\n')
        run = Derive(open_folder(folder / "pool"), DeriveRequest(recipe, recipe.parent / "out"))
        (outcome,) = run.carry_out(run.plan()).outcomes
        made[path] = (recipe.parent / "out" / outcome.planned.name).read_bytes()
    return made


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(bringing, "BACKOFF", 0.001)


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "sifs"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def table(family: dict[str, bytes], **texts: str) -> bytes:
    """``blobs.parquet``, with true ranges except where ``texts`` (overlay, rebuilt) says others."""
    true = {p: shared_ranges(BytesSource(family[p]), BytesSource(family[BASE])) for p in (OVERLAY, REBUILT)}
    out = io.BytesIO()
    rows = {
        "path": list(family),
        "size": [len(d) for d in family.values()],
        "sha256": [sha(d) for d in family.values()],
        "base_sha256": [None, sha(family[BASE]), sha(family[BASE])],
        "shared_ranges": [
            None,
            texts.get("overlay", true[OVERLAY].text()),
            texts.get("rebuilt", true[REBUILT].text()),
        ],
    }
    pq.write_table(pa.table(rows), out)
    return out.getvalue()


def pool(hub: Hub, family: dict[str, bytes], rows: bytes | None = None, **texts: str) -> None:
    fill(hub, {**family, "blobs.parquet": table(family, **texts) if rows is None else rows}, INDEX)


def sent(hub: Hub) -> int:
    """Bytes of images that left the hub."""
    return sum(r.sent for r in hub.requests(".sif", origin="cdn"))


def one(fetched: Fetched) -> Any:
    (outcome,) = fetched.outcomes
    return outcome


# --- what is saved -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "path", "share"), [("hardened", OVERLAY, 0.01), ("rebuilt", REBUILT, 0.1)]
)
def test_with_the_base_here_only_the_rest_is_transferred(
    hub: Hub, to: Path, family: dict[str, bytes], variant: str, path: str, share: float
) -> None:
    pool(hub, family)
    fetch(hub, to)
    fetched = fetch(hub, to, variant)
    assert fetched.exit is Exit.GOOD
    assert files(to)[path] == family[path]
    outcome = one(fetched)
    assert outcome.result is Result.TRANSFERRED
    assert outcome.transferred < share * len(family[path])
    assert outcome.transferred + outcome.reused == len(family[path])
    assert (fetched.reused, fetched.plan.saved) == (outcome.reused, outcome.reused)
    assert fetched.plan.transfer == fetched.transferred
    assert Folder(to).locks()[variant].blobs[path].sha256 == sha(family[path])
    assert not list((to / ".poolmgr/partial").iterdir())


def test_a_base_that_the_same_run_fetches_comes_first(hub: Hub, to: Path, family: dict[str, bytes]) -> None:
    pool(hub, family)
    fetched = fetch(hub, to, "original", "hardened", "rebuilt")
    assert fetched.exit is Exit.GOOD
    assert files(to) == family
    assert fetched.transferred < 1.1 * len(family[BASE])


def test_without_the_base_it_comes_whole(hub: Hub, to: Path, family: dict[str, bytes]) -> None:
    pool(hub, family)
    fetched = fetch(hub, to, "hardened")
    assert (fetched.exit, fetched.transferred, fetched.reused) == (Exit.GOOD, len(family[OVERLAY]), 0)


def test_a_pool_without_the_table_is_asked_for_nothing_more(
    hub: Hub, to: Path, family: dict[str, bytes]
) -> None:
    fill(hub, family, INDEX)
    fetch(hub, to)
    hub.log.clear()
    assert fetch(hub, to, "hardened").transferred == len(family[OVERLAY])
    assert not hub.requests("blobs.parquet")


def test_the_table_is_not_read_when_nothing_is_missing(hub: Hub, to: Path, family: dict[str, bytes]) -> None:
    pool(hub, family)
    fetch(hub, to)
    hub.log.clear()
    fetch(hub, to)
    assert not hub.requests("blobs.parquet")


def test_xet_brings_whole_files_and_says_so(hub: Hub, to: Path, family: dict[str, bytes]) -> None:
    pool(hub, family)
    fetch(hub, to)
    plan = Fetch(view_of(hub), Request(to, ("hardened",), reserve=0), transfer="xet").plan()
    assert (plan.saved, plan.transfer) == (0, len(family[OVERLAY]))
    assert "--transfer xet brings whole files" in plan.notes[0]


def test_room_is_what_the_folder_grows_by(hub: Hub, to: Path, family: dict[str, bytes]) -> None:
    pool(hub, family)
    fetch(hub, to)
    plan = Fetch(view_of(hub), Request(to, ("hardened",), reserve=0)).plan()
    assert plan.room == len(family[OVERLAY])


# --- faults of the network ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"ignore_range": True, "times": None},
        {"truncate": 1000},
        {"short": 1000},
        {"status": 503, "times": 2},
        {"drop": True},
        {"flip": 17},
        {"html": True},
    ],
    ids=lambda how: next(iter(how)),
)
def test_trouble_on_the_way_ends_in_the_right_bytes(
    hub: Hub, to: Path, family: dict[str, bytes], how: dict[str, Any]
) -> None:
    pool(hub, family)
    fetch(hub, to)
    hub.fault(OVERLAY, origin="cdn", **how)
    fetched = fetch(hub, to, "hardened")
    assert fetched.exit is Exit.GOOD
    assert files(to)[OVERLAY] == family[OVERLAY]
    assert not fetched.damaged


def test_wrong_bytes_again_are_a_finding(hub: Hub, to: Path, family: dict[str, bytes]) -> None:
    pool(hub, family)
    fetch(hub, to)
    hub.fault(OVERLAY, origin="cdn", flip=17, times=None)
    fetched = fetch(hub, to, "hardened")
    assert codes(fetched) == {OVERLAY: ["wrong-hash"]}
    assert fetched.exit is Exit.BAD
    assert OVERLAY not in files(to)
    assert "hardened" not in Folder(to).locks()


def test_passing_trouble_leaves_a_partial_that_the_next_run_continues(
    hub: Hub, to: Path, family: dict[str, bytes]
) -> None:
    pool(hub, family)
    fetch(hub, to)
    fault = hub.fault(OVERLAY, origin="cdn", skip=1, times=None, status=503)
    fetched = fetch(hub, to, "hardened")
    assert fetched.exit is Exit.AGAIN
    assert fault.hit
    (part,) = (to / ".poolmgr/partial").iterdir()
    assert part.stat().st_size > 8_000_000
    assert family[OVERLAY].startswith(part.read_bytes())
    hub.faults.clear()
    again = fetch(hub, to, "hardened")
    assert again.plan.items[0].state is State.PARTIAL
    assert files(to)[OVERLAY] == family[OVERLAY]
    assert again.transferred < 100_000
    assert one(again).reused < 1_000_000


# --- bases that are not what they were ---------------------------------------------------------------


def damage(to: Path, path: str) -> None:
    """Bytes rot and the attestation still holds: its row is made anew, with the old hash."""
    held = to / path
    data = bytearray(held.read_bytes())
    data[5_000_000] ^= 1
    held.write_bytes(data)
    (old,) = load(Folder(to).attest, Folder(to).identity()).rows[path]
    with AttestWriter(Folder(to).attest) as writer:
        writer.add(
            Attestation(
                old.pool, path, Stamp.of(os.lstat(held)), old.checks, old.sha256, old.findings, old.arch,
                old.versions, old.time,
            )
        )  # fmt: skip


def test_a_base_that_rotted_is_found_out_and_certified_no_more(
    hub: Hub, to: Path, family: dict[str, bytes]
) -> None:
    pool(hub, family)
    fetch(hub, to)
    damage(to, BASE)
    fetched = fetch(hub, to, "original", "hardened")
    assert files(to)[OVERLAY] == family[OVERLAY]
    assert one(fetched).transferred > len(family[OVERLAY])
    assert fetched.damaged == (BASE,)
    assert fetched.exit is Exit.BAD
    assert fetched.locked == ("hardened",)
    assert fetched.proven == 1
    mended = fetch(hub, to, "original", "hardened", rehash=True)
    assert mended.exit is Exit.GOOD
    assert files(to)[BASE] == family[BASE]


def gone(path: Path) -> None:
    path.unlink()


def other(path: Path) -> None:
    data = bytes(path.stat().st_size)
    path.unlink()
    path.write_bytes(data)


def shorter(path: Path) -> None:
    os.truncate(path, 6_000_000)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("how", [gone, other, shorter, folder, pipe], ids=lambda how: how.__name__)
def test_a_base_that_changes_after_the_plan(
    hub: Hub, to: Path, family: dict[str, bytes], how: Callable[[Path], None]
) -> None:
    pool(hub, family)
    fetch(hub, to)
    run = Fetch(view_of(hub), Request(to, ("hardened",), reserve=0), transfer="http")
    plan = run.plan()
    assert plan.saved
    how(to / BASE)
    fetched = run.carry_out(plan)
    assert (to / OVERLAY).read_bytes() == family[OVERLAY]
    assert fetched.damaged == ((BASE,) if how is other else ())


def test_a_base_that_is_cut_while_it_is_read(
    hub: Hub, to: Path, family: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool(hub, family)
    fetch(hub, to)
    copied = bringing._copied

    def cut(*words: int) -> bytes:
        os.truncate(to / BASE, 6_000_000)
        return copied(*words)

    monkeypatch.setattr(bringing, "_copied", cut)
    fetched = fetch(hub, to, "hardened")
    assert files(to)[OVERLAY] == family[OVERLAY]
    assert fetched.damaged == (BASE,)


def test_where_the_kernel_cannot_copy(
    hub: Hub, to: Path, family: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool(hub, family)
    fetch(hub, to)

    def refuse(*words: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    fetched = fetch(hub, to, "hardened")
    assert fetched.exit is Exit.GOOD
    assert fetched.transferred < 0.01 * len(family[OVERLAY])


# --- what the pool tells ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["junk", "0+99999999999", "0+1@99999999", "5+5,0+5", "9" * 999_999, ""])
def test_ranges_that_cannot_be_cost_nothing_but_the_saving(
    hub: Hub, to: Path, family: dict[str, bytes], text: str
) -> None:
    pool(hub, family, overlay=text)
    fetch(hub, to)
    fetched = fetch(hub, to, "hardened")
    assert (fetched.exit, fetched.transferred) == (Exit.GOOD, len(family[OVERLAY]))
    assert files(to)[OVERLAY] == family[OVERLAY]
    assert bool(fetched.plan.notes) == (text not in ("", "9" * 999_999))


@pytest.mark.parametrize("text", ["0+9000000", "40000+8000000@40001", "0+300000,400000+300000@0"])
def test_ranges_that_are_wrong_never_give_wrong_bytes(
    hub: Hub, to: Path, family: dict[str, bytes], text: str
) -> None:
    pool(hub, family, overlay=text)
    fetch(hub, to)
    told: list[str] = []
    run = Fetch(view_of(hub), Request(to, ("hardened",), reserve=0), transfer="http")
    run.progress.note = told.append  # type: ignore[method-assign]
    fetched = run.carry_out(run.plan())
    assert fetched.exit is Exit.GOOD
    assert files(to)[OVERLAY] == family[OVERLAY]
    assert one(fetched).reused == 0
    assert not fetched.damaged
    assert any("what the pool says that it shares" in line for line in told)


@pytest.mark.parametrize("rows", [b"PAR1", b"<html>", b""])
def test_a_table_that_is_none_is_said(hub: Hub, to: Path, family: dict[str, bytes], rows: bytes) -> None:
    pool(hub, family, rows=rows)
    fetch(hub, to)
    fetched = fetch(hub, to, "hardened")
    assert (fetched.exit, fetched.transferred) == (Exit.GOOD, len(family[OVERLAY]))
    assert "no blob is made of its base" in fetched.plan.notes[0]


# --- company -----------------------------------------------------------------------------------------


def test_two_at_once(hub: Hub, to: Path, family: dict[str, bytes]) -> None:
    pool(hub, family)
    fetch(hub, to)
    hub.fault(OVERLAY, origin="cdn", times=None, delay=0.2)
    results: list[Fetched] = []
    threads = [threading.Thread(target=lambda: results.append(fetch(hub, to, "hardened"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [r.exit for r in results] == [Exit.GOOD] * 2
    assert files(to)[OVERLAY] == family[OVERLAY]
    assert not list((to / ".poolmgr/partial").iterdir())


def test_a_partial_with_other_bytes_costs_one_whole_fetch(
    hub: Hub, to: Path, family: dict[str, bytes]
) -> None:
    pool(hub, family)
    fetch(hub, to)
    other_run = Partials(Folder(to).partial)
    other_run.mine(sha(family[OVERLAY])).write_bytes(bytes(7_000_000))
    other_run.close()
    fetched = fetch(hub, to, "hardened")
    assert fetched.exit is Exit.GOOD
    assert files(to)[OVERLAY] == family[OVERLAY]


def test_a_full_disk_is_an_error_and_not_a_fallback(
    hub: Hub, to: Path, family: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from poolmgr.errors import NoSpaceError

    pool(hub, family)
    fetch(hub, to)

    def full(*words: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(NoSpaceError):
        fetch(hub, to, "hardened")
    assert shutil.disk_usage(to).free


# --- derive, push, fetch ------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_record", [True, False], ids=["record", "base in the pool"])
def test_derive_push_fetch_transfers_less_than_a_hundredth(
    hub: Hub, to: Path, tmp_path: Path, family: dict[str, bytes], keep_record: bool
) -> None:
    root = tmp_path / "pool"
    (root / "images").mkdir(parents=True)
    (root / BASE).write_bytes(family[BASE])
    (root / "task_to_blob.json").write_text(json.dumps({"original": {"t": BASE}}))
    recipe = tmp_path / "r/recipe.toml"
    recipe.parent.mkdir()
    (recipe.parent / "a").write_text("a")
    recipe.write_text(
        'schema = 1\nname = "hard"\nbase = { variant = "original" }\n'
        '[[step]]\nfiles = [{ from = "a", to = "/app/a" }]\n'
    )
    out = tmp_path / "out"
    run = Derive(open_folder(root), DeriveRequest(recipe, out))
    assert run.carry_out(run.plan()).exit is Exit.GOOD
    if not keep_record:
        (out / "hard.ranges.json").unlink()
    push(open_folder(root), str(out), variant="hardened")
    (made,) = (p for p in root.glob("derived/*.sif"))
    path = made.relative_to(root).as_posix()
    names = [BASE, path, "blobs.parquet"]
    index = json.loads((root / "task_to_blob.json").read_text())
    fill(hub, {n: (root / n).read_bytes() for n in names}, index)
    fetch(hub, to, "original")
    fetched = fetch(hub, to, "hardened")
    assert fetched.exit is Exit.GOOD
    assert 0 < fetched.transferred < 0.01 * made.stat().st_size
    assert (to / path).read_bytes() == made.read_bytes()


def test_a_base_that_nobody_has_leaves_the_row_without(tmp_path: Path, family: dict[str, bytes]) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new/overlay.sif").write_bytes(family[OVERLAY])
    (tmp_path / "new/t.tasks.json").write_text('{"t": "overlay.sif"}')
    (tmp_path / "new/t.ranges.json").write_text("nonsense")
    push(folder_view(tmp_path / "pool"), str(tmp_path / "new"))
    (row,) = table_of((tmp_path / "pool/blobs.parquet").read_bytes())
    assert row["base_sha256"] == sha(family[BASE])
    assert row["shared_ranges"] is None
    push_both = tmp_path / "both"
    push_both.mkdir()
    (push_both / "base.sif").write_bytes(family[BASE])
    (push_both / "overlay.sif").write_bytes(family[OVERLAY])
    (push_both / "t.tasks.json").write_text('{"t": "overlay.sif", "u": "base.sif"}')
    push(folder_view(tmp_path / "pool"), str(push_both))
    rows = {row["sha256"]: row for row in table_of((tmp_path / "pool/blobs.parquet").read_bytes())}
    text = rows[sha(family[OVERLAY])]["shared_ranges"]
    shared = SharedRanges.parse(text, len(family[OVERLAY]), len(family[BASE]))
    assert shared.size > 0.99 * len(family[BASE])


def test_auto_counts_only_whole_files_against_the_quota(
    hub: Hub, to: Path, family: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool(hub, family)
    fetch(hub, to)
    asked: list[str] = []
    monkeypatch.setattr(hub_xet, "quota_demands_xet", lambda blobs, _: asked.extend(b.path for b in blobs))
    (to / BASE).unlink()
    fetch(hub, to, "original", "hardened", transfer="auto")
    assert asked == [BASE]
    assert files(to)[OVERLAY] == family[OVERLAY]
