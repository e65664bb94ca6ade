"""Long random runs of what reads other people's names and texts (``make fuzz``)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poolmgr.errors import IndexInvalidError, ManifestInvalidError, MirrorInvalidError
from poolmgr.model.attestation import Attestation
from poolmgr.model.blob import path_trouble
from poolmgr.model.index import Index
from poolmgr.model.lock import Lock
from poolmgr.model.manifest import Manifest
from poolmgr.store.local import LocalStore

pytestmark = pytest.mark.fuzz
LONG = settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = (
    b'{"v": {"t": "images/a.sif", "u": "images_b00/\\u00e9.sif"}, "w": {"t": "x"}}',
    b'schema = 1\n[pool]\nurl = "x"\n[gates]\nlevel = "mount"\n[variants.v]\ntasks = 3\nforbid = ["/x"]\n',
    b'{"schema":1,"kind":"attestation","pool":"p","path":"a","size":1,"mtime_ns":1,"ctime_ns":1,"inode":1,'
    b'"checks":{"mount":"ok"},"time":1.0}',
    b'{"schema":1,"kind":"lock","variant":"v","source":"s","commit":null,"total_tasks":1,"complete":true,'
    b'"time":1.0,"manifest":"","blobs":{"a":[1,null]},"tasks":{"t":"a"}}',
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        piece = draw(
            st.binary(max_size=4) | st.sampled_from([b"{", b"}", b"null", b"1e999", b"-1", b'""', b"[", b","])
        )
        data[at : at + draw(st.integers(0, 6))] = piece
    return bytes(data)


@LONG
@given(damaged())
def test_damaged_texts_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(IndexInvalidError):
        Index.parse(data, "x")
    with contextlib.suppress(MirrorInvalidError):
        Lock.parse(data, "x")
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ManifestInvalidError):
        Manifest.parse(text, "x")
    with contextlib.suppress(ValueError):
        Attestation.from_line(text)


NAME = st.binary(min_size=1, max_size=12).filter(
    lambda b: b"/" not in b and b"\0" not in b and b not in (b".", b"..")
)


@settings(LONG, max_examples=2_000)
@given(
    st.lists(st.tuples(NAME, st.sampled_from(["file", "folder", "link", "up", "out", "loop"])), max_size=12)
)
def test_any_folder_is_listed(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[bytes, str]]
) -> None:
    root = tmp_path_factory.mktemp("pool")
    folders = [os.fsencode(root)]
    for name, kind in entries:
        place = os.path.join(folders[-1], name)
        with contextlib.suppress(OSError):
            if kind == "file":
                Path(os.fsdecode(place)).write_bytes(b"x")
            elif kind == "folder":
                os.mkdir(place)
                folders.append(place)
            else:
                target = {"link": entries[0][0], "up": b"..", "out": b"../../..", "loop": name}[kind]
                os.symlink(target, place)
    store = LocalStore(root)
    listing = store.list()
    for path, blob in listing.blobs.items():
        assert path_trouble(path) is None
        if blob.trouble is None:
            assert len(store.read(path, limit=100)) == blob.size
    assert all(path.isprintable() for path, _ in listing.refused)
