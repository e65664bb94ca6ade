"""What a running fetch counts on: said before it looks, seen by gc, and looked at again by the fetch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from poolmgr.errors import PoolChangedError
from poolmgr.ops.busy import busy, wanted
from poolmgr.ops.fetch import Fetch, Request
from poolmgr.ops.state import State
from poolmgr.ops.transfer import Mover
from tests.loopback.hub import Hub
from tests.ops.fetch_kit import IMAGES, INDEX, PATHS, fetch, files, fill, view_of


def test_it_is_there_while_the_block_runs_and_no_longer(tmp_path: Path) -> None:
    folder = State(tmp_path)
    assert not wanted(folder).paths
    with busy(folder, ["a.sif"], ["a" * 64]), busy(folder, ["b.sif"], []):
        assert wanted(folder).paths == {"a.sif", "b.sif"}
        assert wanted(folder).hashes == {"a" * 64}
    assert not wanted(folder).paths
    assert not list(folder.busy.iterdir())


def test_one_that_cannot_be_read_counts_on_everything(tmp_path: Path) -> None:
    folder = State(tmp_path)
    with busy(folder, ["a.sif"], []):
        (file,) = folder.busy.iterdir()
        file.write_text("{")
        assert wanted(folder).everything
        (folder.busy / "notes.txt").write_text("mine")
        assert wanted(folder).dead == ()


def test_a_fetch_brings_again_what_vanished_after_its_plan(hub: Hub, tmp_path: Path) -> None:
    fill(hub)
    to = tmp_path / "mirror"
    fetch(hub, to)
    run = Fetch(view_of(hub), Request(to, ("original",), reserve=0), transfer="http")
    plan = run.plan()
    (to / PATHS[0]).unlink()
    assert run.carry_out(plan).exit == 0
    assert files(to)[PATHS[0]] == IMAGES[PATHS[0]]


def test_no_lock_is_written_over_a_file_that_vanished_while_the_fetch_ran(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(hub)
    to = tmp_path / "mirror"
    fetch(hub, to, "solvable")
    before = State(to).locked()
    run = Mover.run

    def slow(self: Mover, *args: object, **how: object) -> object:
        (to / PATHS[2]).unlink(missing_ok=True)
        return run(self, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Mover, "run", slow)
    with pytest.raises(PoolChangedError):
        fetch(hub, to, "original")
    assert State(to).locked() == before


def test_a_lock_that_is_superseded_is_kept_only_where_it_names_other_blobs(hub: Hub, tmp_path: Path) -> None:
    repo = fill(hub)
    to = tmp_path / "mirror"
    fetch(hub, to)
    fetch(hub, to)
    assert State(to).former_locks() == {}
    index = {v: dict(tasks) for v, tasks in INDEX.items()}
    index["original"]["task_9"] = PATHS[4]
    repo.add({"task_to_blob.json": json.dumps(index).encode()})
    fetch(hub, to)
    assert State(to).former_locks() == {}
    index["original"]["task_1"] = PATHS[0]
    repo.add({"task_to_blob.json": json.dumps(index).encode()})
    fetch(hub, to)
    (former,) = State(to).former_locks().values()
    assert PATHS[1] in former.blobs
