"""``pull --check`` with a real registry: the same tree under other bytes, moved tags, damaged files."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from poolmgr.errors import Exit, NothingComparedError, UsageError
from poolmgr.model.manifest import Manifest
from poolmgr.ops.pull_build import Builder
from poolmgr.ops.pull_check import Checks, PullCheck, Result, subjects
from poolmgr.ops.pull_facts import Request
from poolmgr.ops.view import PoolView, open_folder
from poolmgr.plan.pull import Wanted, plan_pull
from poolmgr.sif.compare import difference
from poolmgr.sif.image import open_image
from poolmgr.sif.source import FileSource
from poolmgr.sif.write import minimal_image
from poolmgr.store.oci import Registries
from poolmgr.store.oci_login import Logins
from tests.images import need
from tests.loopback.registry import Registry
from tests.ops.pull_kit import Notes, pull
from tests.sif.tools import apptainer


@pytest.fixture(autouse=True)
def _apptainer() -> None:
    need("apptainer")


def check(
    registry: Registry, *paths: Path, view: PoolView | None = None, references: Sequence[str] = (),
    **options: int,
) -> Checks:  # fmt: skip
    notes = Notes()
    chosen = plan_pull([Wanted(r) for r in references], view.manifest if view else Manifest())
    wanted, refused, _ = subjects(view, map(str, paths), chosen)
    registries = Registries(Logins(), notes.note, insecure=[registry.host], tries=2)
    run = PullCheck(
        wanted, refused, Request(Path(), "amd64", **{"jobs": 2, "tries": 2, **options}), registries, notes
    )
    return run.carry_out(run.plan())


def codes(checks: Checks) -> list[str]:
    return [c.error.code for c in checks.checked if c.error] + [r.error.code for r in checks.refused]


def only(folder: Path) -> Path:
    (file,) = folder.glob("*.sif")
    return file


def test_a_pulled_file_has_the_tree_of_its_reference(registry: Registry, tmp_path: Path) -> None:
    pull(registry, tmp_path, registry.add("acme/env:1"))
    before = only(tmp_path).read_bytes()
    checks = check(registry, only(tmp_path))
    (one,) = checks.checked
    assert one.result is Result.SAME
    assert one.own == ()
    assert one.sight.moved is False
    assert checks.exit is Exit.GOOD
    assert only(tmp_path).read_bytes() == before


def test_a_check_too_builds_no_more_at_once_from_one_registry_than_it_may(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(registry, tmp_path, *(registry.add(f"acme/env:{n}") for n in (1, 2, 3)))
    there, most, both, lock = [0], [0], threading.Barrier(2), threading.Lock()
    real = Builder.build

    def build(self: Builder, *given: Any) -> None:
        with lock:
            there[0] += 1
            most[0] = max(most[0], there[0])
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # two that may run at once meet here
        real(self, *given)
        with lock:
            there[0] -= 1

    monkeypatch.setattr(Builder, "build", build)
    files = sorted(tmp_path.glob("*.sif"))
    assert check(registry, *files, jobs=3, per_registry=1).exit is Exit.GOOD
    assert most == [1]
    both.reset()
    check(registry, *files, jobs=3, per_registry=2)
    assert most == [2]


def test_a_moved_tag_is_told_path_by_path(registry: Registry, tmp_path: Path) -> None:
    pull(registry, tmp_path, registry.add("acme/tag:1", {"app/a": "1", "app/gone": "x"}))
    registry.add("acme/tag:1", {"app/a": "2", "app/new": "y"})
    checks = check(registry, only(tmp_path))
    assert codes(checks) == ["tree-differs"]
    assert checks.exit is Exit.BAD
    (one,) = checks.checked
    assert one.sight.moved is True
    assert one.error is not None
    assert "moved" in one.error.message
    assert one.error.details == ("~ app/a", "- app/gone", "+ app/new")


def test_a_tag_that_moved_to_the_same_content_is_the_same(registry: Registry, tmp_path: Path) -> None:
    pull(registry, tmp_path, registry.add("acme/tag:2", {"app/a": "1"}))
    registry.add("acme/tag:2", {"app/a": "1"}, config=["--config.label", "build=2"])
    (one,) = check(registry, only(tmp_path)).checked
    assert one.sight.moved is True
    assert one.result is Result.SAME
    assert all(line.lstrip("+-~ ").startswith(".singularity.d") for line in one.own)


def test_a_file_that_was_exchanged_is_told(registry: Registry, tmp_path: Path) -> None:
    pull(registry, tmp_path / "a", Wanted(registry.add("acme/env:1"), "x.sif"))
    pull(registry, tmp_path / "b", Wanted(registry.add("acme/env:2"), "x.sif"))
    size = (tmp_path / "a/x.sif").stat().st_size
    data = (tmp_path / "b/x.sif").read_bytes()
    assert len(data) == size
    (tmp_path / "a/x.sif").write_bytes(data)
    checks = check(registry, tmp_path / "a/x.sif")
    assert codes(checks) == ["tree-differs"]
    assert "still has the same digest" in checks.checked[0].error.message  # type: ignore[union-attr]


def test_a_pool_that_others_made_is_compared_by_reference_without_apptainers_own_files(
    registry: Registry, tmp_path: Path
) -> None:
    reference = registry.add("acme/env:1")
    name = reference.replace(":", "__").replace("/", "__") + ".sif"
    (tmp_path / "images").mkdir()
    apptainer("pull", "--no-https", tmp_path / "images" / name, f"docker://{reference}")
    checks = check(
        registry, view=open_folder(tmp_path), references=[reference, registry.host + "/acme/env:9"]
    )
    (one,) = checks.checked
    assert one.result is Result.SAME, one.error
    assert one.own, "the label that names the reference differs, and is told"
    assert [r.error.code for r in checks.refused] == ["miss"]


def test_a_whole_pool_by_its_table_of_blobs(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    pull(registry, tmp_path / "new", Wanted(reference, "a.sif"))
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    (pool / "derived").mkdir()
    subprocess.run(["cp", tmp_path / "new/a.sif", pool / "images/a.sif"], check=True)
    (pool / "images/unknown.sif").write_bytes(minimal_image("u"))
    (pool / "images/odd.sif").write_bytes(minimal_image("o"))
    (pool / "derived/d.sif").write_bytes(minimal_image("d"))
    (pool / "task_to_blob.json").write_text(json.dumps({"v": {"t": "images/a.sif"}}))
    rows = {
        "path": ["images/a.sif", "images/odd.sif", "derived/d.sif"],
        "size": [1, 1, 1],
        "kind": ["plain", "plain", "derived"],
        "source": [reference, "acme/Odd", reference],
        "source_digest": [registry.digest("acme/env:1"), None, None],
    }
    pyarrow.parquet.write_table(pyarrow.table(rows), pool / "blobs.parquet")
    checks = check(registry, view=open_folder(pool))
    assert [(c.sight.subject.path, c.result, c.sight.moved) for c in checks.checked] == [
        ("images/a.sif", Result.SAME, False)
    ]
    assert {r.given: r.error.code for r in checks.refused} == {
        "images/unknown.sif": "no-source",
        "images/odd.sif": "bad-reference",
    }
    assert checks.exit is Exit.BAD


def test_what_cannot_be_compared_is_never_the_same(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "stray.sif"
    file.write_bytes(minimal_image("x"))
    assert codes(check(registry, file, tmp_path / "nothing.sif")) == ["no-source", "bad-file"]
    with pytest.raises(UsageError):
        check(registry)
    with pytest.raises(UsageError):
        check(registry, references=["acme/env:1"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NothingComparedError):
        check(registry, view=open_folder(tmp_path / "empty"))
    reference = registry.add("acme/env:1")
    pull(registry, tmp_path / "out", reference)
    registry.fault(status=404, contains="/manifests/", times=None)
    assert codes(check(registry, only(tmp_path / "out"))) == ["no-such-image"]
    registry.reset()
    data = bytearray(only(tmp_path / "out").read_bytes())
    data[-9000:] = bytes(9000)
    only(tmp_path / "out").write_bytes(data)
    assert codes(check(registry, only(tmp_path / "out")))[0] in ("bad-file", "damaged-image")


def test_the_differences_of_two_trees(tmp_path: Path) -> None:
    images = []
    for name, payload in (("a", b"1"), ("b", b"2")):
        (tmp_path / name).write_bytes(minimal_image("same", payload))
        images.append(open_image(FileSource(tmp_path / name)))
    found = difference(*images)
    assert len(found.changed) == 1
    assert not found.added
    assert not found.removed
    assert not difference(images[0], images[0])
