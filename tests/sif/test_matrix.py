"""The corruption matrix, on real images in four compressors."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from poolmgr.model.finding import CODES, Level, Verdict
from poolmgr.sif.check import check, check_file
from poolmgr.sif.source import BytesSource
from tests import images
from tests.sif.damage import Base, Case, Until, matrix, paths

LEVELS = [Level.HEADER, Level.MOUNT, Level.TABLES, Level.DATA]


@pytest.fixture(scope="module", params=["gzip", "zstd", "xz", "lz4"])
def base(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("base")
    tree = folder / "root"  # a copy: `root` is the whole session's
    shutil.copytree(root, tree, symlinks=True)
    (tree / "usr/lib/noise").write_bytes(hashlib.shake_128(b"noise").digest(300_000))
    sif = images.build(tree, folder / "x.sif", "--mksquashfs-args", f"-comp {request.param}")
    return Base(sif.read_bytes())


def found_at(case: Case) -> Level | None:
    """The first level that says bad."""
    for level in LEVELS:
        report = check(BytesSource(case.data), level, arch="amd64", threads=1)
        assert all(f.code in CODES for f in report.findings)
        if report.verdict is Verdict.BAD:
            assert any(f.severity == "error" for f in report.findings)
            return level
    return None


def test_the_base_is_good(base: Base) -> None:
    assert check(BytesSource(base.data), Level.DATA, arch="amd64").verdict.passes
    assert base.stored, "a stored block is needed for one case"


def test_matrix(base: Base) -> None:
    right = hashlib.sha256(base.data).hexdigest()
    wrong: list[str] = []
    lucky = 0
    cases = list(matrix(base))
    assert len(cases) >= 90
    for case in cases:
        level = found_at(case)
        name = f"{case.group}: {case.name}: expected {case.until}, found at {level}"
        if case.until in (Until.HEADER, Until.MOUNT, Until.TABLES, Until.DATA):
            if level is None and case.luck and not base.checksummed:
                lucky += 1
            elif level is None or level.value not in LEVELS[: LEVELS.index(Level(case.until.value)) + 1]:
                wrong.append(name)
        elif case.until is Until.UNSUPPORTED:
            if check(BytesSource(case.data), Level.MOUNT).verdict is not Verdict.UNSUPPORTED:
                wrong.append(name)
        elif case.until is not Until.ANY:
            if level is not None:
                wrong.append(name)
            report = check(BytesSource(case.data), Level.MOUNT)
            if (case.until is Until.WARN) != bool(report.findings):
                wrong.append(f"{name}: {report.findings}")
        whole = check(BytesSource(case.data), Level.MOUNT, hashing=True, sha256=right)
        if whole.verdict.passes:
            wrong.append(f"{case.group}: {case.name}: passed --hash")
    assert wrong == []
    assert lucky <= 14


def test_the_cases_that_are_no_bytes(tmp_path: Path) -> None:
    for name, path, until in paths(tmp_path):
        for level in LEVELS:
            report = check_file(path, level, hashing=True, sha256="0" * 64)
            expected = Verdict.UNSUPPORTED if until is Until.UNSUPPORTED else Verdict.BAD
            assert report.verdict is expected, name
            assert report.findings[0].code in ("annex-pointer", "sandbox-folder")


def test_hash_alone_says_bad_of_every_change(base: Base) -> None:
    report = check(
        BytesSource(base.data), Level.DATA, hashing=True, sha256=hashlib.sha256(base.data).hexdigest()
    )
    assert (report.verdict, report.checks["hash"], report.findings) == (Verdict.OK, Verdict.OK, ())
    changed = base.flip(base.middle(base.stored[0]))
    report = check(BytesSource(changed), Level.DATA, hashing=True, sha256="0" * 64)
    assert report.checks["hash"] is Verdict.BAD
    assert {f.code for f in report.findings} == {"wrong-hash", "data-partial"}
