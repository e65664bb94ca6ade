"""What may be freed: never what a lock names, what is wanted, what changed, or what is not ours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import Blob, fold
from poolmgr.model.lock import Lock
from poolmgr.plan.gc import Here, plan_gc

A, B = "a" * 64, "b" * 64
PATHS = st.sampled_from(["i/a.sif", "i/A.sif", "i/b.sif", "j/c.sif"])
HASHES = st.sampled_from([A, B])


@st.composite
def locks(draw: st.DrawFn) -> Lock:
    blobs = draw(st.dictionaries(PATHS, HASHES, max_size=3))
    tasks = {f"t{n}": path for n, path in enumerate(blobs)}
    whole = {p: Blob(p, 1, sha256) for p, sha256 in blobs.items()}
    return Lock("v", "hf://datasets/acme/pool", "c" * 40, "", tasks, len(tasks), whole, 0.0)


HERE = st.dictionaries(
    PATHS, st.builds(Here, st.just(1), st.booleans(), st.none() | HASHES, st.booleans()), max_size=4
)


@given(
    st.lists(locks(), max_size=2),
    st.lists(locks(), max_size=3),
    HERE,
    st.sets(PATHS, max_size=2),
    st.booleans(),
)
def test_nothing_goes_that_may_be_needed_or_is_not_ours(
    now: list[Lock], former: list[Lock], here: dict[str, Here], wanted: set[str], found_too: bool
) -> None:
    plan = plan_gc(now, former, here, wanted=wanted, found_too=found_too)
    named = {fold(p) for lock in now for p in lock.blobs}
    for c in plan.candidates:
        assert fold(c.path) not in named
        assert fold(c.path) not in {fold(w) for w in wanted}
        assert here[c.path].regular
        assert here[c.path].sha256 == c.sha256
        assert here[c.path].placed or found_too
        assert c.origins
        assert any(c.path in f.blobs and f.blobs[c.path].sha256 == c.sha256 for f in former)
    told = {c.path for c in plan.candidates} | {k.path for k in plan.kept}
    expected = {p for f in former for p in f.blobs if p in here and fold(p) not in named}
    assert told == expected
