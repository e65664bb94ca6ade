"""``poolmgr verify`` in a process of its own: rows, streams, exit status, attestations, shards."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import images
from tests.conftest import ROOT
from tests.loopback.hub import Hub

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    return images.build(images.make_root(folder / "root", files=10), folder / "good.sif")


@pytest.fixture
def pool(good: Path, tmp_path: Path) -> Path:
    """Two good images, one cut, one HTML page, and a file that is no image by its name."""
    folder = tmp_path / "pool"
    (folder / "images").mkdir(parents=True)
    data = good.read_bytes()
    (folder / "images/a.sif").write_bytes(data)
    (folder / "images/b.sif").write_bytes(data + b"\0")
    (folder / "images/cut.sif").write_bytes(data[: len(data) // 2])
    (folder / "images/page.sif").write_text("<html><title>Sign in</title></html>")
    (folder / "images/README.md").write_text("not an image")
    tasks = {f"t{n}": f"images/{n}.sif" for n in ("a", "b", "cut", "page")}
    (folder / "task_to_blob.json").write_text(json.dumps({"v": tasks}))
    return folder


def rows(done: subprocess.CompletedProcess[str]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """(name -> image row, summary row)."""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(row["schema"] == 1 for row in found)
    assert found[-1]["kind"] == "summary"
    assert found[-1]["exit"] == done.returncode
    return {Path(r["path"]).name: r for r in found if r["kind"] == "image"}, found[-1]


def test_one_good_file(poolmgr: Run, good: Path) -> None:
    done = poolmgr("verify", good)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split()[0] == "ok"
    assert "looked at: mount; not looked at: tables, data, hash, inspect, run" in done.stdout


def test_every_kind_of_broken_file_gets_a_line_that_says_what_it_is(poolmgr: Run, pool: Path) -> None:
    done = poolmgr("verify", pool)
    assert done.returncode == 3
    assert "README" not in done.stdout
    half = (pool / "images/cut.sif").stat().st_size
    assert f"the file has {half} bytes, its header promises" in done.stdout
    assert "an HTML page" in done.stdout
    assert "4 images: 2 ok, 2 bad" in done.stdout
    bad = [line for line in done.stdout.splitlines() if line.startswith("bad")]
    assert [line.split("]  ")[1].split(":")[0] for line in bad] == ["sif-truncated", "html-page"]


def test_json_and_quiet(poolmgr: Run, pool: Path) -> None:
    done = poolmgr("verify", "--json", "--level", "data", pool)
    found, summary = rows(done)
    assert {n: r["verdict"] for n, r in found.items()} == {
        "a.sif": "ok", "b.sif": "ok", "cut.sif": "bad", "page.sif": "bad",
    }  # fmt: skip
    assert found["a.sif"]["checks"] == dict.fromkeys(("listed", "header", "mount", "tables", "data"), "ok")
    assert [f["code"] for f in found["b.sif"]["findings"]] == ["sif-trailing"]
    assert summary["verdicts"] == {"ok": 2, "bad": 2}
    quiet = poolmgr("verify", "-q", pool)
    assert quiet.stdout.splitlines() == [str(pool / f"images/{n}.sif") for n in ("cut", "page")]
    assert quiet.stderr == ""


def test_hash(poolmgr: Run, good: Path, pool: Path, tmp_path: Path) -> None:
    right = hashlib.sha256(good.read_bytes()).hexdigest()
    assert poolmgr("verify", "--sha256", right, good).returncode == 0
    done = poolmgr("verify", "--sha256", "0" * 64, good)
    assert done.returncode == 3
    assert "wrong-hash" in done.stdout
    done = poolmgr("verify", "--hash", good)
    assert done.returncode == 3, "there was nothing to compare with"
    assert "no sha256 is on record" in done.stdout
    sums = tmp_path / "SHA256SUMS"
    sums.write_text(f"{right} *pool/images/a.sif\n{right}  pool/images/b.sif\n")
    found, _ = rows(poolmgr("verify", "--json", "--sums", sums, pool / "images/a.sif", pool / "images/b.sif"))
    assert (found["a.sif"]["verdict"], found["a.sif"]["checks"]["hash"]) == ("ok", "ok")
    assert (found["b.sif"]["verdict"], found["b.sif"]["checks"]["hash"]) == ("bad", "bad")
    assert poolmgr("verify", "--sha256", right, good, pool / "images/a.sif").returncode == 2
    assert poolmgr("verify", "--sha256", "xyz", good).returncode == 2
    sums.write_text("no sums\n")
    assert poolmgr("verify", "--sums", sums, good).returncode == 1


def test_what_sums_list_and_is_not_there_is_bad(poolmgr: Run, good: Path, tmp_path: Path) -> None:
    """As sha256sum -c has it: a file that was deleted does not make a folder pass."""
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(good, folder / "a.sif")
    (folder / "README.txt").write_text("no image")
    right = hashlib.sha256(good.read_bytes()).hexdigest()
    sums = tmp_path / "SUMS"
    lines = [f"{right}  folder/{name}\n" for name in ("a.sif", "gone.sif", "README.txt")]
    sums.write_text("".join(lines))
    done = poolmgr("verify", "--json", "--sums", sums, folder)
    found, summary = rows(done)
    assert done.returncode == 3
    assert (found["a.sif"]["verdict"], found["gone.sif"]["findings"][0]["code"]) == ("ok", "missing")
    assert summary["notes"] == [f"{sums} lists 1 file more, not looked at"]
    assert poolmgr("verify", "--sums", sums, folder / "a.sif").returncode == 0
    sums.write_text(lines[0] + lines[0] + lines[2])
    assert poolmgr("verify", "--sums", sums, folder).returncode == 0
    sums.write_text(lines[0] + lines[0].replace(right, "0" * 64))
    done = poolmgr("verify", "--sums", sums, folder)
    assert done.returncode == 1
    assert f"{sums}:2: another sha256" in done.stderr


def test_sums_of_a_pool_that_lacks_one(poolmgr: Run, good: Path, pool: Path, tmp_path: Path) -> None:
    right = hashlib.sha256(good.read_bytes()).hexdigest()
    sums = tmp_path / "SUMS"
    sums.write_text(f"{right}  images/a.sif\n{right}  images/gone.sif\n")
    found, _ = rows(poolmgr("verify", "--json", "-p", pool, "--sums", sums, "images"))
    assert found["gone.sif"]["findings"][0]["code"] == "missing"
    found, summary = rows(poolmgr("verify", "--json", "-p", pool, "--sums", sums, "images/a.sif"))
    assert "gone.sif" not in found
    assert summary["notes"] == [f"{sums} lists 1 file more, not looked at"]


def test_sums_without_end_are_refused(poolmgr: Run, good: Path) -> None:
    done = poolmgr("verify", "--sums", "/dev/zero", good)
    assert done.returncode == 1
    assert "larger than 64 MiB" in done.stderr


def test_apptainer(poolmgr: Run, pool: Path, tmp_path: Path) -> None:
    images.need("apptainer")
    found, summary = rows(poolmgr("verify", "--json", "--inspect", "--run", pool))
    assert found["a.sif"]["checks"]["inspect"] == found["a.sif"]["checks"]["run"] == "ok"
    assert "not asked" in found["cut.sif"]["not_checked"]["inspect"]
    assert summary["versions"]["apptainer"].startswith("apptainer 1.")
    (tmp_path / "empty").mkdir()
    python = Path(sys.executable).parent
    done = poolmgr(
        "verify", "--inspect", pool / "images/a.sif", env={"PATH": f"{tmp_path / 'empty'}:{python}"}
    )
    assert done.returncode == 3
    assert "neither apptainer nor singularity is installed" in done.stdout


def test_identities(poolmgr: Run, pool: Path, good: Path) -> None:
    found, _ = rows(poolmgr("verify", "--json", "--identity", pool))
    a, b = found["a.sif"]["identities"], found["b.sif"]["identities"]
    assert a["file_sha256"] == hashlib.sha256(good.read_bytes()).hexdigest() != b["file_sha256"]
    assert (a["partition_sha256"], a["tree_sha256"]) == (b["partition_sha256"], b["tree_sha256"])
    assert "tree_sha256" not in found["cut.sif"]["identities"]


def test_a_remote_pool_is_read_by_ranges(poolmgr: Run, hub: Hub, good: Path) -> None:
    data = good.read_bytes()
    index = json.dumps({"v": {"t1": "a.sif", "t2": "b.sif"}}).encode()
    hub.add_repo("datasets", "acme/pool", {"a.sif": data, "b.sif": data[:-1], "task_to_blob.json": index})
    address = "hf://datasets/acme/pool"
    found, _ = rows(poolmgr("verify", "--json", "-p", address, env=hub.env()))
    assert {n: r["verdict"] for n, r in found.items()} == {"a.sif": "ok", "b.sif": "bad"}
    assert all(r.range for r in hub.requests("a.sif", origin="cdn"))
    done = poolmgr(
        "verify", "--json", "--hash", "--level", "data", "--identity", "-p", address, "a.sif", env=hub.env()
    )
    found, _ = rows(done)
    assert found["a.sif"]["identities"]["file_sha256"] == hashlib.sha256(data).hexdigest()
    assert len(found["a.sif"]["identities"]) == 3
    assert found["a.sif"]["checks"]["data"] == found["a.sif"]["checks"]["hash"] == "ok"


def test_a_given_hash_is_compared_wherever_the_image_lies(
    poolmgr: Run, hub: Hub, good: Path, pool: Path
) -> None:
    """Of a blob named with -p, here or remote, as of a file named by its path; never 'ok' unseen."""
    data = good.read_bytes()
    right, wrong = hashlib.sha256(data).hexdigest(), "0" * 64
    index = json.dumps({"v": {"t1": "images/a.sif"}}).encode()
    hub.add_repo("datasets", "acme/pool", {"images/a.sif": data, "task_to_blob.json": index})
    sums = pool / "SUMS"
    for address in ("hf://datasets/acme/pool", pool):
        for value, status in ((right, 0), (wrong, 3)):
            sums.write_text(f"{value}  images/a.sif\n")
            for given in (("--sha256", value), ("--sums", sums)):
                done = poolmgr("verify", "--json", "-p", address, "images/a.sif", *given, env=hub.env())
                found, _ = rows(done)
                assert done.returncode == status, (address, given)
                assert found["a.sif"]["checks"]["hash"] == ("ok" if status == 0 else "bad")
    sums.write_text(f"{right}  images/other.sif\n")
    done = poolmgr("verify", "--json", "-p", "hf://datasets/acme/pool", "--sums", sums, env=hub.env())
    assert rows(done)[0]["a.sif"]["verdict"] == "unchecked", "no sum was given for it"
    assert poolmgr("verify", "-p", pool, "--sha256", right).returncode == 2


def test_a_merge_compares_the_hash_that_is_given_now(poolmgr: Run, good: Path, pool: Path) -> None:
    right = hashlib.sha256(good.read_bytes()).hexdigest()
    image = pool / "images/a.sif"
    assert poolmgr("verify", "--sha256", right, image).returncode == 0
    assert poolmgr("verify", "--merge", "--sha256", right, image).returncode == 0
    done = poolmgr("verify", "--merge", "--sha256", "0" * 64, image)
    assert (done.returncode, "wrong-hash" in done.stdout) == (3, True)
    (pool / ".poolmgr/attest").rename(pool / ".poolmgr/old")
    assert poolmgr("verify", image).returncode == 0
    done = poolmgr("verify", "--merge", "--sha256", right, image)
    assert (done.returncode, "no shard hashed it" in done.stdout) == (3, True)


def test_another_architecture_is_said_and_not_remembered(poolmgr: Run, good: Path, pool: Path) -> None:
    """It is wrong for one machine; the file itself is not bad."""
    image = pool / "images/a.sif"
    done = poolmgr("verify", "--arch", "arm64", image)
    assert (done.returncode, "wrong-arch" in done.stdout) == (3, True)
    assert poolmgr("verify", "--merge", "--arch", "arm64", image).returncode == 3
    assert poolmgr("verify", "--merge", image).returncode == 0
    assert poolmgr("resolve", "-p", pool, "--variant", "v", "ta").returncode == 0
    done = poolmgr("verify", "--arch", "arm64", "--inspect", image)
    assert "inspect not checked: not asked: the image is for another architecture" in done.stdout


def test_a_folder_that_cannot_be_read_is_unchecked_and_the_rest_is_looked_at(
    poolmgr: Run, pool: Path
) -> None:
    (pool / "images/closed").mkdir()
    (pool / "images/closed").chmod(0)
    command: list[str | Path] = [sys.executable, "-m", "poolmgr", "verify", "--json", pool]
    if os.geteuid() == 0:
        images.need("setpriv")
        drop = "-dac_override,-dac_read_search"
        command = ["setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}", *command]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    (pool / "images/closed").chmod(0o755)
    found, _ = rows(done)
    assert done.returncode == 3
    assert found["closed"]["findings"][0]["code"] == "unreadable"
    assert (found["closed"]["verdict"], found["a.sif"]["verdict"]) == ("unchecked", "ok")


def test_an_empty_list_and_an_address_in_place_of_a_path(poolmgr: Run) -> None:
    done = poolmgr("verify", "-", stdin="\n")
    assert (done.returncode, "nothing-compared" in done.stderr) == (3, True)
    done = poolmgr("verify", "hf://datasets/acme/pool/a.sif")
    assert (done.returncode, "-p ADDRESS" in done.stderr) == (2, True)


def test_nothing_to_look_at_is_a_failure(poolmgr: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = poolmgr("verify", tmp_path / "empty")
    assert (done.returncode, "nothing-compared" in done.stderr) == (3, True)
    assert poolmgr("verify").returncode == 2
    done = poolmgr("verify", "--json", tmp_path / "none.sif")
    found, _ = rows(done)
    assert found["none.sif"]["findings"][0]["code"] == "missing"


def test_a_list_on_stdin(poolmgr: Run, pool: Path) -> None:
    listed = f"{pool}/images/a.sif\n{pool}/images/page.sif\n"
    found, _ = rows(poolmgr("verify", "--json", "-", stdin=listed))
    assert set(found) == {"a.sif", "page.sif"}


def test_a_pool_by_its_address(poolmgr: Run, pool: Path) -> None:
    found, _ = rows(poolmgr("verify", "--json", "-p", pool))
    assert {r["path"] for r in found.values()} == {f"images/{n}.sif" for n in ("a", "b", "cut", "page")}
    found, _ = rows(poolmgr("verify", "--json", "-p", pool, "images/a.sif"))
    assert set(found) == {"a.sif"}
    done = poolmgr("verify", "--json", "-p", pool, "images/none.sif", "images/a.sif")
    found, _ = rows(done)
    assert (done.returncode, found["none.sif"]["findings"][0]["code"]) == (3, "missing")
    assert found["a.sif"]["verdict"] == "ok"


def test_what_was_found_is_attested_and_a_changed_file_is_not_covered(poolmgr: Run, pool: Path) -> None:
    assert poolmgr("verify", "--level", "data", pool).returncode == 3
    found, _ = rows(poolmgr("verify", "--merge", "--json", "--level", "data", pool))
    assert {n: r["verdict"] for n, r in found.items()} == {
        "a.sif": "ok", "b.sif": "ok", "cut.sif": "bad", "page.sif": "bad",
    }  # fmt: skip
    image = pool / "images/a.sif"
    st = image.stat()
    data = bytearray(image.read_bytes())
    data[len(data) // 2] ^= 1
    image.write_bytes(data)
    os.utime(image, ns=(st.st_atime_ns, st.st_mtime_ns))
    (pool / "images/new.sif").write_bytes(data)
    found, _ = rows(poolmgr("verify", "--merge", "--json", "--level", "data", pool))
    assert found["a.sif"]["not_checked"] == {"data": "changed since a shard looked at it"}
    assert found["new.sif"]["not_checked"] == {"data": "no shard covered it"}


def test_shards_are_joined_and_what_none_covered_is_named(poolmgr: Run, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(12):
        shutil.copy(good, folder / f"{number}.sif")
    seen: dict[str, str] = {}
    for index in range(3):
        slurm = {
            "SLURM_ARRAY_TASK_ID": str(index), "SLURM_ARRAY_TASK_MIN": str(index),
            "SLURM_ARRAY_TASK_MAX": str(index), "SLURM_ARRAY_TASK_COUNT": "1",
        }  # fmt: skip
        found, summary = rows(poolmgr("verify", "--json", "--shard", "auto/4", folder, env=slurm))
        assert summary["shard"] == f"{index}/4"
        assert not seen.keys() & found.keys()
        seen |= dict.fromkeys(found, "ok")
    assert poolmgr("verify", "--shard", "auto", folder, env=slurm).returncode == 2
    done = poolmgr("verify", "--json", "--merge", folder)
    found, _ = rows(done)
    assert done.returncode == 3
    assert {n for n, r in found.items() if r["verdict"] == "ok"} == set(seen)
    assert {n for n, r in found.items() if r["not_checked"] == {"mount": "no shard covered it"}}
    assert poolmgr("verify", "--shard", "3/4", folder).returncode == 0
    assert poolmgr("verify", "--merge", folder).returncode == 0
    (folder / ".poolmgr/attest/torn.jsonl").write_text("{")
    done = poolmgr("verify", "--merge", folder)
    assert done.returncode == 0
    assert "rows that cannot be read were ignored: torn.jsonl:1" in done.stderr
    (folder / ".poolmgr/attest/torn.jsonl").unlink()
    assert len(list((folder / ".poolmgr/attest").glob("*.jsonl"))) == 4


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 5)])
def test_a_stop_leaves_the_attestation_so_far(
    good: Path, tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(300):
        os.link(good, folder / f"{number:03}.sif")
    child = subprocess.Popen(
        [
            sys.executable, "-m", "poolmgr", "verify", "--level", "data", "-j", "1",
            "--attest", str(tmp_path / "attest"), folder,
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(0.1)
    child.send_signal(sent)
    _, said = child.communicate(timeout=60)
    assert child.returncode == status, said
    assert "Traceback" not in said
    [file] = (tmp_path / "attest").glob("*.jsonl")
    lines = file.read_text().splitlines()
    assert 0 < len(lines) < 300
    assert json.loads(lines[0])["checks"]["data"] == "ok"


def test_a_folder_that_cannot_be_written_is_a_warning(poolmgr: Run, pool: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    pool.chmod(0o555)
    done = poolmgr("verify", pool)
    assert "not remembered" in done.stderr
