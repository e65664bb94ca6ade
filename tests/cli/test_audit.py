"""``poolmgr audit`` as its users meet it: words, JSON, names, exit status."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from poolmgr.sif.write import minimal_image

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    root = tmp_path / "sifs"
    tasks = {f"t{i}": f"images/{i % 8}.sif" for i in range(16)}
    (root / "images").mkdir(parents=True)
    for path in set(tasks.values()):
        (root / path).write_bytes(minimal_image(path))
    (root / "task_to_blob.json").write_text(json.dumps({"easy": tasks, "hard": {"t1": "images/1.sif"}}))
    return root


def rows(done: CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def kind(done: CompletedProcess[str], name: str) -> list[dict[str, Any]]:
    return [r for r in rows(done) if r["kind"] == name]


def test_a_good_pool_passes(poolmgr: Run, pool: Path) -> None:
    done = poolmgr("audit", "-p", pool, "--arch", "amd64")
    assert done.returncode == 0, done.stderr
    assert "easy: 16 tasks on 8 distinct images" in done.stdout
    assert done.stdout.endswith("8 images: 8 ok\npassed  easy, hard\n")
    assert "known from attestations" in poolmgr("audit", "-p", pool, "--arch", "amd64").stdout


def test_bad_images_are_named_with_their_tasks(poolmgr: Run, pool: Path) -> None:
    os.truncate(pool / "images/3.sif", 20_000)
    (pool / "images/5.sif").unlink()
    done = poolmgr("audit", "easy", "-p", pool, "--arch", "amd64")
    assert done.returncode == 3
    assert "failed  easy: present, mount, arch not checked" in done.stdout
    assert "images/3.sif" in done.stdout
    assert "easy: t5, t13" in done.stdout
    assert poolmgr("audit", "hard", "-p", pool, "--arch", "amd64").returncode == 0


def test_the_short_form_says_what_it_leaves_out(poolmgr: Run, pool: Path) -> None:
    for i in range(7):
        (pool / f"images/{i}.sif").unlink()
    short = poolmgr("audit", "easy", "-p", pool)
    assert "images/4.sif" in short.stdout
    assert "images/5.sif" not in short.stdout
    assert "… and 2 more" in short.stdout
    assert "2 names left out above; --list shows every one" in short.stderr
    full = poolmgr("audit", "easy", "-p", pool, "--list")
    assert all(f"images/{i}.sif" in full.stdout for i in range(7))
    assert "left out" not in full.stderr


def test_json_lines_end_in_a_summary(poolmgr: Run, pool: Path) -> None:
    os.truncate(pool / "images/3.sif", 20_000)
    done = poolmgr("audit", "-p", pool, "--json", "--arch", "amd64")
    assert done.returncode == 3
    *_, summary = rows(done)
    assert (summary["kind"], summary["schema"]) == ("summary", 1)
    assert summary["variants"] == {"easy": "failed", "hard": "passed"}
    assert (summary["verdict"], summary["exit"]) == ("failed", 3)
    assert summary["verdicts"] == {"ok": 7, "bad": 1}
    (bad,) = [r for r in kind(done, "image") if r["verdict"] == "bad"]
    assert bad["path"] == "images/3.sif"
    assert bad["tasks"] == {"easy": ["t3", "t11"]}
    assert [f["code"] for f in bad["findings"]] == ["sif-truncated"]
    gates = {(g["variant"], g["gate"]): g["verdict"] for g in kind(done, "gate")}
    assert gates["easy", "mount"] == "failed"
    assert gates["hard", "mount"] == "passed"


def test_quiet_prints_the_names_of_what_is_bad(poolmgr: Run, pool: Path) -> None:
    os.truncate(pool / "images/3.sif", 20_000)
    done = poolmgr("audit", "-p", pool, "-q", "--arch", "amd64")
    assert (done.returncode, done.stdout) == (3, "images/3.sif\n")
    (pool / "images/3.sif").write_bytes(minimal_image("3"))
    done = poolmgr("audit", "-p", pool, "-q", "--arch", "amd64")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_dataset_differences(poolmgr: Run, pool: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    lines: list[dict[str, Any]] = [
        {"env_config": {"task_id": f"t{i}", "image": f"acme/e:{i}"}} for i in range(13)
    ]
    lines.append({"env_config": json.dumps({"task_id": "t13", "image": "ubuntu:22.04"})})
    lines.append({"env_config": {"task_id": "t14", "image": "ubuntu:22.04"}})
    lines.append({"env_config": {"task_id": "t99", "image": None}})
    data.write_text("".join(json.dumps(r) + "\n" for r in lines))
    done = poolmgr("audit", "easy", "-p", pool, "--dataset", data, "--json", "--arch", "amd64")
    assert done.returncode == 3, done.stderr
    (variant,) = kind(done, "variant")
    assert variant["differences"] == {
        "row-without-assignment": ["t99"],
        "assignment-without-row": ["t15"],
        "row-without-image": ["t99"],
        "generic-image": ["t13", "t14"],
    }
    assert {r["task"] for r in kind(done, "task")} == {"t13", "t14", "t15", "t99"}
    assert poolmgr("audit", "easy", "-p", pool, "--dataset", tmp_path / "none.jsonl").returncode == 1


def test_a_subset(poolmgr: Run, pool: Path, tmp_path: Path) -> None:
    (pool / "images/5.sif").unlink()
    (tmp_path / "some.txt").write_text("t1\nt2\n")
    done = poolmgr("audit", "easy", "-p", pool, "--tasks", tmp_path / "some.txt", "--arch", "amd64")
    assert done.returncode == 0
    assert "easy: 2 of 16 tasks on 2 distinct images" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["nope"], 3, "unknown-variant"),
        (["easy", "--level", "deep"], 2, "usage"),
        (["easy", "--dataset", "x", "--no-dataset"], 2, "usage"),
        (["--dataset", "x"], 2, "several are audited"),
        (["easy", "--tasks", "/nowhere"], 1, "--tasks"),
    ],
)
def test_bad_words(poolmgr: Run, pool: Path, words: list[str], status: int, says: str) -> None:
    done = poolmgr("audit", *words, "-p", pool)
    assert done.returncode == status
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad-index"),
        ("{}", "bad-index"),
        ('{"v": {}}', "bad-index"),
        ('{"v": {"t": "../x.sif"}}', "bad-index"),
        ('{"v": {"t": "/etc/passwd"}}', "bad-index"),
        ('{"v": {"t": ".poolmgr/x"}}', "bad-index"),
        ('{"v": ["t"]}', "bad-index"),
        ("<html>", "bad-index"),
    ],
)
def test_a_bad_index_is_an_error(poolmgr: Run, pool: Path, text: str, code: str) -> None:
    (pool / "task_to_blob.json").write_text(text)
    done = poolmgr("audit", "-p", pool, "--json")
    assert done.returncode == 1
    assert json.loads(done.stderr.splitlines()[-1])["code"] == code
    assert done.stdout == ""


def test_names_are_shown_without_their_control_characters(poolmgr: Run, tmp_path: Path) -> None:
    root = tmp_path / "sifs"
    root.mkdir()
    (root / "task_to_blob.json").write_text(json.dumps({"v": {"t": "images/[a] ü?.sif"}}))
    (root / "evil\x1b[31m.sif").write_bytes(b"x")
    done = poolmgr("audit", "-p", root)
    assert done.returncode == 3
    assert "images/[a] ü?.sif" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_the_help_is_whole(poolmgr: Run) -> None:
    done = poolmgr("audit", "--help")
    assert done.returncode == 0
    for option in (
        "--level",
        "--dataset",
        "--no-dataset",
        "--tasks",
        "--rehash",
        "--list",
        "--json",
        "--attest",
    ):
        assert option in done.stdout
