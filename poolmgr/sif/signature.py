"""The digests inside a SIF's signatures, compared without any key.

A signature holds, in clear text, the sha256 of the header, of each signed descriptor and of each
signed object. Comparing them says whether the bytes are the ones that were signed; who signed them
is for ``apptainer verify``. Forms: facts: sif section 1, Signatures.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from poolmgr.model.finding import Finding
from poolmgr.sif.data import Digest
from poolmgr.sif.header import NO_GROUP, OCI_BLOB, OCI_INDEX, SIGNATURE, Container, Descriptor, finding
from poolmgr.sif.source import Source

MAX_SIGNATURE = 4 << 20
_ALGORITHMS = {"sha256": 32, "sha384": 48, "sha512": 64, "blake2s": 32, "blake2b": 64}
_OLD_ALGORITHMS = {1: "sha256", 2: "sha384", 3: "sha512", 4: "blake2s", 5: "blake2b"}
_DESCRIPTOR = struct.Struct("<i?IIqqqq128s384s")
_BEGIN, _END = b"-----BEGIN PGP SIGNED MESSAGE-----", b"-----BEGIN PGP SIGNATURE-----"
_OLD = b"SIFHASH:\n"


class _UnreadableError(Exception):
    """A signature whose digests cannot be read."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Bytes of an object that have a digest on record in the file itself."""

    digest: Digest
    hex: str
    code: str
    where: str
    object_id: int
    by: str
    """What recorded it, such as ``signature 4``."""

    def compare(self) -> Finding | None:
        """After the digest was fed: the finding, if the bytes are others."""
        if self.digest.hex == self.hex:
            return None
        algorithm = self.digest.algorithm
        return finding(self.code, f"{algorithm} {self.digest.hex}, but {self.by} says {self.hex}", self.where)


@dataclass(slots=True)
class Recorded:
    """All digests on record in one file."""

    expected: list[Expected] = field(default_factory=list)
    """To be fed and compared."""
    findings: list[Finding] = field(default_factory=list)
    """What was found wrong already: header and descriptors."""
    signatures: int = 0
    """How many were read."""

    digests: dict[tuple[int, str], Digest] = field(default_factory=dict)
    """Object and algorithm -> the one digest to feed, however often signatures name it."""

    def digest(self, o: Descriptor, algorithm: str) -> Digest:
        key = (o.id, algorithm)
        if key not in self.digests:
            self.digests[key] = Digest(o.offset, o.end, algorithm)
        return self.digests[key]

    def confirms(self, container: Container) -> bool:
        """Whether every filesystem of the file is among the objects that have a digest."""
        known = {e.object_id for e in self.expected if e.code == "sig-object"}
        return bool(container.partitions) and known >= {p.id for p in container.partitions}


def recorded_digests(source: Source, container: Container) -> Recorded:
    """The digests that signatures and OCI descriptors of ``container`` hold."""
    recorded = Recorded()
    for d in container.objects:
        if d.datatype == SIGNATURE:
            try:
                _signature(source, container, d, recorded)
            except _UnreadableError as e:
                recorded.findings.append(finding("sig-unread", str(e), f"descriptor {d.id}"))
        elif d.datatype in (OCI_INDEX, OCI_BLOB):
            text = d.extra.split(b"\0", 1)[0].decode("ascii", "replace")
            try:
                algorithm, value = _parse(text)
            except _UnreadableError:
                continue
            digest = recorded.digest(d, algorithm)
            recorded.expected.append(
                Expected(digest, value, "oci-digest", f"descriptor {d.id}", d.id, "its descriptor")
            )
    return recorded


def _signature(source: Source, container: Container, d: Descriptor, recorded: Recorded) -> None:
    if d.size > MAX_SIGNATURE:
        raise _UnreadableError(f"a signature of {d.size} bytes")
    text = _signed_text(source.read_at(d.offset, d.size))
    by = f"signature {d.id}"
    covered = _covered(container, d)
    if text.startswith(_OLD):
        if len(covered) != 1:
            raise _UnreadableError(f"one old digest over {len(covered)} objects")
        algorithm = _OLD_ALGORITHMS.get(int.from_bytes(d.extra[:4], "little"), "")
        words = text[len(_OLD) :].split()
        if not words:
            raise _UnreadableError("an old signature without its digest")
        algorithm, value = _parse(f"{algorithm}:{words[0].decode('ascii', 'replace')}")
        o = covered[0]
        expected = Expected(
            recorded.digest(o, algorithm), value, "sig-object", f"descriptor {o.id}", o.id, by
        )
        recorded.expected.append(expected)
        recorded.signatures += 1
        return
    try:
        body = json.loads(text)
        objects = body["objects"]
        header = _parse(body["header"]["digest"])
        signed = [
            (_relative(o["relativeId"]), _parse(o["descriptorDigest"]), _parse(o["objectDigest"]))
            for o in objects
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise _UnreadableError(f"no digests could be read from it ({type(e).__name__})") from None
    if not signed:
        raise _UnreadableError("it signs no object")
    head = container.head
    if _hash(header[0], head[:45] + head[48:64]) != header[1]:
        recorded.findings.append(finding("sig-header", f"{by} was made over another header"))
    first = min((o.id for o in covered), default=0)
    by_id = {o.id: o for o in container.objects}
    for relative, descriptor_digest, object_digest in signed:
        o_or_none = by_id.get(first + relative)
        if o_or_none is None:
            recorded.findings.append(
                finding("sig-missing", f"{by} covers object {first + relative}, which is gone")
            )
            continue
        o = o_or_none
        where = f"descriptor {o.id}"
        packed = _DESCRIPTOR.pack(
            o.datatype, True, relative, o.link, o.size, o.created, o.uid, o.gid, o.raw_name, o.extra
        )
        if _hash(descriptor_digest[0], packed) != descriptor_digest[1]:
            recorded.findings.append(finding("sig-descriptor", f"{by} was made over another one", where))
        digest = recorded.digest(o, object_digest[0])
        recorded.expected.append(Expected(digest, object_digest[1], "sig-object", where, o.id, by))
    recorded.signatures += 1


def _relative(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise ValueError("no number of an object")
    return value


def _covered(container: Container, d: Descriptor) -> list[Descriptor]:
    """The objects of the group that a signature belongs to, or the one object that it links to."""
    if d.link & NO_GROUP == NO_GROUP:
        return [o for o in container.objects if o.group == d.link and o.datatype != SIGNATURE]
    return [o for o in container.objects if o.id == d.link]


def _signed_text(raw: bytes) -> bytes:
    """The text that was signed: from a PGP clear signature, a DSSE envelope, or bare."""
    if raw.startswith(_BEGIN):
        _, _, rest = raw.partition(b"\n\n")
        if b"\r\n\r\n" in raw[:512]:
            _, _, rest = raw.partition(b"\r\n\r\n")
        text, end, _ = rest.partition(_END)
        if not end:
            raise _UnreadableError("a clear signature without its end")
        return b"\n".join(line.removeprefix(b"- ") for line in text.split(b"\n"))
    if raw.lstrip().startswith(b"{"):
        try:
            envelope: Any = json.loads(raw)
            if isinstance(envelope, Mapping) and "payload" in envelope:
                return base64.b64decode(envelope["payload"], validate=True)
        except (ValueError, TypeError, RecursionError, binascii.Error):
            raise _UnreadableError("neither a clear signature nor a DSSE envelope") from None
    raise _UnreadableError("neither a clear signature nor a DSSE envelope")


def _parse(text: object) -> tuple[str, str]:
    algorithm, _, value = str(text).partition(":")
    size = _ALGORITHMS.get(algorithm)
    if size is None or len(value) != 2 * size or not set(value) <= set("0123456789abcdef"):
        raise _UnreadableError("a digest of an unknown form")
    return algorithm, value


def _hash(algorithm: str, data: bytes) -> str:
    return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
