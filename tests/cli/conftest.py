"""A small pool of real images for the commands that look at one."""

from __future__ import annotations

from pathlib import Path

import pytest

from poolmgr.ops.demo import DemoPool, build_pool


@pytest.fixture
def pool(tmp_path: Path) -> DemoPool:
    """The demo's pool, in ``tmp_path/pool``."""
    return build_pool(tmp_path / "pool")
