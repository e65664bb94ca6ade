"""Harbor itself, in a process of its own, to be compared with."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".harbor" / "bin" / "python"


class Harbor:
    """Asks the real Harbor; see peer.py for the requests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, op: str, path: Path, **more: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"op": op, "path": str(path), **more}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="session")
def harbor() -> Iterator[Harbor]:
    if not PYTHON.exists():
        line = "the real Harbor is not here: run scripts/install_harbor.sh"
        if os.environ.get("CI"):
            pytest.fail(line)
        pytest.skip(line)
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    process = subprocess.Popen(
        [str(PYTHON), str(Path(__file__).parent / "peer.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield Harbor(process)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(10)
    process.stdout.close()
