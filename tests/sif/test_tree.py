"""Trees, content, merged views and identities, against the folders that the images were made from."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from poolmgr.errors import BadFileError
from poolmgr.model.finding import Level
from poolmgr.sif.check import check_file
from poolmgr.sif.identity import file_sha256, partition_sha256, tree_sha256
from poolmgr.sif.image import Image, open_image
from poolmgr.sif.source import BytesSource, FileSource
from poolmgr.sif.tree import Entry
from poolmgr.sif.write_node import Kind
from tests import images

KINDS = {stat.S_IFDIR: Kind.DIR, stat.S_IFREG: Kind.FILE, stat.S_IFLNK: Kind.SYMLINK}


def on_disk(root: Path) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in [root, *root.rglob("*")]:
        st = path.lstat()
        name = "" if path == root else str(path.relative_to(root))
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[name] = (
            KINDS[stat.S_IFMT(st.st_mode)],
            stat.S_IMODE(st.st_mode),
            st.st_uid,
            st.st_gid,
            int(st.st_mtime),
            content,
        )
    return found


def in_image(image: Image) -> dict[str, tuple[object, ...]]:
    found = {}
    for path, e in image.merged.items():
        content: object = e.target or None
        if e.is_file:
            content = hashlib.sha256(b"".join(image.blocks(e))).hexdigest()
        found[path] = (e.kind, e.mode, e.uid, e.gid, e.mtime, content)
    return found


@pytest.mark.parametrize("compressor", images.COMPRESSORS)
def test_a_tree_is_the_folder_it_was_made_from(sifs: dict[str, Path], root: Path, compressor: str) -> None:
    with FileSource(sifs[compressor]) as source:
        assert in_image(open_image(source)) == on_disk(root)


def test_hard_links_share_an_inode(gzip_sif: Path) -> None:
    with FileSource(gzip_sif) as source:
        view = open_image(source).merged
    assert view["etc/os-release"].number == view["etc/hard-linked"].number


def test_identity_of_a_tree_does_not_depend_on_how_it_is_packed(
    sifs: dict[str, Path], root: Path, tmp_path: Path
) -> None:
    seen, files, parts = set(), set(), set()
    more = [
        images.squash(root, tmp_path / "4k.sqfs", "gzip", "-b", "4K"),
        images.squash(root, tmp_path / "raw.sqfs", "xz", "-noI", "-noD", "-no-fragments"),
    ]
    for path in (*sifs.values(), *more):
        with FileSource(path) as source:
            image = open_image(source)
            seen.add(tree_sha256(image, threads=2))
            files.add(file_sha256(source))
            parts.add(partition_sha256(source, image.container))
    assert len(seen) == 1
    assert len(files) == len(sifs) + 2
    assert len(parts) == len(sifs) + 1  # None for the two that are no SIF
    with FileSource(
        images.squash(root, tmp_path / "o.sqfs", "gzip", "-all-root", "-force-uid", "7")
    ) as source:
        assert tree_sha256(open_image(source)) not in seen


def test_identity_of_rebuilds_is_one(root: Path, built_sif: Path, tmp_path: Path) -> None:
    again = images.build(root, tmp_path / built_sif.name)
    assert again.read_bytes() != built_sif.read_bytes()
    hashes = set()
    for path in (again, built_sif):
        with FileSource(path) as source:
            hashes.add(tree_sha256(open_image(source)))
    assert len(hashes) == 1


def test_labels_and_metadata(built_sif: Path, gzip_sif: Path) -> None:
    with FileSource(built_sif) as source:
        image = open_image(source)
        assert image.labels["org.label-schema.build-arch"] == "amd64"
        assert image.metadata["data"]["attributes"]["labels"] == image.labels
        assert image.arch == "amd64"
    with FileSource(gzip_sif) as source:
        assert (open_image(source).labels, open_image(source).metadata) == ({}, {})


def test_reading_follows_links_inside_the_image(root: Path, tmp_path: Path) -> None:
    image = open_image(BytesSource(images.squash(root, tmp_path / "x.sqfs").read_bytes()))
    assert image.find("bin/sh") == image.merged["bin/busybox"]
    assert image.read("/etc/../etc/os-release") == (root / "etc/os-release").read_bytes()
    with pytest.raises(KeyError):
        image.read("etc/none")


def layers(root: Path, tmp_path: Path) -> Path:
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "etc").mkdir(parents=True)
    (one / "etc/both").write_text("one")
    (one / "etc/first").write_text("one")
    os.mknod(one / "etc/os-release", 0o20000, os.makedev(0, 0))
    (two / "etc").mkdir(parents=True)
    (two / "etc/both").write_text("two")
    (two / "usr").mkdir()
    os.mknod(two / "usr/lib", 0o20000, os.makedev(0, 0))
    return images.wrap(
        images.squash(root, tmp_path / "a.sqfs"),
        tmp_path / "layers.sif",
        overlays=[images.squash(one, tmp_path / "1.sqfs"), images.squash(two, tmp_path / "2.sqfs", "zstd")],
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="whiteouts are made as root")
def test_merged_view_is_what_apptainer_shows(root: Path, tmp_path: Path) -> None:
    sif = layers(root, tmp_path)
    with FileSource(sif) as source:
        image = open_image(source)
        view = image.merged
        both = image.read("etc/both")
        hidden = {e.path for e in image.hidden}
    assert "etc/os-release" not in view
    assert "etc/hard-linked" in view
    assert not any(p.startswith("usr/lib") for p in view)
    assert {"etc/os-release", "usr/lib/d1/file1.txt", "etc/both"} <= hidden
    shown = images.run(
        "apptainer", "exec", "--no-privs", "--no-home", "--containall", sif, "cat", "/etc/both"
    )
    assert shown.encode() == both
    names = images.run("apptainer", "exec", "--no-privs", "--containall", sif, "ls", "/etc").split()
    assert "os-release" not in names
    assert "first" in names


def test_damage_is_an_error_not_a_traceback(gzip_sif: Path) -> None:
    data = bytearray(gzip_sif.read_bytes())
    data[-6000:-4100] = bytes(1900)
    with pytest.raises(BadFileError, match=r"metadata|index|inode|directory|unpack"):
        open_image(BytesSource(bytes(data)), "x.sif")
    with pytest.raises(BadFileError, match="HTML"):
        open_image(BytesSource(b"<html>"), "x.sif")


def test_check_passes_what_was_read(sifs: dict[str, Path]) -> None:
    assert check_file(sifs["zstd"], Level.DATA).verdict.passes
    assert isinstance(next(iter(open_image(BytesSource(sifs["zstd"].read_bytes())).merged.values())), Entry)
