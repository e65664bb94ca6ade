"""``poolmgr pull`` as its users see it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, RunPoolmgr
from tests.images import need
from tests.loopback.registry import Registry


@pytest.fixture(autouse=True)
def _apptainer() -> None:
    need("apptainer")


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_list_from_plan_to_files_and_again(registry: Registry, poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    one, two = registry.add("acme/env:1"), registry.add("acme/env:2")
    missing = f"{registry.host}/acme/env:nope"
    (tmp_path / "list.tsv").write_text(f"docker://{one}\tone.sif\n{two}\ttwo.sif\n{missing}\tno.sif\n\n")
    common = ["pull", "--list", "list.tsv", "--to", "out", "--no-https", registry.host]
    plan = poolmgr(*common, "-n")
    assert plan.returncode == 3, plan.stderr
    assert "2 to pull, 0 there, 0 in the pool, 1 cannot be pulled" in plan.stdout
    assert "failed (no-such-image): 1" in plan.stdout
    assert not (tmp_path / "out").exists()
    done = poolmgr(*common, "--json")
    assert done.returncode == 3, done.stderr
    *images, summary = rows(done.stdout)
    assert [(row["file"], row["result"], row.get("code")) for row in images] == [
        ("one.sif", "pulled", None), ("two.sif", "pulled", None), ("no.sif", "failed", "no-such-image"),
    ]  # fmt: skip
    assert images[0]["source_digest"] == registry.digest("acme/env:1")
    assert images[0]["references"] == [f"docker://{one}"]
    assert summary["causes"] == {"no-such-image": 1}
    assert summary["verdict"] == "bad"
    again = poolmgr(*common)
    assert "0 pulled, 2 kept, 1 failed" in again.stdout
    quiet = poolmgr("pull", one, "--to", "out2", "--no-https", registry.host, "-q")
    assert quiet.returncode == 0
    assert Path(tmp_path, quiet.stdout.strip()).is_file()
    assert quiet.stderr == ""


def test_a_dataset_into_a_pool_and_what_the_pool_has_is_left(
    registry: Registry, poolmgr: RunPoolmgr, tmp_path: Path
) -> None:
    one, two = registry.add("acme/env:1"), registry.add("acme/env:2")
    data = [
        {"task_id": "t1", "env_config": {"image": one}},
        {"task_id": "t2", "env_config": json.dumps({"image": one})},
        {"task_id": "t3", "env_config": {"image": two}},
        {"task_id": "t4", "env_config": {}},
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    (tmp_path / "pool.toml").write_text(
        f'schema = 1\n[pool]\nurl = "{tmp_path}/pool"\n[naming]\nrule = "apptainer"\n'
    )
    common = ["--dataset", "data.jsonl", "--no-https", registry.host]
    done = poolmgr("pull", *common, "--manifest", "pool.toml", "--to", "new")
    assert done.returncode == 3, "the task without an image is told"
    assert "2 pulled, 0 kept, 1 failed" in done.stdout
    assert "env_1.sif" in done.stdout
    table = rows((tmp_path / "new/pull.tasks.jsonl").read_text())
    assert [(row["task"], row["file"]) for row in table] == [
        ("t1", "env_1.sif"), ("t2", "env_1.sif"), ("t3", "env_2.sif"),
    ]  # fmt: skip
    (tmp_path / "pool/images").mkdir(parents=True)
    (tmp_path / "new/env_1.sif").rename(tmp_path / "pool/images/env_1.sif")
    (tmp_path / "pool/task_to_blob.json").write_text(json.dumps({"v": {"t1": "images/env_1.sif"}}))
    more = poolmgr("pull", *common, "-p", "pool.toml", "--to", "more")
    assert "1 pulled, 0 kept, 1 in the pool, 1 failed" in more.stdout, more.stderr
    table = rows((tmp_path / "more/pull.tasks.jsonl").read_text())
    assert [row["file"] for row in table] == ["images/env_1.sif", "images/env_1.sif", "env_2.sif"]


def test_the_files_and_the_map_go_into_push_as_they_are(
    registry: Registry, poolmgr: RunPoolmgr, tmp_path: Path
) -> None:
    data = {"task_id": "t1", "env_config": {"image": registry.add("acme/env:1")}}
    (tmp_path / "data.jsonl").write_text(json.dumps(data) + "\n")
    assert (
        poolmgr("pull", "--dataset", "data.jsonl", "--to", "new", "--no-https", registry.host).returncode == 0
    )
    (tmp_path / "pool").mkdir()
    files = sorted(str(path) for path in (tmp_path / "new").glob("*.sif"))
    done = poolmgr("push", *files, "-p", "pool", "--variant", "original", "--tasks", "new/pull.tasks.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    index = json.loads((tmp_path / "pool/task_to_blob.json").read_text())
    assert list(index["original"]) == ["t1"]
    back = poolmgr("pull", "--check", "-p", "pool", "--no-https", registry.host)
    assert back.returncode == 0, back.stdout + back.stderr
    assert "1 same, 0 differ, 0 not compared" in back.stdout


def test_shards_are_disjoint_and_complete(registry: Registry, poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    references = [f"{registry.host}/acme/none:{n}" for n in range(9)]
    named: list[str] = []
    for shard in range(3):
        done = poolmgr(
            "pull", *references, "--to", "out", "-n", "--json", "--no-https", registry.host,
            "--shard", f"{shard}/3",
        )  # fmt: skip
        *images, summary = rows(done.stdout)
        named += [str(row["file"]) for row in images]
        assert summary["other_shards"] == 9 - len(images)
    assert len(named) == len(set(named)) == 9


def test_shards_of_a_check_are_disjoint_and_complete(
    registry: Registry, poolmgr: RunPoolmgr, tmp_path: Path
) -> None:
    references = [registry.add(f"acme/env:{n}") for n in (1, 2, 3)]
    data = [{"task_id": f"t{n}", "env_config": {"image": image}} for n, image in enumerate(references)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    common = ["--no-https", registry.host]
    poolmgr("pull", "--dataset", "data.jsonl", "--to", "new", *common)
    files = sorted((tmp_path / "new").glob("*.sif"))
    (tmp_path / "pool").mkdir()
    poolmgr("push", *files, "-p", "pool", "--variant", "v", "--tasks", "new/pull.tasks.jsonl")
    for words in (files, ["-p", "pool"], ["-p", "pool", *references], ["-p", "pool", references[0]]):
        number = 1 if words[-1] == references[0] else 3
        named: list[str] = []
        for shard in range(3):
            done = poolmgr("pull", "--check", *words, *common, "--shard", f"{shard}/3", "-n", "--json")
            assert done.returncode == 0, done.stderr
            *images, summary = rows(done.stdout)
            named += [str(row["file"]) for row in images]
            assert summary["other_shards"] == number - len(images)
        assert len(named) == len(set(named)) == number
    real = poolmgr("pull", "--check", "-p", "pool", *common, "--shard", "1/9999999")
    assert real.returncode == 0, real.stderr
    assert "0 same, 0 differ, 0 not compared; 3 are for other shards" in real.stdout


def test_check_says_what_moved(registry: Registry, poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    reference = registry.add("acme/cli:1", {"app/a": "1"})
    poolmgr("pull", reference, "--to", "out", "--no-https", registry.host)
    (file,) = (tmp_path / "out").glob("*.sif")
    same = poolmgr("pull", "--check", file, "--no-https", registry.host)
    assert same.returncode == 0, same.stderr
    assert "1 same, 0 differ, 0 not compared" in same.stdout
    registry.add("acme/cli:1", {"app/a": "2"})
    plan = poolmgr("pull", "--check", file, "--no-https", registry.host, "-n")
    assert "moved" in plan.stdout
    moved = poolmgr("pull", "--check", file, "--no-https", registry.host, "--json")
    assert moved.returncode == 3
    image, summary = rows(moved.stdout)
    assert image["code"] == "tree-differs"
    assert image["moved"] is True
    assert image["details"] == ["~ app/a"]
    assert summary["differ"] == 1


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["acme/env:1"], 2, "no folder was named"),
        (["--to", "out"], 3, "no image was named"),
        (["--check", "--to", "out", "x"], 2, "--to does not go with it"),
        (["--to", "out", "--list", "nothing.tsv"], 1, "nothing.tsv"),
        (["--to", "out", "--dataset", "nothing"], 1, "nothing"),
        (["--to", "out", "acme/Env:1"], 3, "'Env'"),
        (["--to", "out", "/pool/a.sif"], 3, "path of a file"),
        (["--to", "out", "--", "--evil"], 3, "no image reference"),
        (["--to", "out", "a" * 3000], 3, "3000 characters"),
        (["--to", "out", "x", "--shard", "9/3"], 2, "--shard"),
        (["--to", "/dev/null/x", "127.0.0.1:9/a/b"], 1, "/dev/null"),
    ],
)
def test_bad_words(poolmgr: RunPoolmgr, tmp_path: Path, words: list[str], status: int, said: str) -> None:
    done = poolmgr("pull", *words)
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_at_once(
    registry: Registry, poolmgr: RunPoolmgr, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file")
    done = poolmgr("pull", registry.add("acme/env:1"), "--to", "out", "--no-https", registry.host)
    assert done.returncode == 2
    assert "out" in done.stderr


def test_without_apptainer_it_says_what_to_install(
    registry: Registry, poolmgr: RunPoolmgr, tmp_path: Path
) -> None:
    env = {"PATH": str(tmp_path)}
    done = poolmgr("pull", registry.add("acme/env:1"), "--to", "out", "--no-https", registry.host, env=env)
    assert done.returncode == 1
    assert "neither apptainer nor singularity" in done.stderr


def test_two_commands_at_once_and_a_killed_one(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    registry.fault(contains="/blobs/", delay=1.5, times=1, method="GET")
    command = [
        sys.executable,
        "-m",
        "poolmgr",
        "pull",
        reference,
        "--to",
        "out",
        "--no-https",
        registry.host,
        "--json",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    killed = start()
    while not registry.asked("GET", "/blobs/"):
        time.sleep(0.05)
    others = [start(), start()]
    time.sleep(1)
    killed.kill()
    killed.communicate()
    results = []
    for other in others:
        out, err = other.communicate(timeout=60)
        assert other.returncode == 0, err
        results.append(rows(out)[0]["result"])
    assert sorted(map(str, results)) == ["kept", "pulled"]
    assert len(list((tmp_path / "out").glob("*.sif"))) == 1
