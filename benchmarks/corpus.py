"""Makes task datasets for the benchmarks: Harbor task folders with as many files as real ones have."""

from __future__ import annotations

import random
import sys
from pathlib import Path

TASK_TOML = """\
version = "1.0"

[metadata]
author_name = "nobody"
author_email = "nobody@example.com"
difficulty = "medium"
category = "software-engineering"
tags = ["python", "git", "repair"]
instance = "task-{i}"

[verifier]
timeout_sec = 900.0

[agent]
timeout_sec = 900.0

[environment]
build_timeout_sec = 600.0
cpus = 1
memory = "2G"
storage = "10G"
"""

DOCKERFILE = """\
FROM ubuntu:22.04

RUN apt-get update && apt-get install -y --no-install-recommends git python3 python3-pip tmux \\
    && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY data/ /app/data/
RUN git clone https://git.example.com/org/repo{repo}.git src && cd src && git checkout {commit}
CMD ["bash"]
"""


def write_folder(root: Path, tasks: int, environment_files: int, *, seed: int = 7) -> None:
    """``tasks`` task folders under ``root`` with ``environment_files`` files in their environments."""
    rng = random.Random(seed)
    for i in range(tasks):
        task = root / f"task-{i:06d}"
        data = task / "environment" / "data"
        data.mkdir(parents=True)
        (task / "tests").mkdir()
        (task / "solution").mkdir()
        (task / "task.toml").write_text(TASK_TOML.format(i=i))
        (task / "instruction.md").write_text(f"Repair what is broken in task {i}.\n" * 20)
        (task / "environment" / "Dockerfile").write_text(
            DOCKERFILE.format(repo=i % 40, commit=f"{rng.getrandbits(160):040x}")
        )
        extra = environment_files * (i + 1) // tasks - environment_files * i // tasks - 1
        for k in range(extra):
            (data / f"input_{k}.txt").write_text(f"{rng.getrandbits(64)}\n" * rng.randint(5, 200))
        (task / "tests" / "test.sh").write_text("#!/bin/sh\npytest /tests/test_state.py\n")
        (task / "tests" / "test_state.py").write_text(
            "def test_state(state):\n    assert state.is_done()\n" * 10
        )
        (task / "solution" / "solve.sh").write_text("#!/bin/sh\ntrue\n" * 5)


REPOSITORIES = {
    "pandas": "3.9", "dask": "3.9", "moto": "3.12", "mypy": "3.10", "MONAI": "3.8", "pydantic": "3.11",
    "conan": "3.10", "modin": "3.9", "hydra": "3.8", "dvc": "3.10", "bokeh": "3.11",
}  # fmt: skip
APT = {
    "3.8": "build-essential git",
    "3.9": "gfortran git libopenblas-dev",
    "3.10": "git",
    "3.11": "git",
    "3.12": "git",
}
SWEGYM = """\
# {task}
FROM python:{python}-slim

RUN apt-get update && apt-get install -y --no-install-recommends {apt} && rm -rf /var/lib/apt/lists/*
RUN git clone https://git.example.com/swe/{repository}.git /testbed && cd /testbed && git checkout {commit}
WORKDIR /testbed
RUN pip install --no-cache-dir -e .
"""


def write_swegym(root: Path, tasks: int, *, seed: int = 7) -> None:
    """Tasks as a swegym-like template renders them: a repository at a commit in every Dockerfile."""
    rng = random.Random(seed)
    names = list(REPOSITORIES)
    for i in range(tasks):
        repository = names[i % len(names)]
        python = REPOSITORIES[repository]
        task = root / f"{repository}-{i:04d}"
        (task / "environment").mkdir(parents=True)
        (task / "tests").mkdir()
        (task / "task.toml").write_text(TASK_TOML.format(i=i))
        (task / "instruction.md").write_text(f"Repair {repository}.\n")
        (task / "tests" / "test.sh").write_text("#!/bin/sh\npytest\n")
        (task / "environment" / "Dockerfile").write_text(
            SWEGYM.format(
                task=task.name, python=python, apt=APT[python], repository=repository,
                commit=f"{rng.getrandbits(160):040x}",
            )
        )  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "swegym":
        sys.exit("usage: python -m benchmarks.corpus swegym FOLDER")
    write_swegym(Path(sys.argv[2]), 900)
