"""Whatever real tools write passes at level ``data``, without a finding but the note on checksums."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from poolmgr.model.finding import Level, Verdict
from poolmgr.sif.check import check_file
from poolmgr.sif.codecs import missing
from tests import images

OPTIONS = [
    *[(c, "-b", size) for c in ("gzip", "zstd", "lz4") for size in ("4K", "64K", "1M")],
    *[
        ("gzip", option)
        for option in ("-noI", "-noD", "-noF", "-noX", "-noId", "-no-fragments", "-no-exports")
    ],
    ("gzip", "-no-xattrs"),
    ("gzip", "-no-duplicates"),
    ("gzip", "-always-use-fragments"),
    ("gzip", "-all-root"),
    ("gzip", "-noI", "-noD", "-noF", "-noX"),
    ("gzip", "-Xcompression-level", "1", "-Xwindow-size", "10", "-Xstrategy", "filtered"),
    ("zstd", "-no-fragments", "-no-exports", "-no-xattrs"),
    ("zstd", "-Xcompression-level", "3"),
    ("xz", "-Xbcj", "x86"),
    ("xz", "-Xdict-size", "75%", "-b", "64K"),
    ("xz", "-Xbcj", "arm,x86"),
    ("lz4", "-Xhc"),
    ("lz4", "-noI", "-noF"),
    ("lzo", "-Xalgorithm", "lzo1x_1"),
    ("lzo", "-b", "4K"),
    ("lzma",),
]


@pytest.fixture(scope="module")
def odd_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with everything that a filesystem can hold."""
    root = images.make_root(tmp_path_factory.mktemp("odd") / "root", files=20)
    many = root / "many"
    many.mkdir()
    for number in range(1200):
        (many / f"a-rather-long-name-{number:05d}").write_text(str(number % 7) * (number % 50))
    deep = root
    for number in range(60):
        deep /= f"d{number}"
    deep.mkdir(parents=True)
    (deep / "bottom").write_text("x")
    with (root / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(40 << 20)
        file.write(b"end")
    os.mkfifo(root / "fifo")
    here = Path.cwd()
    os.chdir(root)
    try:
        socket.socket(socket.AF_UNIX).bind("socket")
    finally:
        os.chdir(here)
    (root / os.fsdecode(b"not-\xff-utf8")).write_text("x")
    (root / "empty").touch()
    (root / "block").write_bytes(b"x" * 131072)
    (root / "random").write_bytes(os.urandom(300_000))
    (root / "long-link").symlink_to("x/" * 500)
    if os.geteuid() == 0:
        os.mknod(root / "null", 0o20666, os.makedev(1, 3))
        for number in range(40):
            os.chown(many / f"a-rather-long-name-{number:05d}", number + 1000, number + 2000)
    try:
        for number in range(100):
            os.setxattr(many / f"a-rather-long-name-{number:05d}", "user.test", b"v" * (number * 7))
            os.setxattr(many / f"a-rather-long-name-{number:05d}", "user.same", b"w" * 100)
    except OSError:
        pass
    return root


def passes(image: Path, *, lzma: bool = False) -> None:
    report = check_file(image, Level.DATA, allow_legacy=True)
    notes = {"bare-squashfs", "data-partial"} | ({"sq-lzma"} if lzma else set())
    assert {f.code for f in report.findings} <= notes, report.findings
    assert report.verdict.passes or (lzma and report.verdict is Verdict.UNSUPPORTED)
    assert Level.DATA.value in report.checks


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_mksquashfs(odd_root: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    if options[0] == "lzo" and missing(3):
        pytest.skip(str(missing(3)))
    passes(images.squash(odd_root, tmp_path / "x.sqfs", *options), lzma=options[0] == "lzma")


def test_nopad_is_refused_as_the_kernel_refuses_it(root: Path, tmp_path: Path) -> None:
    """Real Apptainer says the same of it; padded to whole sectors, the same filesystem passes."""
    bare = images.squash(root, tmp_path / "x.sqfs", "gzip", "-nopad")
    if bare.stat().st_size % 512 == 0:
        bare = images.squash(root, bare, "gzip", "-nopad", "-noI")
    report = check_file(images.wrap(bare, tmp_path / "x.sif"), Level.DATA)
    assert {f.code for f in report.findings} == {"sq-unpadded"}
    done = subprocess.run(
        ["apptainer", "exec", "--no-privs", tmp_path / "x.sif", "true"], capture_output=True, check=False
    )
    assert done.returncode != 0
    assert b"bad superblock" in done.stderr
    bare.write_bytes(bare.read_bytes() + bytes(512 - bare.stat().st_size % 512))
    passes(bare)


def test_mksquashfs_appending(odd_root: Path, root: Path, tmp_path: Path) -> None:
    image = images.squash(root, tmp_path / "x.sqfs")
    images.run("mksquashfs", odd_root, image, "-no-progress")
    passes(image)


@pytest.mark.parametrize("compressor", ["gzip", "zstd", "xz", "lz4", "lzo"])
@pytest.mark.parametrize("options", [(), ("-x", "-e")], ids=" ".join)
def test_squashfs_tools_ng(odd_root: Path, tmp_path: Path, compressor: str, options: tuple[str, ...]) -> None:
    images.need("gensquashfs", "tar2sqfs")
    try:
        images.run("gensquashfs", "-q", "-c", compressor, *options, "-D", odd_root, tmp_path / "a.sqfs")
    except AssertionError as e:
        if "Unknown compressor" in str(e) or "not supported" in str(e):
            pytest.skip(f"this gensquashfs has no {compressor}")
        raise
    passes(tmp_path / "a.sqfs")
    images.run("tar", "-cf", tmp_path / "x.tar", "-C", odd_root, "--exclude=./socket", ".")
    more = [o for o in options if o == "-e"]
    images.run(
        "sh",
        "-c",
        'tar2sqfs -q -c "$1" $3 "$2/b.sqfs" < "$2/x.tar"',
        "sh",
        compressor,
        tmp_path,
        " ".join(more),
    )
    passes(tmp_path / "b.sqfs")


@pytest.mark.parametrize("compressor", images.COMPRESSORS)
def test_a_sif_in_every_compressor(sifs: dict[str, Path], compressor: str) -> None:
    passes(sifs[compressor], lzma=compressor == "lzma")


def test_apptainer_builds(built_sif: Path, gzip_sif: Path, tmp_path: Path) -> None:
    passes(built_sif)
    again = images.build(built_sif, tmp_path / "again.sif", "--mksquashfs-args", "-comp zstd")
    passes(again)


def test_apptainer_build_of_an_oci_archive(root: Path, tmp_path: Path) -> None:
    """``docker save``-like input: an OCI layout in a tar, one layer, as registries hand it out."""
    layout = tmp_path / "oci"
    blobs = layout / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(data),
        }

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(root, ".")
    layer = put(packed.getvalue(), "layer.v1.tar")
    config = {
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }  # fmt: skip
    manifest = {
        "schemaVersion": 2, "config": put(json.dumps(config).encode(), "config.v1+json"), "layers": [layer],
    }  # fmt: skip
    index = {"schemaVersion": 2, "manifests": [put(json.dumps(manifest).encode(), "manifest.v1+json")]}
    (layout / "index.json").write_text(json.dumps(index))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    archive = tmp_path / "image.tar"
    with tarfile.open(archive, "w") as tar:
        for part in layout.iterdir():
            tar.add(part, part.name)
    to = tmp_path / "from-oci.sif"
    images.need("apptainer")
    images.run(
        "apptainer", "build", "--fakeroot", to, f"oci-archive:{archive}", env={"TMPDIR": str(tmp_path)}
    )
    passes(to)


def test_after_sif_add_and_del(built_sif: Path, tmp_path: Path) -> None:
    image = tmp_path / "x.sif"
    image.write_bytes(built_sif.read_bytes())
    note = tmp_path / "note.json"
    note.write_text("{}")
    for _ in range(3):
        images.run("apptainer", "sif", "add", "--datatype", "6", "--groupid", "1", image, note)
        passes(image)
    listing = images.run("apptainer", "sif", "list", image)
    ids = [line.split("|")[0].strip() for line in listing.splitlines() if line[:1].isdigit()]
    images.run("apptainer", "sif", "del", ids[-2], image)
    report = check_file(image, Level.DATA)
    assert report.verdict.passes
    assert {f.code for f in report.findings} <= {"data-partial", "sif-slot"}
    images.run("apptainer", "sif", "del", ids[-1], image)
    assert check_file(image, Level.DATA).verdict.passes


def test_overlay_partition(root: Path, tmp_path: Path) -> None:
    over = tmp_path / "over"
    (over / "etc").mkdir(parents=True)
    (over / "etc/new").write_text("new")
    image = images.wrap(
        images.squash(root, tmp_path / "a.sqfs"),
        tmp_path / "x.sif",
        overlays=[images.squash(over, tmp_path / "o.sqfs", "zstd")],
    )
    passes(image)
