"""``poolmgr doctor``: what is here, and what each missing tool would add."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from poolmgr.cli.main import call
from poolmgr.errors import Exit
from poolmgr.ops import doctor
from tests.conftest import RunPoolmgr


def test_text_and_json_name_the_same_parts(poolmgr: RunPoolmgr) -> None:
    document = json.loads(poolmgr("doctor", "--json").stdout)
    text = poolmgr("doctor").stdout
    names = {part["name"] for part in document["parts"]}
    assert {"poolmgr", "python", "huggingface_hub", "isal", "codec lzo", "apptainer"} <= names
    for part in document["parts"]:
        if part["kind"] != "codec":
            assert part["name"] in text
            assert part["version"] in text
    assert document["verdict"] == "ok"


def test_without_programs_it_says_what_they_would_add(poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    done = poolmgr("doctor", env={"PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("apptainer"))
    assert "'inspect' and 'run'" in line
    assert {"apptainer", "unsquashfs"} <= set(
        poolmgr("doctor", "-q", env={"PATH": str(tmp_path)}).stdout.split()
    )


def test_a_program_that_does_not_start_is_3(poolmgr: RunPoolmgr, tmp_path: Path) -> None:
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\necho 'no such library' >&2\nexit 127\n")
    program.chmod(0o755)
    done = poolmgr("doctor", env={"PATH": f"{tmp_path}{os.pathsep}/bin"})
    assert done.returncode == 3
    assert "broken: apptainer" in done.stdout
    assert "no such library" in done.stdout


def test_a_missing_library_that_is_needed_is_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(doctor._LIBRARIES, "no-such-library", "nothing")
    assert call(["doctor"]) == Exit.BAD
    assert "broken: no-such-library" in capsys.readouterr().out


def test_a_pool_address_with_a_password_is_shown_without_it(poolmgr: RunPoolmgr) -> None:
    done = poolmgr("doctor", env={"POOLMGR_POOL": "s3://me:topsecret@bucket/pool"})
    assert "topsecret" not in done.stdout + done.stderr
    assert "bucket/pool" in done.stdout
