"""Datasets on the Hub: archives read by ranges through the real client, against the loopback Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from poolmgr.errors import DatasetInvalidError, PoolError
from poolmgr.model.environment import Scheme
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


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, as a repository holds them."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Task folders with all that counts for a hash: hidden names, odd names, a verifier's own environment."""
    root = tmp_path / "set"
    for n in range(12):
        same = {
            "Dockerfile": f"FROM a:{n % 3}\nCOPY . /\n",
            ".dockerignore": "x\n",
            ".hidden/f": "1",
            "big": "x" * 9000,
        }
        write_task(
            root / f"t{n:02d}", same, files={"tests/data.parquet": "no archive", "solution/solve.sh": "true"}
        )
    separate = '[verifier]\nenvironment_mode = "separate"\n'
    write_task(root / "separate", toml=separate, files={"tests/Dockerfile": "FROM v\n"})
    write_task(root / "odd", {"Dockerfile": "FROM a\n", "a\\b": "x", "é": "y"})
    write_task(root / "bad", toml="= 1")
    (root / "notes").mkdir()
    (root / "notes" / "readme.md").write_text("x")
    return root


def facts(address: str) -> list[tuple[object, ...]]:
    (c,) = count([address], frozenset(Scheme))
    tasks = sorted((t, r, h) for h, g in c.groups.items() for _, t, r in g.tasks)
    return [
        tasks,
        c.reasons,
        {s: sorted(h) for s, h in c.others.items()},
        [(t, f.code) for _, t, f in c.findings],
    ]


def test_task_folders_count_as_a_download_of_them_does(folders: Path, hub: Hub, env: dict[str, str]) -> None:
    hub.add_repo("datasets", "acme/folders", files_of(folders))
    assert facts("hf://datasets/acme/folders") == facts(str(folders))
    read = {
        r.target.rpartition("/resolve/")[2].partition("/")[2]
        for r in hub.requests()
        if "/resolve/" in r.target
    }
    assert not any("solution" in p or "instruction" in p or "t00/tests" in p for p in read), (
        "only what counts"
    )
    assert len([p for p in read if p.endswith("environment/big")]) == 1, "equal files are read once"
    listings = [r for r in hub.requests() if "/tree/" in r.target]
    assert len({r.target for r in listings}) == 1, "one pinned commit"


def test_one_task_and_a_folder_of_sub_datasets(folders: Path, hub: Hub, env: dict[str, str]) -> None:
    files = {f"{sub}/{p}": d for sub in ("one", "two") for p, d in files_of(folders / "t00").items()}
    nested = {f"sets/{p.partition('/')[0]}/t/{p.partition('/')[2]}": d for p, d in files.items()}
    archive = write_parquet(folders / "x.parquet", [("a", tar_of(folders / "t00"))]).read_bytes()
    hub.add_repo("datasets", "acme/nested", {**nested, "packed/tasks.parquet": archive})
    assert [(c.name, c.tasks) for c in count(["hf://datasets/acme/nested"])] == [
        ("acme/nested/sets/one", 1), ("acme/nested/sets/two", 1), ("acme/nested/packed", 1)
    ]  # fmt: skip
    (one,) = count(["hf://datasets/acme/nested/sets/one/t"])
    assert (one.tasks, one.environments) == (1, 1)


def test_explain_show_and_query_read_them_too(
    folders: Path, hub: Hub, env: dict[str, str], poolmgr: RunPoolmgr
) -> None:
    hub.add_repo("datasets", "acme/folders", files_of(folders))
    address = "hf://datasets/acme/folders"
    done = poolmgr("env", "explain", address, env=env)
    assert done.returncode == 3, done.stderr  # the bad task
    assert "FROM" in done.stdout
    assert "FROM a:1" in poolmgr("env", "show", "t01", address, "--dockerfile", env=env).stdout
    sql = "SELECT count(*) FROM tasks WHERE is_task"
    assert "14" in poolmgr("query", sql, "-d", address, "--format", "csv", env=env).stdout


def test_bytes_that_the_commit_does_not_record_are_never_counted(
    folders: Path, hub: Hub, env: dict[str, str], poolmgr: RunPoolmgr
) -> None:
    hub.add_repo("datasets", "acme/folders", files_of(folders))
    hub.fault("/environment/Dockerfile", html=True, times=None)
    done = poolmgr("env", "count", "hf://datasets/acme/folders", env=env)
    assert done.returncode == 3, done.stderr
    assert "bad-transfer" in done.stderr
    assert done.stdout == "", "no count of a part"


def test_too_many_files_to_read_one_by_one(
    folders: Path, hub: Hub, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_repo("datasets", "acme/folders", files_of(folders))
    monkeypatch.setattr("poolmgr.ops.hub_tasks.MAX_FILES", 10)
    with pytest.raises(DatasetInvalidError, match="one by one"):
        count(["hf://datasets/acme/folders"])


def test_what_is_not_there_is_an_error(hub: Hub, env: dict[str, str]) -> None:
    hub.add_repo("datasets", "acme/nothing", {"README.md": b"x"})
    with pytest.raises(DatasetInvalidError, match="no task folder"):
        count(["hf://datasets/acme/nothing"])
    with pytest.raises(PoolError):
        count(["hf://datasets/acme/nowhere"])
    with pytest.raises(PoolError):
        count(["hf://datasets/acme"])
