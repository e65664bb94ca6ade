"""``poolmgr demo`` runs every command it shows, and fails when one does not end as announced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from poolmgr.cli import demo as module
from poolmgr.cli.main import call
from poolmgr.errors import Exit
from poolmgr.ops.demo import Scene
from tests.conftest import RunPoolmgr


def test_the_demo_shows_each_command_and_what_it_refuses(poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    done = poolmgr("demo", "--keep", tmp_path / "kept")
    assert done.returncode == 0, done.stdout + done.stderr
    commands = [line for line in done.stdout.splitlines() if line.startswith("$ ")]
    verbs = [line.split()[2] if line.startswith("$ poolmgr") else line.split()[1] for line in commands]
    assert verbs == ["status", "fetch", "audit", "resolve", "truncate", "audit", "resolve", "fetch", "audit"]
    damaged = next(line for line in commands if "truncate" in line).split()[-1].removeprefix("sifs/")
    after = done.stdout.partition("$ truncate")[2]
    refusals = [part for part in after.split("$ poolmgr") if "(exit status 3" in part]
    assert len(refusals) == 2
    assert all(damaged in part for part in refusals)
    assert (tmp_path / "kept/sifs" / damaged).is_file()
    again = poolmgr("demo", "--keep", tmp_path / "kept")
    assert again.returncode == 1
    assert "error[already-exists]" in again.stderr


def test_the_demo_as_a_document(poolmgr: RunPoolmgr) -> None:
    done = poolmgr("demo", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"] == "ok"
    assert [s["exit"] for s in told["scenes"]] == [s["expected"] for s in told["scenes"]]
    assert [s["exit"] for s in told["scenes"]].count(3) == 2


@pytest.mark.parametrize(
    "scene",
    [
        Scene("a wrong status", ("poolmgr", "status", "-p", "pool"), Exit.BAD),
        Scene("a name that is not said", ("poolmgr", "status", "-p", "pool"), names=("no such name",)),
    ],
)
def test_a_command_that_ends_otherwise_fails_the_demo(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "scenes", lambda pool: (scene,))
    assert call(["demo"]) == 1
    assert "error[demo-failed]" in capsys.readouterr().err
