"""Taking assignments out, and putting a variant on the fewest blobs: in a folder pool."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolmgr.errors import IndexInvalidError, NothingComparedError, UnknownTaskError, UnknownVariantError
from poolmgr.ops.push_edit import Edit
from tests.conftest import RunPoolmgr
from tests.ops.push_kit import batch, blobs_of, folder_view, index_of, name_of, push, table_of, write_map


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Blobs 1 to 3 in the pool; a first variant has all of them, a second one the first."""
    root = tmp_path / "pool"
    push(folder_view(root), batch(tmp_path / "new", 1, 2, 3))
    push(folder_view(root), variant="w", tasks=write_map(tmp_path, {"x": f"images/{name_of(1)}"}))
    return root


def give_trees(root: Path, *trees: str | None) -> None:
    """Write other trees into the record."""
    old = table_of((root / "blobs.parquet").read_bytes())
    rows = [{**row, "tree_sha256": tree} for row, tree in zip(old, trees, strict=True)]
    pq.write_table(pa.Table.from_pylist(rows), root / "blobs.parquet")


def test_retract(root: Path) -> None:
    edit = Edit(folder_view(root), "v")
    with pytest.raises(UnknownTaskError) as e:
        edit.retraction(["task_1", "task_9", "nobody"])
    assert e.value.details == ("task_9", "nobody")
    edit.carry_out(edit.retraction(["task_1", "task_2"]), "message")
    assert index_of(root) == {"v": {"task_3": f"images/{name_of(3)}"}, "w": {"x": f"images/{name_of(1)}"}}
    assert len(blobs_of(root)) == 3
    edit = Edit(folder_view(root), "v")
    edit.carry_out(edit.retraction(["task_3"]), "message")
    assert list(index_of(root)) == ["w"], "a variant of no tasks is none"
    edit = Edit(folder_view(root), "w")
    with pytest.raises(IndexInvalidError, match="no variant"):
        edit.carry_out(edit.retraction(["x"]), "message")
    assert list(index_of(root)) == ["w"]


def test_regroup(root: Path) -> None:
    give_trees(root, "A" * 64, "B" * 64, "A" * 64)
    edit = Edit(folder_view(root), "v")
    found = edit.regrouping()
    assert found.blobs == (3, 2)
    size = (root / "images" / name_of(3)).stat().st_size
    assert found.size[0] - found.size[1] == size
    edit.carry_out(found.changes, "message")
    one = f"images/{name_of(1)}"
    assert index_of(root)["v"] == {"task_1": one, "task_2": f"images/{name_of(2)}", "task_3": one}
    assert not Edit(folder_view(root), "v").regrouping().changes


def test_regroup_that_could_compare_nothing(root: Path) -> None:
    give_trees(root, None, None, None)
    with pytest.raises(NothingComparedError):
        Edit(folder_view(root), "v").regrouping()
    with pytest.raises(UnknownVariantError, match="no variant 'x'"):
        Edit(folder_view(root), "x").regrouping()


def test_the_command_line(root: Path, tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    give_trees(root, "A" * 64, "B" * 64, "A" * 64)
    before = index_of(root)
    dry = poolmgr("push", "-p", root, "--regroup", "v", "-n")
    assert dry.returncode == 0, dry.stderr
    assert "3 blobs now, 2 where equal trees share one" in dry.stdout
    assert poolmgr("push", "-p", root, "--regroup", "v").returncode == 2, "it asks"
    assert index_of(root) == before
    done = poolmgr("push", "-p", root, "--regroup", "v", "-y")
    assert done.returncode == 0
    assert done.stdout.startswith(dry.stdout)
    words = ("push", "-p", root, "--variant", "v", "--retract", "-")
    assert poolmgr(*words, "-n", stdin="task_2\n").returncode == 0
    assert poolmgr(*words, "-y", "-q", stdin="task_2\n").stdout == "task_2\n"
    assert "task_2" not in index_of(root)["v"]
    assert poolmgr(*words, "-y", stdin="task_2\n").returncode == 3
    assert poolmgr(*words, "--remap", stdin="task_1\n").returncode == 2
