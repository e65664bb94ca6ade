"""Datasets on the Hub: archives read by ranges through the real client, against the loopback Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from poolmgr.errors import DatasetInvalidError, PoolError
from poolmgr.ops.environments import count
from tests.conftest import RunPoolmgr
from tests.harbor.trees import tar_of, write_parquet, write_task
from tests.loopback.hub import TOKEN, Hub


@pytest.fixture
def env(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return env


@pytest.fixture
def trove(hub: Hub, tmp_path: Path, env: dict[str, str]) -> None:
    files = {"README.md": b"# trove\n"}
    for name, place in (("one", "one/tasks.parquet"), ("two", "two/data/train-00000.parquet")):
        folder = write_task(tmp_path / name, {"Dockerfile": f"FROM {name}\n", "big": "x" * 200_000})
        rows: list[tuple[str | None, bytes | None]] = [("a", tar_of(folder)), ("b", tar_of(folder))]
        files[place] = write_parquet(tmp_path / f"{name}.parquet", rows).read_bytes()
    hub.add_repo("datasets", "acme/trove", files)


def test_sub_datasets_of_a_repository(trove: None) -> None:
    counts = count(["hf://datasets/acme/trove"])
    assert [(c.name, c.tasks, c.environments) for c in counts] == [
        ("acme/trove/one", 2, 1),
        ("acme/trove/two", 2, 1),
    ]


def test_one_folder_at_one_revision(trove: None, hub: Hub) -> None:
    (found,) = count(["hf://datasets/acme/trove@main/two"])
    assert (found.name, found.tasks) == ("acme/trove@main/two", 2)
    assert not hub.requests("one/tasks.parquet"), "only what was asked for is read"


def test_the_command_reads_ranges(trove: None, hub: Hub, env: dict[str, str], poolmgr: RunPoolmgr) -> None:
    done = poolmgr("env", "count", "hf://datasets/acme/trove", "-j", 2, env=env)
    assert done.returncode == 0, done.stderr
    assert "together" in done.stdout
    reads = [r for r in hub.requests(origin="cdn") if r.method == "GET"]
    assert reads
    assert all(r.range for r in reads)


def test_what_is_not_there_is_an_error(hub: Hub, env: dict[str, str]) -> None:
    hub.add_repo("datasets", "acme/folders", {"t/task.toml": b"", "t/environment/Dockerfile": b"FROM a\n"})
    with pytest.raises(DatasetInvalidError, match="only task folders"):
        count(["hf://datasets/acme/folders"])
    with pytest.raises(PoolError):
        count(["hf://datasets/acme/nowhere"])
    with pytest.raises(PoolError):
        count(["hf://datasets/acme"])
