"""The difference of two pools is complete: applied to the one it makes the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import Blob
from poolmgr.plan.diff import Bytes, Side, apply, diff

HASHES = {c: c * 64 for c in "abc"}
PATHS = st.sampled_from([f"images/{n}.sif" for n in range(5)])
CONTENT = st.sampled_from([(1, HASHES["a"]), (1, HASHES["b"]), (2, HASHES["c"]), (1, None), (2, None)])


@st.composite
def sides(draw: st.DrawFn) -> Side:
    blobs = draw(st.dictionaries(PATHS, CONTENT, max_size=5))
    tasks = st.dictionaries(st.sampled_from("tuvw"), PATHS, min_size=1, max_size=4)
    variants = draw(st.dictionaries(st.sampled_from(["one", "two"]), tasks, max_size=2))
    return Side(variants, {p: Blob(p, size, sha256) for p, (size, sha256) in blobs.items()})


@given(sides(), sides())
def test_a_diff_applied_gives_the_other_side(a: Side, b: Side) -> None:
    assert apply(diff(a, b), a) == b


@given(sides(), sides())
def test_only_what_is_equal_is_called_the_same(a: Side, b: Side) -> None:
    found = diff(a, b)
    known = all(x.sha256 for side in (a, b) for x in side.blobs.values())
    if found.same and found.proven:
        assert a == b
        assert known
    if known and a.variants:
        assert (a == b) == found.same == (found.same and found.proven)
    if not known and a.blobs == b.blobs:
        assert not found.proven


@given(sides(), sides())
def test_every_path_is_told_of_once(a: Side, b: Side) -> None:
    found = diff(a, b)
    groups = [set(found.added), set(found.removed), set(found.replaced), set(found.unknown)]
    assert sum(map(len, groups)) == len(set().union(*groups))
    moved = {p for r in found.renamed.values() for p in set(r.before) ^ set(r.after)}
    same = (a.blobs.keys() & b.blobs.keys()) - found.replaced.keys() - found.unknown.keys()
    assert len(same) == found.equal
    assert set().union(*groups) | moved | same == a.blobs.keys() | b.blobs.keys()


def test_a_remapped_task_tells_whether_its_bytes_changed() -> None:
    def side(path: str, sha256: str | None) -> Side:
        return Side({"v": {"t": path}}, {path: Blob(path, 1, sha256)})

    for sha256, says in ((HASHES["a"], Bytes.SAME), (HASHES["b"], Bytes.OTHER), (None, Bytes.UNKNOWN)):
        found = diff(side("x.sif", HASHES["a"]), side("y.sif", sha256))
        assert found.variants["v"].remapped["t"].bytes is says
        assert bool(found.renamed) == (says is Bytes.SAME)
