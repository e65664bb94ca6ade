"""The tar reader against the standard library's writer, and against damage."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolmgr.harbor import archive
from poolmgr.harbor.archive import ArchiveError, Limits, open_archive
from poolmgr.harbor.tar import TarError, _check_sum, members
from poolmgr.harbor.tree import FolderTree, Kind
from tests.harbor.trees import tar_of, write_task

NAME = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=90
)
PATHS = (
    st.lists(NAME, min_size=1, max_size=4).map("/".join).filter(lambda p: not {".", ".."} & set(p.split("/")))
)
FORMATS = st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])


def pack(rows: list[tuple[str, bytes]], **options: object) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **options) as tar:  # type: ignore[call-overload]
        for name, content in rows:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mtime = 1.5  # type: ignore[assignment]
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@settings(deadline=None, max_examples=100)
@given(rows=st.lists(st.tuples(PATHS, st.binary(max_size=1500)), max_size=6), format=FORMATS)
def test_reads_what_tarfile_writes(rows: list[tuple[str, bytes]], format: int) -> None:  # noqa: A002
    data = pack(rows, format=format)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(m.name, m.size, m.offset_data) for m in tar.getmembers()]
    found = members(data, limit=100)
    assert [(m.name, m.size, m.start) for m in found] == expected
    assert [data[m.start : m.start + m.size] for m in found] == [content for _, content in rows]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_damage_is_an_error_and_never_anything_else(data: st.DataObject) -> None:
    good = pack([("a/b", b"x" * 700), ("é" * 80, b"y")])
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del bad[data.draw(st.integers(0, len(bad) - 1)) :]
    if data.draw(st.booleans()) and len(bad) >= 512:
        mend(bad, min(at // 512 * 512, len(bad) // 512 * 512 - 512))
    with contextlib.suppress(TarError):
        members(bytes(bad), limit=100)


def mend(tar: bytearray, at: int) -> None:
    """Write the checksum that the header at ``at`` has now."""
    tar[at + 148 : at + 156] = b" " * 8
    tar[at + 148 : at + 156] = b"%06o\0 " % sum(tar[at : at + 512])


@pytest.mark.parametrize(
    "record",
    [b"x\n", b"\n", b" =\n", b"9 a=b\n", b"5 a=b\n", b"6 ab_\n", b"99999999999999999999 a=b\n", b"-6 a=b\n"],
)
def test_a_damaged_pax_record_is_refused_at_once(record: bytes) -> None:
    good = pack([("a", b"")])
    assert good[156:157] == b"x"
    content = bytearray(good)
    content[512:1024] = record.ljust(512, b"\0")
    content[124:136] = b"%011o\0" % len(record)
    mend(content, 0)
    with pytest.raises(TarError, match="a damaged pax record"):
        members(bytes(content), limit=10)


def test_one_size_for_all_members_and_sparse_files_are_refused() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", pax_headers={"size": "7"}) as tar:
        tar.addfile(tarfile.TarInfo("a"))
    with pytest.raises(TarError, match="one size for all members"):
        members(out.getvalue(), limit=10)
    info = tarfile.TarInfo("a")
    info.pax_headers = {"GNU.sparse.major": "1"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(info)
    with pytest.raises(TarError, match="a sparse file"):
        members(out.getvalue(), limit=10)


@given(st.binary(min_size=512, max_size=512), st.booleans())
def test_the_checksum_is_that_of_tarfile(header: bytes, is_signed: bool) -> None:
    unsigned, signed = tarfile.calc_chksums(header)  # type: ignore[attr-defined]
    recorded = b"%06o\0 " % (signed if is_signed and signed >= 0 else unsigned)
    _check_sum(header[:148] + recorded + header[156:], recorded, 0)
    with pytest.raises(TarError, match="checksum"):
        _check_sum(header[:148] + recorded + header[156:], b"777777\0 ", 0)


@pytest.mark.parametrize("cut", [1, 511, 512, 513, 1024, 1536])
def test_a_cut_off_tar_is_refused(cut: int) -> None:
    data = pack([("a", b"x" * 600)], format=tarfile.USTAR_FORMAT)
    end = 512 + 1024 + 512  # header, content, and one block of the end marker
    with pytest.raises(TarError, match="cut off"):
        members(data[: end - cut], limit=10)
    assert len(members(data[:end], limit=10)) == 1


def test_a_damaged_header_is_not_taken_for_the_end() -> None:
    data = bytearray(pack([("a", b""), ("b", b"")], format=tarfile.USTAR_FORMAT))
    data[512 + 5] ^= 1
    with pytest.raises(TarError, match="checksum"):
        members(bytes(data), limit=10)


def one(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", before: str | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        if before is not None:
            info = tarfile.TarInfo(before)
            info.type = tarfile.SYMTYPE
            info.linkname = "/etc"
            tar.addfile(info)
        info = tarfile.TarInfo(name)
        info.type = kind
        info.linkname = link
        tar.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (one("../x"), "leaves the task"),
        (one("a/../../x"), "leaves the task"),
        (one("/etc/x"), "absolute"),
        (one("l/x", before="l"), "which is a symbolic link"),
        (one("h", tarfile.LNKTYPE, "nowhere"), "hard link"),
        (one("h", tarfile.LNKTYPE, "../../etc/passwd"), "leaves the task"),
        (b"not a tar", "cut off"),
        (b"", "cut off"),
        (gzip.compress(one("a"), mtime=0)[:-9], "cut off"),
        (gzip.compress(one("a"), mtime=0)[:-9] + b"\0" * 9, "gzip"),
        (b"\x1f\x8bgarbage", "gzip"),
    ],
)
def test_hostile_archives_are_refused_by_name(data: bytes, why: str) -> None:
    with pytest.raises(ArchiveError, match=why):
        open_archive(data, Limits())


def test_a_bomb_is_refused() -> None:
    bomb = gzip.compress(pack([("a", bytes(3_000_000))]))
    assert len(bomb) < 20_000
    with pytest.raises(ArchiveError, match="more than the 1,000,000 bytes"):
        open_archive(bomb, Limits(task_bytes=1_000_000))
    with pytest.raises(ArchiveError, match="more than the 1,000,000 that a task may have"):
        open_archive(gzip.decompress(bomb), Limits(task_bytes=1_000_000))
    with pytest.raises(ArchiveError, match="more than 1 members"):
        open_archive(one("x", before="l"), Limits(members=1))


@pytest.mark.parametrize("engine", ["zlib", "isal"])
@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 16])
def test_gzip_streams_one_behind_the_other(monkeypatch: pytest.MonkeyPatch, engine: str, piece: int) -> None:
    if engine == "zlib":
        monkeypatch.setattr(archive, "_engine", lambda: zlib)
    else:
        pytest.importorskip("isal")
    monkeypatch.setattr(archive, "PIECE", piece)
    data = one("a" * 80) + bytes(3000)
    streams = [gzip.compress(data[i : i + 700], mtime=0) for i in range(0, len(data), 700)]
    empty = gzip.compress(b"", mtime=0)
    for between in (b"", b"\0", b"\0" * 300, empty):
        packed = between.join(streams) + between
        assert archive._gunzip(packed, len(data)) == data
        with pytest.raises(ArchiveError, match="unpacks to more"):
            archive._gunzip(packed, len(data) - 1)
        with pytest.raises(ArchiveError, match="cut off"):
            archive._gunzip(packed + streams[0][:-1], len(data) + 700)
        with pytest.raises(ArchiveError, match="not a sound gzip"):
            archive._gunzip(packed + b"x" * 30, len(data) + 700)


def test_very_many_gzip_streams_are_refused_in_time() -> None:
    with pytest.raises(ArchiveError, match="more than 32,768 gzip streams"):
        open_archive(gzip.compress(b"", mtime=0) * 400_000, Limits())


def test_few_members_that_need_many_folders_are_refused() -> None:
    bomb = pack([(f"{n}/" + "a/" * 2000 + "f", b"") for n in range(40)])
    assert len(gzip.compress(bomb)) < 10_000
    with pytest.raises(ArchiveError, match="characters together"):
        open_archive(bomb, Limits())
    with pytest.raises(ArchiveError, match="more than 1,000 files and folders"):
        open_archive(pack([("a/" * 600 + "f", b""), ("b/" * 600 + "f", b"")]), Limits(members=1000))
    deep = open_archive(pack([("a/" * 600 + "f", b"x")]), Limits(members=601))
    assert len(deep.entries("")) == 601


@pytest.mark.parametrize("name", ["", ".", "./", "/", "a/.."])
def test_a_file_that_names_no_place_is_refused(name: str) -> None:
    with pytest.raises(ArchiveError, match=r"names the task's own folder|leaves the task"):
        open_archive(one(name), Limits())
    open_archive(one("./", tarfile.DIRTYPE), Limits())


@pytest.mark.parametrize("compress", [True, False])
def test_links_modes_and_empty_folders_keep_their_meaning(tmp_path: Path, compress: bool) -> None:
    folder = write_task(tmp_path / "t", {"Dockerfile": "FROM a\n", "run.sh": "x", "big": "y" * 3_000_000})
    environment = folder / "environment"
    (environment / "run.sh").chmod(0o755)
    (environment / "empty").mkdir()
    (environment / "soft").symlink_to("run.sh")
    (environment / "hard").hardlink_to(environment / "run.sh")
    tree = open_archive(tar_of(folder, compress=compress), Limits())
    here = FolderTree(str(folder))
    assert tree.entries("environment") == here.entries("environment")
    assert tree.entries("environment")["soft"] is Kind.LINK
    for path in here.entries("environment"):
        path = f"environment/{path}"
        assert tree.mode(path) == here.mode(path)
        if here.kind(path) is Kind.FILE:
            assert tree.read(path, 1 << 30) == here.read(path, 1 << 30)
    assert tree.target("environment/soft") == "run.sh"


def test_a_folder_named_with_a_dot_slash() -> None:
    tree = open_archive(pack([("./task.toml", b"x"), ("./a/./b", b"y")]), Limits())
    assert tree.entries("") == {"task.toml": Kind.FILE, "a": Kind.FOLDER, "a/b": Kind.FILE}
