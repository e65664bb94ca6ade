"""Pushing into a folder: what is checked, what is written, in which order, and what kills and races leave."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolmgr.errors import (
    BadFileError,
    DestinationError,
    MapInvalidError,
    NoSpaceError,
    NotAMirrorError,
    PushRefusedError,
    UsageError,
)
from poolmgr.ops import push_folder
from poolmgr.ops.push import Push, Request
from poolmgr.ops.view import open_folder
from poolmgr.plan.card import BEGIN, END
from poolmgr.plan.push import Action
from tests.conftest import ROOT, RunPoolmgr
from tests.ops.push_kit import (
    batch,
    blobs_of,
    folder_view,
    image,
    index_of,
    make_files,
    name_of,
    planned,
    push,
    run_of,
    state_of,
    table_of,
    whole,
    write_map,
)


def test_a_first_push_makes_the_pool(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    done = push(folder_view(root), batch(tmp_path / "new", 1, 2))
    assert done.written == ("blobs.parquet", "task_to_blob.json")
    assert index_of(root) == {"v": {f"task_{n}": f"images/{name_of(n)}" for n in (1, 2)}}
    assert blobs_of(root) == {f"images/{name_of(n)}": image(n) for n in (1, 2)}
    row = table_of((root / "blobs.parquet").read_bytes())[0]
    sha256 = hashlib.sha256(image(1)).hexdigest()
    assert row["path"] == f"images/{name_of(1)}"
    assert (row["size"], row["sha256"]) == (len(image(1)), sha256)
    assert len(row["tree_sha256"]) == 64
    assert row["kind"] == "plain"
    assert row["shared_ranges"] is None
    assert row["added_at"].endswith("Z")
    assert list(row) == [
        "path", "size", "sha256", "tree_sha256", "arch", "kind", "source", "source_digest", "base_sha256",
        "recipe_sha256", "shared_ranges", "built_with", "added_at",
    ]  # fmt: skip


def test_again_there_is_nothing_to_do(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    new = batch(tmp_path / "new", 1, 2)
    push(folder_view(root), new)
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*.[sjp]*") if p.is_file()}
    done = push(folder_view(root), new)
    assert not done.uploaded
    assert not done.written
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_a_second_variant_maps_to_blobs_whose_bytes_are_not_at_hand(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    push(folder_view(root), batch(tmp_path / "new", 1, 2))
    tasks = {"task_1": f"images/{name_of(1)}", "task_3": name_of(3)}
    made = make_files(tmp_path / "more", 3)
    done = push(folder_view(root), *made, variant="hard", tasks=write_map(tmp_path, tasks))
    assert list(done.uploaded) == [f"images/{name_of(3)}"]
    assert index_of(root)["hard"] == {"task_1": f"images/{name_of(1)}", "task_3": f"images/{name_of(3)}"}
    assert len(index_of(root)["v"]) == 2


def test_paths_may_be_empty(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    push(folder_view(root), batch(tmp_path / "new", 1))
    done = push(folder_view(root), variant="w", tasks=write_map(tmp_path, {"x": f"images/{name_of(1)}"}))
    assert done.written == ("task_to_blob.json",)


def test_a_dry_plan_writes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    plan = planned(folder_view(root), batch(tmp_path / "new", 1))
    assert [f.action for f in plan.files] == [Action.ADD]
    assert list(root.iterdir()) == []


def test_files_that_are_no_images_are_refused_all_together(tmp_path: Path) -> None:
    new = tmp_path / "new"
    batch(new, 1, 2, 3)
    (new / name_of(1)).write_bytes(image(1)[:20_000])
    (new / name_of(2)).write_bytes(b"<!doctype html><html>" + b" " * 5000)
    run = run_of(folder_view(tmp_path / "pool"), str(new))
    with pytest.raises(PushRefusedError) as e:
        run.carry_out(run.plan())
    assert len(e.value.details) == 2
    assert name_of(1) in e.value.details[0]
    assert list((tmp_path / "pool").iterdir()) == []


def test_the_manifests_gates_and_rules(tmp_path: Path) -> None:
    manifest = """
schema = 1
[pool]
url = "pool"
[gates]
min_bytes = 10_000_000
"""
    with pytest.raises(PushRefusedError, match="below-floor"):
        push(folder_view(tmp_path / "pool", manifest), batch(tmp_path / "new", 1))
    manifest = manifest.replace("min_bytes = 10_000_000", 'arch = "arm64"')
    with pytest.raises(PushRefusedError, match="arch"):
        push(folder_view(tmp_path / "pool", manifest), batch(tmp_path / "new", 1))
    manifest = manifest.replace('arch = "arm64"', '[variants.v]\nrequire = ["/app/none"]')
    with pytest.raises(PushRefusedError, match="/app/none"):
        push(folder_view(tmp_path / "pool", manifest), batch(tmp_path / "new", 1))
    assert push(folder_view(tmp_path / "pool", manifest), batch(tmp_path / "new", 1), variant="w").uploaded


def test_names_come_from_references_by_the_manifests_rule(tmp_path: Path) -> None:
    manifest = """
schema = 1
[pool]
url = "pool"
[aliases]
"mirror.local:5000/env/{tag}:latest" = "acme/env:{tag}"
[naming]
rule = "harbor"
"""
    new = tmp_path / "new"
    make_files(new, 1, 2)
    digest = "sha256:" + "cd" * 32
    tasks = tmp_path / "m.tsv"
    tasks.write_text(
        "task\tfile\timage\tdigest\n"
        f"t1\t{name_of(1)}\tmirror.local:5000/env/abc:latest\t{digest}\n"
        f"t2\t{name_of(2)}\t\t\n"
    )
    push(folder_view(tmp_path / "pool", manifest), str(new), tasks=str(tasks))
    root = tmp_path / "pool"
    assert index_of(root)["v"] == {"t1": "images/acme_env_abc.sif", "t2": f"images/{name_of(2)}"}
    rows = {r["path"]: r for r in table_of((root / "blobs.parquet").read_bytes())}
    assert rows["images/acme_env_abc.sif"]["source"] == "mirror.local:5000/env/abc:latest"
    assert rows["images/acme_env_abc.sif"]["source_digest"] == digest


def test_bytes_that_the_pool_has_without_a_record_are_found(tmp_path: Path) -> None:
    """What another tool, or a killed push, put there."""
    root = tmp_path / "pool"
    (root / "elsewhere").mkdir(parents=True)
    (root / "elsewhere/x.sif").write_bytes(image(1))
    done = push(folder_view(root), batch(tmp_path / "new", 1))
    assert not done.uploaded
    assert index_of(root)["v"] == {"task_1": "elsewhere/x.sif"}
    assert table_of((root / "blobs.parquet").read_bytes())[0]["path"] == "elsewhere/x.sif"


def test_a_name_with_other_bytes_and_a_task_with_another_blob(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    push(folder_view(root), batch(tmp_path / "new", 1))
    before = state_of(root)
    with pytest.raises(PushRefusedError) as e:
        push(folder_view(root), batch(tmp_path / "other", 1, version="2"))
    assert "with other bytes" in e.value.details[0]
    make_files(tmp_path / "third", 2)
    tasks = write_map(tmp_path / "third", {"task_1": name_of(2)})
    with pytest.raises(PushRefusedError, match="task 'task_1' of 'v' has images/") as e:
        push(folder_view(root), str(tmp_path / "third"), tasks=tasks)
    assert "--remap" in e.value.hint
    assert state_of(root) == before
    push(folder_view(root), str(tmp_path / "third"), tasks=tasks, remap=True)
    assert index_of(root)["v"] == {"task_1": f"images/{name_of(2)}"}
    assert f"images/{name_of(1)}" in blobs_of(root), "nothing is ever deleted"


def test_rows_and_columns_of_others_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    root.mkdir()
    other = {"path": ["images/a.sif"], "size": pa.array([5], pa.int32()), "stars": [4]}
    pq.write_table(pa.table(other), root / "blobs.parquet")
    push(folder_view(root), batch(tmp_path / "new", 1))
    rows = table_of((root / "blobs.parquet").read_bytes())
    assert rows[0]["path"] == "images/a.sif"
    assert rows[0]["stars"] == 4
    assert rows[0]["sha256"] is None
    assert rows[1]["path"] == f"images/{name_of(1)}"
    assert rows[1]["stars"] is None


def test_the_card_is_edited_between_its_markers_only(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    root.mkdir()
    (root / "README.md").write_text(f"# Ours\r\n{BEGIN}old{END}\nmore\n", newline="")
    push(folder_view(root), batch(tmp_path / "new", 1))
    text = (root / "README.md").read_bytes().decode()
    assert text.startswith(f"# Ours\r\n{BEGIN}\n\n| variant |")
    assert text.endswith(f"{END}\nmore\n")
    assert "| v | 1 | 1 |" in text
    (root / "README.md").write_text(f"no pair {BEGIN}")
    push(folder_view(root), batch(tmp_path / "new", 1, 2))
    assert (root / "README.md").read_text() == f"no pair {BEGIN}"


def test_what_the_map_and_the_words_may_not_name(tmp_path: Path) -> None:
    new = tmp_path / "new"
    files = make_files(new, 1)
    secret = tmp_path / "secret.sif"
    secret.write_bytes(image(9))
    view = folder_view(tmp_path / "pool")
    tasks = write_map(tmp_path, {"a": str(secret), "b": "nothing.sif", "c": files[0]})
    with pytest.raises(MapInvalidError) as e:
        push(view, *files, tasks=tasks)
    assert len(e.value.details) == 2, "a map cannot reach for files that were not given to push"
    os.symlink(secret, new / "link.sif")
    with pytest.raises(BadFileError, match="symbolic link"):
        push(view, str(new / "link.sif"), str(tmp_path / "none.sif"), tasks=tasks)
    with pytest.raises(UsageError, match="no map"):
        push(view, *files)


def test_a_link_in_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    new = tmp_path / "new"
    batch(new, 1)
    (tmp_path / "far.sif").write_bytes(image(2))
    os.symlink(tmp_path / "far.sif", new / "far.sif")
    write_map(new, {"task_1": name_of(1), "task_2": "far.sif"})
    with pytest.raises(PushRefusedError, match="outward-link"):
        push(folder_view(tmp_path / "pool"), str(new))


def test_files_that_no_task_names_are_left_out_and_told(tmp_path: Path) -> None:
    new = tmp_path / "new"
    batch(new, 1)
    make_files(new, 2)
    run = run_of(folder_view(tmp_path / "pool"), str(new))
    plan = run.plan()
    assert run.unmapped == (str(new / name_of(2)),)
    assert len(plan.files) == 1


def test_a_mirror_is_not_pushed_to(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    view = folder_view(root)
    view.locks = {"v": object()}  # type: ignore[dict-item]
    with pytest.raises(NotAMirrorError):
        Push(view, Request("v")).ready()


def test_no_right_to_write_is_noticed_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = folder_view(tmp_path / "pool")
    monkeypatch.setattr(push_folder.os, "access", lambda *_, **__: False)  # root may write anywhere
    with pytest.raises(DestinationError, match="nothing was sent"):
        run_of(view, "none.sif").ready()


def test_a_batch_that_is_closed_is_noticed_before_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "pool"
    view = folder_view(root, 'schema = 1\n[pool]\nurl = "x"\n[layout]\nmax_entries = 2\n')
    push(view, batch(tmp_path / "old", 1))
    (root / "images_b00").mkdir()
    may = push_folder.os.access
    closed = str(root / "images_b00")
    monkeypatch.setattr(push_folder.os, "access", lambda p, *a, **k: str(p) != closed and may(p, *a, **k))
    fresh = folder_view(root, 'schema = 1\n[pool]\nurl = "x"\n[layout]\nmax_entries = 2\n')
    with pytest.raises(DestinationError, match=r"images_b00: .*nothing was sent"):
        push(fresh, batch(tmp_path / "new", 2, 3))
    assert list(blobs_of(root)) == [f"images/{name_of(1)}"], "also the open batch got nothing"


@pytest.mark.parametrize("what", ["outside", "nowhere", "file", "inside"])
def test_a_batch_that_is_no_folder_of_the_pool(tmp_path: Path, what: str) -> None:
    root = tmp_path / "pool"
    for folder in (root / "real", tmp_path / "far"):
        folder.mkdir(parents=True)
    if what == "file":
        (root / "images").write_bytes(b"x")
    else:
        (root / "images").symlink_to({"outside": "../far", "nowhere": "none", "inside": "real"}[what])
    if what == "inside":
        push(folder_view(root), batch(tmp_path / "new", 1))
        assert f"images/{name_of(1)}" in folder_view(root).listing.blobs, "readers follow it too"
        return
    with pytest.raises(DestinationError, match="nothing was sent"):
        push(folder_view(root), batch(tmp_path / "new", 1))
    assert not list((tmp_path / "far").iterdir())
    assert not (root / "task_to_blob.json").exists()


def test_no_room_is_noticed_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        f_bavail, f_frsize = 10, 4096

    monkeypatch.setattr(push_folder.os, "statvfs", lambda _: Full)
    with pytest.raises(NoSpaceError, match="nothing was written"):
        push(folder_view(tmp_path / "pool"), batch(tmp_path / "new", 1))
    assert list((tmp_path / "pool").iterdir()) == []


def test_a_disk_that_fills_up_leaves_the_index_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "pool"
    push(folder_view(root), batch(tmp_path / "new", 1))
    before = index_of(root)
    written = []
    real = push_folder.write_all

    def full(fd: int, data: bytes) -> None:
        written.append(data)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd, data)

    monkeypatch.setattr(push_folder, "write_all", full)
    with pytest.raises(NoSpaceError):
        push(folder_view(root), batch(tmp_path / "new", 1, 2, 3, 4, 5), jobs=1)
    assert index_of(root) == before
    assert not list(root.rglob(".poolmgr-tmp-*"))
    monkeypatch.setattr(push_folder, "write_all", real)
    done = push(folder_view(root), str(tmp_path / "new"))
    assert sorted(done.uploaded) == [f"images/{name_of(n)}" for n in (4, 5)], "the first two are there"


@pytest.mark.parametrize("how", ["grown", "same size and mtime", "gone"])
def test_a_file_that_changes_between_plan_and_upload(tmp_path: Path, how: str) -> None:
    root = tmp_path / "pool"
    new = batch(tmp_path / "new", 1, 2)
    run = run_of(folder_view(root), new)
    plan = run.plan()
    file = tmp_path / "new" / name_of(2)
    if how == "gone":
        file.unlink()
    elif how == "grown":
        with file.open("ab") as f:
            f.write(b"x")
    else:
        stat = file.stat()
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(BadFileError):
        run.carry_out(plan)
    assert not (root / "task_to_blob.json").exists()
    assert not (root / "images" / name_of(2)).exists()


def test_only_the_bytes_differ_and_the_fingerprint_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write through a memory map may leave every date as it was."""
    run = run_of(folder_view(tmp_path / "pool"), batch(tmp_path / "new", 1))
    plan = run.plan()
    file = tmp_path / "new" / name_of(1)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    monkeypatch.setattr(push_folder.Stamp, "of", lambda _: run._local[str(file)].stamp)
    with pytest.raises(BadFileError, match="changed since it was checked"):
        run.carry_out(plan)


def test_somebody_else_pushes_between_plan_and_index(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    run = run_of(folder_view(root), batch(tmp_path / "one", 1, 2))
    plan = run.plan()
    push(folder_view(root), batch(tmp_path / "two", 2, 3), variant="w")
    done = run.carry_out(plan)
    assert done.rounds == 2
    assert set(index_of(root)["v"]) == {"task_1", "task_2"}
    assert set(index_of(root)["w"]) == {"task_2", "task_3"}
    assert len(table_of((root / "blobs.parquet").read_bytes())) == 3


def test_somebody_else_gives_the_name_other_bytes_or_the_task_another_blob(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    run = run_of(folder_view(root), batch(tmp_path / "one", 1))
    plan = run.plan()
    push(folder_view(root), batch(tmp_path / "two", 1, version="other"), variant="w")
    with pytest.raises(PushRefusedError, match="with other bytes"):
        run.carry_out(plan)
    run = run_of(folder_view(root), batch(tmp_path / "three", 3))
    plan = run.plan()
    make_files(tmp_path / "four", 4)
    tasks = write_map(tmp_path / "four", {"task_3": name_of(4)})
    push(folder_view(root), str(tmp_path / "four"), tasks=tasks)
    with pytest.raises(PushRefusedError, match="task 'task_3'"):
        run.carry_out(plan)


def test_two_pushers_at_once(tmp_path: Path) -> None:
    root = tmp_path / "pool"
    folder_view(root)
    new = [batch(tmp_path / f"new{n}", *range(n * 5, n * 5 + 8)) for n in range(4)]
    failed: list[BaseException] = []

    def one(path: str) -> None:
        try:
            push(folder_view(root), path)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=one, args=(path,)) for path in new]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert index_of(root)["v"] == {f"task_{n}": f"images/{name_of(n)}" for n in range(23)}
    assert len(table_of((root / "blobs.parquet").read_bytes())) == 23
    whole(root)


KILLED = """
import os, signal, sys
from pathlib import Path
at = int(sys.argv[3])
seen = 0
def hook(event, args):
    global seen
    if event in ("open", "os.link", "os.rename", "os.mkdir", "os.remove"):
        path = str(args[0])
        if "pool" in path:
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
from tests.ops.push_kit import push, folder_view
view = folder_view(Path(sys.argv[1]))
sys.addaudithook(hook)
push(view, sys.argv[2], jobs=2)
print("done", flush=True)
"""


def test_killed_at_any_moment_and_run_again(tmp_path: Path) -> None:
    """kill -9 at every 7th change of the filesystem; a reader is never misled, and the end is the same."""
    new = batch(tmp_path / "new", 1, 2, 3)
    batch(tmp_path / "old", 7)
    push(folder_view(tmp_path / "whole-pool"), str(tmp_path / "old"), variant="old")
    push(folder_view(tmp_path / "whole-pool"), new)
    wanted = state_of(tmp_path / "whole-pool")
    killed = 0
    for at in range(1, 400, 7):
        root = tmp_path / f"pool{at}"
        push(folder_view(root), str(tmp_path / "old"), variant="old")
        done = subprocess.run(
            [sys.executable, "-c", KILLED, root, new, str(at)],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        killed += 1
        whole(root)
        there = blobs_of(root)
        assert set(there.values()) <= {image(n) for n in (1, 2, 3, 7)}
        again = push(folder_view(root), new)
        assert not set(again.uploaded) & set(there), "nothing is sent twice"
        assert state_of(root) == wanted
        assert not list(root.rglob(".poolmgr-tmp-*")), "the dead run's files are swept"
    else:
        raise AssertionError("the sweep did not reach the end")
    assert killed > 5


def test_a_live_pusher_is_never_seen_half_done(tmp_path: Path) -> None:
    """Readers look all the time while pushes go on."""
    root = tmp_path / "pool"
    folder_view(root)
    stop = threading.Event()
    seen = []

    def read() -> None:
        while not stop.is_set():
            file = root / "task_to_blob.json"
            if file.exists():
                for path in json.loads(file.read_bytes()).get("v", {}).values():
                    assert (root / path).exists()
                seen.append(1)
            time.sleep(0.001)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(6):
            push(folder_view(root), batch(tmp_path / "new", *range(n + 1)))
    finally:
        stop.set()
        reader.join()
    assert seen


def test_what_is_pushed_can_be_audited(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    root = tmp_path / "pool"
    push(folder_view(root), batch(tmp_path / "new", 1, 2))
    done = poolmgr("audit", "-p", root)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_derive_leaves_is_taken_as_it_is(tmp_path: Path) -> None:
    from poolmgr.ops.derive import Derive
    from poolmgr.ops.derive_facts import Request as DeriveRequest

    root = tmp_path / "pool"
    push(folder_view(root), batch(tmp_path / "new", 1, 2), variant="original")
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/fixture.txt").write_text("new")
    recipe = tmp_path / "recipe/recipe.toml"
    recipe.write_text(
        'schema = 1\nname = "hard"\nbase = { variant = "original" }\n'
        '[[step]]\nfiles = [{ from = "fixture.txt", to = "/fixture.txt" }]\n'
    )
    run = Derive(open_folder(root), DeriveRequest(recipe, tmp_path / "out"))
    run.carry_out(run.plan())
    done = push(open_folder(root), str(tmp_path / "out"), variant="hard")
    assert sorted(done.uploaded) == sorted(index_of(root)["hard"].values())
    assert all(path.startswith("derived/") and "--hard-" in path for path in done.uploaded)
    rows = {r["path"]: r for r in table_of((root / "blobs.parquet").read_bytes())}
    row = rows[index_of(root)["hard"]["task_1"]]
    assert row["kind"] == "derived"
    assert row["base_sha256"] == hashlib.sha256(image(1)).hexdigest()
    assert len(row["recipe_sha256"]) == 64
    assert "poolmgr" in row["built_with"]
    assert not push(open_folder(root), str(tmp_path / "out"), variant="hard").written
    whole(root)


def test_an_ordinary_user_without_the_right(tmp_path: Path) -> None:
    """In a process of its own, as nobody; this one may be root, who may write anywhere."""
    root = tmp_path / "pool"
    push(folder_view(root), batch(tmp_path / "new", 1))
    code = """
import os, sys
from pathlib import Path
from tests.ops.push_kit import folder_view, run_of
run = run_of(folder_view(Path(sys.argv[1])), "/no/such/file.sif")
assert run.writer
if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)
run.ready()
"""
    for folder in (root, *root.parents):
        if folder.stat().st_uid == os.geteuid() and Path(tempfile.gettempdir()) in folder.parents:
            folder.chmod(0o555 if folder == root else 0o755)
    done = subprocess.run(
        [sys.executable, "-c", code, root], cwd=ROOT, capture_output=True, text=True, check=False
    )
    root.chmod(0o755)
    assert "DestinationError" in done.stderr, done.stderr
    assert "nothing was sent" in done.stderr


def test_what_was_pushed_resolves_at_once_also_what_lay_there(tmp_path: Path) -> None:
    from poolmgr.pool import Pool

    root = tmp_path / "pool"
    (root / "images").mkdir(parents=True)
    (root / "images" / name_of(1)).write_bytes(image(1))
    push(open_folder(root), batch(tmp_path / "new", 1, 2))
    for n in (1, 2):
        there = Pool.open(root).resolve(task=f"task_{n}", variant="v")
        assert there.endswith(f"images/{name_of(n)}")


@pytest.mark.parametrize("asked", ["available", "required"])
def test_inspect_where_apptainer_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr("poolmgr.ops.image_checks.Apptainer.find", lambda: None)
    manifest = f'schema = 1\n[pool]\nurl = "x"\n[gates]\ninspect = "{asked}"\n'
    run = run_of(folder_view(tmp_path / "pool", manifest), batch(tmp_path / "new", 1))
    plan = run.plan()
    if asked == "required":
        with pytest.raises(PushRefusedError, match="inspect: Apptainer is not installed"):
            run.check(plan)
    else:
        run.check(plan)
        assert run.notes == ["inspect: Apptainer is not installed"]


def test_from_a_script(tmp_path: Path) -> None:
    from poolmgr.pool import Pool

    root = tmp_path / "pool"
    root.mkdir()
    done = Pool.open(root).push(Path(batch(tmp_path / "new", 1)), variant="v")
    assert list(done.uploaded) == [f"images/{name_of(1)}"]
    assert Pool.open(root).resolve(task="task_1", variant="v")
