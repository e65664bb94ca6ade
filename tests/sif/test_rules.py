"""Required and forbidden content, on real images with links, hard links and overlays."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from poolmgr.sif.image import Image, open_image
from poolmgr.sif.rules import Rules, check_content, matches
from poolmgr.sif.source import BytesSource
from tests import images

ORACLE = b"the answer is 42\n"
SHA = "sha256:" + hashlib.sha256(ORACLE).hexdigest()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = images.make_root(tmp_path_factory.mktemp("content") / "root", files=5)
    (root / "solution").mkdir()
    (root / "solution/oracle.sh").write_bytes(ORACLE)
    os.link(root / "solution/oracle.sh", root / "etc/innocent")
    (root / "opt").mkdir()
    (root / "opt/py").symlink_to("/usr/lib/python3")
    site = root / "usr/lib/python3/site-packages"
    (site / "pkg").mkdir()
    (site / "pkg/__init__.py").touch()
    (site / "pkg/sub.cpython-311-x86_64-linux-gnu.so").touch()
    (site / "ns/inner").mkdir(parents=True)
    (site / "ns/inner/m.py").touch()
    (site / "docs").mkdir()
    (root / "dangling").symlink_to("nowhere")
    return root


@pytest.fixture(scope="module")
def image(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    squashfs = images.squash(base, tmp_path_factory.mktemp("i") / "x.sqfs", "zstd")
    return open_image(BytesSource(squashfs.read_bytes()))


def said(image: Image, **rules: tuple[str, ...]) -> list[str]:
    return [f.code for found in check_content(image, Rules(**rules)).values() for f in found]


def test_require(image: Image) -> None:
    good = (
        "/bin/sh",
        "bin/busybox",
        "opt/py/site-packages/six.py",
        "usr/lib/**/*.txt",
        "opt/py/*/six.p?",
        "/solution/",
    )
    assert said(image, require=good) == []
    assert said(image, require=("bin/none", "dangling", "usr/lib/*.txt", "bin/sh/", "b*/[x-z]h")) == (
        ["content-missing"] * 5
    )


def test_globs(image: Image) -> None:
    assert [e.path for e in matches(image, "bin/[st]*")] == ["bin/sh", "bin/true"]
    assert [e.path for e in matches(image, "**/oracle.sh")] == ["solution/oracle.sh"]
    assert [e.path for e in matches(image, "bin/[!a-rt-z]*")] == ["bin/sh"]


def test_forbid(image: Image) -> None:
    assert said(image, forbid=("solution/none", "**/*.exe")) == []
    assert said(image, forbid=("/solution", "**/oracle.*")) == ["content-forbidden"] * 2


def test_forbidden_bytes_are_found_under_every_name(image: Image) -> None:
    [found] = check_content(image, Rules(forbid=(SHA,)))["forbid"]
    assert found.code == "content-forbidden"
    assert "'/solution/oracle.sh'" in found.message
    assert "'/etc/innocent'" in found.message
    assert said(image, forbid=("sha256:" + "0" * 64,)) == []


def test_modules(image: Image) -> None:
    assert said(image, modules=("six", "pkg", "pkg.sub", "ns", "ns.inner", "ns.inner.m")) == []
    assert said(image, modules=("seven", "pkg.other", "docs", "SIX")) == ["module-missing"] * 4


@pytest.mark.skipif(os.geteuid() != 0, reason="whiteouts are made as root")
def test_what_an_overlay_hides_is_still_in_the_file(base: Path, tmp_path: Path) -> None:
    over = tmp_path / "over"
    (over / "etc").mkdir(parents=True)
    os.mknod(over / "solution", 0o20000, os.makedev(0, 0))
    os.mknod(over / "etc/innocent", 0o20000, os.makedev(0, 0))
    sif = images.wrap(
        images.squash(base, tmp_path / "a.sqfs"),
        tmp_path / "x.sif",
        overlays=[images.squash(over, tmp_path / "o.sqfs")],
    )
    image = open_image(BytesSource(sif.read_bytes()))
    for rule in ("solution/oracle.sh", "solution", "**/oracle*", SHA):
        [found] = check_content(image, Rules(forbid=(rule,)))["forbid"]
        assert found.code == "content-hidden", rule
        assert "hidden, still in the file" in found.message
    assert said(image, require=("solution",)) == ["content-missing"]
