"""Which file of a folder is the image of which task: every row is matched with one file or says why not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import Blob, Listing
from poolmgr.model.image_map import parse_image_map
from poolmgr.model.index import Index
from poolmgr.model.manifest import Manifest, Naming
from poolmgr.model.task import Row
from poolmgr.plan.adopt import Adoption, Ask, ByMap, ByPath, ByRule, Files, plan_adoption
from poolmgr.plan.naming import Aliases


def listing(*paths: str, troubles: dict[str, str] | None = None) -> Listing:
    blobs = {p: Blob(p, 0 if p.endswith("empty.sif") else 9) for p in paths}
    blobs |= {p: Blob(p, 0, trouble=t) for p, t in (troubles or {}).items()}
    folders = {p.rpartition("/")[0] for p in blobs} - {""}
    return Listing("folder", None, blobs, directories=frozenset(folders))


def by_map(
    text: str, there: Listing, rows: dict[str, str] | None = None, aliases: dict[str, str] | None = None,
    **how: bool,
) -> Adoption:  # fmt: skip
    images = parse_image_map(text.encode(), "m.tsv")
    if rows is None:
        asked = [Row(p.reference, p.reference, images.where(p.line)) for p in images.pairs]
    else:
        asked = [Row(task, image, f"row {n}") for n, (task, image) in enumerate(rows.items(), 1)]
    matcher = ByMap(images, Files(there, ["/data/sifs"], **how), Aliases(aliases or {}))
    return plan_adoption([Ask("v", asked, matcher)], there)


def by_rule(there: Listing, rows: dict[str, str], manifest: Manifest | None = None) -> Adoption:
    asked = [Row(task, image, f"row {n}") for n, (task, image) in enumerate(rows.items(), 1)]
    matcher = ByRule(rows.values(), Files(there, ["/data/sifs"]), there, manifest or Manifest())
    return plan_adoption([Ask("v", asked, matcher)], there)


def codes(adoption: Adoption) -> dict[str | None, str]:
    return {u.task: u.finding.code for u in adoption.unmatched}


@pytest.mark.parametrize(
    "written", ["a.sif", "images/a.sif", "./images/a.sif", ".//images/a.sif", "/data/sifs/images/a.sif"]
)
def test_a_file_is_named_by_path_by_bare_name_or_absolutely(written: str) -> None:
    found = by_map(f"acme/env:1\t{written}\n", listing("images/a.sif"))
    assert dict(found.variants["v"]) == {"acme/env:1": "images/a.sif"}
    assert not found.unmatched


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("/etc/passwd", "unsafe-path"),
        ("/data/sifs2/images/a.sif", "unsafe-path"),
        ("../a.sif", "unsafe-path"),
        ("images/../a.sif", "unsafe-path"),
        (".poolmgr/a.sif", "unsafe-path"),
        ("images", "is-directory"),
        ("images/A.sif", "other-case"),
        ("b00/a.sif", "missing"),
        ("nowhere.sif", "missing"),
        ("out.sif", "outward-link"),
        ("images/empty.sif", "zero-byte"),
        ("twice.sif", "ambiguous-name"),
        ("task_to_blob.json", "unsafe-path"),
    ],
)
def test_what_is_no_usable_file_says_why(written: str, code: str) -> None:
    there = listing(
        "images/a.sif", "images/empty.sif", "x/twice.sif", "y/twice.sif", troubles={"out.sif": "outward-link"}
    )
    found = by_map(f"acme/env:1\t{written}\nacme/ok:1\timages/a.sif\n", there)
    assert codes(found) == {"acme/env:1": code}
    assert dict(found.variants["v"]) == {"acme/ok:1": "images/a.sif"}


def test_by_name_is_asked_for() -> None:
    there = listing("a.sif")
    assert codes(by_map("acme/env:1\timages/a.sif\n", there)) == {"acme/env:1": "missing"}
    assert by_map("acme/env:1\timages/a.sif\n", there, by_name=True).blobs == {"a.sif"}


def test_one_image_under_several_spellings_is_an_alias() -> None:
    found = by_map("docker://ubuntu\ta.sif\ndocker.io/library/ubuntu:latest\ta.sif\n", listing("a.sif"))
    assert found.tasks == 2
    assert found.aliases == {"a.sif": ("ubuntu", "docker.io/library/ubuntu:latest")}


def test_two_images_in_one_file_are_a_collision_unless_an_alias_joins_them() -> None:
    text = "mirror:5000/team-env/17c:latest\ta.sif\nacme/env:17c\ta.sif\nacme/b:1\tb.sif\n"
    there = listing("a.sif", "b.sif")
    found = by_map(text, there)
    assert set(codes(found).values()) == {"name-collision"}
    assert found.blobs == {"b.sif"}
    joined = by_map(text, there, aliases={"mirror:5000/team-env/{tag}:latest": "acme/env:{tag}"})
    assert not joined.unmatched
    assert joined.tasks == 3


def test_a_file_that_very_many_images_share_costs_no_square() -> None:
    count = 2000
    text = "".join(f"acme/env:t{n}\ta.sif\n" for n in range(count))
    found = by_map(text, listing("a.sif"))
    assert len(found.unmatched) == count
    assert found.unmatched[0].finding.message.endswith(f"and {count - 4:,} more")
    assert sum(len(u.finding.message) for u in found.unmatched) < 500 * count


def test_one_image_in_two_files_is_a_conflict() -> None:
    found = by_map("a:1\ta.sif\na:1\tb.sif\nb:1\tc.sif\n", listing("a.sif", "b.sif", "c.sif"))
    assert codes(found) == {"a:1": "image-conflict"}
    assert found.blobs == {"c.sif"}


def test_a_dataset_through_a_map() -> None:
    text = "acme/env:1\ta.sif\nacme/env:2\tb.sif\nacme/env:3\tc.sif\n"
    rows = {"t1": "docker://acme/env:1", "t2": "docker.io/acme/env:1", "t3": "acme/env:9", "t4": "acme/env:2"}
    found = by_map(text, listing("a.sif", "b.sif", "c.sif"), rows)
    assert dict(found.variants["v"]) == {"t1": "a.sif", "t2": "a.sif", "t4": "b.sif"}
    assert codes(found) == {"t3": "no-file"}
    assert found.unmapped == ("c.sif",)
    assert [f.where for f in found.unused] == ["m.tsv line 3"]


def test_a_dataset_through_the_rule() -> None:
    there = listing("images/acme__env__1.sif", "images_b00/acme__env__2.sif", "images/spare.sif")
    rows = {
        "t1": "docker://acme/env:1",
        "t2": "acme/env:2",
        "t3": "acme/env:3",
        "t4": "/data/sifs/images/spare.sif",
    }
    found = by_rule(there, rows)
    assert dict(found.variants["v"]) == {
        "t1": "images/acme__env__1.sif", "t2": "images_b00/acme__env__2.sif", "t4": "images/spare.sif"
    }  # fmt: skip
    assert codes(found) == {"t3": "no-file"}


def test_images_that_the_rule_gives_one_name_match_nothing() -> None:
    there = listing("acme__tool__v1.sif", "ok.sif")
    found = by_rule(there, {"t1": "acme/tool:v1", "t2": "acme__tool:v1", "t3": "ok"})
    assert codes(found)["t1"] == codes(found)["t2"] == "name-collision"
    apptainer = by_rule(
        listing("env_1.sif"), {"t1": "acme/env:1", "t2": "other/env:1"}, Manifest(naming=Naming("apptainer"))
    )
    assert set(codes(apptainer).values()) == {"name-collision"}
    assert not apptainer.variants


def test_names_that_differ_only_in_case_are_never_both_in_the_index() -> None:
    found = by_map("a:1\ta.sif\nb:1\tA.sif\nc:1\tc.sif\n", listing("a.sif", "A.sif", "c.sif"))
    assert codes(found) == {"a:1": "case-clash", "b:1": "case-clash"}
    assert found.clashes == (("A.sif", "a.sif"),)
    alone = by_map("a:1\ta.sif\n", listing("a.sif", "A.sif"))
    assert alone.blobs == {"a.sif"}
    assert alone.clashes == (("A.sif", "a.sif"),)


def test_a_task_with_two_images_has_none() -> None:
    there = listing("acme__a__1.sif", "acme__b__1.sif")
    rows = [Row("t", "acme/a:1", "row 1"), Row("t", "acme/b:1", "row 2"), Row("u", "acme/b:1", "row 3"),
            Row("u", "acme/b:1", "row 4"), Row(None, None, "row 5", "no task"), Row("w", " ", "row 6"),
            Row("x\n", "acme/a:1", "row 7")]  # fmt: skip
    matcher = ByRule(["acme/a:1", "acme/b:1"], Files(there), there, Manifest())
    found = plan_adoption([Ask("v", rows, matcher)], there)
    assert dict(found.variants["v"]) == {"u": "acme__b__1.sif"}
    assert sorted((u.where, u.finding.code) for u in found.unmatched) == [
        ("row 1", "duplicate-row"), ("row 2", "duplicate-row"), ("row 5", "bad-row"),
        ("row 6", "row-without-image"), ("row 7", "bad-row"),
    ]  # fmt: skip


NAMES = st.sampled_from(["a.sif", "A.sif", "i/a.sif", "i/b.sif", "j/b.sif", "c.sif", "empty.sif", "..", "/x"])
REFS = st.sampled_from(["a:1", "docker.io/library/a:1", "b:1", "c/d:1", "c__d:1", "a.sif", "C/D"])


@given(
    st.lists(st.tuples(REFS, NAMES), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from("tuvw"), REFS), min_size=1, max_size=8),
    st.sets(NAMES, max_size=6),
    st.sampled_from(["map", "rule", "path"]),
)
def test_every_row_is_matched_or_listed_and_the_index_is_valid(
    lines: list[tuple[str, str]], asked: list[tuple[str, str]], paths: set[str], way: str
) -> None:
    there = listing(*(p for p in paths if p not in ("..", "/x")))
    rows = [Row(task, image, f"row {n}") for n, (task, image) in enumerate(asked, 1)]
    images = parse_image_map("".join(f"{r}\t{f}\n" for r, f in lines).encode(), "m")
    files = Files(there)
    matcher = {
        "map": lambda: ByMap(images, files, Aliases({})),
        "rule": lambda: ByRule([r.image or "" for r in rows], files, there, Manifest()),
        "path": lambda: ByPath(files),
    }[way]()
    found = plan_adoption([Ask("v", rows, matcher)], there)
    matched = found.variants.get("v", {})
    listed = {u.task for u in found.unmatched}
    assert {r.task for r in rows} == matched.keys() | listed
    assert not matched.keys() & {u.task for u in found.unmatched if u.finding.code == "duplicate-row"}
    assert all(there.blobs[p].size for p in matched.values())
    if matched:
        Index.build({v: dict(t) for v, t in found.variants.items()}, "here")
