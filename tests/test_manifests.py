"""The manifests that are shipped are valid, and say what the pools' own cards say."""

from __future__ import annotations

import pytest

from poolmgr.model.finding import Level
from poolmgr.model.manifest import Manifest
from tests.conftest import ROOT

SHIPPED = sorted((ROOT / "manifests").glob("*.toml"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_manifests_are_valid(file: object) -> None:
    path = ROOT / str(file)
    manifest = Manifest.parse(path.read_text(), str(path))
    assert manifest.name == path.stem
    assert manifest.url is not None


def test_the_tmax_pool() -> None:
    path = ROOT / "manifests" / "tmax.toml"
    manifest = Manifest.parse(path.read_text(), str(path))
    assert manifest.url == "hf://datasets/wAI-org/tmax-image-pool"
    tasks = {variant: rules.tasks for variant, rules in manifest.variants.items()}
    assert tasks == {"original": 14601, "hardened_prefilter": 13565, "solvable": 7015}
    assert sum(filter(None, tasks.values())) == 35181
    assert manifest.gates.level is Level.MOUNT
    assert (manifest.gates.arch, manifest.gates.min_bytes) == ("amd64", 10_000_000)
