"""Which blob answers to a reference, and that everything else is an error (facts: users E3, E4)."""

from __future__ import annotations

import pytest

from poolmgr.errors import AmbiguousError, MissError
from poolmgr.model.manifest import Manifest, Naming
from poolmgr.plan.resolve import Names

POOL = ["images/acme__env-v3__17c682d5c609.sif", "images_b00/acme__tool__v1.sif", "images/README.md"]
ALIAS = {"mirror.local:5000/team-env-v3/{tag}:latest": "acme/env-v3:{tag}"}
MIRRORED = "mirror.local:5000/team-env-v3/17c682d5c609:latest"


def test_the_name_as_written_in_any_directory() -> None:
    names = Names(POOL, Manifest())
    assert names.find("acme/env-v3:17c682d5c609").path == POOL[0]
    assert names.find("docker://acme/tool:v1").path == POOL[1]


@pytest.mark.parametrize("written", ["docker.io/acme/tool:v1", "index.docker.io/acme/tool:v1"])
def test_another_spelling_of_the_same_image(written: str) -> None:
    match = Names(POOL, Manifest()).find(written)
    assert (match.path, match.how) == (POOL[1], "spelling")


def test_latest_and_library_may_be_left_out() -> None:
    names = Names(["images/ubuntu__latest.sif", "images/docker.io__acme__x.sif"], Manifest())
    assert names.find("docker.io/library/ubuntu").path == "images/ubuntu__latest.sif"
    assert names.find("acme/x:latest").path == "images/docker.io__acme__x.sif"


def test_two_spellings_with_a_file_each_are_ambiguous_unless_one_is_as_written() -> None:
    names = Names(["images/x__t.sif", "images/x__t__latest.sif"], Manifest())
    assert names.find("x/t").path == "images/x__t.sif"
    with pytest.raises(AmbiguousError):
        names.find("docker.io/x/t")


def test_a_mirror_reference_needs_an_alias_and_is_hinted_at_without_one() -> None:
    match = Names(POOL, Manifest(aliases=ALIAS)).find(MIRRORED)
    assert (match.path, match.how) == (POOL[0], "alias")
    with pytest.raises(MissError) as e:
        Names(POOL, Manifest(), place="/p").find(MIRRORED)
    assert "mirror.local__5000__team-env-v3__17c682d5c609__latest.sif" in e.value.message
    assert "/p" in e.value.message
    assert POOL[0] in e.value.hint
    assert "alias" in e.value.hint


def test_a_trailing_hash_matches_only_where_the_manifest_allows_it() -> None:
    match = Names(POOL, Manifest(naming=Naming(trailing_hash=True))).find(MIRRORED)
    assert (match.path, match.how) == (POOL[0], "trailing-hash")


def test_an_ambiguous_token_lists_both() -> None:
    pool = ["images/acme__web__202401011200.sif", "images/acme__db__202401011200.sif"]
    with pytest.raises(AmbiguousError) as e:
        Names(pool, Manifest(naming=Naming(trailing_hash=True))).find("mirror/other:202401011200")
    assert set(e.value.details) == set(pool)


@pytest.mark.parametrize(
    ("file", "reference"),
    [
        ("images/acme__web__20240101.sif", "mirror/other:20240101"),
        ("images/acme__x__facade.sif", "acme/facade:latest"),
        ("images/acme__x__deadbeef0123x.sif", "mirror/y:deadbeef0123x"),
    ],
)
def test_short_tokens_and_words_are_no_hashes(file: str, reference: str) -> None:
    with pytest.raises(MissError):
        Names([file], Manifest(naming=Naming(trailing_hash=True))).find(reference)


def test_two_directories_are_ambiguous_unless_the_index_uses_exactly_one() -> None:
    pool = ["images/acme__t__1.sif", "images_b00/acme__t__1.sif"]
    with pytest.raises(AmbiguousError):
        Names(pool, Manifest()).find("acme/t:1")
    with pytest.raises(AmbiguousError):
        Names(pool, Manifest(), assigned=pool).find("acme/t:1")
    assert Names(pool, Manifest(), assigned=pool[1:]).find("acme/t:1").path == pool[1]


def test_a_derived_image_never_answers_to_the_reference_it_came_from() -> None:
    derived = "derived_b00/acme__t__1.sif"
    assert Names(["images/acme__t__1.sif", derived], Manifest()).find("acme/t:1").path.startswith("images/")
    with pytest.raises(MissError) as e:
        Names([derived], Manifest()).find("acme/t:1")
    assert derived in e.value.hint
    assert "task and variant" in e.value.hint


def test_a_prefix_is_not_a_match() -> None:
    with pytest.raises(MissError) as e:
        Names(["images/acme__repo-123__v1.sif"], Manifest()).find("acme/repo-12:v1")
    assert "images/acme__repo-123__v1.sif" in e.value.hint


def test_a_name_in_another_case_is_a_miss_with_a_hint() -> None:
    with pytest.raises(MissError) as e:
        Names(["images/acme__t__V1.sif"], Manifest()).find("acme/t:v1")
    assert "acme__t__V1.sif" in e.value.hint


@pytest.mark.parametrize("text", ["", "://", "...", "a" * 5000, "acme/t:\x00", "../../etc/passwd"])
def test_nonsense_is_a_miss(text: str) -> None:
    with pytest.raises(MissError):
        Names(POOL, Manifest()).find(text)
