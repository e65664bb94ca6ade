"""Regrouping a variant: the fewest blobs, and nothing but equal trees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import Blob
from poolmgr.plan.push import Held, apply
from poolmgr.plan.regroup import regroup


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 5).map("b{}.sif".format), min_size=1),
    st.dictionaries(st.integers(0, 5).map("b{}.sif".format), st.sampled_from("XYZ")),
    st.lists(st.integers(1, 9), min_size=6, max_size=6),
)
def test_the_fewest_blobs_and_stable(tasks: dict[str, str], trees: dict[str, str], sizes: list[int]) -> None:
    blobs = {f"b{n}.sif": Blob(f"b{n}.sif", size) for n, size in enumerate(sizes)}
    held = Held({"v": tasks}, blobs, trees)
    found = regroup(held, "v")
    after = apply(held.variants, "v", found.changes)["v"]
    assert set(after) == set(tasks)
    for task, path in after.items():
        assert path == tasks[task] or trees[path] == trees[tasks[task]], "the same tree or the same blob"
    distinct = {trees.get(path, path) for path in tasks.values()}
    assert len(set(after.values())) == len(distinct) == found.blobs[1], "as few as there are trees"
    assert set(after.values()) <= set(tasks.values()), "no blob that the variant did not have"
    assert found.size[1] == sum(blobs[p].size for p in set(after.values()))
    assert not regroup(Held({"v": after}, blobs, trees), "v").changes
