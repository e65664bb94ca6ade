"""The writer, against the programs that have to read what it writes."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poolmgr.sif.write import DataType, blob, minimal_image, write_sif
from poolmgr.sif.write_node import Kind, Link, Node, Tree, directory, file, symlink, whiteout
from poolmgr.sif.write_squashfs import write_squashfs
from tests.sif.tools import apptainer, meant, seen, tool, unsquashfs

COMPRESSORS = ("gzip", "xz", "lz4", "zstd", "stored")


def squashfs(tree: Tree, **options: object) -> bytes:
    buffer = io.BytesIO()
    write_squashfs(buffer, tree, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


WIDE: Tree = {
    "": directory(0o750),
    "bin/true": file(b"#!/bin/sh\n", 0o755),
    "bin/hard": Link("bin/true"),
    "bin/set-user": Node(Kind.FILE, 0o4755, uid=7, gid=70000, data=b"s"),
    "empty": file(),
    "etc/link": symlink("../bin/true"),
    "etc/überraschung": file(b"name beyond ASCII"),
    "etc/\udcff\udcfe": file(b"name that is no UTF-8"),
    "big": file(bytes(range(256)) * 5000),
    "same": file(bytes(range(256)) * 5000),
    "random": file(os.urandom(300_000)),
    "sparse": file(b"x" + bytes(1_000_000) + b"y"),
    "zeros": file(bytes(131072 * 3)),
    "pipe": Node(Kind.FIFO, 0o600),
    "many": directory(0o700),
    **{f"many/file with a rather long name {i:05d}": file(b"%d" % (i % 7)) for i in range(3000)},
    "deep/" + "/".join("d" for _ in range(60)): file(b"bottom"),
    **{f"owners/{i}": Node(Kind.FILE, 0o600, uid=i, gid=2 * i) for i in range(2500)},
}
DEVICES: Tree = {
    "hidden": whiteout(),
    "null": Node(Kind.CHAR, 0o666, rdev=(1, 3)),
    "disk": Node(Kind.BLOCK, 0o660, gid=6, rdev=(259, 70001)),
}


@pytest.mark.squashfs_tools
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("fragments", [True, False])
def test_a_wide_tree_comes_out_of_unsquashfs_as_it_went_in(
    tmp_path: Path, compressor: str, fragments: bool
) -> None:
    tree = {**WIDE, **(DEVICES if os.geteuid() == 0 else {})}
    image = tmp_path / "image"
    image.write_bytes(squashfs(tree, compressor=compressor, fragments=fragments))
    unsquashfs(image, tmp_path / "out")
    assert seen(tmp_path / "out") == meant(tree)
    out = tmp_path / "out"
    assert (out / "bin/true").stat().st_ino == (out / "bin/hard").stat().st_ino
    assert all(p.lstat().st_mtime == 0 for p in out.rglob("*"))


@pytest.mark.squashfs_tools
@pytest.mark.parametrize("block_size", [4096, 1 << 20])
def test_every_block_size_is_read(tmp_path: Path, block_size: int) -> None:
    image = tmp_path / "image"
    image.write_bytes(squashfs(WIDE, block_size=block_size, compressor="xz", export=False))
    unsquashfs(image, tmp_path / "out")
    assert seen(tmp_path / "out") == meant(WIDE)


@pytest.mark.squashfs_tools
@pytest.mark.skipif(os.geteuid() != 0, reason="setting trusted attributes needs root")
def test_extended_attributes_are_kept(tmp_path: Path) -> None:
    tree: Tree = {
        "": directory(),
        "a": Node(Kind.FILE, 0o644, data=b"a", xattrs={"user.one": b"1", "trusted.two": bytes(3000)}),
        "b": Node(Kind.FILE, 0o644, data=b"b", xattrs={"user.one": b"1", "trusted.two": bytes(3000)}),
        "d": Node(Kind.DIR, 0o755, xattrs={"trusted.overlay.opaque": b"y"}),
        **{f"many/{i}": Node(Kind.FILE, 0o644, xattrs={"user.n": b"%d" % i}) for i in range(600)},
    }
    image = tmp_path / "image"
    image.write_bytes(squashfs(tree))
    unsquashfs(image, tmp_path / "out")
    for path, node in tree.items():
        if isinstance(node, Node) and node.xattrs:
            target = tmp_path / "out" / path
            assert {k: os.getxattr(target, k) for k in os.listxattr(target)} == dict(node.xattrs), path


NAMES = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1, max_size=12
).filter(lambda n: n not in (".", "..") and len(n.encode()) < 250)
NODES = st.one_of(
    st.builds(
        lambda data, times, mode, uid: Node(Kind.FILE, mode, uid=uid, data=data * times),
        st.binary(max_size=50),
        st.sampled_from([1, 90, 5000]),
        st.integers(0, 0o777),
        st.integers(0, 70000),
    ),
    st.builds(symlink, NAMES),
    st.builds(lambda mode: Node(Kind.DIR, mode | 0o700), st.integers(0, 0o777)),
    st.just(Node(Kind.FIFO, 0o640)),
)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    tree: dict[str, Node | Link] = {}
    folders = [""]
    for _ in range(draw(st.integers(0, 30))):
        folder = draw(st.sampled_from(folders))
        name = draw(NAMES)
        path = f"{folder}/{name}" if folder else name
        if path in tree:
            continue
        files = [p for p, n in tree.items() if isinstance(n, Node) and n.kind is not Kind.DIR]
        if files and draw(st.integers(0, 5)) == 0:
            tree[path] = Link(draw(st.sampled_from(files)))
            continue
        node = tree[path] = draw(NODES)
        assert isinstance(node, Node)
        if node.kind is Kind.DIR:
            folders.append(path)
    return tree


@pytest.mark.squashfs_tools
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(), compressor=st.sampled_from(COMPRESSORS), block_size=st.sampled_from([4096, 131072]))
def test_any_tree_comes_out_of_unsquashfs_as_it_went_in(
    tmp_path: Path, tree: Tree, compressor: str, block_size: int
) -> None:
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    image = tmp_path / "image"
    image.write_bytes(squashfs(tree, compressor=compressor, block_size=block_size))
    unsquashfs(image, tmp_path / "out")
    assert seen(tmp_path / "out") == meant(tree)


def test_the_same_tree_gives_the_same_bytes_in_any_order_of_its_paths() -> None:
    for compressor in COMPRESSORS:
        backwards = dict(reversed(list(WIDE.items())))
        assert squashfs(WIDE, compressor=compressor) == squashfs(backwards, compressor=compressor)
    assert minimal_image("a", b"b") == minimal_image("a", b"b")
    assert minimal_image("a", b"b") != minimal_image("a", b"c") != minimal_image("b", b"c")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a/../b": file()}, "cannot name"),
        ({"a//b": file()}, "cannot name"),
        ({"x" * 256: file()}, "cannot name"),
        ({"a": file(), "a/b": file()}, "not a directory"),
        ({"": file()}, "root"),
        ({"a": Link("b")}, "no file at"),
        ({"d": directory(), "a": Link("d")}, "no file at"),
        ({"a": symlink("")}, "1 to 4,095"),
        ({"a": Node(Kind.FILE, 0o100644)}, "permission bits"),
        ({"a": Node(Kind.FILE, 0o644, uid=-1)}, "32 bits"),
        ({"a": Node(Kind.FILE, 0o644, mtime=-1)}, "32 bits"),
        ({"a": Node(Kind.FILE, 0o644, xattrs={"system.x": b""})}, "attribute"),
        ({"a": Node(Kind.CHAR, 0o644, rdev=(5000, 0))}, "device"),
        ({f"{i}": Node(Kind.FILE, 0o644, uid=i) for i in range(1, 65538)}, "65,536"),
    ],
)
def test_a_tree_that_cannot_be_written_is_refused(tree: Tree, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        squashfs(tree)


def test_options_that_do_not_exist_are_refused() -> None:
    for options in ({"compressor": "brotli"}, {"block_size": 5000}, {"block_size": 2048}):
        with pytest.raises(ValueError, match=r"no compressor|block size"):
            squashfs({}, **options)
    with pytest.raises(ValueError, match="architecture"):
        minimal_image("a", arch="vax")


def test_a_path_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.sif"
    write_sif(path, {})
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        write_sif(path, {"a": file()})
    assert path.read_bytes() == before


def runnable() -> Tree:
    busybox = Path(tool("busybox", "apt-get install busybox-static"))
    return {
        "bin/busybox": file(busybox.read_bytes(), 0o755),
        **{f"bin/{name}": symlink("busybox") for name in ("sh", "true", "cat", "id", "env", "ls")},
        "etc/hello": file(b"from the image\n"),
        **{name: directory() for name in ("dev", "proc", "sys", "root", "home", "var/tmp")},
        "tmp": directory(0o1777),
        "etc/passwd": file(b"root:x:0:0:root:/root:/bin/sh\n"),
        "etc/group": file(b"root:x:0:\n"),
    }


@pytest.mark.apptainer
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_apptainer_runs_what_is_written(tmp_path: Path, compressor: str) -> None:
    image = tmp_path / "image.sif"
    write_sif(
        image,
        runnable(),
        compressor=compressor,
        labels={"org.acme.name": "value"},
        definition="Bootstrap: scratch\n",
        items=[blob(DataType.GENERIC, "note.txt", b"a note")],
    )
    listing = apptainer("sif", "list", image)
    assert "Def.FILE" in listing
    assert "JSON.Generic" in listing
    assert "Generic/Raw" in listing
    assert "FS (Squashfs/*System/amd64)" in listing
    shown = json.loads(apptainer("inspect", "--json", "--labels", image))
    assert shown["data"]["attributes"]["labels"] == {"org.acme.name": "value"}
    for how in ("--no-privs", "--userns"):
        ran = apptainer("exec", how, "--containall", "--no-home", image, "/bin/cat", "/etc/hello")
        assert ran == "from the image\n"


@pytest.mark.apptainer
def test_apptainer_takes_a_minimal_image(tmp_path: Path) -> None:
    image = tmp_path / "image.sif"
    image.write_bytes(minimal_image("one", b"payload"))
    assert image.stat().st_size < 41_000
    assert "FS (Squashfs/*System/amd64)" in apptainer("sif", "list", image)
    shown = json.loads(apptainer("inspect", "--json", "--labels", image))
    assert shown["data"]["attributes"]["labels"] == {"poolmgr.label": "one"}
    assert apptainer("sif", "dump", "1", image) == (
        '{"data":{"attributes":{"labels":{"poolmgr.label":"one"}}},"type":"container"}'
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="a loop mount needs root")
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_the_kernel_mounts_what_is_written(tmp_path: Path, compressor: str) -> None:
    tree = {**WIDE, **DEVICES}
    image = tmp_path / "image"
    image.write_bytes(squashfs(tree, compressor=compressor))
    out = tmp_path / "out"
    out.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "squashfs", "-o", "loop,ro", image, out], capture_output=True, text=True, check=False
    )
    if mount.returncode and not os.environ.get("CI"):
        pytest.skip(f"no loop mount here: {mount.stderr.strip()}")
    assert mount.returncode == 0, mount.stderr
    try:
        assert seen(out) == meant(tree)
        for i in range(0, 3000, 100):  # look-ups by name go through the directory's index
            assert (out / f"many/file with a rather long name {i:05d}").read_bytes() == b"%d" % (i % 7)
        assert not (out / "many/file with a rather long name 03000").exists()
    finally:
        subprocess.run(["umount", out], check=True)
