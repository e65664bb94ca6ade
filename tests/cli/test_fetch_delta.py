"""fetch of derived blobs as a process: what it prints, and kill -9 while a blob is made of its base."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolmgr.ops.shared import shared_ranges
from poolmgr.sif.identity import file_sha256
from poolmgr.sif.source import BytesSource
from poolmgr.sif.write import write_sif
from poolmgr.sif.write_node import file
from tests.conftest import ROOT, RunPoolmgr
from tests.loopback.hub import Hub
from tests.ops.fetch_kit import ADDRESS, files, fill

BASE, DERIVED = "images/base.sif", "derived/more.sif"


@pytest.fixture(scope="module")
def family() -> dict[str, bytes]:
    """A base, and an image that has most of its blocks at other places, with new ones between and after."""
    luck = random.Random(3)
    old = [luck.randbytes(1_000_000) for _ in range(8)]
    new = [luck.randbytes(150_000) for _ in range(4)]
    made = {}
    for path, blocks in (
        (BASE, old),
        (DERIVED, [old[0], new[0], *old[1:4], new[1], *old[4:], new[2], new[3]]),
    ):
        out = io.BytesIO()
        write_sif(out, {f"data/{n}": file(block) for n, block in enumerate(blocks)})
        made[path] = out.getvalue()
    return made


def pool(hub: Hub, family: dict[str, bytes]) -> None:
    base, derived = (BytesSource(data) for data in family.values())
    out = io.BytesIO()
    rows: dict[str, Any] = {
        "path": [DERIVED],
        "size": [derived.size],
        "base_sha256": [file_sha256(base)],
        "shared_ranges": [shared_ranges(derived, base).text()],
    }
    pq.write_table(pa.table(rows), out)
    fill(hub, {**family, "blobs.parquet": out.getvalue()}, {"v": {"t": BASE}, "w": {"t": DERIVED}})


def test_what_is_saved_is_said(
    hub: Hub, poolmgr: RunPoolmgr, tmp_path: Path, family: dict[str, bytes]
) -> None:
    pool(hub, family)
    words = ("fetch", "-p", ADDRESS, "--to", "sifs", "--reserve", "0")
    assert poolmgr(*words, "v", env=hub.env()).returncode == 0
    dry = poolmgr(*words, "w", "-n", env=hub.env())
    assert "saved 8.0" in dry.stdout
    assert "1 blob to be made of its base" in dry.stdout
    image, summary = map(json.loads, poolmgr(*words, "w", "-n", "--json", env=hub.env()).stdout.splitlines())
    assert (image["base"], image["saved"]) == (BASE, summary["saved"])
    xet = poolmgr(*words, "w", "-n", "--transfer", "xet", env=hub.env())
    assert "--transfer xet brings whole files" in xet.stderr
    assert "saved" not in xet.stdout
    done = poolmgr(*words, "w", "--json", env=hub.env())
    row, _, last = map(json.loads, done.stdout.splitlines())
    assert row["reused_bytes"] == last["reused_bytes"] == summary["saved"]
    assert row["transferred"] + row["reused_bytes"] == len(family[DERIVED])
    assert last["damaged"] == []
    (tmp_path / "sifs" / DERIVED).unlink()
    again = poolmgr(*words, "w", env=hub.env())
    assert "taken from bases that were here" in again.stdout


def test_killed_at_random_moments_it_goes_on_and_fetches_only_the_rest(
    hub: Hub, poolmgr: RunPoolmgr, tmp_path: Path, family: dict[str, bytes]
) -> None:
    pool(hub, family)
    to = tmp_path / "sifs"
    words = ("-p", ADDRESS, "--to", str(to), "--reserve", "0", "--transfer", "http")
    assert poolmgr("fetch", "v", *words, env=hub.env()).returncode == 0
    hub.fault(DERIVED, origin="cdn", times=None, delay=0.15)
    luck = random.Random(int(os.environ.get("POOLMGR_SEED", "11")))
    reached = [0]
    for _ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-m", "poolmgr", "fetch", "w", *words],
            env={**os.environ, **hub.env(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        before = len(hub.requests(DERIVED, origin="cdn"))
        while child.poll() is None and len(hub.requests(DERIVED, origin="cdn")) == before:
            time.sleep(0.005)
        time.sleep(luck.uniform(0, 0.25))
        child.kill()
        child.wait()
        if (to / DERIVED).exists():
            assert (to / DERIVED).read_bytes() == family[DERIVED], "it had its name before it was whole"
            break
        for part in (to / ".poolmgr/partial").iterdir():
            assert family[DERIVED].startswith(part.read_bytes()), "a partial holds other bytes than the blob"
            reached.append(part.stat().st_size)
    assert max(reached) > 1_000_000, "no run got as far as its base"
    hub.faults.clear()
    done = poolmgr("fetch", "w", *words, "--json", env=hub.env())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["transferred_bytes"] < 800_000
    assert files(to) == family
    assert not list((to / ".poolmgr/partial").iterdir())
