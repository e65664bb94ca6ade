"""The rules of blob paths, attacked."""

from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.errors import UnsafePathError
from poolmgr.model.blob import Blob, Listing, case_clashes, check_path, fold, path_trouble, shown
from poolmgr.model.digest import parse_sha256

TEXT = st.text(st.characters(), max_size=40) | st.text("./\\aA\x00é ", max_size=30)


@given(TEXT)
def test_a_path_that_passes_stays_inside_and_can_be_shown(path: str) -> None:
    if path_trouble(path) is not None:
        with pytest.raises(UnsafePathError, match="somewhere"):
            check_path(path, "somewhere")
        return
    assert check_path(path, "somewhere") is path
    assert os.path.normpath(os.path.join("/pool", path)) == f"/pool/{path}"
    assert not any(part.startswith(".") for part in path.split("/"))
    assert "\\" not in path
    path.encode("utf-8")
    assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in path)


@given(TEXT)
def test_what_is_shown_is_printable(path: str) -> None:
    assert shown(path).isprintable()
    if path.isprintable():
        assert shown(path) == path


@pytest.mark.parametrize(
    "path",
    ["a.sif", "images/x[1]?.sif", "a b/c d.sif", "画像/é.sif", "a..b/c.sif", "x" * 255, "images/~/$HOME"],
)
def test_odd_and_good(path: str) -> None:
    assert path_trouble(path) is None


@given(TEXT, TEXT)
def test_folding_is_stable_and_ignores_case_and_form(a: str, b: str) -> None:
    assert fold(fold(a)) == fold(a)
    assert fold(unicodedata.normalize("NFD", a)) == fold(unicodedata.normalize("NFC", a))
    clashes = case_clashes([a, b, a])
    assert bool(clashes) == (a != b and fold(a) == fold(b))


def test_clashes_are_whole_groups() -> None:
    assert case_clashes(["b", "A", "a", "B", "c", "a"]) == (("A", "a"), ("B", "b"))


def test_other_case_and_folders_above() -> None:
    listing = Listing(
        "pool", None, {"images/A.sif": Blob("images/A.sif", 1), "shut": Blob("shut", 0, trouble="unreadable")}
    )
    assert listing.under_other_case("images/a.sif") == "images/A.sif"
    assert listing.under_other_case("images/A.sif") is None
    above = listing.troubled_above("shut/deep/x.sif")
    assert above is not None
    assert above.path == "shut"
    assert listing.troubled_above("images/A.sif/x") is None


@pytest.mark.parametrize("text", ["sha256:" + "AB" * 32, "ab" * 32, " " + "ab" * 32 + "\n"])
def test_digests(text: str) -> None:
    assert parse_sha256(text) == "ab" * 32


@pytest.mark.parametrize(
    "text", ["", "ab", "g" * 64, "sha256:", "sha512:" + "ab" * 32, "ab" * 33, "\u0661" * 64]
)
def test_what_is_no_digest(text: str) -> None:
    with pytest.raises(ValueError, match="64 hex digits"):
        parse_sha256(text)
