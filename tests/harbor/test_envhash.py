"""Every vector computed with Harbor itself, from a folder and from an archive of the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poolmgr.harbor import envhash
from poolmgr.harbor.archive import Limits, open_archive
from poolmgr.harbor.tasks import Place, read_task
from poolmgr.harbor.tree import FolderTree, Kind, Tree
from poolmgr.model.environment import Scheme, Task, snapshot_name
from tests.harbor.trees import tar_of, write_task

VECTORS = json.loads((Path(__file__).parent / "harbor_edge_vectors.json").read_text())["cases"]
BOTH = frozenset({Scheme.HARBOR, Scheme.LEGACY})


def build(case: dict[str, Any], folder: Path) -> Path:
    image = case["docker_image"]
    toml = f"[environment]\ndocker_image = {json.dumps(image)}\n" if image else ""
    write_task(folder, {}, toml=toml)
    environment = folder / "environment"
    if case["environment"] is None:
        environment.rmdir()
        (folder / "task.toml").write_text('[environment]\ndocker_image = ""\n')
        return folder
    for entry in case["environment"]:
        path = environment / entry["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if "symlink" in entry:
            path.symlink_to(entry["symlink"])
        elif entry.get("dir"):
            path.mkdir()
        else:
            path.write_bytes(entry["file"].encode())
            path.chmod(int(entry["mode"], 8))
    return folder


@pytest.mark.parametrize("stored", ["folder", "archive"])
@pytest.mark.parametrize("case", VECTORS, ids=lambda c: c["name"])
def test_vectors(case: dict[str, Any], stored: str, tmp_path: Path) -> None:
    folder = build(case, tmp_path / "task")
    tree: Tree = FolderTree(str(folder))
    if stored == "archive":
        tree = open_archive(tar_of(folder), Limits())
    entries = tree.entries("environment")
    paths = envhash.hashed_files(entries)
    image = case["docker_image"]
    digest = envhash.harbor_hash(
        paths, lambda p: tree.chunks(f"environment/{p}"), docker_image=image, folder="environment"
    )
    assert digest[:32] == case["harbor"]
    assert snapshot_name(digest) == case["harbor_snapshot"]
    assert envhash.legacy_hash(tree, "environment", entries)[:12] == case["harbor_legacy_12"]


def test_every_vector_is_there() -> None:
    assert len(VECTORS) == 17


def test_snapshot_name_with_a_target() -> None:
    assert snapshot_name("2c356720fd13f349", "us") == "harbor__2c356720fd13__us__snapshot"


def test_a_file_of_4_gib_takes_the_wide_form() -> None:
    """The rule of Harbor 0.25: a 01 byte first, and eight bytes for every content length."""
    import hashlib

    sizes = {"a": 1 << 32, "b": 3}
    content = {"a": [b"x"], "b": [b"abc"]}
    digest = envhash.harbor_hash(
        ["a", "b"], lambda p: (sizes[p], iter(content[p])), docker_image=None, folder="environment"
    )
    expected = b"\x01" + b"\0\0\0\x01a" + (1 << 32).to_bytes(8, "big") + b"x"
    expected += b"\0\0\0\x01b" + (3).to_bytes(8, "big") + b"abc"
    assert digest == hashlib.sha256(expected).hexdigest()


def test_ignored_names_count_in_every_component() -> None:
    entries = {"a/.git/x": Kind.FILE, "__pycache__": Kind.FILE, "b": Kind.FILE, "b.git": Kind.FILE}
    assert envhash.hashed_files(entries) == ["b", "b.git"]


def test_a_name_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    with open(bytes(folder / "environment") + b"/caf\xe9", "wb") as file:
        file.write(b"1")
    task = read_task(FolderTree(str(folder)), Place("d", "t", "t"), BOTH)
    assert isinstance(task, Task)
    agent = task.environments[0]
    assert agent.hashes == {Scheme.HARBOR: None, Scheme.LEGACY: None}
    assert [f.code for f in agent.findings] == ["env-not-utf8"]


def test_the_legacy_hash_never_reads_through_a_link_that_leaves(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    (folder / "environment" / "out").symlink_to("/etc/hostname")
    task = read_task(FolderTree(str(folder)), Place("d", "t", "t"), BOTH)
    assert isinstance(task, Task)
    agent = task.environments[0]
    assert agent.hashes[Scheme.HARBOR] is not None
    assert agent.hashes[Scheme.LEGACY] is None
    assert [f.code for f in agent.findings] == ["env-outward-link"]
