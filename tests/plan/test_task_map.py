"""What the rows of a map mean: a file that was given, a blob of the pool, or a problem by name."""

from __future__ import annotations

import pytest

from poolmgr.errors import MapInvalidError
from poolmgr.model.task_map import MapRow, parse_map
from poolmgr.plan.task_map import resolve_map

FILES = {"/w/new/a.sif": "new/a.sif", "/w/new/b.sif": "new/b.sif", "/w/other/b.sif": "other/b.sif"}
BLOBS = {"images/x.sif", "new/a.sif"}


def meant(*files: str, own: str | None = None, blobs: set[str] | None = None) -> dict[str, str]:
    text = "".join(f"t{n}\t{file}\n" for n, file in enumerate(files))
    found = parse_map(text.encode(), "m.tsv")
    result = resolve_map(found, FILES, blobs or set(), bases=("/w", "/w/new"), own=own)
    return {**result.files, **result.blobs}


@pytest.mark.parametrize("name", ["a.sif", "new/a.sif", "./new/a.sif", "/w/new/a.sif"])
def test_ways_to_name_a_file(name: str) -> None:
    assert meant(name) == {"t0": "new/a.sif"}


def test_a_blob_of_the_pool() -> None:
    assert meant("images/x.sif", "a.sif", blobs=BLOBS) == {"t0": "images/x.sif", "t1": "new/a.sif"}


def test_a_name_that_means_two_things() -> None:
    assert meant("new/b.sif", "other/b.sif") == {"t0": "new/b.sif", "t1": "other/b.sif"}
    assert meant("b.sif") == {"t0": "new/b.sif"}, "relative to the map's own folder goes before a bare name"
    with pytest.raises(MapInvalidError, match="also a blob"):
        meant("new/a.sif", blobs=BLOBS)
    assert meant("new/a.sif", blobs=BLOBS, own="/w") == {"t0": "new/a.sif"}, "it is that very file"


def test_all_that_is_wrong_is_told_together() -> None:
    """Of the form, of names, and of files that were not given."""
    with pytest.raises(MapInvalidError) as e:
        meant("../up.sif", "/etc/passwd", "c.sif", "images/none.sif", "a.sif", blobs=BLOBS)
    assert len(e.value.details) == 4
    assert "nearest: a.sif" in e.value.details[2] or "nearest: b.sif" in e.value.details[2]


def test_two_rows_that_disagree_about_the_image() -> None:
    found = parse_map(b"task\tfile\timage\nt\ta.sif\tx:1\nu\ta.sif\tx:2\n", "m.tsv")
    with pytest.raises(MapInvalidError, match="made of 'x:1' in one row"):
        resolve_map(found, FILES, (), bases=("/w",))
    assert found.rows[0] == MapRow("t", "a.sif", "x:1")
