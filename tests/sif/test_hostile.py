"""Hostile files: no traceback, no hang, no wrong ok, and little memory, whatever the bytes."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import lz4.block
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poolmgr.errors import BadFileError
from poolmgr.model.finding import CODES, Level, Severity, Verdict
from poolmgr.sif import codecs
from poolmgr.sif.check import check
from poolmgr.sif.header import read_container
from poolmgr.sif.image import open_image
from poolmgr.sif.sniff import sniff
from poolmgr.sif.source import BytesSource
from poolmgr.sif.squashfs import SUPER, DamageError, mount
from tests import images
from tests.conftest import ROOT
from tests.sif.damage import Base, random_damage

LIMIT = 4096


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    folder = tmp_path_factory.mktemp("hostile")
    root = images.make_root(folder / "root", files=30)
    (root / "bin/busybox").write_bytes((root / "bin/busybox").read_bytes()[:300_000])
    return [
        Base(
            images.wrap(
                images.squash(root, folder / f"{c}.sqfs", c, "-b", "16K"), folder / f"{c}.sif"
            ).read_bytes()
        )
        for c in images.COMPRESSORS
        if codecs.missing({v: k for k, v in codecs.NAMES.items()}[c]) is None
    ]


def look(data: bytes) -> None:
    """All levels and the tree; only findings and known errors may come out of it."""
    report = check(BytesSource(data), Level.DATA, threads=1, allow_legacy=True)
    assert all(f.code in CODES for f in report.findings)
    bad = any(f.severity is Severity.ERROR for f in report.findings)
    assert bad == (report.verdict is Verdict.BAD)
    try:
        image = open_image(BytesSource(data))
        for entry in list(image.merged.values())[:50]:
            if entry.is_file and entry.size < 1 << 20:
                b"".join(image.blocks(entry))
    except BadFileError:
        assert report.verdict is not Verdict.OK
    except DamageError:
        assert not report.verdict.passes


def test_random_damage_of_every_kind(bases: list[Base]) -> None:
    chance = random.Random(5)
    ends = time.monotonic() + 8
    for _ in range(600):
        _, data = random_damage(chance.choice(bases), chance)
        look(data)
        if time.monotonic() > ends:
            break


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
def test_much_random_damage(bases: list[Base]) -> None:
    seed = int(os.environ.get("FUZZ_SEED", "1"))
    chance = random.Random(seed)
    slowest = 0.0
    for _ in range(int(os.environ.get("FUZZ_ROUNDS", "10000"))):
        data = chance.choice(bases).data
        for _ in range(chance.choice([1, 1, 2, 5])):
            position = chance.randrange(len(data))
            data = data[:position] + chance.randbytes(chance.choice([1, 1, 4, 8])) + data[position + 1 :]
        begun = time.monotonic()
        look(data)
        slowest = max(slowest, time.monotonic() - begun)
        assert slowest < 20, f"seed {seed}"


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_behind_a_right_checksum(bases: list[Base], data: st.DataObject) -> None:
    """Inodes stored uncompressed can hold anything at all; every field is a lie in turn."""
    base = bases[0]
    table = bytearray(base.tables.inodes.data)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(table) - 8))
        value = data.draw(st.sampled_from([0, 1, 0xFF, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF, 1 << 24, 3]))
        width = data.draw(st.sampled_from(["<B", "<H", "<I"]))
        struct.pack_into(width, table, at, value & ((1 << (8 * struct.calcsize(width))) - 1))
    sb = base.sb
    start = base.at + sb.inode_table
    room = sb.directory_table - sb.inode_table
    packed = b""
    for at in range(0, len(table), 8192):
        block = zlib.compress(bytes(table[at : at + 8192]), 9)
        packed += struct.pack("<H", len(block)) + block
    if len(packed) > room:
        return
    # the rest of the room is one more block, which must be noticed, unless it fits exactly
    look(base.data[:start] + packed + base.data[start + len(packed) :])


@given(st.binary(max_size=3000))
def test_any_bytes_are_named(data: bytes) -> None:
    assert sniff(data, len(data)).code in CODES
    report = check(BytesSource(data), Level.DATA)
    assert not report.verdict.passes


@given(st.binary(min_size=SUPER.size, max_size=400), st.booleans())
def test_any_superblock(data: bytes, magic: bool) -> None:
    if magic:
        data = b"hsqs" + data[4:]
    result = mount(BytesSource(data), 0, len(data))
    assert result.filesystem is None or not result.findings


@given(st.binary(max_size=28080), st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=8, max_size=8))
def test_any_header(table: bytes, numbers: list[int]) -> None:
    head = struct.pack("<32s10s3s3s16s8q", b"", b"SIF_MAGIC\0", b"01\0", b"02\0", b"", *numbers)
    data = head + bytes(4096 - 128) + table
    container = read_container(BytesSource(data))
    assert any(f.severity is Severity.ERROR for f in container.findings)


@pytest.mark.parametrize("number", codecs.NAMES)
@given(data=st.binary(max_size=500))
def test_codecs_fail_in_one_way(number: int, data: bytes) -> None:
    if codecs.missing(number):
        return
    try:
        out = codecs.open_codec(number)(data, LIMIT)
    except codecs.CodecError:
        return
    assert len(out) <= LIMIT


@pytest.mark.parametrize("number", codecs.NAMES)
def test_output_is_bounded(number: int) -> None:
    """A bomb of 64 MiB does not unpack beyond the limit, whatever size it promises."""
    if codecs.missing(number):
        pytest.skip(str(codecs.missing(number)))
    import lzma

    zeros = bytes(64 << 20)
    bombs = {
        codecs.GZIP: lambda: zlib.compress(zeros),
        codecs.XZ: lambda: lzma.compress(zeros, lzma.FORMAT_XZ, preset=0),
        codecs.LZMA: lambda: lzma.compress(zeros, lzma.FORMAT_ALONE, preset=0),
        codecs.LZ4: lambda: lz4.block.compress(zeros, store_size=False),
        codecs.ZSTD: lambda: zstandard.compress(zeros),
    }
    if number not in bombs:
        return
    with pytest.raises(codecs.CodecError):
        codecs.open_codec(number)(bombs[number](), LIMIT)


def test_a_zstd_frame_that_promises_much_allocates_little() -> None:
    frame = bytearray(zstandard.ZstdCompressor(write_content_size=True).compress(bytes(100_000)))
    frame[4] = 0xE0  # eight bytes of content size
    lie = bytes(frame[:5]) + struct.pack("<Q", 1 << 40) + bytes(frame[9:])
    with pytest.raises(codecs.CodecError):
        codecs.open_codec(codecs.ZSTD)(lie, LIMIT)


BOMB = """
import resource, struct, sys, zlib
from poolmgr.model.finding import Level
from poolmgr.sif.check import check
from poolmgr.sif.source import BytesSource
block = zlib.compress({unit} * (8192 // len({unit})), 9)
table = (struct.pack("<H", len(block)) + block) * {count}
inode_at = 96
dir_at = inode_at + len(table)
ids = struct.pack("<H", 4 | 0x8000) + bytes(4)
id_at = dir_at + len(table)
index = id_at + len(ids)
used = index + 8
super_ = struct.pack("<IIIIIHHHHHHqqqqqqqq", 0x73717368, {inodes}, 0, 131072, 0, 1, 17, 0x10, 1, 4, 0, 0,
    used, index, -1, inode_at, dir_at, index, -1)
data = super_ + table + table + ids + struct.pack("<q", id_at)
data += bytes(-len(data) % 4096)
report = check(BytesSource(data), Level.DATA, allow_legacy=True)
print(report.verdict.value, len(data), int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]))
"""


@pytest.mark.parametrize(
    ("unit", "inodes"),
    [
        ("bytes(8192)", 1),
        ("struct.pack('<HHHHIIIIHHI', 1, 0, 0, 0, 0, 1, 0, 2, 3, 0, 1)", 500_000),
        ("struct.pack('<HHHHIIIIII', 2, 0, 0, 0, 0, 1, 96, 0xFFFFFFFF, 0, 0)", 500_000),
    ],
)
def test_a_small_file_that_unpacks_without_end_costs_little(unit: str, inodes: int, tmp_path: Path) -> None:
    begun = time.monotonic()
    script = BOMB.format(unit=unit, count=8000, inodes=inodes)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    verdict, size, memory = done.stdout.split()
    assert verdict == "bad"
    assert int(size) < 1 << 20
    assert int(memory) < 200_000, "kilobytes"
    assert time.monotonic() - begun < 60


def test_a_big_image_is_read_in_little_memory(tmp_path: Path) -> None:
    """3.5 GB of content, some of it in blocks; benchmarks/bench_verify.py does it with 3.5 GB of blocks."""
    images.need("mksquashfs")
    root = tmp_path / "root"
    root.mkdir()
    noise = os.urandom(1 << 20)
    with (root / "big").open("wb") as file:
        for _ in range(120):
            file.write(noise)
            file.seek(4 << 20, os.SEEK_CUR)
        file.truncate(3500 << 20)
    images.run(
        "mksquashfs", root, tmp_path / "x.sqfs", "-noappend", "-no-progress", "-comp", "lz4", "-no-duplicates"
    )
    script = (
        "import sys; from pathlib import Path; from poolmgr.sif.check import check_file;"
        "from poolmgr.model.finding import Level;"
        "r = check_file(Path(sys.argv[1]), Level.DATA, allow_legacy=True, hashing=True);"
        "print(r.verdict.value, int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.sqfs")], capture_output=True, text=True, timeout=120,
        check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    verdict, memory = done.stdout.split()
    assert verdict == "partial"
    assert int(memory) < 150_000, "kilobytes"
