"""Equality with Harbor's own code: hashes, discovery, task.toml, verifier environments."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from poolmgr.harbor import config
from poolmgr.harbor.archive import Limits, open_archive
from poolmgr.harbor.ignore import IgnoreError
from poolmgr.harbor.package import package_digest
from poolmgr.harbor.source import discover, tasks
from poolmgr.harbor.tasks import Place, read_task
from poolmgr.harbor.tree import FolderTree, OutwardLinkError, Tree, UnreadableError
from poolmgr.harbor.values import ConfigError
from poolmgr.model.environment import NotTask, Scheme, Task
from tests.harbor.conftest import Harbor
from tests.harbor.trees import tar_of, write_task

BOTH = frozenset({Scheme.HARBOR, Scheme.LEGACY})
ORDINARY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NAMES = st.sampled_from(
    ["a", "b", "a-b", "a.txt", "a b", "B", "é", "e\u0301", "日本", ".git", "__pycache__", ".DS_Store", ".x",
     "Dockerfile", "docker-compose.yaml", "data", "-", "~", "\U0001f600", "\ue000"]
)  # fmt: skip
CONTENT = st.one_of(st.binary(max_size=40), st.just(b"x\r\ny\r\n"), st.just(b""))
LEAF = st.one_of(
    st.tuples(st.just("file"), CONTENT),
    st.tuples(st.just("link"), st.sampled_from(["a", "../a", "b/c", "nowhere", ".", "Dockerfile", "data"])),
    st.tuples(st.just("fifo"), st.just(b"")),
)
TREES = st.recursive(
    st.dictionaries(NAMES, LEAF, max_size=5),
    lambda inner: st.dictionaries(NAMES, st.one_of(LEAF, inner), max_size=5),
    max_leaves=12,
)


def lay(folder: Path, tree: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    for name, what in tree.items():
        path = folder / name
        if isinstance(what, dict):
            lay(path, what)
        elif what[0] == "file":
            path.write_bytes(what[1])
        elif what[0] == "link":
            path.symlink_to(what[1])
        else:
            os.mkfifo(path)


def both_trees(folder: Path) -> list[Tree]:
    return [FolderTree(str(folder)), open_archive(tar_of(folder), Limits())]


@ORDINARY
@given(tree=TREES, image=st.sampled_from([None, "", "ubuntu:22.04"]))
def test_hashes_are_equal(harbor: Harbor, tree: dict[str, Any], image: str | None) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        lay(root / "environment", tree)
        toml = f'[environment]\ndocker_image = "{image}"\n' if image is not None else ""
        (root / "task.toml").write_text(toml)
        (root / "instruction.md").write_text("x")
        expected = harbor.ask("hash", root / "environment", image=image)
        for stored in both_trees(root):
            task = read_task(stored, Place("d", "t", "t"), BOTH)
            assert isinstance(task, Task)
            hashes = task.environments[0].hashes
            assert hashes[Scheme.HARBOR] == expected[0]
            if hashes[Scheme.LEGACY] is None:  # a link that leaves the task: Harbor reads the host's file
                assert any(f.code == "env-outward-link" for f in task.environments[0].findings)
            else:
                assert hashes[Scheme.LEGACY] == expected[1]
    finally:
        shutil.rmtree(root)


VALUES: list[Any] = [
    "x",
    "1",
    "2.5",
    "",
    "2G",
    "1.5",
    "true",
    1,
    0,
    -1,
    2.0,
    2.5,
    True,
    ["x"],
    [1],
    {"a": "b"},
    {"a": 1},
    [{}],
]
KEYS = [
    "cpus", "memory", "memory_mb", "storage", "storage_mb", "gpus", "docker_image", "os", "env", "workdir",
    "build_timeout_sec", "gpu_types", "allow_internet", "network_mode", "allowed_hosts", "healthcheck", "tpu",
    "mcp_servers", "skills_dir", "unknown",
]  # fmt: skip
SECTION_KEYS = {
    "": ["version", "schema_version", "source", "steps", "artifacts", "metadata",
         "multi_step_reward_strategy"],
    "task": ["name", "version", "description", "authors", "keywords"],
    "agent": ["timeout_sec", "user", "network_mode", "allowed_hosts"],
    "verifier": ["timeout_sec", "env", "user", "environment_mode", "environment", "collect", "network_mode"],
    "solution": ["env"],
    "environment": KEYS,
}  # fmt: skip
GOOD: list[Any] = [
    "separate", "shared", "org/name", "linux", "Windows", "public", "allowlist", "mean", ["example.com"],
    ["*.a.org"],
    [{"name": "one"}], [{"name": "one"}, {"name": "ONE"}], [{"source": "/a", "destination": "b"}],
    [{"source": "../a"}], ["/logs/../x"], [{"command": "x", "service": "db"}],
    {"command": "true", "retries": "3"}, {"type": "v4", "topology": "2x2"}, {"docker_image": "i"},
    [{"name": "m", "transport": "http", "url": "u"}],
    [{"name": "m"}], [{"name": "n", "email": "e"}],
]  # fmt: skip


@st.composite
def tomls(draw: st.DrawFn) -> str:
    import tomlkit

    document: dict[str, Any] = {}
    for section in draw(st.lists(st.sampled_from(list(SECTION_KEYS)), min_size=1, max_size=2)):
        keys = draw(st.lists(st.sampled_from(SECTION_KEYS[section]), min_size=1, max_size=2))
        values = {key: draw(st.sampled_from(VALUES + GOOD)) for key in keys}
        document.update(values if not section else {section: values})
    return tomlkit.dumps(document)


@settings(ORDINARY, max_examples=400)
@given(text=tomls())
@example(text='[agent]\ntimeout_sec = "\u0663"\n')
@example(text='[environment]\ngpus = "\u0663"\n')
def test_task_toml_is_refused_when_harbor_refuses_it(harbor: Harbor, text: str, tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text(text)
    theirs = harbor.ask("toml", path)
    try:
        config.parse(path.read_bytes())
        ours = None
    except ConfigError as e:
        ours = str(e)
    assert (ours is None) == (theirs is None), f"{text}\nours: {ours}\ntheirs: {theirs}"


MULTI = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
TASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "resources": {"toml": '[environment]\ncpus = "2"\nmemory = "2G"\nstorage = "512K"\ngpus = 1.0\n'},
    "separate": {"toml": '[verifier]\nenvironment_mode = "separate"\n'},
    "separate-own-tests": {
        "toml": '[verifier]\nenvironment_mode = "separate"\n',
        "files": {"tests/Dockerfile": "FROM a\n"},
    },
    "separate-image": {"toml": '[verifier.environment]\ndocker_image = "i:1"\nmemory_mb = 7\n'},
    "separate-inherits-image": {
        "toml": '[environment]\ndocker_image = "x"\ncpus = 3\n[verifier]\nenvironment_mode = "separate"\n'
    },
    "steps": {"toml": MULTI, "files": {"steps/one/instruction.md": "x", "steps/two/instruction.md": "y"}},
    "steps-separate": {
        "toml": MULTI + '[verifier]\nenvironment_mode = "separate"\n',
        "files": {
            "steps/one/instruction.md": "x",
            "steps/two/instruction.md": "y",
            "steps/two/tests/docker-compose.yaml": "services: {}\n",
        },
    },
    "step-own-environment": {
        "toml": '[[steps]]\nname = "one"\n[steps.verifier.environment]\ndocker_image = "s"\ncpus = 2.0\n',
        "files": {"steps/one/instruction.md": "x"},
    },
    "steps-missing": {"toml": MULTI, "files": {"steps/one/instruction.md": "x"}},
    "bad-toml": {"toml": "= 1\n"},
    "number-version": {"toml": "version = 1.0\n"},
    "crlf-toml": {"toml": "[environment]\r\ncpus = 1\r\n"},
}


@pytest.mark.parametrize("name", TASKS)
def test_the_same_tasks_with_the_same_environments(harbor: Harbor, name: str, tmp_path: Path) -> None:
    folder = write_task(tmp_path / name, **TASKS[name])
    theirs = harbor.ask("task", folder)
    for tree in both_trees(folder):
        ours = read_task(tree, Place("d", name, name), frozenset({Scheme.HARBOR}))
        if theirs is None:
            assert isinstance(ours, NotTask)
            continue
        assert isinstance(ours, Task), ours
        assert [
            {
                "role": e.role,
                "folder": e.folder,
                "hash": e.hash,
                "image": e.docker_image,
                "resources": [
                    e.resources.cpus,
                    e.resources.memory_mb,
                    e.resources.storage_mb,
                    e.resources.gpus,
                ],
            }
            for e in ours.environments
        ] == theirs


PATTERNS = st.sampled_from(
    ["*", "!*", "out", "out/", "/out", "!out", "sub/", "sub/*", "!sub/", "**/out", "*.txt", "# note", "",
     "\\#x", "in*", "ring", "dangling", "tests/", "[", "a\\", "!", "sub/**", "sub/out", ".harborignore"]
)  # fmt: skip
RULES = st.one_of(
    st.none(),
    st.lists(PATTERNS, max_size=4).map("\n".join),
    st.sampled_from([b"\xff\n", "folder", "link-out", "link-in", "dangling"]),
)
LINKS = st.dictionaries(
    st.sampled_from(["out", "in", "in.txt", "ring", "dangling", "data"]),
    st.sampled_from(["/etc/hostname", "/etc", "../instruction.md", ".", "..", "nothing", "sub",
                     "../tests/sub", "../../tests/sub", "in", "../other", "sub/x"]),
    max_size=3,
)  # fmt: skip


def lay_inputs(folder: Path, links: dict[str, str], rules: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "x").write_text("x")
    for name, target in links.items():
        (folder / name).symlink_to(target)
    place = folder / ".harborignore"
    match rules:
        case None:
            pass
        case bytes():
            place.write_bytes(rules)
        case "folder":
            place.mkdir()
        case "link-out":
            place.symlink_to("/etc/hostname")
        case "link-in":
            place.symlink_to("x")
        case "dangling":
            place.symlink_to("nothing")
        case _:
            place.write_text(rules)


@settings(ORDINARY, max_examples=150)
@given(
    links=LINKS,
    rules=RULES,
    sub=LINKS,
    sub_rules=RULES,
    top=st.sampled_from(["tests", "solution", "steps/one/tests", "steps/one", "steps/one/workdir"]),
)
def test_links_count_as_harborignore_says(
    harbor: Harbor, links: dict[str, str], rules: Any, sub: dict[str, str], sub_rules: Any, top: str
) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        steps = {"toml": '[[steps]]\nname = "one"\n', "files": {"steps/one/instruction.md": "x"}}
        folder = write_task(root / "t", **(steps if top.startswith("steps") else {}))
        (folder / "other").mkdir()
        (folder / "other" / "f.txt").write_text("x")
        lay_inputs(folder / top, links, rules)
        lay_inputs(folder / top / "sub", sub, sub_rules)
        theirs = harbor.ask("dataset", root)
        for tree in both_trees(folder):
            ours = read_task(tree, Place("d", "t", "t"), frozenset({Scheme.HARBOR}))
            assert isinstance(ours, Task) == bool(theirs), ours
    finally:
        shutil.rmtree(root)


GITIGNORE = st.one_of(
    st.none(), st.lists(PATTERNS, max_size=3).map("\n".join), st.sampled_from(["environment/\n!a", "*.txt\n"])
)


def digest_or_why(tree: Tree) -> tuple[str | None, bool]:
    """The package digest, and whether there is none because a link leaves the task."""
    try:
        return package_digest(tree), False
    except (OutwardLinkError, UnreadableError, IgnoreError) as e:
        return None, isinstance(e, OutwardLinkError) and "out of the task" in str(e)


@settings(ORDINARY, max_examples=100)
@given(tree=TREES, inner=TREES, links=LINKS, rules=RULES, gitignore=GITIGNORE)
def test_package_digests_are_equal(
    harbor: Harbor,
    tree: dict[str, Any],
    inner: dict[str, Any],
    links: dict[str, str],
    rules: Any,
    gitignore: str | None,
) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        folder = write_task(root / "t", {}, files={"README.md": "r", "tests/x~": "x", "tests/a.pyc": "x"})
        lay(folder / "environment", tree)
        lay_inputs(folder / "tests", links, rules)
        lay(folder / "solution", inner)
        if gitignore is not None:
            (folder / ".gitignore").write_text(gitignore)
        theirs = harbor.ask("digest", folder)
        for stored in both_trees(folder):
            ours, leaves = digest_or_why(stored)
            # Harbor fails too, or it read a file of the host through a link that leaves the task.
            assert ours == theirs or leaves or (ours is None and "Error" in theirs)
    finally:
        shutil.rmtree(root)


def odd_tasks(root: Path) -> None:
    """A dataset with one of everything that may or may not be a task."""
    for name in TASKS:
        write_task(root / name, **TASKS[name])
    for name in (
        "no-instruction",
        "no-environment",
        "image-only",
        "link-out",
        "link-in",
        "ring",
        "dangling",
        "loop",
    ):
        write_task(root / name)
    (root / "no-instruction" / "instruction.md").unlink()
    for name in ("no-environment", "image-only"):
        shutil.rmtree(root / name / "environment")
    (root / "image-only" / "task.toml").write_text('[environment]\ndocker_image = "a"\n')
    (root / "link-out" / "tests" / "x").symlink_to("/etc/passwd")
    (root / "link-in" / "tests" / "x").symlink_to("../instruction.md")
    (root / "ring" / "tests" / "x").symlink_to("../tests")
    (root / "dangling" / "tests" / "x").symlink_to("nothing")
    (root / "loop" / "tests" / "x").symlink_to("x")
    (root / "no-toml").mkdir()
    (root / "toml-folder" / "task.toml").mkdir(parents=True)
    (root / ".hidden").mkdir()
    write_task(root / ".hidden-task")
    (root / "linked-task").symlink_to("plain")
    (root / "README.md").write_text("x")
    shutil.copytree(root / "plain", root / "linked-environment")
    shutil.rmtree(root / "linked-environment" / "environment")
    (root / "linked-environment" / "real").mkdir()
    (root / "linked-environment" / "real" / "Dockerfile").write_text("FROM b\n")
    (root / "linked-environment" / "environment").symlink_to("real")


def test_the_same_folders_are_tasks(harbor: Harbor, tmp_path: Path) -> None:
    odd_tasks(tmp_path)
    theirs = harbor.ask("dataset", tmp_path)
    found = [f.item for f in tasks(discover(tmp_path), frozenset({Scheme.HARBOR}))]
    assert [f.name for f in found if isinstance(f, Task)] == theirs
    folders = {p.name for p in tmp_path.iterdir() if p.is_dir()}
    assert {f.name for f in found} == folders, "every folder is a task, or not a task with its reason"
