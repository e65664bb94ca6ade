"""Finding tasks: every kind of dataset, and everything that is no task with its reason."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

from poolmgr.errors import DatasetInvalidError
from poolmgr.harbor import parquet
from poolmgr.harbor.archive import Limits
from poolmgr.harbor.package import package_digest
from poolmgr.harbor.source import discover, tasks
from poolmgr.harbor.tree import FolderTree
from poolmgr.model.environment import Definition, NotTask, Scheme, Task
from tests.harbor.trees import DOCKERFILE, tar_of, write_parquet, write_task

HARBOR = frozenset({Scheme.HARBOR})


def read(path: Path, schemes: frozenset[Scheme] = HARBOR) -> list[Task | NotTask]:
    return [f.item for f in tasks(discover(path), schemes)]


def codes(items: list[Task | NotTask]) -> dict[str, str]:
    """Name -> why it is no task, or the findings of its environments."""
    return {
        i.name: i.finding.code
        if isinstance(i, NotTask)
        else ",".join(f.code for e in i.environments for f in e.findings) or "ok"
        for i in items
    }


def test_one_task_and_a_folder_of_tasks(tmp_path: Path) -> None:
    write_task(tmp_path / "set" / "a")
    write_task(tmp_path / "set" / "b")
    assert codes(read(tmp_path / "set")) == {"a": "ok", "b": "ok"}
    assert codes(read(tmp_path / "set" / "a")) == {"a": "ok"}
    assert codes(read(tmp_path / "set" / "a" / "task.toml")) == {"a": "ok"}


@pytest.mark.parametrize("place", ["x.parquet", "tasks.parquet", "data/train-00000-of-00001.parquet"])
def test_archives(tmp_path: Path, place: str) -> None:
    folder = write_task(tmp_path / "t", {"Dockerfile": "FROM a\n"})
    write_parquet(tmp_path / "set" / place, [("a", tar_of(folder)), ("b/c", tar_of(folder, compress=False))])
    items = read(tmp_path / "set")
    assert codes(items) == {"a": "ok", "b/c": "ok"}
    (expected,) = read(folder)
    assert isinstance(expected, Task)
    assert {i.environments[0].hash for i in items if isinstance(i, Task)} == {expected.environments[0].hash}
    assert items[1].where.endswith("row 1")


def test_sub_datasets_have_namespaces_of_their_own(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    for name in ("one", "two"):
        write_parquet(tmp_path / "trove" / name / "tasks.parquet", [("same", tar_of(folder))])
    write_task(tmp_path / "trove" / "three" / "same")
    items = read(tmp_path / "trove")
    assert [(i.dataset, i.name) for i in items] == [
        ("trove/one", "same"), ("trove/three", "same"), ("trove/two", "same")
    ]  # fmt: skip
    assert all(isinstance(i, Task) for i in items), "equal names in different sub-datasets are no doubles"


def test_shards_are_one_namespace(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    for n in (1, 2):
        write_parquet(
            tmp_path / "set" / "data" / f"{n}.parquet", [("same", tar_of(folder)), (f"t{n}", tar_of(folder))]
        )
    assert [i.finding.code for i in read(tmp_path / "set") if isinstance(i, NotTask)] == ["duplicate-task"]


def test_rows_that_cannot_be_read_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    good = tar_of(folder)
    path = write_parquet(
        tmp_path / "a.parquet",
        [
            ("good", good), ("null", None), (None, good), ("cut", good[:-20]), ("../out", good),
            ("junk", b"junk"), ("good", good), ("last", good),
        ],
    )  # fmt: skip
    items = read(path)
    assert [i.finding.code if isinstance(i, NotTask) else "ok" for i in items] == [
        "ok", "bad-archive-row", "bad-archive-row", "bad-archive-row", "bad-archive-row", "bad-archive-row",
        "duplicate-task", "ok",
    ]  # fmt: skip
    assert [i.where.rpartition(" ")[2] for i in items] == [str(n) for n in range(8)]


def test_a_bomb_in_a_row(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t", {"Dockerfile": "FROM a\n", "zeros": "0" * 5_000_000})
    path = write_parquet(tmp_path / "a.parquet", [("bomb", tar_of(folder))])
    (found,) = tasks(discover(path), HARBOR, Limits(task_bytes=1 << 20))
    assert isinstance(found.item, NotTask)
    assert "1,048,576" in found.item.finding.message


def test_parquet_files_that_are_no_archives(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"path": ["a"]}), tmp_path / "columns.parquet")
    pq.write_table(pa.table({"path": ["a"], "task_binary": ["text"]}), tmp_path / "type.parquet")
    write_parquet(tmp_path / "empty.parquet", [])
    (tmp_path / "junk.parquet").write_bytes(b"PAR1 no")
    whole = write_parquet(tmp_path / "whole.parquet", [("a", os.urandom(5000))]).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-100])
    for path in sorted(tmp_path.glob("*.parquet")):
        if path.name != "whole.parquet":
            (item,) = read(path)
            assert isinstance(item, NotTask), path
            assert item.finding.code == "bad-archive", path
    assert "no column 'task_binary'" in str(read(tmp_path / "columns.parquet")[0])


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    (tmp_path / "text.txt").write_text("x")
    for path in ("empty", "text.txt", "nowhere"):
        with pytest.raises(DatasetInvalidError):
            read(tmp_path / path)


def test_bad_tasks_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    write_task(tmp_path / "good")
    write_task(tmp_path / "toml", toml="= 1")
    write_task(tmp_path / "dockerfile", {"Dockerfile": "FRM x\n"})
    write_task(tmp_path / "heredoc", {"Dockerfile": "FROM a\nRUN <<EOF\nx\n"})
    write_task(tmp_path / "nothing", {"readme": "x"})
    write_task(tmp_path / "fifo")
    os.mkfifo(tmp_path / "fifo" / "environment" / "pipe")
    write_task(tmp_path / "loop")
    (tmp_path / "loop" / "environment" / "l").symlink_to("l")
    (tmp_path / "notes").mkdir()
    items = read(tmp_path)
    assert codes(items) == {
        "good": "ok",
        "toml": "bad-task-toml",
        "dockerfile": "dockerfile-unparsed",
        "heredoc": "dockerfile-unparsed",
        "nothing": "env-undefined",
        "fifo": "env-special-file",
        "loop": "env-link-loop",
        "notes": "no-task-toml",
    }
    assert all(e.hash for i in items if isinstance(i, Task) for e in i.environments), "counted all the same"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_an_unreadable_file_is_named() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        write_task(folder / "t", {"Dockerfile": DOCKERFILE, "secret": "x"})
        (folder / "t" / "environment" / "secret").chmod(0)
        read(folder)  # so that everything is imported while we still may
        os.seteuid(65534)
        try:
            (item,) = read(folder)
        finally:
            os.seteuid(0)
    assert isinstance(item, Task)
    assert item.environments[0].hash is None
    assert [(f.code, f.message) for f in item.environments[0].findings] == [
        ("env-unreadable", "environment/secret: Permission denied")
    ]


def test_definitions(tmp_path: Path) -> None:
    write_task(tmp_path / "dockerfile")
    write_task(tmp_path / "compose", {"docker-compose.yaml": "services: {}\n", "Dockerfile": "FROM a\n"})
    write_task(tmp_path / "image", {}, toml='[environment]\ndocker_image = "a"\n')
    write_task(tmp_path / "both", toml='[environment]\ndocker_image = "a"\n')
    found = {i.name: i.environments[0].definition for i in read(tmp_path) if isinstance(i, Task)}
    assert found == {
        "dockerfile": Definition.DOCKERFILE, "compose": Definition.COMPOSE, "image": Definition.IMAGE,
        "both": Definition.DOCKERFILE,
    }  # fmt: skip


def test_an_environment_that_is_a_link_out_of_the_task_is_not_followed(tmp_path: Path) -> None:
    write_task(tmp_path / "set" / "a")
    write_task(tmp_path / "elsewhere")
    environment = tmp_path / "set" / "a" / "environment"
    (environment / "Dockerfile").unlink()
    environment.rmdir()
    environment.symlink_to(tmp_path / "elsewhere" / "environment")
    assert codes(read(tmp_path / "set")) == {"a": "task-incomplete"}


def dataset_toml(path: Path, tasks: dict[str, str | None]) -> Path:
    """A dataset.toml that records these digests."""
    text = '[dataset]\nname = "o/d"\n'
    for name, digest in tasks.items():
        text += f'[[tasks]]\nname = "{name}"\n' + (f'digest = "{digest}"\n' if digest is not None else "")
    path.write_text(text)
    return path


def digest_of(task: Path) -> str:
    return f"sha256:{package_digest(FolderTree(str(task)))}"


def test_dataset_toml_names_packages_with_their_digests(tmp_path: Path) -> None:
    a = write_task(tmp_path / "a")
    b = write_task(tmp_path / "folder", toml='[task]\nname = "o/b"\n')
    c = write_task(tmp_path / "c", toml='[task]\nname = "o/other"\n')
    digests: dict[str, str | None] = {"o/a": digest_of(a), "o/b": digest_of(b), "o/c": digest_of(c)}
    listed = dataset_toml(
        tmp_path / "dataset.toml", {**digests, "o/gone": digest_of(a), "o/..": digest_of(a)}
    )
    items = read(listed)
    assert codes(items) == {
        "a": "ok", "b": "ok", "c": "task-incomplete", "gone": "task-incomplete", "..": "task-link"
    }  # fmt: skip
    assert [i.findings for i in items if isinstance(i, Task)] == [(), ()]
    assert "is 'o/other', not 'o/c'" in next(str(i.finding) for i in items if isinstance(i, NotTask))


@pytest.mark.parametrize("change", ["file", "none", "short", "number"])
def test_a_task_that_is_not_the_recorded_package_is_a_finding(tmp_path: Path, change: str) -> None:
    task = write_task(tmp_path / "a")
    listed = dataset_toml(
        tmp_path / "dataset.toml", {"o/a": {"none": None, "short": "sha256:0"}.get(change, digest_of(task))}
    )
    if change == "number":
        listed.write_text('[[tasks]]\nname = "o/a"\ndigest = 7\n')
    if change == "file":
        (task / "solution").mkdir()
        (task / "solution" / "solve.sh").write_text("true\n")
    (item,) = read(listed)
    assert isinstance(item, Task), "it is counted all the same"
    assert [f.code for f in item.findings] == ["task-digest"]
    assert [i.findings for i in read(tmp_path) if isinstance(i, Task)] == [()], "nobody recorded one here"


def test_two_packages_of_one_short_name_are_two_tasks(tmp_path: Path) -> None:
    one = write_task(tmp_path / "one", toml='[task]\nname = "o/a"\n')
    two = write_task(tmp_path / "two", toml='[task]\nname = "p/a"\n', files={"README.md": "x"})
    listed = dataset_toml(tmp_path / "dataset.toml", {"o/a": digest_of(one), "p/a": digest_of(two)})
    assert codes(read(listed)) == {"o/a": "ok", "p/a": "ok"}
    assert all(not i.findings for i in read(listed) if isinstance(i, Task))


def test_registry_json(tmp_path: Path) -> None:
    write_task(tmp_path / "b")
    write_task(tmp_path / "c")
    rows = [
        {"name": "b", "path": "b"}, {"path": "c"}, {"name": "far", "path": "x", "git_url": "https://x.org"},
        {"name": "out", "path": "../../etc"}, {"name": "nul", "path": "a\0b"},
        {"name": "long", "path": "x" * 5000},
    ]  # fmt: skip
    file = tmp_path / "registry.json"
    file.write_text(json.dumps([{"name": "d", "version": "1", "tasks": rows}]))
    items = read(file)
    assert codes(items) == {
        "b": "ok", "c": "ok", "far": "not-local", "out": "task-link", "nul": "task-unreadable",
        "long": "task-unreadable",
    }  # fmt: skip
    assert {i.dataset for i in items} == {"registry.json"}
    for bad in ("{}", "[]", "[{}]", '[{"tasks": [1]}]', "[" * 100_000, "\ud800"):
        file.write_bytes(bad.encode("utf-8", "surrogatepass"))
        with pytest.raises(DatasetInvalidError):
            read(file)


def test_every_dataset_of_a_registry_is_a_namespace(tmp_path: Path) -> None:
    write_task(tmp_path / "b")
    row = {"tasks": [{"name": "b", "path": "b"}]}
    file = tmp_path / "registry.json"
    file.write_text(
        json.dumps([{"name": "d", "version": "1", **row}, {"name": "d", "version": "2", **row}, row])
    )
    items = read(file)
    assert [i.dataset.rpartition("/")[2] for i in items] == ["d@1", "d@2", "3"]
    assert set(codes(items).values()) == {"ok"}


def test_build_sees_modes_and_links_and_not_what_is_never_copied(tmp_path: Path) -> None:
    base = {"Dockerfile": "FROM a\nCOPY run.sh /\n", "run.sh": "x", "notes": "1"}
    crlf = {**base, "Dockerfile": "FROM a\r\n# c\r\nCOPY run.sh /\r\n"}
    for name, files in {"base": base, "notes": {**base, "notes": "2"}, "crlf": crlf, "mode": base}.items():
        write_task(tmp_path / name, files)
    write_task(tmp_path / "content", {**base, "run.sh": "y"})
    (tmp_path / "mode" / "environment" / "run.sh").chmod(0o755)
    found = {
        i.name: i.environments[0].hashes for i in read(tmp_path, frozenset(Scheme)) if isinstance(i, Task)
    }
    build = {name: hashes[Scheme.BUILD] for name, hashes in found.items()}
    harbor = {name: hashes[Scheme.HARBOR] for name, hashes in found.items()}
    assert build["base"] == build["notes"] == build["crlf"]
    assert len({build["base"], build["mode"], build["content"]}) == 3
    assert harbor["base"] == harbor["mode"]
    assert len({harbor["base"], harbor["notes"], harbor["crlf"], harbor["content"]}) == 4


def test_sources_that_a_build_lacks_are_named(tmp_path: Path) -> None:
    write_task(
        tmp_path / "t",
        {"Dockerfile": "FROM a\nCOPY gone /\nADD here /\nADD https://x.org/y /\n", "here": "1"},
    )
    assert codes(read(tmp_path, frozenset(Scheme))) == {"t": "copy-source-missing,add-not-uploaded"}


def test_without_the_parser_tasks_are_counted_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "t", {"Dockerfile": "FROM a\n# a text that no other test parses\n"})
    monkeypatch.setitem(sys.modules, "dockerfile", None)
    for schemes in (HARBOR, frozenset(Scheme)):
        (item,) = read(tmp_path, schemes)
        assert isinstance(item, Task)
        assert item.environments[0].hash is not None
        assert [f.code for f in item.environments[0].findings] == ["not-checked"]
    assert item.environments[0].hashes[Scheme.BUILD] is None


def test_one_large_cell_that_many_rows_share_is_read_a_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    cell = bytes(4 << 20)
    path = write_parquet(tmp_path / "a.parquet", [(f"t{n}", cell) for n in range(parquet.BATCH)])
    assert path.stat().st_size < 300_000
    monkeypatch.setattr(parquet, "IN_MEMORY", 2 * len(cell) + 1000)
    before = pa.total_allocated_bytes()
    held = []
    for row in parquet.rows(parquet.ArchiveFile("a", lambda: path.open("rb"))):
        assert row.data == cell
        held.append(pa.total_allocated_bytes() - before)
    assert len(held) == parquet.BATCH
    assert max(held) < 5 * len(cell)


@pytest.mark.parametrize(
    ("target", "why"),
    [("../b/environment", "no link is followed out of a task"), ("gone", "leads to no folder")],
)
def test_an_environment_that_is_a_link_elsewhere_is_told_from_none(
    tmp_path: Path, target: str, why: str
) -> None:
    write_task(tmp_path / "set" / "b")
    folder = write_task(tmp_path / "set" / "a")
    (folder / "environment").rename(tmp_path / "old")
    (folder / "environment").symlink_to(target)
    items = read(tmp_path / "set")
    assert codes(items) == {"a": "task-incomplete", "b": "ok"}
    assert isinstance(items[0], NotTask)
    assert why in items[0].finding.message
