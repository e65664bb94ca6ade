"""``poolmgr derive`` as its users see it: words, exit status, and what an interrupt leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poolmgr.sif.write import minimal_image, write_sif
from poolmgr.sif.write_node import file
from tests.conftest import ROOT, RunPoolmgr


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """A sound image, one that is cut off, and one that is not there."""
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    write_sif(pool / "images/a.sif", {"app/oracle": file(b"secret"), "app/task.txt": file(b"task")})
    (pool / "images/cut.sif").write_bytes(minimal_image("cut", os.urandom(9000))[:-3000])
    index = {
        "v": {"t1": "images/a.sif"},
        "w": {"t1": "images/a.sif", "t2": "images/cut.sif", "t3": "images/no.sif"},
    }
    (pool / "task_to_blob.json").write_text(json.dumps(index))
    return pool


def recipe(folder: Path, variant: str, steps: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(f'schema = 1\nname = "hard"\nbase = {{ variant = "{variant}" }}\n{steps}')
    return path


def test_bases_that_cannot_be_used_stop_no_other_and_are_told_by_cause(
    pool: Path, tmp_path: Path, poolmgr: RunPoolmgr
) -> None:
    made = recipe(tmp_path, "w", '[[step]]\nremove = ["/app/oracle"]\n')
    done = poolmgr("derive", made, "-p", pool, "--to", "out")
    assert done.returncode == 3
    assert "1 made, 0 kept, 2 failed; 1 tasks have an image" in done.stdout
    assert "failed (invalid-image): 1\n  images/cut.sif: " in done.stdout
    assert "failed (miss): 1\n  images/no.sif: expected images/no.sif" in done.stdout
    assert "images/cut.sif: images/cut.sif" not in done.stdout, "no path is said before itself"


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ('[[step]]\nremove = ["/nope"]\n', "remove '/nope' matches nothing"),
        ('[[step]]\nfiles = [{ from = "f", to = "/app" }]\n', "/app: a directory stands there"),
        ('[[step]]\nfiles = [{ from = "f", to = "/app/task.txt/x" }]\n', "is not a directory"),
    ],
)
def test_n_says_what_the_run_says(
    pool: Path, tmp_path: Path, poolmgr: RunPoolmgr, steps: str, words: str
) -> None:
    (tmp_path / "f").write_text("f")
    made = recipe(tmp_path, "v", steps)
    for option in ([], ["-n"]):
        done = poolmgr("derive", made, "-p", pool, "--to", "out", *option)
        assert done.returncode == 3, option
        assert words in done.stdout
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ('[[step]]\nfiles = [{ from = "/etc/passwd", to = "/a" }]\n', "recipe.toml:5: step 1.files 1.from"),
        ('[[step]]\nfiles = [{ from = "f", to = "/a/../../b" }]\n', "recipe.toml:5: step 1.files 1.to"),
        ('[[stp]]\nremove = ["/a"]\n', "recipe.toml:4: stp: unknown key"),
        ('[expect]\nmodules = ["six"]\n[[step]]\npip = [\n  "six",\n]\n', "recipe.toml:8: step 1.pip: 'six'"),
        ('[[step]]\npip = ["six>=1"]\n', "recipe.toml:5: step 1.pip: 'six>=1' allows more than one version"),
        ('[[step]]\npip = ["six @ https://x.org/six.whl"]\n', "must be https:// and end in #sha256="),
    ],
)
def test_a_recipe_is_refused_by_line(
    pool: Path, tmp_path: Path, poolmgr: RunPoolmgr, steps: str, words: str
) -> None:
    done = poolmgr("derive", recipe(tmp_path, "v", steps), "-p", pool, "--to", "out")
    assert done.returncode == 1
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 5)])
def test_an_interrupt_leaves_whole_images_that_the_next_run_keeps(
    tmp_path: Path, poolmgr: RunPoolmgr, sent: signal.Signals, status: int
) -> None:
    pool, out = tmp_path / "pool", tmp_path / "out"
    (pool / "images").mkdir(parents=True)
    tasks = {f"t{n}": f"images/{n}.sif" for n in range(60)}
    for n, path in enumerate(tasks.values()):
        (pool / path).write_bytes(minimal_image(f"{n}", os.urandom(500_000)))
    (pool / "task_to_blob.json").write_text(json.dumps({"v": tasks}))
    made = recipe(tmp_path, "v", '[[step]]\nremove = ["/etc/label"]\n')
    child = subprocess.Popen(
        [sys.executable, "-m", "poolmgr", "derive", made, "-p", pool, "--to", out],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while len(list(out.glob("*.sif"))) < 3 and time.monotonic() < until:
        time.sleep(0.005)
    child.send_signal(sent)
    said, error = child.communicate(timeout=60)
    assert child.returncode == status, said + error
    there = len(list(out.glob("*.sif")))
    assert 3 <= there < 60
    assert not list(out.glob(".poolmgr-tmp-*"))
    again = poolmgr("derive", made, "-p", pool, "--to", "out")
    assert again.returncode == 0, again.stderr
    assert f"{60 - there} made, {there} kept, 0 failed" in again.stdout
