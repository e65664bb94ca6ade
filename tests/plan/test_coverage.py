from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import Blob, Listing
from poolmgr.model.finding import CODES, Severity
from poolmgr.model.manifest import Gates
from poolmgr.model.task import Row
from poolmgr.plan.coverage import Coverage, cover, orphans


def listing(*blobs: Blob, directories: frozenset[str] = frozenset(), refused: tuple = ()) -> Listing:
    return Listing("pool", None, {b.path: b for b in blobs}, refused, directories)


def nothing(path: str) -> Blob | None:
    return None


def compare(tasks: Mapping[str, str], held: Listing, **more: object) -> Coverage:
    return cover("v", tasks, held, recorded=more.pop("recorded", nothing), **more)  # type: ignore[arg-type]


def codes(c: Coverage) -> dict[str, tuple[str, ...]]:
    return c.by_code()


def test_a_whole_variant_has_no_finding() -> None:
    c = compare({"t1": "i/a.sif", "t2": "i/a.sif"}, listing(Blob("i/a.sif", 5)))
    assert c.needed == {"i/a.sif": ("t1", "t2")}
    assert c.present == {"i/a.sif"}
    assert codes(c) == {}
    assert c.dataset is None


def test_every_kind_of_absence_has_its_own_code() -> None:
    held = listing(
        Blob("i/zero.sif", 0),
        Blob("i/Case.sif", 5),
        Blob("i/link.sif", 0, trouble="dangling-link"),
        Blob("i/out.sif", 0, trouble="outward-link"),
        Blob("i/secret.sif", 9, trouble="unreadable"),
        Blob("i/pipe.sif", 0, trouble="not-a-file"),
        Blob("i/small.sif", 9),
        Blob("i/cut.sif", 90),
        Blob("i/good.sif", 100),
        directories=frozenset({"i", "i/folder.sif"}),
    )
    names = ("gone", "zero", "case", "link", "out", "secret", "pipe", "small", "cut", "good", "folder")
    tasks = {f"t-{n}": f"i/{n}.sif" for n in names}
    record = {f"i/{n}.sif": Blob(f"i/{n}.sif", 100) for n in ("cut", "good", "zero")}
    c = compare(tasks, held, recorded=record.get, gates=Gates(min_bytes=10))
    assert codes(c) == {
        "missing": ("i/gone.sif",),
        "other-case": ("i/case.sif",),
        "is-directory": ("i/folder.sif",),
        "zero-byte": ("i/zero.sif",),
        "below-floor": ("i/small.sif",),
        "wrong-size": ("i/cut.sif",),
        "dangling-link": ("i/link.sif",),
        "outward-link": ("i/out.sif",),
        "unreadable": ("i/secret.sif",),
        "not-a-file": ("i/pipe.sif",),
    }
    assert c.missing == {"i/gone.sif"}
    assert c.present == {"i/small.sif", "i/cut.sif", "i/good.sif"}
    assert c.sized == {"i/cut.sif", "i/good.sif"}
    assert "'i/Case.sif'" in c.images["i/case.sif"][0].message
    assert c.images["i/cut.sif"][0].message == "90 bytes, 100 on record"


def test_what_keeps_a_whole_folder_away_is_said_of_each_of_its_blobs() -> None:
    """Incidents 51 to 53: a folder that is a link out of the pool, or that may not be read."""
    held = listing(Blob("i", 0, trouble="outward-link"), Blob("j", 0, trouble="unreadable"), Blob("k", 5))
    c = compare({"t1": "i/a.sif", "t2": "j/deep/b.sif", "t3": "k/c.sif"}, held)
    assert codes(c) == {
        "outward-link": ("i/a.sif",),
        "unreadable": ("j/deep/b.sif",),
        "not-a-file": ("k/c.sif",),
    }
    assert c.images["i/a.sif"][0].message == "i, where it should lie: a symbolic link that leaves the pool"


def test_two_images_on_one_task_list_and_one_ref_twice_do_not_disturb_the_sets() -> None:
    """A8 defect 9: 111 tasks share an image, and that is no difference."""
    c = compare({f"t{i}": "i/a.sif" for i in range(111)}, listing(Blob("i/a.sif", 1)))
    assert len(c.needed) == 1
    assert len(c.tasks) == 111
    assert codes(c) == {}


def test_fallback_rows() -> None:
    """E8: 100 rows, 3 generic, 1 without an image; the others compare."""
    rows = [Row(f"t{i:03d}", f"acme/env:{i:012x}", f"row {i}") for i in range(96)]
    rows += [Row(f"g{i}", "ubuntu:22.04", f"row {96 + i}") for i in range(3)]
    rows += [Row("none", None, "row 99")]
    tasks = {r.task: "i/a.sif" for r in rows if r.task}
    c = compare(tasks, listing(Blob("i/a.sif", 1)), rows=rows, gates=Gates(generic_images=("ubuntu:22.04",)))
    assert codes(c) == {"row-without-image": ("none",), "generic-image": ("g0", "g1", "g2")}
    assert c.rows == 100


def test_rows_and_assignments_are_compared_as_sets_with_every_name() -> None:
    """A8 defect 10 and incident 43: 14,490 against 14,488 is said by name, and no list is cut."""
    tasks = {f"t{i}": "i/a.sif" for i in range(14_488)}
    rows = [Row(f"t{i}", f"acme/e:{i}", "row") for i in range(100, 14_490)]
    c = compare(tasks, listing(Blob("i/a.sif", 1)), rows=rows)
    assert c.named("row-without-assignment") == ("t14488", "t14489")
    assert set(c.named("assignment-without-row")) == {f"t{i}" for i in range(100)}


def test_rows_that_cannot_be_used_are_said_with_their_place() -> None:
    rows = [
        Row("t1", "acme/a:1", "row 0"),
        Row("t1", "acme/a:1", "row 1"),
        Row(None, "acme/a:1", "row 2"),
        Row("t2", None, "row 3", trouble="env_config is not JSON"),
    ]
    c = compare({"t1": "i/a.sif", "t2": "i/a.sif"}, listing(Blob("i/a.sif", 1)), rows=rows)
    assert codes(c) == {"duplicate-row": ("t1",), "bad-row": ("row 2", "t2")}
    assert c.rowwise["t1"][0].where == "row 0, row 1"


def test_a_bare_operating_system_is_an_error_when_shared_and_a_warning_alone() -> None:
    rows = [
        Row("a", "docker://docker.io/library/Debian:12", "row 0"),
        Row("b", "debian:12", "row 1"),
        Row("c", "alpine", "row 2"),
        Row("d", "python:3.12-slim", "row 3"),
        Row("e", "python:3.12-slim", "row 4"),
        Row("f", "fedora:42", "row 5"),
        Row("g", "fedora:42", "row 6"),
    ]
    tasks = {r.task: "i/a.sif" for r in rows if r.task}
    c = compare(tasks, listing(Blob("i/a.sif", 1)), rows=rows, gates=Gates(generic_images=("!fedora",)))
    assert codes(c) == {"generic-image": ("a", "b"), "bare-image": ("c",)}
    assert c.rowwise["c"][0].severity is Severity.WARNING
    assert "shared by 2 tasks" in c.rowwise["a"][0].message


def test_a_subset_looks_at_its_tasks_and_rows_only() -> None:
    tasks = {"t1": "i/a.sif", "t2": "i/b.sif"}
    rows = [Row("t1", "acme/a:1", "row 0"), Row("t3", "acme/c:1", "row 1")]
    c = compare(tasks, listing(Blob("i/a.sif", 1)), rows=rows, subset=frozenset({"t1"}), total=7015)
    assert (c.tasks, c.total, codes(c)) == ({"t1"}, 7015, {})


def test_orphans_are_blobs_that_nobody_names() -> None:
    held = listing(*(Blob(p, 1) for p in ("README.md", "x.sif", "i/a.sif", "i/b.sif.part", "docs/a.md")))
    assert orphans(held, frozenset({"i/a.sif"})) == ("i/b.sif.part", "x.sif")


paths = st.sampled_from([f"i/{c}.sif" for c in "abcdefgh"])


@given(
    st.dictionaries(st.sampled_from("123456789"), paths, min_size=1),
    st.dictionaries(paths, st.integers(0, 3)),
    st.dictionaries(paths, st.integers(0, 3)),
    st.none() | st.lists(st.tuples(st.sampled_from("123456789ab"), st.booleans())),
)
def test_every_needed_blob_and_task_is_accounted_for(
    tasks: dict[str, str],
    sizes: dict[str, int],
    record: dict[str, int],
    rows: list[tuple[str, bool]] | None,
) -> None:
    held = listing(*(Blob(p, s) for p, s in sizes.items()))
    known = {p: Blob(p, s) for p, s in record.items()}
    given_rows = None if rows is None else [Row(t, "acme/a:1" if ok else None, f"row {t}") for t, ok in rows]
    c = compare(tasks, held, recorded=known.get, rows=given_rows)
    need = set(tasks.values())
    assert set(c.needed) == need
    assert {t for ts in c.needed.values() for t in ts} == set(tasks)
    assert c.missing == need - sizes.keys()
    assert c.present == {p for p in need if sizes.get(p)}
    assert set(c.named("zero-byte")) == {p for p in need if sizes.get(p) == 0}
    assert set(c.named("wrong-size")) == {p for p in c.present & record.keys() if sizes[p] != record[p]}
    assert all(f.code in CODES for fs in (*c.images.values(), *c.rowwise.values()) for f in fs)
    if rows is not None:
        ids = {t for t, _ in rows}
        assert set(c.named("row-without-assignment")) == ids - tasks.keys()
        assert set(c.named("assignment-without-row")) == tasks.keys() - ids
