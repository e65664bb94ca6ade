"""Levels listed, header and mount, on real images and on what is found under an image's name."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import pytest

from poolmgr.model.finding import CODES, Level, Severity, Verdict
from poolmgr.sif import identity
from poolmgr.sif.check import Report, check, check_file
from poolmgr.sif.header import DESCRIPTOR, HEADER, read_container
from poolmgr.sif.identity import tree_sha256
from poolmgr.sif.image import open_image
from poolmgr.sif.source import BytesSource, FileSource
from poolmgr.sif.squashfs import DamageError
from poolmgr.sif.stop import StoppedError
from tests import images


def look(data: bytes, level: Level = Level.MOUNT, arch: str | None = None) -> Report:
    report = check(BytesSource(data), level, arch=arch)
    assert all(f.code in CODES and f.message for f in report.findings)
    return report


def codes(report: Report) -> set[str]:
    return {f.code for f in report.findings}


@pytest.mark.parametrize("compressor", [c for c in images.COMPRESSORS if c != "lzma"])
def test_a_real_image_passes(sifs: dict[str, Path], compressor: str) -> None:
    report = check_file(sifs[compressor], Level.MOUNT, arch="amd64")
    assert report == Report(
        Verdict.OK,
        {"listed": Verdict.OK, "header": Verdict.OK, "mount": Verdict.OK},
        (),
        "amd64",
        Level.MOUNT,
    )


def test_an_image_by_apptainer_build_passes(built_sif: Path) -> None:
    report = check_file(built_sif, Level.MOUNT, arch="amd64")
    assert (report.verdict, report.findings) == (Verdict.OK, ())


def test_lzma_is_unsupported_not_damaged(sifs: dict[str, Path]) -> None:
    report = check_file(sifs["lzma"], Level.MOUNT)
    assert (report.verdict, codes(report)) == (Verdict.UNSUPPORTED, {"sq-lzma"})


def test_listed_reads_nothing() -> None:
    class Unreadable:
        size = 10

        def read_at(self, offset: int, length: int) -> bytes:
            raise AssertionError("read")

    assert check(Unreadable(), Level.LISTED).checks == {"listed": Verdict.OK}


def test_mount_reads_little_in_few_reads(gzip_sif: Path) -> None:
    class Counting(FileSource):
        reads: list[int]

        def read_at(self, offset: int, length: int) -> bytes:
            self.reads.append(length)
            return super().read_at(offset, length)

    with Counting(gzip_sif) as source:
        source.reads = []
        check(source, Level.MOUNT)
        assert len(source.reads) <= 3
        assert sum(source.reads) < 51_000


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (b"", "zero-byte", "no bytes"),
        (b"<!DOCTYPE html><html><title>Sign in</title></html>", "html-page", "HTML page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "xml-body", "AccessDenied"),
        (b'{"error": "Repository not found"}', "json-body", "Repository not found"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n",
            "lfs-pointer",
            "123 bytes",
        ),
        (b"/annex/objects/SHA256E-s1--00.sif\n", "annex-pointer", "git-annex"),
        (gzip.compress(b"x", mtime=0), "gzip-file", "gzip"),
        (b"a" * 257 + b"ustar\0" + b"\0" * 300, "tar-file", "tar"),
        (b"\0" * 9000, "zero-head", "zero"),
        (b"<\xa7\r\x01\x00random bytes", "not-sif", "begins with"),
        (b"#!/usr/bin/env run-singularity\n\0", "sif-truncated", "32 bytes"),
    ],
)
def test_what_is_no_image_is_named(data: bytes, code: str, says: str) -> None:
    report = look(data)
    assert report.verdict is Verdict.BAD
    assert codes(report) == {code}
    assert says in report.findings[0].message


def test_shifted_and_crlf(gzip_sif: Path) -> None:
    data = gzip_sif.read_bytes()
    assert codes(look(b"x" + data)) == {"shifted-sif"}
    assert look(b"#!/usr/bin/env run-singularity\r\n\0" + data[32:]).verdict is Verdict.BAD


def test_legacy_squashfs_is_unsupported_unless_allowed(gzip_sif: Path) -> None:
    with FileSource(gzip_sif) as source:
        part = read_container(source).primary
        assert part is not None
        squashfs = source.read_at(part.offset, part.size)
    for prefix, code in ((b"", "bare-squashfs"), (b"#!/usr/bin/env run-singularity\n", "singularity2-image")):
        report = look(prefix + squashfs)
        assert (report.verdict, codes(report)) == (Verdict.UNSUPPORTED, {code})
        assert check(BytesSource(prefix + squashfs), Level.MOUNT, allow_legacy=True).verdict is Verdict.OK
        cut = look(prefix + squashfs[: len(squashfs) // 2])
        assert (cut.verdict, codes(cut)) == (Verdict.BAD, {code, "sq-truncated"})


@pytest.mark.parametrize(("fstype", "magic"), [(2, (1080, b"\x53\xef")), (5, (0, b"LUKS\xba\xbe"))])
def test_no_level_is_claimed_of_what_cannot_be_looked_into(
    gzip_sif: Path, fstype: int, magic: tuple[int, bytes]
) -> None:
    """ext3 and encrypted partitions: no squashfs was mounted, so mount, tables and data say nothing."""
    data = bytearray(gzip_sif.read_bytes())
    primary = read_container(BytesSource(bytes(data))).primary
    assert primary is not None
    struct.pack_into("<i", data, 4096 + (primary.id - 1) * DESCRIPTOR.size + 201, fstype)
    at = primary.offset + magic[0]
    data[at : at + len(magic[1])] = magic[1]
    report = look(bytes(data), Level.DATA)
    assert report.checks == {"listed": Verdict.OK, "header": Verdict.UNSUPPORTED}
    assert (report.verdict, report.level) == (Verdict.UNSUPPORTED, Level.LISTED)


def test_a_raw_partition_is_said_to_be_unread(gzip_sif: Path, tmp_path: Path) -> None:
    images.need("apptainer")
    image, extra = tmp_path / "x.sif", tmp_path / "raw"
    image.write_bytes(gzip_sif.read_bytes())
    extra.write_bytes(b"raw" * 100)
    raw = ["--datatype", "4", "--parttype", "3", "--partfs", "4", "--partarch", "2", "--groupid", "1"]
    images.run("apptainer", "sif", "add", *raw, image, extra)
    report = check_file(image, Level.DATA)
    [said] = report.findings
    assert (report.verdict, said.code, said.where) == (Verdict.OK, "not-checked", "partition 2")


def test_a_tail_that_was_never_written_is_named(gzip_sif: Path) -> None:
    data = gzip_sif.read_bytes()
    report = look(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    assert "never written" in report.findings[0].message


def test_paths_that_lead_to_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "sandbox/.singularity.d").mkdir(parents=True)
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "annex").symlink_to(".git/annex/objects/x/y")
    os.mkfifo(tmp_path / "pipe")
    expected = {
        "folder": ("is-directory", Verdict.BAD),
        "sandbox": ("sandbox-folder", Verdict.UNSUPPORTED),
        "link": ("dangling-link", Verdict.BAD),
        "annex": ("annex-pointer", Verdict.BAD),
        "pipe": ("not-a-file", Verdict.BAD),
        "none": ("missing", Verdict.BAD),
    }
    for name, (code, verdict) in expected.items():
        report = check_file(tmp_path / name, Level.MOUNT)
        assert (codes(report), report.verdict) == ({code}, verdict)


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.1, 0.5, 0.99])
def test_truncation_names_both_sizes(gzip_sif: Path, share: float) -> None:
    data = gzip_sif.read_bytes()
    cut = data[: max(200, int(len(data) * share))]
    report = look(cut, Level.HEADER)
    assert report.verdict is Verdict.BAD
    [found] = report.findings
    assert found.code == "sif-truncated"
    assert str(len(cut)) in found.message
    assert str(len(data)) in found.message


def test_the_last_byte_is_missed(gzip_sif: Path) -> None:
    assert codes(look(gzip_sif.read_bytes()[:-1])) == {"sif-truncated"}


def test_trailing_bytes_are_a_warning(gzip_sif: Path) -> None:
    report = look(gzip_sif.read_bytes() + b"x")
    assert (report.verdict, codes(report)) == (Verdict.OK, {"sif-trailing"})


def test_architecture(gzip_sif: Path) -> None:
    data = gzip_sif.read_bytes()
    assert codes(look(data, arch="arm64")) == {"wrong-arch"}
    assert look(data, arch=None).verdict is Verdict.OK


def test_zeroed_second_half_is_found_at_mount(gzip_sif: Path) -> None:
    data = gzip_sif.read_bytes()
    half = len(data) // 2
    report = look(data[:half] + bytes(len(data) - half))
    assert (report.verdict, report.level) == (Verdict.BAD, Level.HEADER)
    assert all(f.code.startswith("sq-") and f.where == "partition 1" for f in report.findings)


@pytest.mark.parametrize("value", [-1, 0, 4097, 1_000_000, 1 << 40, (1 << 63) - 1])
def test_insane_descriptor_counts(gzip_sif: Path, value: int) -> None:
    data = bytearray(gzip_sif.read_bytes())
    struct.pack_into("<q", data, 88, value)
    assert codes(look(bytes(data))) == {"sif-descr-count"}


def test_every_byte_of_header_and_descriptor_may_be_anything(gzip_sif: Path) -> None:
    """No traceback and no wrong word of severity, whatever a byte holds."""
    data = bytearray(gzip_sif.read_bytes())
    for at in (*range(HEADER.size), *range(4096, 4096 + DESCRIPTOR.size)):
        old = data[at]
        for value in (0, 0xFF, old ^ 1, old ^ 0x80):
            data[at] = value
            report = look(bytes(data))
            assert (
                report.verdict.passes == (not any(f.severity is Severity.ERROR for f in report.findings))
                or report.verdict is Verdict.UNSUPPORTED
            )
        data[at] = old


def test_a_hole_is_a_warning(gzip_sif: Path, tmp_path: Path) -> None:
    data = gzip_sif.read_bytes()
    holed = tmp_path / "holed.sif"
    with holed.open("wb") as file:
        file.write(data)
        file.seek(len(data) + (1 << 22))
        file.write(b"x")
    with FileSource(holed) as source:
        if source.first_hole() is None:
            pytest.skip("this filesystem does not tell of holes")
    assert codes(check_file(holed, Level.HEADER)) == {"sparse-file", "sif-trailing"}


def test_the_reading_of_an_image_ends_soon_after_it_is_stopped(sifs: dict[str, Path]) -> None:
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 3

    for how in ({}, {"hashing": True}):
        calls = 0
        with pytest.raises(StoppedError):
            check_file(sifs["xz"], Level.DATA, threads=1, stop=stop, **how)  # type: ignore[arg-type]
        assert calls < 10
    calls = 0
    with FileSource(sifs["xz"]) as source, pytest.raises(StoppedError):
        tree_sha256(open_image(source), threads=1, stop=stop)


def test_an_image_whose_files_have_no_end_has_no_tree_hash(
    sifs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holes and shared blocks cost an image no bytes, and a hash of what they stand for takes days."""
    monkeypatch.setattr(identity, "FEW_BYTES", 100)
    monkeypatch.setattr(identity, "BYTES_PER_BYTE", 0)
    with FileSource(sifs["gzip"]) as source, pytest.raises(DamageError) as error:
        tree_sha256(open_image(source))
    assert error.value.finding.code == "sq-bomb"
