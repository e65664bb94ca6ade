"""bind: a copy of a dataset with local images in it, and nothing else changed."""

from __future__ import annotations

import gzip
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.errors import (
    AlreadyExistsError,
    CredentialsError,
    DatasetInvalidError,
    DestinationError,
    IndexInvalidError,
    MirrorInvalidError,
    MissError,
    NothingComparedError,
    PoolError,
    UnboundTasksError,
    UsageError,
)
from poolmgr.harbor import rewrite
from poolmgr.harbor.rows import RowTroubleError
from poolmgr.harbor.splice import set_docker_image, set_row_image
from poolmgr.ops.bind import Bound, bind
from poolmgr.settings import Settings
from tests.loopback.hub import TOKEN, Hub


def resolve(task: str) -> Path:
    if task.startswith("gone"):
        raise MissError(f"task {task!r}: not in the pool")
    return Path(f"/sifs/images/{task}.sif")


def run(dataset: str | Path, out: Path, **options: Any) -> Bound:
    return bind(str(dataset), resolve, out, Settings.read(), **options)


def row(task: str, **more: Any) -> dict[str, Any]:
    return {"env_config": {"env_name": "e", "image": f"acme/{task}:1", "task_id": task}, **more}


def write_parquet(path: Path, tasks: list[str], *, text: bool = False, compliant: bool = True) -> pa.Table:
    config: Any = [row(t)["env_config"] for t in tasks]
    kind: pa.DataType = pa.struct(
        [("env_name", pa.string()), pa.field("image", pa.large_string()), ("task_id", pa.string())]
    )
    if text:
        config, kind = [json.dumps(c, indent=1) for c in config], pa.string()
    schema = pa.schema(
        [
            pa.field("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            pa.field("env_config", kind, metadata={"note": "kept"}),
            pa.field("when", pa.timestamp("ms", tz="UTC")),
            pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
            pa.field("n", pa.int16(), nullable=False),
        ],
        metadata={"huggingface": '{"info": {}}'},
    )
    n = len(tasks)
    columns = [
        [[{"role": "u", "content": "é" * i}] for i in range(n)],
        config,
        list(range(n)),
        ["k"] * n,
        range(n),
    ]
    table = pa.table([pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    pq.write_table(
        table,
        path,
        row_group_size=3,
        compression={f"messages.list.{'element' if compliant else 'item'}.content": "zstd", "n": "none"},
        use_compliant_nested_type=compliant,
    )
    return table


@pytest.mark.parametrize("compliant", [False, True])
@pytest.mark.parametrize("text", [False, True])
def test_parquet_keeps_everything_but_the_image(tmp_path: Path, text: bool, compliant: bool) -> None:
    write_parquet(tmp_path / "a.parquet", [f"t{i}" for i in range(8)], text=text, compliant=compliant)
    old = pq.read_table(tmp_path / "a.parquet")
    result = run(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert (result.rows, result.tasks, result.images) == (8, 8, 8)
    new = pq.read_table(tmp_path / "b.parquet")
    assert new.schema.equals(old.schema, check_metadata=True)
    for name in ("messages", "when", "kind", "n"):
        assert new.column(name).to_pylist() == old.column(name).to_pylist()
    for i, (was, now) in enumerate(
        zip(old.column("env_config").to_pylist(), new.column("env_config").to_pylist(), strict=True)
    ):
        if text:
            assert now == was.replace(f"acme/t{i}:1", f"/sifs/images/t{i}.sif")
        else:
            assert now == {**was, "image": f"/sifs/images/t{i}.sif"}
    a, b = pq.ParquetFile(tmp_path / "a.parquet").metadata, pq.ParquetFile(tmp_path / "b.parquet").metadata
    assert [b.row_group(i).num_rows for i in range(b.num_row_groups)] == [3, 3, 2]
    for c in range(a.num_columns):
        was, now = a.row_group(0).column(c), b.row_group(0).column(c)
        assert (was.path_in_schema, was.compression) == (now.path_in_schema, now.compression)


def test_a_large_row_group_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 1500
    table = pa.table(
        {
            "task_id": [f"t{i}" for i in range(n)],
            "image": ["x"] * n,
            "messages": [os.urandom(10_000).hex() for _ in range(n)],
            "kind": pa.array([f"k{i % 300}" for i in range(n)]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=n, write_batch_size=16)
    run(tmp_path / "a.parquet", tmp_path / "held.parquet")
    monkeypatch.setattr(rewrite, "HELD", 1 << 20)
    monkeypatch.setattr(rewrite, "AT_ONCE", 1 << 20)
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        run(tmp_path / "a.parquet", tmp_path / "mapped.parquet")
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < table.nbytes / 2
    for name in ("held", "mapped"):
        file = pq.ParquetFile(tmp_path / f"{name}.parquet")
        assert file.metadata.num_row_groups == 1
        found = file.read()
        assert found.schema.equals(table.schema, check_metadata=True)
        assert found.column("image").to_pylist() == [f"/sifs/images/t{i}.sif" for i in range(n)]
        for column in ("task_id", "messages", "kind"):
            assert found.column(column).to_pylist() == table.column(column).to_pylist()
    assert len(list(tmp_path.iterdir())) == 3


def test_parquet_drops_only_what_is_allowed(tmp_path: Path) -> None:
    old = write_parquet(tmp_path / "a.parquet", ["a", "gone1", "b", "gone2", "c"])
    with pytest.raises(UnboundTasksError) as e:
        run(tmp_path / "a.parquet", tmp_path / "b.parquet", drop_missing=1)
    assert len(e.value.details) == 2
    assert "gone1" in e.value.details[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet"]
    result = run(tmp_path / "a.parquet", tmp_path / "b.parquet", drop_missing=2)
    assert [d.task for d in result.dropped] == ["gone1", "gone2"]
    assert pq.read_table(tmp_path / "b.parquet").column("n").to_pylist() == [0, 2, 4]
    assert old.num_rows == 5


def test_a_null_env_config_uses_the_image_column(tmp_path: Path) -> None:
    kind = pa.struct([("image", pa.string())])
    table = pa.table(
        {
            "task_id": ["a", "b", "c"],
            "env_config": pa.array([None, {"image": "x"}, {"image": None}], type=kind),
            "image": ["i", "j", None],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    run(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert pq.read_table(tmp_path / "b.parquet").to_pylist() == [
        {"task_id": "a", "env_config": None, "image": "/sifs/images/a.sif"},
        {"task_id": "b", "env_config": {"image": "/sifs/images/b.sif"}, "image": "j"},
        {"task_id": "c", "env_config": {"image": "/sifs/images/c.sif"}, "image": None},
    ]


def test_a_parquet_row_without_a_place_for_an_image_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"task_id": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(DatasetInvalidError, match="no place"):
        run(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert not (tmp_path / "b.parquet").exists()


ODD = (
    '{ "n":1.50, "big":12345678901234567890123,"u":"\\u00e9é", '
    '"env_config" : {"task_id":"a", "image" : "x" }, "z":1e5}\r\n'
)


def test_json_lines_keep_every_other_character(tmp_path: Path) -> None:
    text = ODD + "\n" + '{"task_id":"b","image":"y"}\n{"task_id":"gone","image":"z"}\n{"task_id":"c"}'
    (tmp_path / "a.jsonl").write_bytes(text.encode())
    run(tmp_path / "a.jsonl", tmp_path / "b.jsonl", drop_missing=1)
    assert (tmp_path / "b.jsonl").read_bytes().decode() == (
        ODD.replace('"x"', '"/sifs/images/a.sif"') + "\n"
        '{"task_id":"b","image":"/sifs/images/b.sif"}\n{"task_id":"c", "image": "/sifs/images/c.sif"}'
    )


def test_json_packed_and_as_a_list(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"task_id":"a","image":"x"}\n'))
    run(tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz")
    assert (
        json.loads(gzip.decompress((tmp_path / "b.jsonl.gz").read_bytes()))["image"] == "/sifs/images/a.sif"
    )
    rows = [
        row("a"),
        {"env_config": json.dumps({"task_id": "b", "k": 1.0}), "é": "\ud83d\ude00"},
        row("gone"),
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=2))
    run(tmp_path / "a.json", tmp_path / "b.json", drop_missing=1)
    first, second = json.loads((tmp_path / "b.json").read_text())
    assert first["env_config"]["image"] == "/sifs/images/a.sif"
    assert second["env_config"] == '{"task_id": "b", "k": 1.0, "image": "/sifs/images/b.sif"}'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.text().filter(lambda k: k not in ("image", "env_config", "task_id")), JSON, max_size=4
    ),
    st.sampled_from(["none", "struct", "text", "empty", "column"]),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
)
def test_set_row_image_changes_one_value(
    more: dict[str, Any], form: str, indent: Any, ascii_only: bool
) -> None:
    values: dict[str, Any] = {"task_id": "t", **more}
    if form in ("struct", "text"):
        values["env_config"] = {"k": more, "image": "old"}
    elif form == "empty":
        values["env_config"] = {}
    elif form == "column":
        values["image"] = "old"
    wanted = json.loads(json.dumps(values))
    if "env_config" in wanted:
        wanted["env_config"]["image"] = "/new é"
    else:
        wanted["image"] = "/new é"
    if form == "text":
        values["env_config"] = json.dumps(values["env_config"], indent=indent)
    new = json.loads(set_row_image(json.dumps(values, indent=indent, ensure_ascii=ascii_only), "/new é"))
    if form == "text":
        new["env_config"] = json.loads(new["env_config"])
    assert new == wanted
    assert list(new)[: len(values)] == list(values)


TOML = """# a task
version = "1.0"

[environment]   # where it runs
cpus = 2
docker_image = "acme/a:1"  # built by hand

[environment.env]
A = "1"
"""


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        (TOML, TOML.replace("acme/a:1", "/s.sif")),
        (TOML.replace("\n", "\r\n"), TOML.replace("\n", "\r\n").replace("acme/a:1", "/s.sif")),
        (
            'environment = { docker_image = "x", cpus = 1 }\n',
            'environment = { docker_image = "/s.sif", cpus = 1 }\n',
        ),
        ('environment.docker_image = "x"\n', 'environment.docker_image = "/s.sif"\n'),
    ],
)
def test_task_toml_keeps_its_form(text: str, edited: str) -> None:
    assert set_docker_image(text.encode(), "/s.sif").decode() == edited


@pytest.mark.parametrize(
    "text", ["", "[metadata]\na = 1\n", "[environment]\ncpus = 1\n", "[environment.env]\nA = '1'\n"]
)
def test_task_toml_without_an_image_gets_one(text: str) -> None:
    import tomllib

    new = tomllib.loads(set_docker_image(text.encode(), "/s.sif").decode())
    assert new["environment"].pop("docker_image") == "/s.sif"
    old = tomllib.loads(text)
    old.setdefault("environment", {})
    assert new == old


def test_task_toml_that_cannot_hold_one(tmp_path: Path) -> None:
    with pytest.raises(RowTroubleError):
        set_docker_image(b"environment = 3\n", "/s.sif")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    root = tmp_path / "tasks"
    for name in ("a", "gone"):
        (root / name / "tests").mkdir(parents=True)
        (root / name / "task.toml").write_text(TOML)
        (root / name / "empty").mkdir()
        script = root / name / "tests" / "test.sh"
        script.write_text("#!/bin/sh\n")
        script.chmod(0o750)
        (root / name / "link").symlink_to("tests/test.sh")
        (root / name / "dangling").symlink_to("nowhere")
        os.link(script, root / name / "hard")
        (root / name / ".hidden").write_text("x")
    (root / "c").mkdir()
    (root / "c" / "image.txt").write_text("acme/c:1\n")
    (root / "README.md").write_text("notes")
    return root


def test_task_folders_are_copied_whole(tmp_path: Path, tasks: Path) -> None:
    result = run(tasks, tmp_path / "bound", drop_missing=1)
    assert (result.tasks, [d.task for d in result.dropped]) == (2, ["gone"])
    out = tmp_path / "bound"
    assert sorted(p.name for p in out.iterdir()) == ["README.md", "a", "c"]
    assert (out / "a/task.toml").read_text() == TOML.replace("acme/a:1", "/sifs/images/a.sif")
    assert (out / "c/image.txt").read_text() == "/sifs/images/c.sif\n"
    assert stat.S_IMODE((out / "a/tests/test.sh").stat().st_mode) == 0o750
    assert (out / "a/link").readlink() == Path("tests/test.sh")
    assert (out / "a/dangling").is_symlink()
    assert (out / "a/hard").stat().st_ino == (out / "a/tests/test.sh").stat().st_ino
    assert (out / "a/empty").is_dir()
    assert (out / "a/.hidden").exists()
    assert (tasks / "a/task.toml").read_text() == TOML


def test_links_never_lead_a_write_back_to_the_original(tmp_path: Path, tasks: Path) -> None:
    root = tmp_path / "linked"
    root.mkdir()
    (root / "a").symlink_to(tasks / "a")
    (root / "b").mkdir()
    (root / "b" / "task.toml").symlink_to("../../tasks/a/task.toml")
    (root / "b" / "loop").symlink_to("loop")
    run(root, tmp_path / "bound")
    assert (tasks / "a/task.toml").read_text() == TOML
    assert "/sifs/images/a.sif" in (tmp_path / "bound/a/task.toml").read_text()
    assert "/sifs/images/b.sif" in (tmp_path / "bound/b/task.toml").read_text()
    assert not (tmp_path / "bound/b/task.toml").is_symlink()


def test_one_task_is_a_dataset(tmp_path: Path, tasks: Path) -> None:
    assert run(tasks / "a", tmp_path / "bound").tasks == 1
    assert "/sifs/images/a.sif" in (tmp_path / "bound/task.toml").read_text()


def test_a_folder_of_shards(tmp_path: Path) -> None:
    (tmp_path / "set/data").mkdir(parents=True)
    for i in (0, 1):
        write_parquet(tmp_path / f"set/data/train-{i}.parquet", [f"t{i}", "same"])
    (tmp_path / "set/README.md").write_text("card")
    result = run(tmp_path / "set", tmp_path / "bound")
    assert (result.rows, result.tasks) == (4, 3)
    assert (tmp_path / "bound/README.md").read_text() == "card"
    assert pq.read_table(tmp_path / "bound/data/train-1.parquet").num_rows == 2


def test_a_dataset_on_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in hub.env(TOKEN).items():
        monkeypatch.setenv(name, value)
    write_parquet(tmp_path / "a.parquet", ["a", "b"])
    files = {"data/train.parquet": (tmp_path / "a.parquet").read_bytes(), "README.md": b"card"}
    hub.add_repo("datasets", "acme/rows", files)
    run("hf://datasets/acme/rows", tmp_path / "bound")
    assert (tmp_path / "bound/README.md").read_bytes() == b"card"
    (first, _) = pq.read_table(tmp_path / "bound/data/train.parquet").column("env_config").to_pylist()
    assert first["image"] == "/sifs/images/a.sif"
    run("hf://datasets/acme/rows/data/train.parquet", tmp_path / "b.parquet")
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "bound/data/train.parquet").read_bytes()
    run("hf://datasets/acme/rows/data", tmp_path / "data")
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["train.parquet"]


def test_nothing_is_overwritten_or_left_half_written(tmp_path: Path, tasks: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(AlreadyExistsError):
        run(tasks, tmp_path / "taken", drop_missing=1)
    with pytest.raises(DestinationError):
        run(tasks, tasks / "inside", drop_missing=1)
    with pytest.raises(DestinationError):
        run(tasks, tmp_path / "no" / "such", drop_missing=1)
    os.mkfifo(tasks / "a" / "pipe")
    with pytest.raises(DatasetInvalidError, match="pipe"):
        run(tasks, tmp_path / "bound", drop_missing=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["taken", "tasks"]


def test_a_folder_made_meanwhile_under_the_copys_name_stays(
    tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prove(*args: object) -> None:
        (tmp_path / "bound").mkdir()

    monkeypatch.setattr("poolmgr.ops.bind._prove", prove)
    with pytest.raises(AlreadyExistsError):
        run(tasks, tmp_path / "bound", drop_missing=1)
    assert not any((tmp_path / "bound").iterdir())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bound", "tasks"]


@pytest.mark.parametrize("error", [IndexInvalidError, CredentialsError, UsageError, MirrorInvalidError])
def test_only_a_tasks_own_miss_may_be_dropped(tmp_path: Path, error: type[PoolError]) -> None:
    def resolve(task: str) -> Path:
        raise error("the pool")

    (tmp_path / "a.jsonl").write_text('{"task_id":"a"}\n{"task_id":"b"}\n')
    with pytest.raises(error):
        bind(str(tmp_path / "a.jsonl"), resolve, tmp_path / "b.jsonl", Settings.read(), drop_missing=9)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl"]


def test_what_a_killed_run_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"task_id":"a"}\n{"task_id":"b"}\n')
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    killed = (
        "from pathlib import Path; from poolmgr.ops import bind; from poolmgr.settings import Settings\n"
        f"def prove(*a): exec({code!r})\n"
        "bind._prove = prove\n"
        f"bind.bind({str(tmp_path / 'a.jsonl')!r}, lambda t: Path('/x.sif'), "
        f"Path({str(tmp_path / 'b.jsonl')!r}), Settings.read())\n"
    )
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -signal.SIGKILL
    left = sorted(p.name for p in tmp_path.iterdir())
    assert len(left) == 2
    assert "b.jsonl" not in left
    run(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_a_row_that_cannot_be_read_is_never_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"task_id":"a"}\n{broken\n')
    with pytest.raises(DatasetInvalidError) as e:
        run(tmp_path / "a.jsonl", tmp_path / "b.jsonl", drop_missing=9)
    assert "a.jsonl line 2" in e.value.details[0]


def test_nothing_bound_is_a_failure(tmp_path: Path) -> None:
    for text in ('{"task_id":"gone"}\n', ""):
        (tmp_path / "a.jsonl").write_text(text)
        with pytest.raises(NothingComparedError):
            run(tmp_path / "a.jsonl", tmp_path / "b.jsonl", drop_missing=9)


def test_a_dry_run_writes_nothing(tmp_path: Path, tasks: Path) -> None:
    result = run(tasks, tmp_path / "bound", drop_missing=1, dry_run=True)
    assert (result.tasks, result.written) == (2, False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tasks"]
