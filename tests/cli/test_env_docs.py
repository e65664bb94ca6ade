"""docs/environments.md: its commands print what it says they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from benchmarks.corpus import write_swegym
from tests.conftest import ROOT, RunPoolmgr

BLOCK = re.compile(r"```console\n\$ poolmgr (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)


def test_the_way_from_the_cap_to_the_reason(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    write_swegym(tmp_path / "swegym", 900)
    blocks = BLOCK.findall((ROOT / "docs" / "environments.md").read_text())
    assert len(blocks) >= 2
    for command, output in blocks:
        done = poolmgr(*shlex.split(command), env={"COLUMNS": "100"})
        assert done.stdout + done.stderr == output, command
