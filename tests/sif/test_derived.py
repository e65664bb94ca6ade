"""Derived images: what stays is there, what goes is gone, and every program takes the result."""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poolmgr.errors import BadFileError
from poolmgr.model.finding import Level
from poolmgr.sif import codecs
from poolmgr.sif.changes import Changes, matches, overlay_tree
from poolmgr.sif.check import check_file
from poolmgr.sif.derived import Base, append_overlay, provenance_of, write_rebuilt
from poolmgr.sif.graph import read_graph
from poolmgr.sif.header import METADATA_NAME, read_container
from poolmgr.sif.image import open_image
from poolmgr.sif.rewrite import rebuild
from poolmgr.sif.source import BytesSource, FileSource
from poolmgr.sif.squashfs import mount
from poolmgr.sif.tables import Tables, read_tables
from poolmgr.sif.write import DataType, PartType, blob, metadata, partition, write_container, write_sif
from poolmgr.sif.write_node import Kind, Node, Tree, directory, file, split, symlink
from poolmgr.sif.write_squashfs import write_squashfs
from tests.sif.tools import apptainer, apptainer_said, meant, mksquashfs, run, seen, tool, unsquashfs

rng = random.Random(7)
SECRET = rng.randbytes(40_000)
SMALL_SECRET = b"the oracle says: " + bytes(rng.choices(b"abcdefgh", k=900))


def base_folder(root: Path) -> Path:
    """A tree with everything that a removal can meet: whole blocks, tails, shared and hard-linked files."""
    root.mkdir()
    for name in ("app", "bin", "etc", "usr/lib/deep", "many"):
        (root / name).mkdir(parents=True)
    (root / "app/oracle").write_bytes(SECRET)
    (root / "app/small_oracle").write_bytes(SMALL_SECRET)
    (root / "app/big_oracle").write_bytes(rng.randbytes(400_000))
    (root / "app/kept").write_bytes(b"kept\n" * 3000)
    (root / "etc/conf").write_text("conf\n")
    (root / "etc/copy").write_text("conf\n")
    (root / "usr/lib/deep/big").write_bytes(bytes(rng.choices(b"xyz", k=700_000)))
    (root / "usr/lib/deep/sparse").write_bytes(b"a" + bytes(500_000) + b"b")
    os.link(root / "etc/conf", root / "etc/hard")
    (root / "bin/tool").symlink_to("../usr/lib/deep/big")
    (root / "lib").symlink_to("usr/lib")
    for i in range(700):
        (root / f"many/{i:04d}").write_bytes(b"%d " % i * (i % 40))
    os.chmod(root / "app", 0o750)
    return root


def tables_of(data: bytes, offset: int = 0) -> Tables:
    mounted = mount(BytesSource(data), offset, len(data) - offset)
    assert mounted.filesystem is not None, mounted
    return read_tables(mounted.filesystem)


def every_block(t: Tables) -> bytes:
    """All that the data part of a filesystem holds, unpacked."""
    codec = codecs.open_codec(t.fs.sb.compressor)

    def unpack(start: int, word: int) -> bytes:
        raw = t.fs.read(start, word & (1 << 24) - 1)
        return raw if word & 1 << 24 else codec(raw, t.fs.sb.block_size)

    parts = [unpack(start, word) for start, word in t.fragments]
    parts += [unpack(key >> 25, key & (1 << 25) - 1) for key in t.blocks]
    return b"\0".join(parts)


def runs(data: bytes, size: int = 24) -> list[bytes]:
    """Samples of the content, all over it."""
    return [data[i : i + size] for i in range(0, len(data) - size, max(size, len(data) // 300))]


OPTIONS = [
    ("gzip", []), ("xz", []), ("xz", ["-Xdict-size", "32K", "-b", "64K"]), ("lz4", []), ("lz4", ["-Xhc"]),
    ("zstd", ["-Xcompression-level", "3"]), ("lzo", []), ("gzip", ["-no-fragments"]),
    ("gzip", ["-always-use-fragments", "-b", "4K"]), ("gzip", ["-noI", "-noD", "-noF", "-noX"]),
    ("gzip", ["-no-exports", "-Xcompression-level", "1"]), ("gzip", ["-no-duplicates", "-nopad"]),
]  # fmt: skip


@pytest.mark.squashfs_tools
@pytest.mark.parametrize(("compressor", "options"), OPTIONS)
def test_a_removal_keeps_the_rest_and_leaves_no_byte_of_what_went(
    tmp_path: Path, compressor: str, options: list[str]
) -> None:
    folder = base_folder(tmp_path / "base")
    image = tmp_path / "base.squashfs"
    mksquashfs(folder, image, "-comp", compressor, *options)
    t = tables_of(image.read_bytes())
    changes = Changes()
    for name in (
        "app/oracle",
        "app/small_oracle",
        "app/big_oracle",
        "many/0033",
        "etc/hard",
        "usr/lib/deep/sparse",
    ):
        changes.remove.add(split(name))
    changes.put(read_graph(t).root, "lib/new/file", file(b"something new", 0o640))
    changes.put(read_graph(t).root, "etc/copy", file(b"replaced"))
    big = rng.randbytes(300_000)
    changes.put(read_graph(t).root, "big", file(big))
    before = runs((folder / "app/big_oracle").read_bytes())
    out = io.BytesIO()
    rebuild(t, changes, out)
    (tmp_path / "new.squashfs").write_bytes(out.getvalue())
    unsquashfs(tmp_path / "new.squashfs", tmp_path / "out")
    for name in (
        "app/oracle",
        "app/small_oracle",
        "app/big_oracle",
        "many/0033",
        "etc/hard",
        "usr/lib/deep/sparse",
    ):
        (folder / name).unlink()
    (folder / "usr/lib/new").mkdir(0o755)
    (folder / "usr/lib/new/file").write_bytes(b"something new")
    (folder / "usr/lib/new/file").chmod(0o640)
    (folder / "etc/copy").write_bytes(b"replaced")
    (folder / "big").write_bytes(big)
    assert seen(tmp_path / "out") == seen(folder)
    new = tables_of(out.getvalue())
    held = every_block(new)
    for part in (*runs(SECRET), *runs(SMALL_SECRET), *before, b"33 33 33 33 33 33 33 33"):
        assert part not in held
        assert part not in out.getvalue()
    # the check itself can fail: what stays is found
    assert b"kept\nkept\n" in held


@pytest.mark.squashfs_tools
def test_untouched_blocks_are_copied_as_they_lie(tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "base")
    image = tmp_path / "base.squashfs"
    mksquashfs(folder, image)
    t = tables_of(image.read_bytes())
    out = io.BytesIO()
    rebuild(t, Changes({split("app/oracle")}), out)
    new = tables_of(out.getvalue())

    def packed(t: Tables) -> set[bytes]:
        return {t.fs.read(key >> 25, key & (1 << 24) - 1) for key in t.blocks}

    assert len(packed(new)) > 5
    assert packed(new) <= packed(t)


@pytest.mark.squashfs_tools
def test_nothing_changed_gives_the_same_tree_and_attributes(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("setting owners and trusted attributes needs root")
    folder = base_folder(tmp_path / "base")
    os.setxattr(folder / "etc/conf", "user.a", b"1")
    os.setxattr(folder / "etc", "trusted.b", bytes(3000))
    os.setxattr(folder / "app/kept", "trusted.b", bytes(3000))
    os.lchown(folder / "bin/tool", 5, 70001)
    os.mknod(folder / "dev", 0o20644, os.makedev(300, 4000))
    os.mkfifo(folder / "pipe")
    image = tmp_path / "base.squashfs"
    mksquashfs(folder, image)
    out = io.BytesIO()
    rebuild(tables_of(image.read_bytes()), Changes(), out)
    (tmp_path / "new").write_bytes(out.getvalue())
    unsquashfs(tmp_path / "new", tmp_path / "out")
    assert seen(tmp_path / "out") == seen(folder)
    for name in ("etc/conf", "etc", "app/kept"):
        path = tmp_path / "out" / name
        assert {k: os.getxattr(path, k) for k in os.listxattr(path)} == {
            k: os.getxattr(folder / name, k) for k in os.listxattr(folder / name)
        }
        assert path.stat().st_mtime == int((folder / name).stat().st_mtime)


CONTENTS = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda n, size: random.Random(n).randbytes(size),
        st.integers(0, 3),
        st.sampled_from([300, 4096, 9001]),
    ),
)
PATHS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3).map("/".join)


def valid(paths: dict[str, bytes]) -> Tree:
    """The files of ``paths`` that do not stand in each other's way."""
    tree: dict[str, Node] = {}
    for path, data in sorted(paths.items(), key=lambda item: -len(item[0])):
        if not any(other.startswith(path + "/") for other in tree):
            tree[path] = file(data)
    return tree


@pytest.mark.squashfs_tools
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    paths=st.dictionaries(PATHS, CONTENTS, max_size=8),
    gone=st.sets(PATHS, max_size=3),
    new=st.dictionaries(PATHS, CONTENTS, max_size=3),
    compressor=st.sampled_from(["gzip", "zstd", "stored"]),
)
def test_any_change_is_what_it_says(
    tmp_path: Path, paths: dict[str, bytes], gone: set[str], new: dict[str, bytes], compressor: str
) -> None:
    tree = valid(paths)
    buffer = io.BytesIO()
    write_squashfs(buffer, tree, compressor=compressor, block_size=4096)
    t = tables_of(buffer.getvalue())
    changes = Changes({split(p) for p in gone})
    after: dict[str, Node] = {}
    for path, node in tree.items():
        assert isinstance(node, Node)
        for n in range(1, path.count("/") + 1):
            above = "/".join(path.split("/")[:n])
            if not any(above == g or above.startswith(g + "/") for g in gone):
                after[above] = directory()
        if not any(path == g or path.startswith(g + "/") for g in gone):
            after[path] = node
    for path, node in valid(new).items():
        parents = ["/".join(path.split("/")[:n]) for n in range(1, path.count("/") + 1)]
        if any(p in after and after[p].kind is not Kind.DIR for p in parents):
            continue
        if path in after and after[path].kind is Kind.DIR:
            continue
        assert isinstance(node, Node)
        changes.add[split(path)] = node
        after.update({p: directory() for p in parents})
        after[path] = node
    out = io.BytesIO()
    rebuild(t, changes, out)
    image = tmp_path / "image"
    image.write_bytes(out.getvalue())
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    unsquashfs(image, tmp_path / "out")
    assert seen(tmp_path / "out") == meant(after)
    fresh = tables_of(out.getvalue())
    kept = {p: n.data for p, n in after.items() if n.kind is Kind.FILE}
    view = open_image(BytesSource(out.getvalue()))
    assert {p: view.read(p) for p, e in view.merged.items() if e.is_file} == kept
    held = every_block(fresh)
    for path, node in tree.items():
        assert isinstance(node, Node)
        if len(node.data) >= 300 and not any(node.data[:200] in data for data in kept.values()):
            assert node.data[:200] not in held, path
    # and the overlay, laid over the base, shows the same
    upper = {p: n for p, n in overlay_tree(read_graph(t).root, changes).items() if isinstance(n, Node)}
    assert laid_over(tree, upper) == {p: n for p, n in meant(after).items() if p}


def laid_over(lower: Tree, upper: dict[str, Node]) -> dict[str, tuple[object, ...]]:
    """What the kernel's overlay shows of two trees, by its documented rules."""
    shown = {p: n for p, n in meant(lower).items() if p}
    for path, node in upper.items():
        if not path:
            continue
        hides = (
            node.kind is not Kind.DIR
            or path not in shown
            or shown[path][0] != meant({"d": directory()})["d"][0]
        )
        if hides:
            for other in [p for p in shown if p == path or p.startswith(path + "/")]:
                del shown[other]
        if not (node.kind is Kind.CHAR and node.rdev == (0, 0)):
            shown[path] = meant({"x": node})["x"]
    return shown


def runnable_base(path: Path, compressor: str) -> None:
    """A SIF with a filesystem by ``mksquashfs``, as Apptainer writes it; ``poolmgr``: by our writer."""
    busybox = Path(tool("busybox", "apt-get install busybox-static"))
    tree: Tree = {
        "bin/busybox": file(busybox.read_bytes(), 0o755),
        **{f"bin/{name}": symlink("busybox") for name in ("sh", "true", "cat", "ls")},
        **{name: directory() for name in ("dev", "proc", "sys", "root", "home", "var/tmp")},
        "tmp": directory(0o1777),
        "etc/passwd": file(b"root:x:0:0:root:/root:/bin/sh\n"),
        "app/oracle": file(SECRET),
        "app/dir/a": file(b"a"),
        "app/dir/b": file(b"b"),
    }
    if compressor == "poolmgr":
        write_sif(path, tree, labels={"who": "base"}, definition="Bootstrap: scratch\n")
        return
    ours, packed, folder = (path.with_suffix(end) for end in (".ours", ".packed", ".folder"))
    with ours.open("xb") as out:
        write_squashfs(out, tree)
    unsquashfs(ours, folder)
    mksquashfs(folder, packed, "-comp", compressor)
    with path.open("xb") as out:
        items = [
            blob(DataType.DEFINITION, "", b"Bootstrap: scratch\n"),
            blob(DataType.JSON, METADATA_NAME, metadata({"who": "base"})),
            partition(PartType.PRIMARY, "amd64", lambda o: o.write(packed.read_bytes())),
        ]
        write_container(out, items, "amd64")


def derive(base_path: Path, out: Path, method: str) -> None:
    with FileSource(base_path) as source:
        base = Base(source, str(base_path))
        changes = Changes({split("app/oracle"), split("app/dir")})
        changes.put(base.root, "/app/dir/c", file(b"new\n"))
        if method == "rebuild":
            with out.open("xb") as target:
                write_rebuilt(base, changes, target, b'{"made":"so"}')
        else:
            shutil.copyfile(base_path, out)
            with out.open("r+b") as target:
                append_overlay(base, changes, target, b'{"made":"so"}')


@pytest.mark.apptainer
@pytest.mark.parametrize("compressor", ["poolmgr", "gzip", "xz", "lz4", "zstd", "lzo"])
@pytest.mark.parametrize("method", ["rebuild", "overlay"])
def test_apptainer_runs_a_derived_image(tmp_path: Path, method: str, compressor: str) -> None:
    base, image, again = tmp_path / "base.sif", tmp_path / "new.sif", tmp_path / "again.sif"
    runnable_base(base, compressor)
    with FileSource(base) as source:
        number = Base(source, "base").tables.fs.sb.compressor
        assert codecs.NAMES[number] == ("gzip" if compressor == "poolmgr" else compressor)
    derive(base, image, method)
    derive(base, again, method)
    assert image.read_bytes() == again.read_bytes()
    listing = apptainer("sif", "list", image)
    assert listing.count("FS (Squashfs/") == (1 if method == "rebuild" else 2)
    assert "Def.FILE" in listing
    assert apptainer("inspect", "--labels", image).strip() == "who: base"
    for how in ("--no-privs", "--userns"):
        ran, log = apptainer_said(
            "-d", "exec", how, "--containall", "--no-home", image, "/bin/ls", "/app", "/app/dir"
        )
        assert ran.split() == ["/app:", "dir", "/app/dir:", "c"]
        # Apptainer went that way, and fell back to no other
        assert ("Create user namespace" in log) == (how == "--userns" or os.geteuid() != 0)
        if how == "--userns":
            assert log.count("squashfuse_ll -f") == listing.count("FS (Squashfs/")
        elif os.geteuid() == 0:
            assert "Kernel squashfs mount allowed" in log
            assert "squashfuse_ll -f" not in log
    report = check_file(image, Level.DATA)
    assert report.verdict.passes, report
    with FileSource(image) as source:
        assert provenance_of(source, read_container(source)) == {"made": "so"}
        assert "app/oracle" not in open_image(source).merged
    if method == "rebuild":
        assert SECRET[100:200] not in image.read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="a loop mount needs root")
@pytest.mark.parametrize("compressor", ["gzip", "xz", "lz4", "zstd"])
def test_the_kernel_mounts_a_rebuilt_filesystem(tmp_path: Path, compressor: str) -> None:
    folder = base_folder(tmp_path / "base")
    image = tmp_path / "image"
    mksquashfs(folder, image, "-comp", compressor)
    out = io.BytesIO()
    rebuild(tables_of(image.read_bytes()), Changes({split("app/oracle"), split("many")}), out)
    image.write_bytes(out.getvalue())
    (folder / "app/oracle").unlink()
    shutil.rmtree(folder / "many")
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        ["mount", "-t", "squashfs", "-o", "loop,ro", image, tmp_path / "out"],
        capture_output=True,
        check=False,
    )
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(f"no loop mount here: {done.stderr.decode().strip()}")
    assert done.returncode == 0, done.stderr
    try:
        assert seen(tmp_path / "out") == seen(folder)
    finally:
        run("umount", tmp_path / "out")


def test_patterns_follow_links_and_name_what_is_there() -> None:
    buffer = io.BytesIO()
    tree: Tree = {
        "srv/app/oracle": file(b"x"),
        "srv/app/oracle2": file(b"y"),
        "app": symlink("/srv/app"),
        "l": symlink("l"),
    }
    write_squashfs(buffer, tree)
    root = read_graph(tables_of(buffer.getvalue())).root
    assert matches(root, "/app/oracle") == [split("srv/app/oracle")]
    assert matches(root, "/app/oracle*") == [split("srv/app/oracle"), split("srv/app/oracle2")]
    assert matches(root, "/app") == [split("app")]
    assert matches(root, "/app/none") == []
    assert matches(root, "/srv/app/oracle/below") == []
    with pytest.raises(ValueError, match="symbolic links"):
        matches(root, "/l/x")


def test_a_base_that_cannot_be_read_or_has_an_overlay_is_refused(tmp_path: Path) -> None:
    image = tmp_path / "a.sif"
    write_sif(image, {"a": file(b"a" * 10_000)})
    whole = image.read_bytes()
    with pytest.raises(BadFileError, match=r"cut|page"):
        Base(BytesSource(whole[:-100]), "cut")
    with pytest.raises(BadFileError, match=r"cut|page"):
        Base(BytesSource(b"<html>"), "page")
    used = tables_of(whole, 32768).fs.sb
    broken = bytearray(whole)
    broken[32768 + used.inode_table + 4 : 32768 + used.inode_table + 20] = bytes(16)
    with pytest.raises(BadFileError):
        Base(BytesSource(bytes(broken)), "broken")
    out = io.BytesIO()
    write = lambda o: write_squashfs(o, {})  # noqa: E731
    write_container(
        out,
        [partition(PartType.PRIMARY, "amd64", write), partition(PartType.OVERLAY, "amd64", write)],
        "amd64",
    )
    with pytest.raises(BadFileError, match="2 filesystems"):
        Base(BytesSource(out.getvalue()), "two")
