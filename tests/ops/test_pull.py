"""``pull`` against a real registry and the real Apptainer, and everything that may go wrong."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from poolmgr.errors import Exit, NothingComparedError
from poolmgr.model.finding import Level
from poolmgr.model.manifest import Manifest
from poolmgr.model.pulled import Pulled
from poolmgr.ops import pull_build
from poolmgr.ops.pull_facts import Result
from poolmgr.ops.view import open_folder
from poolmgr.plan.pull import Wanted
from poolmgr.plan.resolve import Names
from poolmgr.sif.check import check_file
from poolmgr.sif.image import open_image
from poolmgr.sif.source import FileSource
from poolmgr.store import oci
from tests.conftest import ROOT
from tests.images import need
from tests.loopback.registry import TOKEN, Registry
from tests.ops.pull_kit import Notes, codes, pull, start
from tests.sif.tools import apptainer

LIMIT = b'{"errors":[{"code":"TOOMANYREQUESTS","message":"You have reached your pull rate limit."}]}'


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real waits, short ones."""
    need("apptainer")
    monkeypatch.setattr(pull_build, "LIMIT_WAIT", 0.1)
    monkeypatch.setattr(pull_build, "backoff", lambda tried: 0.05)
    monkeypatch.setattr(oci, "backoff", lambda tried: 0.05)


def left(to: Path) -> set[str]:
    """What stands in the folder, but for poolmgr's own state."""
    return {path.name for path in to.iterdir() if path.name != ".poolmgr"}


def listed(to: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (to / "pull.jsonl").read_text().splitlines()]


# --- what is made -------------------------------------------------------------------------------------


def test_a_reference_becomes_a_verified_file_with_its_digest_on_record(
    registry: Registry, tmp_path: Path
) -> None:
    reference = registry.add("acme/env:1", {"app/hello.txt": "hello"})
    pulls = pull(registry, tmp_path / "out", f"docker://{reference}")
    (outcome,) = pulls.outcomes
    assert outcome.result is Result.PULLED
    assert pulls.exit is Exit.GOOD
    row = outcome.row
    assert row is not None
    assert row.source == reference
    assert row.source_digest == registry.digest("acme/env:1")
    assert row.arch == "amd64"
    assert row.tree_sha256
    assert row.built_with.startswith("apptainer ")
    file = tmp_path / "out" / row.file
    assert check_file(file, Level.DATA, sha256=row.sha256, hashing=True).verdict.passes
    assert apptainer("exec", file, "/bin/busybox", "cat", "/app/hello.txt") == "hello"
    with FileSource(file) as source:
        labels = open_image(source).labels
    assert str(labels["org.label-schema.usage.singularity.deffile.from"]).endswith(row.source_digest)
    assert left(tmp_path / "out") == {row.file, "pull.jsonl"}
    (line,) = listed(tmp_path / "out")
    assert line["source_digest"] == row.source_digest
    assert line["sha256"] == row.sha256
    assert "stamp" not in line


def test_what_is_recorded_is_what_was_built_although_the_tag_moves_meanwhile(
    registry: Registry, tmp_path: Path
) -> None:
    reference = registry.add("acme/moving:1", {"app/v": "old"})
    old = registry.digest("acme/moving:1")
    run = start(registry, tmp_path, reference)
    plan = run.plan()
    registry.add("acme/moving:1", {"app/v": "new"})
    (outcome,) = run.carry_out(plan).outcomes
    assert outcome.row is not None
    assert outcome.row.source_digest == old
    with FileSource(tmp_path / outcome.row.file) as source:
        assert open_image(source).read("app/v") == b"old"


def test_a_tag_beside_a_digest_and_an_index_of_platforms(registry: Registry, tmp_path: Path) -> None:
    registry.add("acme/many:intel", {"app/cpu": "intel"})
    registry.add("acme/many:arm", {"app/cpu": "arm"}, arch="arm64", machine=183)
    index = registry.add_index("acme/many:all", {"arm64": "arm", "amd64": "intel"})
    digest = registry.digest("acme/many:all")
    pulls = pull(registry, tmp_path, f"{index}@{digest}")
    (outcome,) = pulls.outcomes
    assert outcome.row is not None
    assert outcome.row.source_digest == digest
    with FileSource(tmp_path / outcome.row.file) as source:
        assert open_image(source).read("app/cpu") == b"intel"


def test_two_pulls_give_other_bytes_and_one_tree(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1", {"app/hello.txt": "hello"})
    rows = [pull(registry, tmp_path / name, reference).outcomes[0].row for name in ("a", "b")]
    assert rows[0] is not None
    assert rows[1] is not None
    assert rows[0].sha256 != rows[1].sha256
    assert rows[0].tree_sha256 == rows[1].tree_sha256


def test_an_alias_of_the_manifest_leads_to_the_source_and_tasks_get_a_map(
    registry: Registry, tmp_path: Path
) -> None:
    registry.add("acme/env:1")
    manifest = Manifest(aliases={"mirror.local:5000/env/{tag}:latest": registry.host + "/acme/env:{tag}"})
    pulls = pull(
        registry, tmp_path,
        Wanted("mirror.local:5000/env/1:latest", task="t1"), Wanted(f"{registry.host}/acme/env:1", task="t2"),
        Wanted("mirror.local:5000/env/nope", task="t3"),
        manifest=manifest,
    )  # fmt: skip
    assert [o.result for o in pulls.outcomes] == [Result.PULLED, Result.FAILED]
    assert registry.asked("GET", "/manifests/") <= 3
    assert pulls.map is not None
    rows = [json.loads(line) for line in pulls.map.read_text().splitlines()]
    row = pulls.outcomes[0].row
    assert row is not None
    assert rows == [
        {"task": t, "file": row.file, "source": row.source, "source_digest": row.source_digest}
        for t in ("t1", "t2")
    ]


def test_layers_that_images_share_are_downloaded_once(registry: Registry, tmp_path: Path) -> None:
    first = registry.add("acme/shared:1", {"app/v": "same"})
    second = registry.add("acme/shared:2", {"app/v": "same"}, config=["--config.env", "A=1"])
    layers = {json.loads(registry.manifest(f"acme/shared:{n}"))["layers"][0]["digest"] for n in (1, 2)}
    (layer,) = layers
    # Apptainer asks for a layer before it looks whether it has it, and then does not read the answer.
    fault = registry.fault(method="GET", contains=f"/blobs/{layer}", skip=1, times=None, truncate=10)
    pulls = pull(registry, tmp_path, first, second, jobs=1)
    assert [o.result for o in pulls.outcomes] == [Result.PULLED, Result.PULLED]
    assert fault.hit <= 1


def test_what_the_pool_has_is_not_pulled(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    other = registry.add("acme/env:2")
    names = Names(["images/" + reference.replace(":", "__").replace("/", "__") + ".sif"], Manifest())
    pulls = pull(registry, tmp_path, Wanted(reference, task="t"), other, there=names)
    assert [o.result for o in pulls.outcomes] == [Result.IN_POOL, Result.PULLED]
    assert pulls.map is not None
    assert json.loads(pulls.map.read_text())["file"].startswith("images/")


# --- again, and side by side --------------------------------------------------------------------------


def test_run_again_it_asks_for_nothing_and_builds_nothing(registry: Registry, tmp_path: Path) -> None:
    references = [registry.add(f"acme/env:{n}") for n in (1, 2)]
    pull(registry, tmp_path, *references)
    before = {path.name: path.stat().st_ino for path in tmp_path.glob("*.sif")}
    registry.requests.clear()
    pulls = pull(registry, tmp_path, *references)
    assert [o.result for o in pulls.outcomes] == [Result.KEPT, Result.KEPT]
    assert not registry.requests
    assert {path.name: path.stat().st_ino for path in tmp_path.glob("*.sif")} == before


def test_a_copied_folder_is_proven_by_hash_once(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    pull(registry, tmp_path / "a", reference)
    subprocess.run(["cp", "-a", tmp_path / "a", tmp_path / "b"], check=True)
    (outcome,) = pull(registry, tmp_path / "b", reference).outcomes
    assert outcome.result is Result.KEPT
    assert outcome.row is not None
    assert outcome.row.stamp is not None
    assert outcome.row.stamp.inode == (tmp_path / "b" / outcome.row.file).stat().st_ino


@pytest.mark.parametrize("damage", ["flip", "cut", "other"])
def test_a_file_that_changed_since_is_told_and_left(registry: Registry, tmp_path: Path, damage: str) -> None:
    reference = registry.add("acme/env:1")
    (outcome,) = pull(registry, tmp_path, reference).outcomes
    assert outcome.row is not None
    file = tmp_path / outcome.row.file
    data = bytearray(file.read_bytes())
    times = file.stat()
    if damage == "flip":
        data[50_000] ^= 1
    elif damage == "cut":
        del data[-100:]
    else:
        data = bytearray(b"something else")
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    pulls = pull(registry, tmp_path, reference)
    assert codes(pulls) == ["damaged-image"]
    assert pulls.exit is Exit.BAD
    assert file.read_bytes() == data


def test_a_file_that_nobody_recorded_is_never_replaced(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    name = reference.replace(":", "__").replace("/", "__") + ".sif"
    (tmp_path / name).write_bytes(b"half a file")
    pulls = pull(registry, tmp_path, reference)
    assert codes(pulls) == ["already-exists"]
    assert (tmp_path / name).read_bytes() == b"half a file"
    assert not (tmp_path / "pull.jsonl").exists()


def test_a_name_that_holds_another_image_is_refused(registry: Registry, tmp_path: Path) -> None:
    pull(registry, tmp_path, Wanted(registry.add("acme/env:1"), "x.sif"))
    pulls = pull(registry, tmp_path, Wanted(registry.add("acme/env:2"), "x.sif"))
    assert codes(pulls) == ["already-exists"]
    digest = registry.digest("acme/env:1")
    (outcome,) = pull(registry, tmp_path, Wanted(f"{registry.host}/acme/env@{digest}", "x.sif")).outcomes
    assert outcome.result is Result.KEPT, "the same image by its digest"
    other = f"{registry.host}/acme/env:1@sha256:{'0' * 64}"
    assert codes(pull(registry, tmp_path, Wanted(other, "x.sif"))) == ["already-exists"]


def test_two_runs_at_once_build_one_target_once(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    registry.fault(contains="/blobs/", delay=0.5, times=None)
    runs = [start(registry, tmp_path, reference) for _ in range(2)]
    plans = [run.plan() for run in runs]
    results: list[Result] = []

    def go(number: int) -> None:
        results.append(runs[number].carry_out(plans[number]).outcomes[0].result)

    threads = [threading.Thread(target=go, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [Result.KEPT, Result.PULLED]
    assert len(listed(tmp_path)) == 1
    assert not list((tmp_path / ".poolmgr/pull/claims").iterdir())


def child(registry: Registry, to: Path, *references: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "poolmgr", "pull", *references, "--to", str(to), "-j", "1"]
    return subprocess.Popen(
        [*command, "--no-https", registry.host],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("after", [1.0, 2.2])
def test_killed_and_run_again_it_builds_nothing_twice(
    registry: Registry, tmp_path: Path, after: float
) -> None:
    references = [registry.add(f"acme/kill:{n}") for n in range(3)]
    running = child(registry, tmp_path, *references)
    time.sleep(after)
    running.send_signal(signal.SIGKILL)
    running.wait()
    there = {path.name: path.stat().st_ino for path in tmp_path.glob("*.sif")}
    for name in there:
        assert check_file(tmp_path / name, Level.DATA).verdict.passes
    pulls = pull(registry, tmp_path, *references)
    results = {o.item.name: o.result for o in pulls.outcomes}
    assert {name for name, result in results.items() if result is Result.KEPT} == set(there)
    assert all(result in (Result.KEPT, Result.PULLED) for result in results.values())
    for name, inode in there.items():
        assert (tmp_path / name).stat().st_ino == inode
    assert len(left(tmp_path)) == 4, "three images, the list, and nothing that the killed run left"
    assert len(listed(tmp_path)) == 3


def test_killed_between_the_record_and_the_name_or_just_after(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    (outcome,) = pull(registry, tmp_path, reference).outcomes
    assert outcome.row is not None
    (journal,) = (tmp_path / ".poolmgr/pull").glob("*.jsonl")
    first, second = journal.read_text().splitlines(keepends=True)
    assert "stamp" not in first
    assert "stamp" in second
    journal.write_text(first + second[:40])  # just after: the second line was not written, or torn
    (again,) = pull(registry, tmp_path, reference).outcomes
    assert again.result is Result.KEPT
    assert again.row is not None
    assert again.row.stamp is not None
    (tmp_path / outcome.row.file).unlink()  # between: no file of the name yet
    (again,) = pull(registry, tmp_path, reference).outcomes
    assert again.result is Result.PULLED


def test_a_stop_ends_the_build_that_runs(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    registry.fault(contains="/blobs/", delay=30, times=None, method="GET")
    running = child(registry, tmp_path, reference)
    for _ in range(100):
        if registry.asked("GET", "/blobs/"):
            break
        time.sleep(0.1)
    started = time.monotonic()
    running.send_signal(signal.SIGTERM)
    assert running.wait(20) == Exit.AGAIN
    assert time.monotonic() - started < 15
    assert left(tmp_path) == set()
    assert not list((tmp_path / ".poolmgr/pull/claims").iterdir())


# --- what a registry may do ---------------------------------------------------------------------------


def test_a_failure_stops_no_other_image_and_has_its_cause(registry: Registry, tmp_path: Path) -> None:
    good = registry.add("acme/env:1")
    registry.add("acme/many:arm", arch="arm64", machine=183)
    arm = registry.add_index("acme/many:armonly", {"arm64": "arm"})
    bare = registry.add("acme/armbare:1", arch="arm64", machine=183)
    pulls = pull(
        registry, tmp_path, f"{registry.host}/acme/env:nope", arm, bare, good, "acme/Bad:1",
        f"{registry.host}/acme/env@sha256:{'0' * 64}",
    )  # fmt: skip
    assert {o.item.source.rpartition("/")[2]: o.error.code if o.error else "" for o in pulls.outcomes} == {
        "env:nope": "no-such-image",
        "many:armonly": "wrong-architecture",
        "armbare:1": "wrong-architecture",
        "env:1": "",
        f"env@sha256:{'0' * 64}": "no-such-image",
    }
    assert [r.error.code for r in pulls.refused] == ["bad-reference"]
    assert pulls.exit is Exit.BAD
    assert len(left(tmp_path)) == 2


def test_a_limit_is_waited_for_as_the_registry_asks(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    registry.fault(status=429, contains="/manifests/", times=2, headers={"Retry-After": "1"}, body=LIMIT)
    notes = Notes()
    started = time.monotonic()
    (outcome,) = pull(registry, tmp_path, reference, notes=notes).outcomes
    assert outcome.result is Result.PULLED
    assert time.monotonic() - started >= 2
    assert any("429" in note and "wait 1 s" in note for note in notes)


def test_a_limit_that_apptainer_meets_is_waited_for_too(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    # the client in Apptainer that GETs the manifest does not try again
    registry.fault(status=429, contains="/manifests/", method="GET", times=1, body=LIMIT)
    notes = Notes()
    (outcome,) = pull(registry, tmp_path, reference, notes=notes).outcomes
    assert outcome.result is Result.PULLED, outcome.error
    assert any("toomanyrequests" in note.lower() for note in notes), notes


@pytest.mark.parametrize(
    ("what", "code", "exit_status"),
    [
        ({"status": 429, "contains": "/manifests/", "body": LIMIT}, "rate-limited", Exit.AGAIN),
        ({"status": 429, "contains": "/manif", "headers": {"Retry-After": "9999"}}, "rate-limited", 5),
        ({"status": 401, "contains": "/manifests/"}, "registry-denied", Exit.CREDENTIALS),
        ({"status": 403, "contains": "/manifests/"}, "registry-denied", Exit.CREDENTIALS),
        ({"status": 404, "contains": "/manifests/"}, "no-such-image", Exit.BAD),
        ({"status": 500, "contains": "/manifests/"}, "remote-trouble", Exit.AGAIN),
        ({"status": 503, "contains": "/manifests/", "method": "GET"}, "remote-trouble", Exit.AGAIN),
        ({"drop": True, "contains": "/manifests/"}, "remote-trouble", Exit.AGAIN),
        ({"drop": True, "contains": "/blobs/"}, "remote-trouble", Exit.AGAIN),
        ({"status": 400, "contains": "/manifests/"}, "remote-refused", Exit.ERROR),
        ({"status": 500, "contains": "/blobs/"}, "remote-trouble", Exit.AGAIN),
        ({"status": 404, "contains": "/blobs/"}, "no-such-image", Exit.BAD),
        ({"status": 403, "contains": "/blobs/"}, "registry-denied", Exit.CREDENTIALS),
        ({"truncate": 300, "contains": "/blobs/", "method": "GET"}, "remote-trouble", Exit.AGAIN),
        ({"short": 300, "contains": "/blobs/", "method": "GET"}, "damaged-image", Exit.BAD),
        ({"flip": 200, "contains": "/blobs/", "method": "GET"}, "damaged-image", Exit.BAD),
        ({"html": True, "contains": "/manifests/", "method": "GET"}, "damaged-image", Exit.BAD),
        ({"html": True, "contains": "/manifests/"}, "damaged-image", Exit.BAD),
    ],
    ids=str,
)  # fmt: skip
def test_every_lasting_fault_has_its_own_code_and_leaves_nothing(
    registry: Registry, tmp_path: Path, what: dict[str, object], code: str, exit_status: Exit
) -> None:
    reference = registry.add("acme/env:1")
    registry.fault(**{"times": None, **what})
    pulls = pull(registry, tmp_path, reference, tries=2)
    assert codes(pulls) == [code], [o.error for o in pulls.outcomes]
    assert pulls.exit == exit_status
    error = pulls.outcomes[0].error
    assert error is not None
    assert error.hint
    assert "acme/env:1" in error.message
    assert left(tmp_path) == set()


@pytest.mark.parametrize(
    "what",
    [
        {"status": 500, "contains": "/manifests/", "times": 1},
        {"drop": True, "contains": "/manifests/", "times": 1},
        {"truncate": 300, "contains": "/blobs/", "method": "GET", "times": 1},
        {"flip": 200, "contains": "/blobs/", "method": "GET", "times": 1},
        {"drop": True, "contains": "/blobs/", "times": 1},
    ],
    ids=str,
)
def test_a_passing_fault_is_got_over(registry: Registry, tmp_path: Path, what: dict[str, object]) -> None:
    registry.fault(**what)
    (outcome,) = pull(registry, tmp_path, registry.add("acme/env:1")).outcomes
    assert outcome.result is Result.PULLED, outcome.error
    assert check_file(tmp_path / outcome.item.name, Level.DATA).verdict.passes


@pytest.mark.parametrize("contains", ["/manifests/", "/blobs/"])
def test_what_cannot_succeed_is_not_tried_again(registry: Registry, tmp_path: Path, contains: str) -> None:
    reference = registry.add("acme/env:1")
    fault = registry.fault(status=404, contains=contains, times=None)
    pull(registry, tmp_path, reference)
    assert fault.hit == 1


def test_a_registry_without_digests_in_its_answers(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    registry.fault(headers={"Docker-Content-Digest": ""}, contains="/manifests/", times=2)
    (outcome,) = pull(registry, tmp_path, reference).outcomes
    assert outcome.row is not None
    assert outcome.row.source_digest == registry.digest("acme/env:1")


def test_a_registry_that_names_another_digest_than_it_was_asked_for(
    registry: Registry, tmp_path: Path
) -> None:
    reference = registry.add("acme/env:1")
    digest = registry.digest("acme/env:1")
    registry.fault(
        headers={"Docker-Content-Digest": "sha256:" + "0" * 64}, contains="/manifests/", times=None
    )
    assert codes(pull(registry, tmp_path, f"{reference}@{digest}")) == ["damaged-image"]


# --- logins -------------------------------------------------------------------------------------------


def login_file(folder: Path, host: str, user: str, password: str) -> Path:
    file = folder / "docker-config.json"
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    file.write_text(json.dumps({"auths": {f"https://{host}/v1/": {"auth": auth}}}))
    return file


def test_the_token_dance_with_and_without_a_login(registry: Registry, tmp_path: Path) -> None:
    private, public = registry.add("acme/secret:1"), registry.add("public/env:1")
    registry.login = ("ann", "hunter2-hunter2")
    pulls = pull(registry, tmp_path / "none", private, public)
    assert [o.result for o in pulls.outcomes] == [Result.FAILED, Result.PULLED]
    assert codes(pulls) == ["registry-denied"]
    assert pulls.exit is Exit.CREDENTIALS
    error = pulls.outcomes[0].error
    assert error is not None
    assert "apptainer registry login" in error.hint
    file = login_file(tmp_path, registry.host, "ann", "hunter2-hunter2")
    (outcome,) = pull(registry, tmp_path / "good", private, logins=[file]).outcomes
    assert outcome.result is Result.PULLED, outcome.error
    wrong = login_file(tmp_path, registry.host, "ann", "not-the-password")
    pulls = pull(registry, tmp_path / "wrong", private, logins=[wrong])
    assert codes(pulls) == ["registry-denied"]
    told = repr([(o.error.message, o.error.hint) for o in pulls.outcomes if o.error])
    for secret in ("not-the-password", TOKEN, base64.b64encode(b"ann:not-the-password").decode()):
        assert secret not in told
    for file in (tmp_path / "good" / ".poolmgr").rglob("*"):
        assert not file.is_file() or b"hunter2" not in file.read_bytes()


def test_no_login_goes_to_another_registry(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/secret:1")
    registry.login = ("ann", "hunter2-hunter2")
    file = login_file(tmp_path, "elsewhere.example", "ann", "hunter2-hunter2")
    assert codes(pull(registry, tmp_path / "out", reference, logins=[file])) == ["registry-denied"]
    assert not any(r.headers.get("authorization", "").startswith("Basic") for r in registry.requests)


def test_plain_http_only_where_it_was_allowed(registry: Registry, tmp_path: Path) -> None:
    reference = registry.add("acme/env:1")
    run = start(registry, tmp_path, reference)
    run.registries.insecure = frozenset({"other.example:5000"})
    pulls = run.carry_out(run.plan())
    assert codes(pulls) in (["remote-refused"], ["remote-trouble"])
    assert not registry.requests


# --- this machine -------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small filesystem needs root")
def test_a_full_disk_ends_the_run_and_leaves_nothing(registry: Registry, tmp_path: Path) -> None:
    to = tmp_path / "small"
    to.mkdir()
    references = [registry.add(f"acme/big:{n}", {"app/text": f"{n}" * 3_000_000}) for n in range(3)]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", to], check=True)
    try:
        pulls = pull(registry, to, *references, jobs=1)
        assert [o.result for o in pulls.outcomes] == [Result.FAILED, Result.UNTRIED, Result.UNTRIED]
        assert codes(pulls) == ["no-space"]
        assert pulls.exit is Exit.ERROR
        assert left(to) == set()
    finally:
        subprocess.run(["umount", to], check=True)


def test_a_machine_that_cannot_build_ends_the_run(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "apptainer").write_text(
        "#!/bin/sh\n[ $1 = version ] && echo 1.4.5 && exit\n"
        "echo 'FATAL: could not use fakeroot: no mapping entry found in /etc/subuid' >&2\nexit 255\n"
    )
    (fake / "apptainer").chmod(0o755)
    references = [registry.add(f"acme/env:{n}") for n in (1, 2)]
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    pulls = pull(registry, tmp_path / "out", *references, jobs=1)
    assert [o.result for o in pulls.outcomes] == [Result.FAILED, Result.UNTRIED]
    assert codes(pulls) == ["machine-cannot"]
    assert pulls.stopped_by is not None


def test_apptainer_that_says_success_and_makes_rubbish_is_not_believed(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "apptainer").write_text(
        "#!/bin/sh\n[ $1 = version ] && echo 1.4.5 && exit\nfor last; do :; done\n"
        'for word; do case "$word" in *.sif) head -c 52000 /dev/zero > "$word";; esac; done\n'
    )
    (fake / "apptainer").chmod(0o755)
    reference = registry.add("acme/env:1")
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    pulls = pull(registry, tmp_path / "out", reference, tries=2)
    assert codes(pulls) == ["damaged-image"]
    assert left(tmp_path / "out") == set()


def test_nothing_named_is_an_error(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(NothingComparedError):
        start(registry, tmp_path)


def test_the_folder_is_a_pool_that_can_be_read(registry: Registry, tmp_path: Path) -> None:
    pull(registry, tmp_path, registry.add("acme/env:1"))
    assert [path for path in open_folder(tmp_path).listing.blobs if path.endswith(".sif")]


def test_a_record_reads_back(registry: Registry, tmp_path: Path) -> None:
    (outcome,) = pull(registry, tmp_path, registry.add("acme/env:1")).outcomes
    assert outcome.row is not None
    assert Pulled.parse(outcome.row.line()) == outcome.row
