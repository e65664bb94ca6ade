"""The plan of a fetch: sets in, decisions out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import Blob, Listing
from poolmgr.plan.item import Local, State
from poolmgr.plan.transfer import lacking, plan_fetch

A, B, C = (letter * 64 for letter in "abc")


def listing(*blobs: Blob, directories: tuple[str, ...] = ()) -> Listing:
    return Listing("pool", None, {b.path: b for b in blobs}, directories=frozenset(directories))


def test_each_needed_blob_stands_once_with_all_its_tasks() -> None:
    plan = plan_fetch(
        {"v": {"t1": "x.sif", "t2": "x.sif"}, "w": {"t1": "x.sif"}},
        {"v": 2, "w": 1},
        listing(Blob("x.sif", 5, A), Blob("other.sif", 9, B)),
        {},
        {},
    )
    (item,) = plan.items
    assert item.tasks == ("v/t1", "v/t2", "w/t1")
    assert (item.state, item.transfer, plan.size) == (State.MISSING, 5, 5)


def test_states_follow_from_what_the_folder_holds() -> None:
    held = {
        "proven": Local(size=5, proven=True),
        "unproven": Local(size=5),
        "wrong": Local(size=4),
        "partial": Local(partial=3),
        "missing": Local(),
        "elsewhere": Local(elsewhere="y"),
        "quarantined": Local(quarantined=True),
        "too-long-a-partial": Local(partial=6),
    }
    blobs = [Blob(name, 5, f"{i:064x}") for i, name in enumerate(held)]
    plan = plan_fetch({"v": {n: n for n in held}}, {"v": len(held)}, listing(*blobs), held, {})
    states = {i.blob.path: i.state for i in plan.items}
    assert states.pop("too-long-a-partial") is State.MISSING
    assert states == {name: State(name) for name in states}
    assert plan.transfer == 5 + 2 + 5 + 5  # wrong, partial, missing, too long a partial


def test_what_the_pool_lacks_is_told_apart() -> None:
    held = listing(
        Blob("A.sif", 5, A),
        Blob("empty.sif", 0),
        Blob("link.sif", 0, trouble="dangling-link"),
        directories=("dir",),
    )
    expected = {
        "a.sif": "other-case",
        "dir": "is-directory",
        "empty.sif": "zero-byte",
        "link.sif": "dangling-link",
        "gone.sif": "missing",
    }
    found = {path: lacking(path, held) for path in expected}
    assert {path: finding.code for path, finding in found.items() if finding} == expected
    assert "A.sif" in str(found["a.sif"])
    assert lacking("A.sif", held) is None


def test_equal_bytes_under_two_names_are_transferred_once() -> None:
    plan = plan_fetch(
        {"v": {"t": "a", "u": "b"}}, {"v": 2}, listing(Blob("a", 5, A), Blob("b", 5, A)), {}, {}
    )
    assert [(i.blob.path, i.state, i.source) for i in plan.items] == [
        ("a", State.MISSING, None),
        ("b", State.ELSEWHERE, "a"),
    ]
    assert (plan.transfer, plan.room) == (5, 10)


def test_another_task_count_than_the_manifests_is_said() -> None:
    plan = plan_fetch({"v": {"t": "a"}}, {"v": 1}, listing(Blob("a", 5, A)), {}, {"v": 2})
    (finding,) = plan.findings
    assert finding.code == "task-count"
    assert "expects 2" in finding.message


names = st.sampled_from([f"d{i % 3}/b{i}.sif" for i in range(12)])


@given(
    st.dictionaries(st.text("tu0123", min_size=1, max_size=4), names, min_size=1),
    st.dictionaries(names, st.tuples(st.integers(0, 9), st.sampled_from([None, A, B, C]))),
    st.dictionaries(
        names,
        st.builds(Local, size=st.none() | st.integers(0, 9), proven=st.booleans(), partial=st.integers(0, 9)),
    ),
)
def test_every_needed_blob_is_planned_and_nothing_else(
    tasks: dict[str, str], pool: dict[str, tuple[int, str | None]], here: dict[str, Local]
) -> None:
    blobs = [Blob(p, size, sha) for p, (size, sha) in pool.items()]
    plan = plan_fetch({"v": tasks}, {"v": len(tasks)}, listing(*blobs), here, {})
    assert [i.blob.path for i in plan.items] == sorted(set(tasks.values()))
    assert sorted(t for i in plan.items for t in i.tasks) == sorted(f"v/{t}" for t in tasks)
    for item in plan.items:
        assert 0 <= item.transfer <= item.blob.size
        assert (item.state is State.LACKING) == (item.blob.path not in pool or pool[item.blob.path][0] == 0)
        if item.state is State.PROVEN:
            assert here[item.blob.path].proven
            assert here[item.blob.path].size == item.blob.size
