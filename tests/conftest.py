"""Every test runs apart from the user's files, caches, tokens and environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.loopback.hub import Hub
from tests.loopback.registry import Registry

ROOT = Path(__file__).resolve().parent.parent
KEEP = ("PATH", "LANG", "LC_ALL", "TERM", "CI", "VIRTUAL_ENV", "TMPDIR")

# How long an example takes says something of the machine's load, and nothing of the code.
settings.register_profile("poolmgr", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("poolmgr")


@pytest.fixture(autouse=True)
def _hermetic(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(
            ("HF_", "POOLMGR_", "XDG_", "HUGGING", "AWS_", "DAYTONA_", "APPTAINER", "SINGULARITY", "SLURM_")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))


RunPoolmgr = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def poolmgr(tmp_path: Path) -> RunPoolmgr:
    """Run the command line in a process of its own: ``poolmgr("audit", "-p", pool)``."""

    def run(
        *args: str | Path,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 120,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "poolmgr", *map(str, args)],
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            cwd=cwd or tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            input=stdin,
            check=False,
        )

    return run


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A loopback Hub in this process: ``hub.add_repo("datasets", "acme/pool", {path: bytes})``."""
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture(scope="session")
def one_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    registry = Registry(tmp_path_factory.mktemp("registry"))
    yield registry
    registry.close()


@pytest.fixture
def registry(one_registry: Registry) -> Registry:
    """A real registry on loopback behind a proxy that can be told to fail: ``registry.add("acme/env:1")``."""
    one_registry.reset()
    return one_registry
