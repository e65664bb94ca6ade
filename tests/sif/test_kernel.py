"""What the kernel or unsquashfs refuses although every checksum is right: images changed by hand.

Each of these was refused by the real ``apptainer exec`` or ``unsquashfs`` and once passed ``data``.
"""

from __future__ import annotations

import lzma
import struct
import subprocess
import zlib
from pathlib import Path

import pytest
import zstandard

from poolmgr.model.finding import Level, Verdict
from poolmgr.sif import codecs, tree
from poolmgr.sif.check import Report, check
from poolmgr.sif.codecs import CodecError, open_codec
from poolmgr.sif.inodes import read_inodes
from poolmgr.sif.metadata import Table
from poolmgr.sif.source import BytesSource
from poolmgr.sif.squashfs import METADATA, STORED, SUPER, DamageError, Superblock, mount
from poolmgr.sif.tables import Tables, read_tables
from poolmgr.sif.tree import FsTree
from poolmgr.sif.xattrs import walk_xattrs
from tests import images

TEXT = b"".join(b"line %d %d\n" % (n, n * 7919) for n in range(20_000))


def squashed(folder: Path, compressor: str, *options: str, names: int = 0) -> bytes:
    """An image of one file of 300 KB, and a folder of so many names."""
    root = folder / "root"
    (root / "many").mkdir(parents=True)
    (root / "text").write_bytes(TEXT)
    for n in range(names):
        (root / "many" / f"name-{n:05d}-{'x' * 40}").touch()
    return images.squash(root, folder / "x.sqfs", compressor, *options).read_bytes()


def looked(data: bytes, level: Level = Level.DATA) -> Report:
    return check(BytesSource(data), level, allow_legacy=True)


def codes(data: bytes, level: Level = Level.DATA) -> set[str]:
    return {f.code for f in looked(data, level).findings} - {"bare-squashfs", "data-partial"}


def superblock(data: bytes) -> Superblock:
    return Superblock._make(SUPER.unpack_from(data))


def tables_of(data: bytes) -> Tables:
    found = mount(BytesSource(data), 0, len(data)).filesystem
    assert found is not None
    return read_tables(found)


def test_a_directory_index_that_leads_astray(tmp_path: Path) -> None:
    """The kernel says 'Input/output error' to every name behind it; unsquashfs lists them all."""
    data = squashed(tmp_path, "gzip", "-noI", names=1500)
    assert codes(data) == set()
    t = tables_of(data)
    ((at, entries),) = read_inodes(t.fs, t.inodes, t.fragments).lookups.values()
    assert entries > 1

    def changed(position: int, value: bytes) -> bytes:
        wrong = bytearray(data)
        for n, byte in enumerate(value, position):
            wrong[t.fs.sb.inode_table + n // METADATA * (METADATA + 2) + 2 + n % METADATA] = byte
        return bytes(wrong)

    distance, block, size = struct.unpack_from("<III", t.inodes.data, at)
    for value in (
        struct.pack("<III", distance + 7, block, size),
        struct.pack("<III", distance, block + 3, size),
        struct.pack("<III", distance, block, size) + b"nam f",
    ):
        report = looked(changed(at, value), Level.TABLES)
        assert report.verdict is Verdict.BAD
        assert "its index" in str(report.findings[-1])


@pytest.mark.parametrize("compressor", ["xz", "lz4"])
def test_options_that_are_too_short_for_the_kernel(tmp_path: Path, compressor: str) -> None:
    options = ["-Xdict-size", "64K"] if compressor == "xz" else []
    data = bytearray(squashed(tmp_path, compressor, *options))
    assert codes(bytes(data)) == set()
    struct.pack_into("<H", data, SUPER.size, STORED | 4)
    assert codes(bytes(data), Level.MOUNT) == {"sq-options"}


def test_an_xz_dictionary_that_the_options_do_not_promise(tmp_path: Path) -> None:
    data = bytearray(squashed(tmp_path, "xz", "-Xdict-size", "64K"))
    for size, code in ((131072, set()), (8192, {"sq-data"})):
        struct.pack_into("<I", data, SUPER.size + 2, size)
        assert codes(bytes(data)) == code, size


@pytest.mark.parametrize("options", [(), ("-b", "1M"), ("-Xbcj", "x86,arm"), ("-Xdict-size", "8K")])
def test_no_false_alarm_about_dictionaries(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert codes(squashed(tmp_path, "xz", *options)) == set()


def test_codecs_refuse_what_the_kernel_does() -> None:
    def packed(check: int, *filters: dict[str, int]) -> bytes:
        lzma2 = {"id": lzma.FILTER_LZMA2, "dict_size": 1 << 16}
        return lzma.compress(TEXT, lzma.FORMAT_XZ, check, filters=[*filters, lzma2])

    xz = open_codec(codecs.XZ, 1 << 16)
    size = len(TEXT)
    for good in (
        packed(lzma.CHECK_CRC32),
        packed(lzma.CHECK_NONE),
        packed(lzma.CHECK_CRC32, {"id": lzma.FILTER_X86}),
    ):
        assert xz(good, size) == TEXT
    with pytest.raises(CodecError, match="dictionary of 65536"):
        open_codec(codecs.XZ, 1 << 15)(packed(lzma.CHECK_CRC32), size)
    with pytest.raises(CodecError, match="only crc32"):
        xz(packed(lzma.CHECK_CRC64), size)
    with pytest.raises(CodecError, match="delta"):
        xz(packed(lzma.CHECK_CRC32, {"id": lzma.FILTER_DELTA, "dist": 1}), size)

    wide = zstandard.ZstdCompressionParameters.from_level(3, window_log=23, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    frame = stream.compress(TEXT) + stream.flush()
    assert open_codec(codecs.ZSTD)(frame, size) == TEXT
    with pytest.raises(CodecError, match="window of 8388608"):
        open_codec(codecs.ZSTD, 1 << 20)(frame, size)


def test_a_zlib_window_that_zlib_refuses() -> None:
    """isal, where it is installed, does not look at this; zlib and the kernel do."""
    packed = zlib.compress(TEXT, 9)
    gzip = open_codec(codecs.GZIP)
    assert gzip(packed, len(TEXT)) == TEXT
    for first in range(0x88, 0x100, 0x10):
        wrong = bytes([first, -(first << 8) % 31]) + packed[2:]
        with pytest.raises(zlib.error):
            zlib.decompress(wrong)
        with pytest.raises(CodecError):
            gzip(wrong, len(TEXT))


def test_more_owners_than_inodes_can_name(tmp_path: Path) -> None:
    data = squashed(tmp_path, "gzip", "-no-xattrs", "-no-exports")
    sb = superblock(data)
    (block,) = struct.unpack_from("<Q", data, sb.id_table)
    for ids in (2 * sb.inodes, 2 * sb.inodes + 1):
        raw = struct.pack(f"<{ids}I", *range(ids))
        body = data[:block] + struct.pack("<H", STORED | len(raw)) + raw
        new = sb._replace(ids=ids, id_table=len(body), bytes_used=len(body) + 8)
        body = SUPER.pack(*new) + body[SUPER.size :] + struct.pack("<Q", block)
        body += bytes(-len(body) % 4096)
        file = tmp_path / "ids.sqfs"
        file.write_bytes(body)
        listed = subprocess.run(["unsquashfs", "-l", file], capture_output=True, timeout=60, check=False)
        refused = ids > 2 * sb.inodes
        assert (listed.returncode != 0) is refused
        assert codes(body) == ({"sq-counts"} if refused else set())


def test_millions_of_xattrs_in_a_small_file_are_not_listed(tmp_path: Path) -> None:
    data = squashed(tmp_path, "gzip", "-no-xattrs")
    sb = superblock(data)
    data = data[: sb.bytes_used]
    count, kv = 1 << 20, len(data)
    empty = zlib.compress(bytes(METADATA))  # a thousand xattrs without name or value
    data += (struct.pack("<H", len(empty)) + empty) * (8 * count // METADATA)
    ids = len(data)
    data += struct.pack("<HQII", STORED | 16, 0, count, 0)
    table = len(data)
    data += struct.pack("<QIIQ", kv, 1, 0, ids)
    data = SUPER.pack(*sb._replace(xattr_table=table, bytes_used=len(data))) + data[SUPER.size :]
    data += bytes(-len(data) % 4096)
    assert codes(data, Level.MOUNT) == set()
    assert codes(data) == {"sq-bomb"}


def test_long_paths_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a megabyte of file once made a gigabyte of paths."""
    data = squashed(tmp_path, "gzip", names=200)
    read = FsTree(tables_of(data))
    assert len(list(read.walk())) == 203
    monkeypatch.setattr(tree, "FEW_LETTERS", 100)
    monkeypatch.setattr(tree, "LETTERS_PER_BYTE", 0)
    with pytest.raises(DamageError, match="more names"):
        list(read.walk())


def test_a_mode_that_holds_a_type_and_a_target_that_is_too_long(tmp_path: Path) -> None:
    """The kernel refuses both inodes: 'Input/output error', 'Invalid argument'."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "long").symlink_to("a" * 4095)
    (tmp_path / "root" / "file").write_bytes(b"x")
    data = images.squash(tmp_path / "root", tmp_path / "x.sqfs", "gzip", "-noI").read_bytes()
    assert codes(data) == set()
    t = tables_of(data)
    start = t.fs.sb.inode_table + 2
    for number in range(1, len(t.refs)):
        at = start + (t.refs[number] & 0xFFFF)
        wrong = bytearray(data)
        wrong[at + 3] |= 0x80
        assert codes(bytes(wrong)) & {"sq-inode", "sq-root"}, number
    longer = bytearray(data)
    link = start + data[start:].index(struct.pack("<I", 4095) + b"aaaa")
    struct.pack_into("<I", longer, link, 4096)
    report = looked(bytes(longer), Level.TABLES)
    assert "target of 4096 bytes" in str(report.findings[-1])


@pytest.mark.parametrize("fstype", [3, 4])
def test_an_overlay_that_apptainer_cannot_mount(tmp_path: Path, fstype: int) -> None:
    """Raw: 'overlay image with unknown format'; an archive is passed over in silence."""
    root = images.make_root(tmp_path / "root", files=1)
    base = images.squash(root, tmp_path / "base.sqfs")
    (tmp_path / "over").mkdir()
    over = images.squash(tmp_path / "over", tmp_path / "over.sqfs")
    data = bytearray(images.wrap(base, tmp_path / "x.sif", overlays=[over]).read_bytes())
    assert looked(bytes(data)).verdict.passes
    struct.pack_into("<i", data, 4096 + 585 + 201, fstype)
    assert codes(bytes(data), Level.HEADER) == {"sif-part-fs"}


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        (b"a", b"x", True),
        (b"n" * 250, b"v" * 65536, True),
        (b"", b"x", False),
        (b"n" * 251, b"x", False),
        (b"a", b"v" * 65537, False),
    ],
)
def test_xattrs_that_unsquashfs_fails_to_set(name: bytes, value: bytes, fits: bool) -> None:
    data = struct.pack("<HH", 0, len(name)) + name + struct.pack("<I", len(value)) + value
    table = Table(data, (0,), {0: 0})
    if fits:
        assert walk_xattrs(table, 0, 1) == [(0, name, value)]
        return
    with pytest.raises(DamageError) as error:
        walk_xattrs(table, 0, 1)
    assert error.value.finding.code == "sq-xattr"


def test_a_name_longer_than_linux_takes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for letter in "ab":
        (root / (letter * 255)).touch()
    data = bytearray(images.squash(root, tmp_path / "x.sqfs", "gzip", "-noI").read_bytes())
    assert codes(bytes(data)) == set()
    at = data.index(b"a" * 255) - 2
    data[at] = 255  # the name takes one byte of what follows
    report = looked(bytes(data), Level.TABLES)
    assert [f.message.partition(": ")[2] for f in report.findings if f.code == "sq-directory"] == [
        "a name of 256 bytes"
    ]
