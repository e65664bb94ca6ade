"""One set of real images for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import images


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images.make_root(tmp_path_factory.mktemp("roots") / "root")


@pytest.fixture(scope="session")
def sifs(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Compressor -> a SIF of ``root``."""
    folder = tmp_path_factory.mktemp("sifs")
    return {
        c: images.wrap(images.squash(root, folder / f"{c}.sqfs", c), folder / f"{c}.sif")
        for c in images.COMPRESSORS
    }


@pytest.fixture(scope="session")
def gzip_sif(sifs: dict[str, Path]) -> Path:
    return sifs["gzip"]


@pytest.fixture(scope="session")
def built_sif(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SIF by ``apptainer build``, with the descriptors and files that Apptainer adds."""
    return images.build(root, tmp_path_factory.mktemp("built") / "built.sif")
