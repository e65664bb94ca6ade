"""``poolmgr env``: what it prints, and how it exits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from poolmgr.temporary import temp_name
from tests.conftest import RunPoolmgr
from tests.harbor.trees import tar_of, write_parquet, write_task


@pytest.fixture
def swegym(tmp_path: Path) -> Path:
    """Twelve tasks, each with a Dockerfile of its own because of a commit; three repositories."""
    root = tmp_path / "swegym"
    for n in range(12):
        clone = f"git clone https://x.org/{n % 3}.git r && cd r && git checkout {n:040x}"
        write_task(root / f"task-{n:02d}", {"Dockerfile": f"FROM python:3.{9 + n % 2}\nRUN {clone}\n"})
    return root


def test_count_over_and_within_the_limit(swegym: Path, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("env", "count", swegym)
    assert done.returncode == 3
    assert "snapshots      12  over the limit of 9" in done.stdout
    assert "env explain" in done.stderr
    done = poolmgr("env", "count", swegym, "--limit", 12)
    assert done.returncode == 0
    assert "within the limit of 12" in done.stdout


def test_count_json_has_every_name(swegym: Path, poolmgr: RunPoolmgr) -> None:
    (swegym / "notes").mkdir()
    done = poolmgr("env", "count", swegym, "--json", "--scheme", "all", env={"DAYTONA_TARGET": "us"})
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert document["kind"] == "env-count"
    assert document["passed"] is False
    (dataset,) = document["datasets"]
    assert (dataset["tasks"], dataset["environments"], dataset["snapshots"]) == (12, 12, 12)
    assert dataset["by_scheme"] == {"build": 12, "dockerfile": 12, "harbor-legacy": 12}
    assert dataset["not_task_list"][0]["code"] == "no-task-toml"
    group = dataset["groups"][0]
    assert group["tasks"] == ["task-00"]
    assert group["snapshot"] == f"harbor__{group['hash'][:12]}__us__snapshot"


def test_quiet_and_by_hash(swegym: Path, poolmgr: RunPoolmgr) -> None:
    hashes = poolmgr("env", "count", swegym, "-q").stdout.split()
    assert len(set(hashes)) == 12
    assert {len(h) for h in hashes} == {64}
    done = poolmgr("env", "count", swegym, "--by", "hash", "--exact")
    assert all(h in done.stdout for h in hashes)
    assert "    task-07\n" in done.stdout


def test_one_process_and_several_count_alike(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    folder = write_task(tmp_path / "t")
    rows: list[tuple[str | None, bytes | None]] = [(f"t{n}", tar_of(folder)) for n in range(200)]
    rows[70] = ("bad", b"junk")
    rows[90] = ("t1", rows[1][1])
    archive = write_parquet(tmp_path / "a.parquet", rows)
    one, two = (poolmgr("env", "count", archive, "--json", "-j", j) for j in (1, 2))
    assert one.stdout == two.stdout
    assert one.returncode == two.returncode == 3
    assert json.loads(one.stdout)["datasets"][0]["tasks"] == 198


def test_several_datasets(swegym: Path, tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    write_task(
        tmp_path / "other" / "x", {"Dockerfile": (swegym / "task-03/environment/Dockerfile").read_text()}
    )
    done = poolmgr("env", "count", swegym, tmp_path / "other", "--json", "--limit", 100)
    document = json.loads(done.stdout)
    assert document["together"]["environments"] == 12
    assert [s["datasets"] for s in document["shared"]] == [["swegym", "other"]]
    (tmp_path / "other" / "notes").mkdir()
    text = poolmgr("env", "count", swegym, tmp_path / "other", "--limit", 11, "--scheme", "build").stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["swegym", "12", "0", "12", "12", "12", "over"] in lines
    assert ["other", "1", "1", "1", "1", "1"] in lines
    assert ["together:", "13", "tasks"] in lines
    assert ["not", "tasks", "1", "no-task-toml", "1"] in lines
    assert "over the limit of 11" in text
    assert "shared by two or more of the datasets: 1 environment" in text


def test_bad_input_is_named_and_exits_3(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    write_task(tmp_path / "d" / "good")
    write_task(tmp_path / "d" / "bad", toml="= 1")
    done = poolmgr("env", "count", tmp_path / "d")
    assert done.returncode == 3
    assert "bad-task-toml  bad: task.toml: not TOML" in done.stdout


def test_a_row_is_named_by_its_index(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    good = tar_of(write_task(tmp_path / "t"))
    write_parquet(tmp_path / "a.parquet", [("a", good), ("a", good), (None, good), ("cut", good[:-20])])
    done = poolmgr("env", "count", tmp_path / "a.parquet")
    assert done.returncode == 3
    for line in (
        "duplicate-task  a: row 1: 'a' was read before, from another place",
        "row 2: its path is null",
        "bad-archive-row  cut: row 3: the gzip stream is cut off",
    ):
        assert line in done.stdout


def test_nothing_counted_is_a_failure(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    write_task(tmp_path / "d" / "bad", toml="= 1")
    done = poolmgr("env", "count", tmp_path / "d", "--json")
    assert done.returncode == 3
    assert json.loads(done.stderr.splitlines()[-1])["code"] == "nothing-compared"
    (tmp_path / "empty").mkdir()
    assert poolmgr("env", "count", tmp_path / "empty").returncode == 1
    assert poolmgr("env", "count").returncode == 2


def test_a_dataset_with_nothing_in_it_is_named_and_the_others_are_counted(
    swegym: Path, tmp_path: Path, poolmgr: RunPoolmgr
) -> None:
    (tmp_path / "empty").mkdir()
    done = poolmgr("env", "count", swegym, "empty", "nowhere", "--json", "--limit", 100)
    assert done.returncode == 3
    document = json.loads(done.stdout)
    found = {
        d["dataset"]: (d["tasks"], [n["code"] for n in d["not_task_list"]]) for d in document["datasets"]
    }
    assert found == {"swegym": (12, []), "empty": (0, ["bad-dataset"]), "nowhere": (0, ["bad-dataset"])}
    assert document["passed"] is False
    shown = poolmgr("env", "count", swegym, "empty", "--limit", 100)
    assert "bad-dataset" in shown.stdout + shown.stderr
    alone = poolmgr("env", "count", "empty", "nowhere")
    assert alone.returncode == 1
    assert "bad-dataset" in alone.stderr


def test_a_row_larger_than_a_task_may_be_is_refused_alike_by_one_process_and_several(
    tmp_path: Path, poolmgr: RunPoolmgr
) -> None:
    import random

    content = random.Random(1).randbytes(2_000_000).hex()
    big = write_task(tmp_path / "d" / "big", {"Dockerfile": "FROM a\n", "data": content})
    small = write_task(tmp_path / "d" / "small")
    rows = [("big", tar_of(big)), ("plain", tar_of(big, compress=False)), ("small", tar_of(small))]
    archive = write_parquet(tmp_path / "x.parquet", rows)
    one, two = (
        poolmgr("env", "count", archive, "--json", "-j", jobs, "--max-task-mib", 1) for jobs in (1, 2)
    )
    assert (one.returncode, one.stdout) == (3, two.stdout)
    refused = json.loads(one.stdout)["datasets"][0]["not_task_list"]
    assert [n["name"] for n in refused] == ["big", "plain"]
    assert all("more than the 1,048,576 that a task may have" in n["message"] for n in refused)


def test_image_only_and_resources_are_flagged(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    write_task(tmp_path / "d" / "image", {}, toml='[environment]\ndocker_image = "a"\n')
    write_task(tmp_path / "d" / "small", toml="[environment]\nmemory_mb = 1\n")
    write_task(tmp_path / "d" / "large", toml="[environment]\nmemory_mb = 8192\n")
    done = poolmgr("env", "count", tmp_path / "d")
    assert done.returncode == 0
    assert "auto_snapshot fails on them" in done.stdout
    assert "memory_mb 8192 (1); memory_mb 1 (1)" in done.stdout


def test_explain(swegym: Path, poolmgr: RunPoolmgr) -> None:
    done = poolmgr("env", "explain", swegym)
    assert done.returncode == 0
    assert "12 tasks, 12 environments" in done.stdout
    assert "12 → 2: RUN git clone <URL> r && cd r && git checkout <commit> (12 values)" in " ".join(
        done.stdout.split()
    )
    assert "cannot be merged: 2 distinct base images" in done.stdout
    document = json.loads(poolmgr("env", "explain", swegym, "--json").stdout)
    assert [s["remaining"] for s in document["steps"]] == [2, 1]
    assert document["bases"] == 2


def test_ls_show_and_diff(swegym: Path, poolmgr: RunPoolmgr) -> None:
    hashes = poolmgr("env", "ls", swegym, "-q").stdout.split()
    assert len(hashes) == 12
    shown = json.loads(poolmgr("env", "show", hashes[0][:10], swegym, "--json").stdout)
    assert shown["hash"] == hashes[0]
    assert set(shown["hashes"]) == {"harbor", "harbor-legacy", "dockerfile", "build"}
    by_name = json.loads(poolmgr("env", "show", shown["tasks"][0], swegym, "--json").stdout)
    assert by_name["hash"] == hashes[0]
    assert json.loads(poolmgr("env", "show", shown["snapshot"], swegym, "--json").stdout)["hash"] == hashes[0]
    done = poolmgr("env", "diff", "task-00", "task-01", swegym)
    assert "-FROM python:3.9" in done.stdout
    assert "+FROM python:3.10" in done.stdout
    missing = poolmgr("env", "show", "feedfeed", swegym)
    assert missing.returncode == 3
    assert poolmgr("env", "diff", "task-00", "task-0", swegym).returncode == 3


def test_diff_of_what_harbor_does_not_see(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    for name in ("a", "b"):
        write_task(tmp_path / "d" / name, {"Dockerfile": "FROM a\nCOPY run /\n", "run": "x"})
    (tmp_path / "d" / "b" / "environment" / "run").chmod(0o755)
    done = poolmgr("env", "diff", "a", "b", tmp_path / "d")
    assert "one environment" in done.stdout
    assert "mode 644 against 755, which no Harbor hash sees" in done.stdout
    assert "although Harbor takes them for one" in done.stdout


def test_what_has_no_build_hash_is_not_counted_as_one_that_harbor_has_too_many(
    tmp_path: Path, poolmgr: RunPoolmgr
) -> None:
    texts = {"a": "FROM a\n", "b": "# b\nFROM a\n", "c": "FRM c\n"}
    for name, text in texts.items():
        write_task(tmp_path / "d" / name, {"Dockerfile": text})
    write_task(tmp_path / "e" / "c", {"Dockerfile": texts["c"]})
    said = poolmgr("env", "count", "d", "--scheme", "build").stdout
    assert "by build        1  " in said
    assert "Harbor is 1 over; 1 environment without such a hash left out" in said
    assert "nothing could be compared" in poolmgr("env", "count", "e", "--scheme", "build").stdout
    found = json.loads(poolmgr("env", "count", "d", "e", "--scheme", "build", "--json").stdout)
    assert found["together"]["without_by_scheme"] == {"build": 1}


def test_explain_says_that_there_are_more_steps(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    for n in range(60):
        text = f"FROM a\nRUN git checkout {n % 5:040x}\nRUN x {n % 4}\nRUN y {n % 3}\n"
        write_task(tmp_path / "d" / f"t{n}", {"Dockerfile": text})
    short = poolmgr("env", "explain", "d").stdout
    assert re.search(r"  \d → 1: (1 more step|2 more steps) \(--list\)", short)
    assert "more step" not in poolmgr("env", "explain", "d", "--list").stdout


def test_pack_is_the_same_bytes_every_time_and_unpack_gives_all_back(
    tmp_path: Path, poolmgr: RunPoolmgr
) -> None:
    source = write_task(tmp_path / "d" / "a", {"Dockerfile": "FROM a\n", "run.sh": "x"})
    environment = source / "environment"
    (environment / "run.sh").chmod(0o755)
    (environment / "empty").mkdir()
    (environment / "link").symlink_to("run.sh")
    assert poolmgr("env", "pack", "d", "one.parquet").returncode == 0
    (environment / "run.sh").touch()
    assert poolmgr("env", "pack", "d", "two.parquet").returncode == 0
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    again = poolmgr("env", "pack", "d", "one.parquet")
    assert again.returncode == 1
    assert "already-exists" in again.stderr
    assert poolmgr("env", "unpack", "one.parquet", "out").returncode == 0
    out = tmp_path / "out" / "a" / "environment"
    assert (out / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (out / "Dockerfile").stat().st_mode & 0o777 == 0o644
    assert (out / "empty").is_dir()
    assert (out / "link").readlink() == Path("run.sh")
    assert poolmgr("env", "unpack", "one.parquet", "out").returncode == 1
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_what_a_killed_run_left_is_swept(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    """pack, unpack and a catalogue write beside their target, under names that tell whose they are."""
    write_task(tmp_path / "d" / "a")
    commands = (
        ("env", "pack", "d", "one.parquet"),
        ("env", "unpack", "one.parquet", "out"),
        ("query", "select 1", "--catalogue", "cat", "--dataset", "d"),
        ("query", "select 1", "--catalogue", "cat", "--format", "csv", "-o", "rows.csv"),
    )
    code = "import poolmgr.temporary as t; print(t.temp_name({!r}))"
    for command in commands:
        said = subprocess.run(
            [sys.executable, "-c", code.format(str(tmp_path))], capture_output=True, text=True, check=True
        )
        left = Path(said.stdout.strip())
        (left / "half").mkdir(parents=True)
        live = temp_name(tmp_path)
        live.touch()
        done = poolmgr(*command)
        assert done.returncode == 0, done.stderr
        assert not left.exists(), command
        live.unlink()  # raises if it was swept
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cat", "d", "one.parquet", "out", "rows.csv"]


def test_what_pack_writes_the_standard_library_reads(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    import io

    import pyarrow.parquet as pq

    write_task(tmp_path / "d" / "a")
    write_task(tmp_path / "d" / "b")
    assert poolmgr("env", "pack", "d", "x.parquet").returncode == 0
    table = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert [list(row) for row in table] == [["path", "task_binary"]] * 2
    with tarfile.open(fileobj=io.BytesIO(table[0]["task_binary"]), mode="r:gz") as tar:
        assert [m.name for m in tar.getmembers()] == sorted(m.name for m in tar.getmembers())
        assert {m.mtime for m in tar.getmembers()} == {0}


def test_unpack_refuses_bad_rows_and_writes_the_rest(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    folder = write_task(tmp_path / "t")
    write_parquet(
        tmp_path / "a.parquet", [("good", tar_of(folder)), ("../out", tar_of(folder)), ("bad", b"x")]
    )
    done = poolmgr("env", "unpack", "a.parquet", "out")
    assert done.returncode == 3
    assert "left out: ../out" in done.stdout
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["good"]
    assert not (tmp_path.parent / "out").exists()


def test_unpack_puts_no_task_into_another_nor_through_its_links(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    linked = write_task(tmp_path / "linked")
    (linked / "environment" / "l").symlink_to(outside)
    plain = tar_of(write_task(tmp_path / "plain"))
    names = ["a/environment/l/evil", "a/environment/evil", "a/tests", "b/c", "b", "B/C/d"]
    write_parquet(tmp_path / "a.parquet", [("a", tar_of(linked)), *((name, plain) for name in names)])
    done = poolmgr("env", "unpack", "a.parquet", "out")
    assert done.returncode == 3
    assert "unpacked 2 tasks" in done.stdout
    for name in names[:3]:
        assert f"left out: {name}: it lies in the task 'a'" in done.stdout
    assert "left out: b: the task 'b/c' lies in it" in done.stdout
    assert "left out: B/C/d: it lies in the task 'b/c'" in done.stdout
    assert list(outside.iterdir()) == []
    assert {p.name for p in (tmp_path / "out" / "a" / "environment").iterdir()} == {"Dockerfile", "l"}


@pytest.mark.parametrize("name", [".", "./a", "a/.", "a/", "b//c", "b/./c"])
def test_unpack_takes_nothing_away_for_a_row_whose_path_is_not_plain(
    tmp_path: Path, poolmgr: RunPoolmgr, name: str
) -> None:
    task = tar_of(write_task(tmp_path / "t"))
    write_parquet(tmp_path / "a.parquet", [("a", task), ("b/c", task), (name, task)])
    done = poolmgr("env", "unpack", "a.parquet", "out")
    assert done.returncode == 3
    assert "unpacked 2 tasks" in done.stdout
    assert "is not written as a folder's plain path" in done.stdout
    assert (tmp_path / "out" / "a" / "task.toml").exists()
    assert (tmp_path / "out" / "b" / "c" / "task.toml").exists()


def test_pack_leaves_out_a_task_whose_name_cannot_be_stored(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    write_task(tmp_path / "d" / "a")
    write_task(tmp_path / "d" / "new\nline")
    write_task(tmp_path / "d" / "bad\udcff")
    done = poolmgr("env", "pack", "d", "x.parquet")
    assert done.returncode == 3, done.stderr
    assert "packed 1 task" in done.stdout
    assert done.stdout.count("left out: ") == 2


def test_a_dry_run_refuses_what_the_run_would_refuse(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    write_task(tmp_path / "d" / "a")
    assert poolmgr("env", "pack", "d", "x.parquet", "-n").returncode == 0
    assert poolmgr("env", "pack", "d", "x.parquet").returncode == 0
    assert poolmgr("env", "unpack", "x.parquet", "out", "-n").returncode == 0
    for args in (
        ("pack", "d", "x.parquet"), ("pack", "x.parquet", "y.parquet"), ("pack", "d", "none/y.parquet"),
        ("unpack", "x.parquet", "d"), ("unpack", "d", "out"), ("unpack", "x.parquet", "none/out"),
    ):  # fmt: skip
        real, dry = poolmgr("env", *args), poolmgr("env", *args, "-n")
        assert (dry.returncode, dry.stderr) == (real.returncode, real.stderr) != (0, ""), args


def test_the_manifests_limit_holds_where_none_is_given(poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "tasks" / name / "environment").mkdir(parents=True)
        (tmp_path / "tasks" / name / "task.toml").write_text('version = "1.0"\n')
        (tmp_path / "tasks" / name / "instruction.md").write_text("do it\n")
        (tmp_path / "tasks" / name / "environment/Dockerfile").write_text(
            f"FROM ubuntu:22.04\nRUN echo {name}\n"
        )
    (tmp_path / "rules.toml").write_text('schema = 1\n[pool]\nurl = "."\n[environments]\nlimit = 1\n')
    assert poolmgr("env", "count", "tasks").returncode == 0
    assert poolmgr("env", "count", "tasks", "--manifest", "rules.toml").returncode == 3
    assert poolmgr("env", "count", "tasks", "--manifest", "rules.toml", "--limit", "2").returncode == 0
