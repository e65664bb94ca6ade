"""The plan of a push: every rule by itself, and what must hold of any plan."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from poolmgr.model.blob import Blob
from poolmgr.model.manifest import HUB_HARD_LIMIT, Layout
from poolmgr.plan.push import Action, Candidate, Change, Held, PushPlan, Wish, apply, changes_of, plan_push


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def file(name: str, body: str = "", *, tree: str | None = None, derived: bool = False) -> Candidate:
    return Candidate(f"new/{name}", name, 10, sha(body or name), tree, derived)


def held(
    blobs: dict[str, str] | None = None,
    variants: dict[str, dict[str, str]] | None = None,
    trees: dict[str, str] | None = None,
) -> Held:
    """A pool whose blobs have the bytes said."""
    table = {path: Blob(path, 10, sha(body)) for path, body in (blobs or {}).items()}
    entries: dict[str, int] = {"": 1}
    for path in table:
        folder = path.rpartition("/")[0]
        entries[folder] = entries.get(folder, 0) + 1
    return Held(variants or {}, table, trees or {}, entries)


def plan(candidates: list[Candidate], there: Held, **wish: object) -> PushPlan:
    files = {f"t-{c.key}": c.key for c in candidates}
    return plan_push(candidates, there, Wish("v", **{"files": files, **wish}))  # type: ignore[arg-type]


def after(there: Held, made: PushPlan) -> Held:
    """The pool once the plan is carried out."""
    blobs = dict(there.blobs)
    entries = dict(there.entries)
    trees = dict(there.trees)
    for f in made.added:
        blobs[f.path] = Blob(f.path, f.candidate.size, f.candidate.sha256)
        if f.candidate.tree_sha256:
            trees[f.path] = f.candidate.tree_sha256
    for folder, (_, count) in made.directories.items():
        entries[folder] = count
    return Held(apply(there.variants, made.variant, made.changes), blobs, trees, entries)


def codes(made: PushPlan) -> list[str]:
    return [p.code for p in made.problems]


def test_a_new_file_goes_to_its_family_and_the_tasks_to_it() -> None:
    made = plan([file("a.sif"), file("b--hard-0123456789ab.sif", derived=True)], held())
    assert [f.path for f in made.files] == ["images/a.sif", "derived/b--hard-0123456789ab.sif"]
    assert made.changes == (
        Change("t-new/a.sif", None, "images/a.sif"),
        Change("t-new/b--hard-0123456789ab.sif", None, "derived/b--hard-0123456789ab.sif"),
    )
    assert made.is_new
    assert not made.problems


def test_the_last_batch_is_filled_and_then_the_next_is_opened() -> None:
    there = held({f"images_b01/{i}.sif": str(i) for i in range(3)} | {"images/x.sif": "x"})
    made = plan([file(f"n{i}.sif") for i in range(4)], there, layout=Layout(max_entries=5))
    assert [f.path for f in made.files] == [
        "images_b01/n0.sif", "images_b01/n1.sif", "images_b02/n2.sif", "images_b02/n3.sif",
    ]  # fmt: skip
    assert made.directories == {"images_b01": (2, 5), "images_b02": (2, 2)}


def test_equal_bytes_are_not_sent_again_whatever_their_name() -> None:
    there = held(
        {"images/old.sif": "same", "images_b00/also.sif": "same"}, {"w": {"t": "images_b00/also.sif"}}
    )
    made = plan([file("new.sif", "same")], there)
    assert (made.files[0].action, made.files[0].path) == (Action.REUSE, "images_b00/also.sif")
    assert not made.added
    again = plan([file("old.sif", "same")], there)
    assert again.files[0].path == "images/old.sif", "its own name goes first"


def test_equal_trees_are_reported_and_shared_only_on_request() -> None:
    there = held({"images/old.sif": "other bytes"}, trees={"images/old.sif": "T"})
    made = plan([file("new.sif", tree="T")], there)
    assert made.files[0].action is Action.ADD
    assert made.files[0].same_tree == ("images/old.sif",)
    shared = plan([file("new.sif", tree="T")], there, same_tree=True)
    assert (shared.files[0].action, shared.files[0].path) == (Action.SAME_TREE, "images/old.sif")
    assert shared.changes[0].new == "images/old.sif"


def test_files_of_one_push_that_are_equal_are_sent_once() -> None:
    bytes_alike = [file("a.sif", "x"), file("b.sif", "x")]
    trees_alike = [file("c.sif", "y", tree="T"), file("d.sif", "z", tree="T")]
    made = plan(bytes_alike + trees_alike, held(), same_tree=True)
    assert [f.action for f in made.files] == [Action.ADD, Action.TWIN, Action.ADD, Action.TWIN]
    assert [f.path for f in made.files] == ["images/a.sif", "images/a.sif", "images/c.sif", "images/c.sif"]


def test_a_name_that_exists_with_other_bytes_is_refused_in_any_directory_and_case() -> None:
    there = held({"legacy/a.sif": "old", "images/B.sif": "old b"})
    made = plan([file("a.sif", "new"), file("b.sif", "new b")], there)
    assert codes(made) == ["name-taken", "other-case"]
    assert "legacy/a.sif" in made.problems[0].message


def test_two_files_that_would_have_one_name() -> None:
    one, two = replace(file("a.sif", "1"), key="x/a.sif"), replace(file("a.sif", "2"), key="y/a.sif")
    three = replace(file("A.sif", "3"), key="z/A.sif")
    made = plan([one, two, three], held())
    assert codes(made) == ["name-clash", "name-clash"]
    assert "differ only in case" in " ".join(map(str, made.problems))


def test_a_task_with_another_blob_needs_remap() -> None:
    there = held({"images/old.sif": "old"}, {"v": {"t-new/a.sif": "images/old.sif", "u": "images/old.sif"}})
    made = plan([file("a.sif")], there)
    assert codes(made) == ["task-taken"]
    assert "images/old.sif" in made.problems[0].message
    again = plan([file("a.sif")], there, remap=True)
    assert not again.problems
    assert again.replaced == (Change("t-new/a.sif", "images/old.sif", "images/a.sif"),)
    assert apply(there.variants, "v", again.changes)["v"] == {
        "t-new/a.sif": "images/a.sif",
        "u": "images/old.sif",
    }


def test_blobs_of_the_pool_are_mapped_without_their_bytes() -> None:
    there = held({"images/a.sif": "a"})
    made = plan_push([], there, Wish("v", {}, {"t": "images/a.sif", "u": "images/none.sif"}))
    assert codes(made) == ["no-such-blob"]
    assert [c.task for c in made.changes] == ["t", "u"]


def test_a_damaged_entry_of_the_pool_is_not_mapped_to() -> None:
    there = Held({}, {"images/a.sif": Blob("images/a.sif", 10, sha("a"), trouble="dangling-link")})
    made = plan_push([file("a.sif", "a")], there, Wish("v", {}, {"t": "images/a.sif"}))
    assert codes(made) == ["name-taken", "bad-blob"]
    assert made.files[0].action is Action.ADD, "its bytes cannot be relied on"


def test_a_directory_that_would_pass_the_hard_limit() -> None:
    there = replace(held(), entries={"": HUB_HARD_LIMIT})
    made = plan([file("a.sif")], there)
    assert codes(made) == ["hard-limit"]
    full = replace(held(), entries={"": 1, "images": HUB_HARD_LIMIT})
    assert plan([file("a.sif")], full).files[0].path == "images_b00/a.sif", "full is full, not an error"


def test_a_folder_that_somebody_filled_past_the_limit_still_takes_pushes() -> None:
    """The Hub holds no such directory: the pool is a folder of somebody else's, adopted where it lies."""
    over = replace(held(), entries={"": 14_491})
    made = plan([file("a.sif")], over)
    assert codes(made) == []
    assert made.files[0].path == "images/a.sif"


def test_a_directory_in_another_case_is_refused() -> None:
    assert codes(plan([file("a.sif")], replace(held(), entries={"": 1, "Images": 3}))) == ["other-case"]


def test_unsafe_names() -> None:
    assert codes(plan([file(".a.sif"), file("x/y.sif")], held())) == ["unsafe-name", "unsafe-name"]


def test_a_variant_that_loses_its_last_task_goes() -> None:
    now = {"v": {"t": "a"}, "w": {"t": "a"}}
    assert apply(now, "v", changes_of(now["v"], {"t": None})) == {"w": {"t": "a"}}


def test_14488_files_and_five_more() -> None:
    names = [f"acme__env__{i:012x}.sif" for i in range(14_488)]
    first = plan([file(n) for n in names], held())
    assert {d: n for d, (n, _) in first.directories.items()} == {"images": 9_000, "images_b00": 5_488}
    there = after(held(), first)
    second = plan([file(n) for n in [*names, *(f"a-new-{i}.sif" for i in range(5))]], there)
    assert [f.path for f in second.added] == [f"images_b00/a-new-{i}.sif" for i in range(5)]
    assert len(second.changes) == 5, "no placed blob is moved, no task changed"
    assert second.unchanged == 14_488


NAMES = st.lists(st.sampled_from([f"{c}{i}.sif" for c in "ab" for i in range(12)]), unique=True, max_size=20)
BODIES = st.integers(0, 15).map(str)


@settings(deadline=None)
@given(NAMES, NAMES, st.data())
def test_what_holds_of_any_plan(old: list[str], new: list[str], data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, 6))
    layout = Layout(max_entries=limit)
    bodies = {n: data.draw(BODIES) for n in new}
    trees = {n: f"tree{int(bodies[n]) // 2}" for n in new}
    derived = {n: data.draw(st.booleans()) for n in new}
    candidates = [file(n, bodies[n], tree=trees[n], derived=derived[n]) for n in new]
    there = held({f"images/{n}": data.draw(BODIES) for n in old[:limit]})
    there = replace(there, trees={p: f"tree{data.draw(st.integers(0, 7))}" for p in there.blobs})
    how = {"layout": layout, "same_tree": data.draw(st.booleans()), "remap": True}
    made = plan(candidates, there, **how)
    shuffled = candidates[:]
    random.Random(limit).shuffle(shuffled)
    assert plan(shuffled, there, **how) == made, "the order in which files are named decides nothing"
    if made.problems:
        return
    then = after(there, made)
    sent = [f.candidate.sha256 for f in made.added]
    assert len(sent) == len(set(sent)), "nothing is sent twice"
    known = {b.sha256 for b in there.blobs.values()}
    assert not known & set(sent), "nothing is sent that is there"
    for f in made.files:
        blob = then.blobs[f.path]
        assert blob.sha256 == f.candidate.sha256 or then.trees.get(f.path) == f.candidate.tree_sha256
        assert then.variants["v"][f"t-{f.candidate.key}"] == f.path
    assert all(path in then.blobs for path in there.blobs)
    assert all(n <= max(limit, there.entries.get(d, 0)) for d, (_, n) in made.directories.items())
    again = plan(candidates, then, **how)
    assert not again.added
    assert not again.changes, "done once, there is nothing left to do"


@settings(deadline=None)
@given(NAMES, st.integers(0, 6), st.randoms(use_true_random=False), st.integers(1, 5))
def test_a_push_that_was_cut_off_ends_where_a_whole_one_does(
    new: list[str], cut: int, chance: random.Random, limit: int
) -> None:
    """Directories are filled one after the other, the files of one in any order."""
    candidates = [file(n) for n in new]
    how = {"layout": Layout(max_entries=limit)}
    whole = plan(candidates, held(), **how)
    there = held()
    folders = list(dict.fromkeys(f.path.rpartition("/")[0] for f in whole.added))
    done, begun = folders[:cut], folders[cut : cut + 1]
    there_already = tuple(
        f for f in whole.files
        if (d := f.path.rpartition("/")[0]) in done or (d in begun and chance.random() < 0.5)
    )  # fmt: skip
    part = after(there, replace(whole, files=there_already, changes=(), directories={}))
    entries: dict[str, int] = {"": 1}
    for path in part.blobs:
        folder = path.rpartition("/")[0]
        entries[folder] = entries.get(folder, 0) + 1
    resumed = plan(candidates, replace(part, entries=entries), **how)
    assert {f.candidate.name: f.path for f in resumed.files} == {
        f.candidate.name: f.path for f in whole.files
    }
