"""``poolmgr push`` as its user meets it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import RunPoolmgr
from tests.loopback.hub import Hub
from tests.ops.push_kit import batch, image, index_of, make_files, name_of, write_map


def test_a_dry_run_says_what_the_run_does(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    (tmp_path / "pool").mkdir()
    new = batch(tmp_path / "new", 1, 2)
    dry = poolmgr("push", new, "-p", "pool", "--variant", "v", "-n")
    assert dry.returncode == 0, dry.stderr
    assert "to be added" in dry.stdout
    assert not list((tmp_path / "pool").iterdir())
    done = poolmgr("push", new, "-p", "pool", "--variant", "v")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(dry.stdout), "the same plan, then what came of it"
    assert "pushed: 2 blobs" in done.stdout
    again = poolmgr("push", new, "-p", "pool", "--variant", "v")
    assert "nothing to do" in again.stdout
    quiet = poolmgr("push", batch(tmp_path / "new", 1, 3), "-p", "pool", "--variant", "v", "-q")
    assert quiet.stdout == f"images/{name_of(3)}\n"


def test_json_rows_and_a_summary(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    (tmp_path / "pool").mkdir()
    done = poolmgr("push", batch(tmp_path / "new", 1), "-p", "pool", "--variant", "v", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["kind"] for r in rows] == ["image", "task", "summary"]
    assert rows[0]["action"] == "add"
    assert rows[1]["new"] == f"images/{name_of(1)}"
    assert rows[2]["verdict"] == "ok"
    assert rows[2]["uploaded"] == 1


def test_refusals_are_listed_whole_and_end_3(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    (tmp_path / "pool").mkdir()
    new = batch(tmp_path / "new", *range(1, 9))
    for n in range(1, 9):
        (tmp_path / "new" / name_of(n)).write_bytes(image(n)[:5000])
    for dry in ((), ("-n",)):
        done = poolmgr("push", new, "-p", "pool", "--variant", "v", *dry)
        assert done.returncode == 3
        assert "error[push-refused]" in done.stderr
        assert all(name_of(n) in done.stderr for n in range(1, 9))
    assert not list((tmp_path / "pool").iterdir())


def test_a_small_map_beside_a_large_folder(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    (tmp_path / "pool").mkdir()
    new = batch(tmp_path / "new", *range(1, 11))
    tasks = write_map(tmp_path, {"task_1": name_of(1)})
    words = ("push", new, "-p", "pool", "--variant", "v", "--tasks", tasks, "-n")
    short = poolmgr(*words).stderr
    assert short.count("no task names it") == 5
    assert "4 more files that no task names are not pushed (--list" in short
    assert poolmgr(*words, "--list").stderr.count("no task names it") == 9
    rows = [json.loads(line) for line in poolmgr(*words, "--json").stdout.splitlines()]
    assert sum(r.get("action") == "unmapped" for r in rows) == 9, "a program is told all of them"


def test_same_tree_names_the_blob_that_the_task_gets(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    (tmp_path / "pool").mkdir()
    poolmgr("push", batch(tmp_path / "new", 1), "-p", "pool", "--variant", "v")
    data = bytearray(image(1))
    data[-2000] ^= 1  # behind the squashfs: other bytes, the same tree
    (tmp_path / "other.sif").write_bytes(data)
    tasks = write_map(tmp_path, {"task_2": "other.sif"})
    words = ("push", "other.sif", "-p", "pool", "--variant", "v", "--tasks", tasks)
    told = poolmgr(*words, "-n")
    assert "alike" in told.stdout
    assert "--same-tree maps" in told.stderr
    shared = poolmgr(*words, "--same-tree")
    assert f"other.sif: images/{name_of(1)} has its tree" in shared.stdout
    assert index_of(tmp_path / "pool")["v"]["task_2"] == f"images/{name_of(1)}"


def test_remap_says_what_it_replaces_and_asks(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    (tmp_path / "pool").mkdir()
    poolmgr("push", batch(tmp_path / "new", 1), "-p", "pool", "--variant", "v")
    make_files(tmp_path / "two", 2)
    tasks = write_map(tmp_path / "two", {"task_1": name_of(2)})
    words = ("push", tmp_path / "two", "-p", "pool", "--variant", "v", "--tasks", tasks, "--remap")
    asked = poolmgr(*words)
    assert asked.returncode == 2
    assert f"task_1: images/{name_of(1)} -> images/{name_of(2)}" in asked.stdout
    assert index_of(tmp_path / "pool")["v"]["task_1"] == f"images/{name_of(1)}"
    assert poolmgr(*words, "-y").returncode == 0
    assert index_of(tmp_path / "pool")["v"]["task_1"] == f"images/{name_of(2)}"


def test_bad_words(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    (tmp_path / "pool").mkdir()
    assert poolmgr("push", "-p", "pool").returncode == 2
    assert poolmgr("push", "-p", "pool", "--variant", "v").returncode == 2
    missing = poolmgr("push", "none.sif", "-p", "pool", "--variant", "v", "--tasks", "none.json")
    assert missing.returncode == 1
    assert "none.sif" in missing.stderr
    assert "Traceback" not in missing.stderr
    near = poolmgr("push", batch(tmp_path / "new", 1), "-p", "pool", "--variant", "solvable")
    assert near.returncode == 0
    near = poolmgr("push", tmp_path / "new", "-p", "pool", "--variant", "solvible", "-n")
    assert "it has 'solvable'" in near.stderr


def test_the_map_from_stdin(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    (tmp_path / "pool").mkdir()
    files = make_files(tmp_path / "new", 1)
    words = ("push", *files, "-p", "pool", "--variant", "v", "--tasks", "-")
    assert poolmgr(*words, stdin=f"t\t{name_of(1)}\n").returncode == 0
    assert index_of(tmp_path / "pool") == {"v": {"t": f"images/{name_of(1)}"}}


def test_a_pool_on_the_hub(hub: Hub, tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    repo = hub.add_repo("datasets", "acme/pool", {"README.md": b"# pool\n"})
    new = batch(tmp_path / "new", 1)
    words = ("push", new, "-p", "hf://datasets/acme/pool", "--variant", "v")
    env = {"HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
    hub.outsiders.add("hf_reader")
    refused = poolmgr(*words, env={**env, **hub.env("hf_reader")})
    assert refused.returncode == 4
    assert "has no right" in refused.stderr
    assert not hub.requests(method="PUT")
    done = poolmgr(*words, env={**env, **hub.env()})
    assert done.returncode == 0, done.stderr
    assert f"commit {repo.refs['main'][:12]}" in done.stdout
    proposed = poolmgr(*words[:-1], "w", "--pr", env={**env, **hub.env()})
    assert proposed.returncode == 0, proposed.stderr
    assert "pull request  http" in proposed.stdout
    assert repo.pulls[1]["status"] == "open"
