"""The content of single files of a filesystem, for what has to look inside one (labels, interpreters)."""

from __future__ import annotations

from poolmgr.sif.codecs import Codec, CodecError
from poolmgr.sif.squashfs import DamageError
from poolmgr.sif.tables import NO_FRAGMENT, STORED_BLOCK, Tables
from poolmgr.sif.write_node import Inode


def unpack(t: Tables, codec: Codec, start: int, word: int, size: int) -> bytes:
    """The data block at ``start`` unpacked: at most ``size`` bytes."""
    raw = t.fs.read(start, word & (STORED_BLOCK - 1))
    if word & STORED_BLOCK:
        return raw
    try:
        return codec(raw, size)
    except CodecError as e:
        raise DamageError("sq-decompress", f"the block at {start} does not unpack: {e}") from None


def read_content(t: Tables, codec: Codec, inode: Inode, limit: int) -> bytes:
    """What the file holds, at most its first ``limit`` bytes. ``DamageError`` where it cannot be read."""
    place = inode.place
    block_size = t.fs.sb.block_size
    want = min(limit, place.size)
    parts: list[bytes] = []
    at, got = place.start, 0
    for word in place.words:
        if got >= want:
            break
        size = min(block_size, place.size - got)
        part = unpack(t, codec, at, word, size) if word else bytes(size)
        if len(part) != size:
            raise DamageError("sq-block", f"the block at {at} has {len(part)} bytes, not {size}")
        parts.append(part)
        at += word & (STORED_BLOCK - 1)
        got += size
    if got < want and place.fragment != NO_FRAGMENT:
        start, word = t.fragments[place.fragment]
        tail = unpack(t, codec, start, word, block_size)[place.offset : place.offset + place.size - got]
        if len(tail) != place.size - got:
            raise DamageError("sq-fragment", f"fragment {place.fragment} is too short for a file's tail")
        parts.append(tail)
    return b"".join(parts)[:want]
