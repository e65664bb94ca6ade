"""Pushing to the Hub: order of commits, races, lost answers, refusals and kills, with the real client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from poolmgr.errors import (
    BadFileError,
    CredentialsError,
    DirectoryFullError,
    PoolChangedError,
    PushRefusedError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.model.manifest import Manifest
from poolmgr.ops import push as push_module
from poolmgr.ops import push_hub
from poolmgr.ops.push_edit import Edit
from poolmgr.ops.view import PoolView
from poolmgr.store import hub_push
from poolmgr.store.hub import HubStore
from tests.conftest import ROOT
from tests.loopback.hub import TOKEN, Hub
from tests.loopback.repos import Commit, Repo
from tests.ops.push_kit import (
    batch,
    folder_view,
    image,
    make_files,
    name_of,
    push,
    run_of,
    table_of,
    write_map,
)
from tests.store.hub_kit import hurry

NAME = "acme/pool"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, read_timeout=5)


@pytest.fixture
def repo(hub: Hub) -> Repo:
    index = json.dumps({"old": {"task_7": f"images/{name_of(7)}"}}).encode()
    files: dict[str, Any] = {"task_to_blob.json": index, f"images/{name_of(7)}": image(7)}
    return hub.add_repo("datasets", NAME, files)


def view_of(hub: Hub, manifest: str = "", token: str | bool = TOKEN) -> PoolView:
    rules = Manifest.parse(manifest, "test") if manifest else Manifest()
    return PoolView(f"hf://datasets/{NAME}", HubStore(NAME, endpoint=hub.url, token=token), rules)


def index_at(commit: Commit) -> dict[str, dict[str, str]]:
    content = commit.files["task_to_blob.json"].content
    assert isinstance(content, bytes)
    index: dict[str, dict[str, str]] = json.loads(content)
    return index


def head(repo: Repo) -> Commit:
    return repo.commits[repo.refs["main"]]


def history(repo: Repo) -> list[Commit]:
    commits = [head(repo)]
    while commits[-1].parent is not None:
        commits.append(repo.commits[commits[-1].parent])
    return commits[::-1]


def never_broken(repo: Repo) -> None:
    """No commit that ever was has an index that names a blob which is not in it."""
    for commit in repo.commits.values():
        if "task_to_blob.json" in commit.files:
            for tasks in index_at(commit).values():
                assert set(tasks.values()) <= set(commit.files), commit.title


def uploads(hub: Hub) -> int:
    return len(hub.requests(method="PUT", origin="cdn"))


def test_images_first_and_the_index_alone_and_last(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    done = push(view_of(hub), batch(tmp_path / "new", 1, 2))
    assert [c.title for c in history(repo)][2:] == ["Add 2 images", "Push 2 images, 2 tasks of v"]
    assert done.commit == repo.refs["main"]
    assert index_at(head(repo))["v"] == {f"task_{n}": f"images/{name_of(n)}" for n in (1, 2)}
    assert index_at(head(repo))["old"]
    assert repo.files()[f"images/{name_of(1)}"] == image(1)
    table = repo.files()["blobs.parquet"]
    assert {r["path"] for r in table_of(table)} == {f"images/{name_of(n)}" for n in (1, 2)}
    never_broken(repo)


def test_commits_hold_50_images_at_most(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert push_hub.MAX_BATCH == 50
    monkeypatch.setattr(push_hub, "MAX_BATCH", 3)
    push(view_of(hub), batch(tmp_path / "new", *range(10, 18)))
    titles = [c.title for c in history(repo)][2:]
    assert titles == ["Add 3 images", "Add 3 images", "Add 2 images", "Push 8 images, 8 tasks of v"]
    never_broken(repo)


def test_a_second_run_sends_nothing(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    new = batch(tmp_path / "new", 1, 2)
    push(view_of(hub), new)
    before, sent = repo.refs["main"], uploads(hub)
    done = push(view_of(hub), new)
    assert not done.written
    assert (repo.refs["main"], uploads(hub)) == (before, sent)


def test_bytes_that_the_pool_has_under_another_name(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    make_files(tmp_path / "new", 7)
    (tmp_path / "new" / name_of(7)).rename(tmp_path / "new/other.sif")
    tasks = write_map(tmp_path / "new", {"t": "other.sif"})
    push(view_of(hub), str(tmp_path / "new"), tasks=tasks)
    assert index_at(head(repo))["v"] == {"t": f"images/{name_of(7)}"}
    assert not any("images/" in line.target for line in hub.requests(method="PUT", origin="cdn"))


def theirs(repo: Repo, number: int, task: str, variant: str = "v", version: str = "") -> None:
    """Somebody else's push of one image and task."""
    index = index_at(head(repo))
    index.setdefault(variant, {})[task] = f"images/{name_of(number)}"
    repo.add({f"images/{name_of(number)}": image(number, version)}, title="their image")
    repo.add({"task_to_blob.json": json.dumps(index).encode()}, title="their index")


@pytest.mark.parametrize("skip", [0, 1], ids=["before the images", "before the index"])
def test_412_twice_by_others_who_push(hub: Hub, repo: Repo, tmp_path: Path, skip: int) -> None:
    number = iter((50, 51))

    def other() -> None:
        n = next(number)
        theirs(repo, n, f"theirs_{n}")

    fault = hub.fault("/commit/main", skip=skip, times=2, before=other)
    done = push(view_of(hub), batch(tmp_path / "new", 1, 2))
    assert fault.hit == 2
    assert done.rounds == 3
    assert set(index_at(head(repo))["v"]) == {"task_1", "task_2", "theirs_50", "theirs_51"}
    assert uploads(hub) <= 4, "no image is sent twice (2 images, the table at most twice)"
    never_broken(repo)


def test_412_twice_that_nobody_caused(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    fault = hub.fault("/commit/main", status=412, times=2)
    push(view_of(hub), batch(tmp_path / "new", 1))
    assert fault.hit == 2
    assert index_at(head(repo))["v"]


def test_412_for_ever_is_given_up(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_hub, "LOOKS", 2)
    fault = hub.fault("/commit/main", status=412, times=None)
    with pytest.raises(PoolChangedError):
        push(view_of(hub), batch(tmp_path / "new", 1))
    assert fault.hit == push_module.ROUNDS
    never_broken(repo)


def test_a_head_that_lags_behind_does_not_bring_back_a_stale_parent(
    hub: Hub, repo: Repo, tmp_path: Path
) -> None:
    """evaleval: the retry used the same stale parent 8 times."""
    stale = repo.refs["main"]
    hub.fault("/commit/main", skip=1, times=1, before=lambda: theirs(repo, 50, "theirs"))
    body = b'{"id":"acme/pool","sha":"%s"}' % stale.encode()
    lag = hub.fault("/revision/main", times=3, status=200, body=body)
    done = push(view_of(hub), batch(tmp_path / "new", 1))
    assert lag.hit == 3
    assert done.rounds == 2
    assert set(index_at(head(repo))["v"]) == {"task_1", "theirs"}


@pytest.mark.parametrize("skip", [0, 1], ids=["images", "index"])
def test_a_500_after_the_commit_is_recognised(hub: Hub, repo: Repo, tmp_path: Path, skip: int) -> None:
    hub.fault("/commit/main", skip=skip, apply_then_status=500)
    push(view_of(hub), batch(tmp_path / "new", 1))
    assert len(history(repo)) == 4, "each commit once"
    never_broken(repo)


def test_a_file_that_the_server_drops_without_a_word(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    hub.fault("/commit/main", lose=name_of(2))
    with pytest.raises(RemoteRefusedError, match="not in it as they were sent") as e:
        push(view_of(hub), batch(tmp_path / "new", 1, 2))
    assert name_of(2) in e.value.details[0]
    assert "v" not in index_at(head(repo))
    never_broken(repo)
    done = push(view_of(hub), batch(tmp_path / "new", 1, 2))
    assert list(done.uploaded) == [f"images/{name_of(2)}"]
    never_broken(repo)


def test_a_gitignore_is_found_before_anything_is_committed(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    before = repo.add({".gitignore": b"*.sif\n"})
    with pytest.raises(RemoteRefusedError, match=r"\.gitignore"):
        push(view_of(hub), batch(tmp_path / "new", 1))
    assert repo.refs["main"] == before


def test_the_hubs_own_refusal_of_a_full_directory(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    repo.max_entries = 2
    with pytest.raises(DirectoryFullError, match="/images/") as e:
        push(view_of(hub), batch(tmp_path / "new", 1, 2, 3))
    assert "max_entries" in e.value.hint
    manifest = 'schema = 1\n[pool]\nurl = "x"\n[layout]\nmax_entries = 2\n'
    repo.max_entries = 4  # the root has the index, the table and two directories
    push(view_of(hub, manifest), batch(tmp_path / "new", 1, 2, 3))
    assert sorted(index_at(head(repo))["v"].values()) == [
        f"images/{name_of(1)}", f"images_b00/{name_of(2)}", f"images_b00/{name_of(3)}",
    ]  # fmt: skip


def test_a_read_only_token_is_told_before_any_byte(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    hub.outsiders.add("hf_reader")
    for token in ("hf_reader", False):
        with pytest.raises(CredentialsError):
            push(view_of(hub, token=token), "/no/such/file.sif", tasks="none")
    assert not hub.requests(method="PUT")
    assert not hub.requests("/tree/"), "nothing else was asked for, no file was looked for"


def test_a_hub_that_is_away_is_asked_to_be_there_and_nothing_else(hub: Hub, repo: Repo) -> None:
    """The client itself repeats the question for the right to write, for minutes."""
    hub.fault("/api/", status=503, times=None)
    with pytest.raises(RemoteTroubleError, match="looking up the repository"):
        push(view_of(hub), "/no/such/file.sif", tasks="none")
    assert not hub.requests(method="POST")


def test_a_file_that_changes_while_it_is_uploaded(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = batch(tmp_path / "new", 1, 2)
    file = tmp_path / "new" / name_of(2)
    before = repo.refs["main"]

    def spoil(at: int) -> None:
        """One bit, with every date put back as far as that can be."""
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        stat = file.stat()
        with file.open("r+b") as f:
            f.write(data)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    run = run_of(view_of(hub), new)
    plan = run.plan()
    spoil(-1)
    with pytest.raises(BadFileError, match="changed"):
        run.carry_out(plan)
    assert not hub.requests(method="PUT")
    spoil(-1)
    hub.fault("/preupload/", skip=1, before=lambda: spoil(-1))  # hashed already, and not yet sent
    with pytest.raises(BadFileError, match="changed while it was uploaded"):
        push(view_of(hub), new)
    assert repo.refs["main"] == before


def test_two_pushers_at_once(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    new = [batch(tmp_path / f"new{n}", *range(20 + n * 3, 25 + n * 3)) for n in range(3)]
    failed: list[BaseException] = []

    def one(path: str) -> None:
        try:
            push(view_of(hub), path)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=one, args=(path,)) for path in new]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert index_at(head(repo))["v"] == {f"task_{n}": f"images/{name_of(n)}" for n in range(20, 31)}
    assert len(table_of(repo.files()["blobs.parquet"])) == 11
    never_broken(repo)


def test_the_second_with_the_same_name(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    push(view_of(hub), batch(tmp_path / "one", 1))
    sent = uploads(hub)
    done = push(view_of(hub), batch(tmp_path / "two", 1), variant="w")
    assert not done.uploaded, "equal bytes are shared"
    with pytest.raises(PushRefusedError, match="with other bytes"):
        push(view_of(hub), batch(tmp_path / "three", 1, version="other"), variant="x")
    assert uploads(hub) <= sent + 1, "told before it uploads (the table alone was sent)"


@pytest.mark.parametrize("version", ["", "other"])
def test_the_same_name_in_the_same_moment(hub: Hub, repo: Repo, tmp_path: Path, version: str) -> None:
    hub.fault("/commit/main", before=lambda: theirs(repo, 1, "theirs", version=version))
    run = run_of(view_of(hub), batch(tmp_path / "new", 1))
    plan = run.plan()
    if version:
        with pytest.raises(PushRefusedError, match="with other bytes"):
            run.carry_out(plan)
        assert repo.files()[f"images/{name_of(1)}"] == image(1, "other")
    else:
        run.carry_out(plan)
        assert set(index_at(head(repo))["v"]) == {"task_1", "theirs"}
    never_broken(repo)


def test_one_task_mapped_differently_in_the_same_moment(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    hub.fault("/commit/main", skip=1, before=lambda: theirs(repo, 50, "task_1"))
    with pytest.raises(PushRefusedError, match="task 'task_1'"):
        push(view_of(hub), batch(tmp_path / "new", 1))
    assert index_at(head(repo))["v"] == {"task_1": f"images/{name_of(50)}"}
    never_broken(repo)


KILLED = """
import os, signal, sys
from pathlib import Path
from poolmgr.model.manifest import Manifest
from poolmgr.ops import push_hub
from poolmgr.ops.push_edit import Edit
from poolmgr.ops.view import PoolView
from poolmgr.store import hub_push
from poolmgr.store.hub import HubStore
from tests.loopback.hub import TOKEN
from tests.ops.push_kit import push
import huggingface_hub
push_hub.MAX_BATCH = 2
at, seen = int(sys.argv[3]), 0
def counted(function):
    def call(*args, **how):
        global seen
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **how)
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
api = huggingface_hub.HfApi
api.preupload_lfs_files = counted(api.preupload_lfs_files)
api.create_commit = counted(api.create_commit)
push(PoolView("pool", HubStore("acme/pool", endpoint=sys.argv[1], token=TOKEN), Manifest()), sys.argv[2])
"""


def test_killed_between_any_two_steps_and_run_again(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    new = batch(tmp_path / "new", 1, 2, 3)
    start = repo.refs["main"]
    push(view_of(hub), new)
    wanted = {p: d for p, d in repo.files().items() if p != "blobs.parquet"}
    for at in range(3, 30, 3):
        repo.refs["main"] = start
        repo.lfs.clear()
        repo.lfs.update({e.sha256: e.content for e in repo.commits[start].files.values() if e.sha256})
        done = subprocess.run(
            [sys.executable, "-c", KILLED, hub.url, new, str(at)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_XET": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        there = set(repo.lfs)
        hub.log.clear()
        push(view_of(hub), new)
        put = hub.requests(method="PUT", origin="cdn")
        sent = {line.target.partition("?")[0].rpartition("/")[2] for line in put}
        table = repo.commits[repo.refs["main"]].files["blobs.parquet"].sha256
        assert not (sent & there) - {table}, "nothing is sent twice"
        assert {p: d for p, d in repo.files().items() if p != "blobs.parquet"} == wanted
    else:
        raise AssertionError("the sweep did not reach the end")
    assert at > 9
    never_broken(repo)


def test_a_pull_request_takes_all_of_it_and_main_nothing(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    main = repo.refs["main"]
    new = batch(tmp_path / "new", 1, 2)
    done = push(view_of(hub), new, pull_request=True)
    assert repo.refs["main"] == main
    assert done.pull_request == f"{hub.url}/datasets/acme/pool/discussions/1"
    assert repo.pulls[1]["status"] == "open"
    assert set(index_at(repo.commits[repo.refs["refs/pr/1"]])["v"]) == {"task_1", "task_2"}
    again = push(view_of(hub), new, pull_request=True)
    assert not again.written
    assert list(repo.pulls) == [1]
    never_broken(repo)


@pytest.mark.parametrize("skip", [0, 1])
def test_an_interrupted_pull_request_is_gone_on_with(hub: Hub, repo: Repo, tmp_path: Path, skip: int) -> None:
    new = batch(tmp_path / "new", 1, 2)
    refusal = hub.fault("/commit/refs/pr/1", skip=skip, status=403, times=None)
    with pytest.raises(CredentialsError):
        push(view_of(hub), new, pull_request=True)
    assert repo.pulls[1]["status"] == "draft", "nobody merges what is not whole"
    refusal.times = 0
    sent = uploads(hub)
    done = push(view_of(hub), new, pull_request=True)
    assert list(repo.pulls) == [1]
    assert repo.pulls[1]["status"] == "open"
    assert uploads(hub) <= sent + 1, "no image is sent twice, the table perhaps"
    assert done.pull_request
    other = push(view_of(hub), batch(tmp_path / "other", 3), pull_request=True)
    assert other.pull_request != done.pull_request, "another wish is another request"


def test_who_may_only_read_can_propose(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    hub.outsiders.add("hf_reader")
    run_of(view_of(hub, token="hf_reader"), pull_request=True).ready()


def test_retracting_on_the_hub(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    push(view_of(hub), batch(tmp_path / "new", 1, 2))
    edit = Edit(view_of(hub), "v")
    changes = edit.retraction(["task_1"])
    hub.fault("/commit/main", before=lambda: theirs(repo, 50, "theirs"))
    done = edit.carry_out(changes, "Retract 1 task of v")
    assert done.commit == repo.refs["main"]
    assert set(index_at(head(repo))["v"]) == {"task_2", "theirs"}
    assert f"images/{name_of(1)}" in repo.files()
    edit = Edit(view_of(hub), "v")
    changes = edit.retraction(["task_2"])
    hub.fault("/commit/main", before=lambda: theirs(repo, 51, "task_2"))
    with pytest.raises(PushRefusedError, match="task_2"):
        edit.carry_out(changes, "Retract 1 task of v")


def test_only_the_bytes_changed_after_they_were_sent(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write through a memory map may leave every date as it was; the fingerprint tells."""
    run = run_of(view_of(hub), batch(tmp_path / "new", 1))
    plan = run.plan()
    before = repo.refs["main"]
    file = tmp_path / "new" / name_of(1)
    monkeypatch.setattr(hub_push, "_stamp", lambda source: None)
    monkeypatch.setattr(
        hub_push, "_refuse_changed", lambda *_: file.write_bytes(file.read_bytes()[:-1] + b"?")
    )
    with pytest.raises(BadFileError, match="changed since it was checked"):
        run.carry_out(plan)
    assert repo.refs["main"] == before


def test_over_xet(hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real hf_xet, into a local store; the hub is told what will come, which it cannot see itself."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", False)
    monkeypatch.setattr(push_module.time, "strftime", lambda *_: "2026-01-01T00:00:00Z")
    new = batch(tmp_path / "new", 1)
    push(folder_view(tmp_path / "same"), new)
    hub.serve_xet(tmp_path / "cas")
    for data in (image(1), (tmp_path / "same/blobs.parquet").read_bytes()):
        hub.expect_xet(repo, data)
    push(view_of(hub), new)
    assert not hub.requests(method="PUT"), "no byte by plain HTTP"
    assert index_at(head(repo))["v"] == {"task_1": f"images/{name_of(1)}"}
    assert hub.requests("xet-write-token")


def test_a_lost_answer_and_somebody_elses_index_on_top(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    """Our images were committed, the answer was lost, and the head that settles it is another's index."""
    hub.fault("/commit/main", apply_then_status=500)
    hub.fault("/revision/main", before=lambda: theirs(repo, 50, "theirs"))
    done = push(view_of(hub), batch(tmp_path / "new", 1))
    assert set(index_at(head(repo))["v"]) == {"task_1", "theirs"}, "theirs is not overwritten"
    assert done.rounds == 2
    never_broken(repo)
