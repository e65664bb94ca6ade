"""Digests of signatures by the real Apptainer, PGP and DSSE, compared without any key."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
from pathlib import Path

import pytest

from poolmgr.model.finding import Level, Verdict
from poolmgr.sif.check import Report, check
from poolmgr.sif.header import read_container
from poolmgr.sif.signature import recorded_digests
from poolmgr.sif.source import BytesSource
from tests import images

SLOT = 585


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Form of the signature -> a zstd image with stored blocks, signed by the real Apptainer."""
    images.need("apptainer", "openssl")
    folder = tmp_path_factory.mktemp("signed")
    root = images.make_root(folder / "root", files=10)
    (root / "noise").write_bytes(os.urandom(300_000))
    made = images.build(root, folder / "good.sif", "--mksquashfs-args", "-comp zstd")
    env = {"HOME": str(folder), "APPTAINER_KEYSDIR": str(folder / "keys")}
    (folder / "keys").mkdir(mode=0o700)
    key = ["apptainer", "key", "newpair", "--password", "", "--name", "t", "--email", "t@e", "--comment", "c"]
    images.run(*key, "--push=false", "--bit-length", "2048", env=env)
    images.run("openssl", "genpkey", "-algorithm", "ed25519", "-out", folder / "key.pem")
    result = {}
    for form, options in {"pgp": [], "dsse": ["--key", str(folder / "key.pem")]}.items():
        result[form] = folder / f"{form}.sif"
        result[form].write_bytes(made.read_bytes())
        images.run("apptainer", "sign", *options, result[form], env=env)
    return result


def look(data: bytes, level: Level = Level.DATA, *, hashing: bool = False) -> Report:
    return check(BytesSource(data), level, hashing=hashing, threads=2)


def codes(report: Report) -> set[str]:
    return {f.code for f in report.findings}


@pytest.mark.parametrize("form", ["pgp", "dsse"])
def test_a_good_signature_confirms_what_no_checksum_can(signed: dict[str, Path], form: str) -> None:
    report = look(signed[form].read_bytes())
    assert (report.verdict, report.checks["hash"], codes(report)) == (Verdict.OK, Verdict.OK, set())
    plain = look((signed[form].parent / "good.sif").read_bytes())
    assert (plain.verdict, codes(plain)) == (Verdict.PARTIAL, {"data-partial"})


@pytest.mark.parametrize("form", ["pgp", "dsse"])
def test_every_changed_byte_is_found(signed: dict[str, Path], form: str) -> None:
    data = signed[form].read_bytes()
    container = read_container(BytesSource(data))
    primary = container.primary
    assert primary is not None
    at = data.index((signed[form].parent / "root/noise").read_bytes()[:64])
    cases = {
        "a stored block": (at + 1000, "sig-object"),
        "the uuid": (50, "sig-header"),
        "the time of a descriptor": (4096 + (primary.id - 1) * SLOT + 41, "sig-descriptor"),
        "the padding after the filesystem": (primary.end - 1, "sig-object"),
    }
    for name, (place, code) in cases.items():
        changed = bytearray(data)
        changed[place] ^= 1
        for report in (look(bytes(changed)), look(bytes(changed), Level.MOUNT, hashing=True)):
            assert report.verdict is Verdict.BAD, name
            assert report.checks["hash"] is Verdict.BAD, name
            assert code in codes(report), name


def test_apptainer_verify_says_the_same(signed: dict[str, Path], tmp_path: Path) -> None:
    data = signed["pgp"].read_bytes()
    keys = str(signed["pgp"].parent / "keys")
    changed = bytearray(data)
    changed[50] ^= 1
    for name, body in (("good", data), ("bad", bytes(changed))):
        image = tmp_path / f"{name}.sif"
        image.write_bytes(body)
        done = subprocess.run(
            ["apptainer", "verify", "--local", image], capture_output=True, check=False,
            env={**os.environ, "APPTAINER_KEYSDIR": keys},
        )  # fmt: skip
        assert (done.returncode == 0) == look(body).verdict.passes, done.stderr


def test_truncation_in_the_signature_is_found_in_the_header(signed: dict[str, Path]) -> None:
    assert codes(look(signed["pgp"].read_bytes()[:-10], Level.HEADER)) == {"sif-truncated"}


def clear(*numbers: bytes) -> bytes:
    """A clear signature over objects of these relative numbers, with digests of nothing."""
    zeros = b"sha256:" + b"0" * 64
    one = b'{"relativeId":%s,"descriptorDigest":"%s","objectDigest":"%s"}'
    body = b",".join(one % (number, zeros, zeros) for number in numbers)
    return (
        b'-----BEGIN PGP SIGNED MESSAGE-----\n\n{"header":{"digest":"%s"},"objects":[%s]}\n'
        b"-----BEGIN PGP SIGNATURE-----\n"
    ) % (zeros, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{",
        b"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{}\n-----BEGIN PGP SIGNATURE-----\n",
        b'{"payload": 5}',
        b'{"payload": "####"}',
        b'{"payload": "e30="}',
        b"{" * 5000,
        b"garbage",
        *(clear(number) for number in (b"Infinity", b"1e999", b"NaN", b"-1", b'"0"', b"4294967296", b"true")),
        b"-----BEGIN PGP SIGNED MESSAGE-----\n\nSIFHASH:\n\n-----BEGIN PGP SIGNATURE-----\n",
    ],
)
def test_a_signature_that_cannot_be_read_confirms_nothing(signed: dict[str, Path], body: bytes) -> None:
    data = signed["pgp"].read_bytes()
    signature = read_container(BytesSource(data)).objects[-1]
    changed = (
        data[: signature.offset] + body[: signature.size].ljust(signature.size, b" ") + data[signature.end :]
    )
    report = look(changed)
    assert codes(report) == {"sig-unread", "data-partial"}
    assert report.verdict is Verdict.PARTIAL
    assert "hash" not in report.checks


def test_an_object_that_is_named_many_times_is_hashed_once(signed: dict[str, Path]) -> None:
    data = signed["pgp"].read_bytes()
    signature = read_container(BytesSource(data)).objects[-1]
    body = clear(*[b"0"] * 3000)
    changed = bytearray(data[: signature.offset] + body)
    struct.pack_into("<q", changed, 4096 + 585 * (signature.id - 1) + 25, len(body))
    struct.pack_into("<q", changed, 120, len(changed) - struct.unpack_from("<q", changed, 112)[0])
    source = BytesSource(bytes(changed))
    recorded = recorded_digests(source, read_container(source))
    assert (len(recorded.expected), len(recorded.digests)) == (3000, 1)
    report = look(bytes(changed))
    assert report.verdict is Verdict.BAD
    assert {"sig-header", "sig-descriptor", "sig-object"} <= codes(report)
    assert len(report.findings) < 30


def test_oci_blobs_are_compared_with_their_descriptors(signed: dict[str, Path]) -> None:
    blob = b'{"schemaVersion": 2}'
    data = bytearray((signed["pgp"].parent / "good.sif").read_bytes())
    container = read_container(BytesSource(bytes(data)))
    at = 4096
    for d in container.objects:
        struct.pack_into("<?", data, at + (d.id - 1) * SLOT + 4, False)
    for slot, kind in ((0, 0x400A), (1, 0x400B)):
        offset = 40_000 + slot * 100
        data[offset : offset + len(blob)] = blob
        extra = b"sha256:" + hashlib.sha256(blob).hexdigest().encode()
        values = (kind, True, slot + 1, 0xF0000001, 0, offset, len(blob), len(blob), 0, 0, 0, 0, b"", extra)
        struct.pack_into("<i?IIIqqqqqqq128s384s", data, at + slot * SLOT, *values)
    report = look(bytes(data), Level.HEADER)
    assert report.verdict is Verdict.UNSUPPORTED
    assert "oci-sif" in codes(report)
    source = BytesSource(bytes(data))
    assert len(recorded_digests(source, read_container(source)).expected) == 2
    assert look(bytes(data), Level.MOUNT, hashing=True).verdict is Verdict.UNSUPPORTED
    data[40_003] ^= 1
    assert "oci-digest" in codes(look(bytes(data), Level.MOUNT, hashing=True))
