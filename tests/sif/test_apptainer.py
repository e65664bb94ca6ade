"""The real Apptainer: what it is told, what it says, and whose fault it is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poolmgr.errors import AlreadyExistsError, BadFileError, ToolFailedError
from poolmgr.model.finding import Level, Verdict
from poolmgr.sif.apptainer import Apptainer, Cause, cause_of, last_word
from poolmgr.sif.check import check_file
from poolmgr.sif.child import Done, run_child
from poolmgr.temporary import scratch_folder
from tests import images
from tests.sif.damage import Base


@pytest.fixture(scope="module")
def apptainer() -> Apptainer:
    images.need("apptainer")
    return Apptainer.need()


def fake(folder: Path, script: str) -> Apptainer:
    """A program in Apptainer's place, to see what it is given."""
    program = folder / "apptainer"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Apptainer(str(program))


def test_version(apptainer: Apptainer) -> None:
    assert apptainer.version.startswith("apptainer 1.")


def test_inspect_reads_labels(apptainer: Apptainer, built_sif: Path) -> None:
    said = apptainer.inspect(built_sif)
    assert said.verdict is Verdict.OK
    assert said.document is not None
    assert "org.label-schema.build-arch" in said.document["data"]["attributes"]["labels"]


def test_inspect_never_runs_the_image(gzip_sif: Path, tmp_path: Path) -> None:
    said = fake(tmp_path, f"touch {tmp_path}/ran").inspect(gzip_sif)
    assert (said.verdict, said.message) == (
        Verdict.UNCHECKED,
        "would run the image: it has no metadata descriptor",
    )
    assert not (tmp_path / "ran").exists()


def test_a_damaged_image_is_not_handed_over(built_sif: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.sif"
    cut.write_bytes(built_sif.read_bytes()[:-5000])
    assert fake(tmp_path, "exit 0").inspect(cut).verdict is Verdict.UNCHECKED


def test_run(apptainer: Apptainer, built_sif: Path, tmp_path: Path) -> None:
    assert apptainer.run_true(built_sif).verdict is Verdict.OK
    cut = tmp_path / "cut.sif"
    cut.write_bytes(built_sif.read_bytes()[: built_sif.stat().st_size // 2])
    said = apptainer.run_true(cut)
    assert said.verdict is Verdict.BAD, said
    assert said.findings[0].code == "apptainer-refuses"


def test_a_program_that_crashes_in_a_damaged_image(built_sif: Path, tmp_path: Path) -> None:
    """Apptainer itself says nothing then; only warnings stand on its stderr."""
    script = "echo 'WARNING: group file does not exist' >&2; exit 139"
    said = fake(tmp_path, script).run_true(built_sif)
    assert said.verdict is Verdict.UNCHECKED, "the data is whole: it may be the processor"
    assert "died of signal 11" in said.message
    base = Base(built_sif.read_bytes())
    damaged = tmp_path / "damaged.sif"
    damaged.write_bytes(base.flip(base.middle(base.packed[-1])))
    said = fake(tmp_path, script).run_true(damaged)
    assert said.verdict is Verdict.BAD
    assert "died of signal 11" in said.findings[0].message
    assert (
        fake(tmp_path, "echo 'WARNING: x' >&2; exit 7").run_true(built_sif).message.endswith("exit status 7")
    )


def test_an_image_without_true_is_not_bad(apptainer: Apptainer, tmp_path: Path) -> None:
    (tmp_path / "root/bin").mkdir(parents=True)
    (tmp_path / "root/bin/nothing").write_text("x")
    sif = images.wrap(images.squash(tmp_path / "root", tmp_path / "x.sqfs"), tmp_path / "x.sif")
    said = apptainer.run_true(sif)
    assert said.verdict is Verdict.UNCHECKED


def test_the_child_sees_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_sif: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("APPTAINER_DOCKER_PASSWORD", "secret")
    monkeypatch.setenv("APPTAINERENV_X", "secret")
    env = tmp_path / "env"
    fake(tmp_path, f"env > {env}; echo '{{}}'").inspect(built_sif)
    seen = env.read_text()
    assert "secret" not in seen
    home = next(line for line in seen.splitlines() if line.startswith("HOME="))
    assert not Path(home[5:]).exists(), "the child's own folder is removed"
    fake(tmp_path, f"env > {env}; exit 1").execute(built_sif, ["true"])
    assert "secret" not in env.read_text()


def test_a_time_out_ends_the_whole_group(tmp_path: Path, built_sif: Path) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/pid; wait"
    begun = time.monotonic()
    said = fake(tmp_path, script).run_true(built_sif, timeout=0.5)
    assert said.verdict is Verdict.UNCHECKED
    assert time.monotonic() - begun < 60
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes():
            return
        time.sleep(0.05)
    pytest.fail("the grandchild lives on")


def test_much_output_neither_blocks_nor_fills_memory() -> None:
    script = "import sys\nfor _ in range(20000): print('x' * 100, file=sys.stderr); print('y' * 100)"
    done = run_child([sys.executable, "-c", script], timeout=60, keep=10_000)
    assert done.status == 0
    assert len(done.out) < 21_000
    assert "bytes …" in done.err


def test_build_from_a_definition(apptainer: Apptainer, built_sif: Path, tmp_path: Path) -> None:
    spec = tmp_path / "x.def"
    spec.write_text(f"Bootstrap: localimage\nFrom: {built_sif}\n%post\n  echo hi > /hi\n")
    to = tmp_path / "new.sif"
    apptainer.build(spec, to, scratch=tmp_path)
    assert check_file(to, Level.DATA).verdict.passes
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.sif", "x.def"]
    with pytest.raises(AlreadyExistsError):
        apptainer.build(spec, to, scratch=tmp_path)


def test_a_failed_build_leaves_nothing(apptainer: Apptainer, built_sif: Path, tmp_path: Path) -> None:
    spec = tmp_path / "x.def"
    spec.write_text(f"Bootstrap: localimage\nFrom: {built_sif}\n%post\n  exit 3\n")
    with pytest.raises(ToolFailedError, match="status 3") as caught:
        apptainer.build(spec, tmp_path / "new.sif", scratch=tmp_path)
    assert caught.value.details
    assert [p.name for p in tmp_path.iterdir()] == ["x.def"]


def test_an_exit_status_of_0_is_not_believed(tmp_path: Path) -> None:
    liar = fake(tmp_path, 'for last; do :; done; echo x > "$3"')
    with pytest.raises(BadFileError, match="not valid"):
        liar.build("x.def", tmp_path / "new.sif", scratch=tmp_path)
    assert not (tmp_path / "new.sif").exists()


def test_pull_says_why(apptainer: Apptainer, tmp_path: Path) -> None:
    with pytest.raises(ToolFailedError) as caught:
        apptainer.pull("docker://user:hunter2@127.0.0.1:1/x:y", tmp_path / "x.sif", scratch=tmp_path)
    assert "hunter2" not in str(caught.value.message) + "".join(caught.value.details)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("FATAL: image format not recognized", Cause.IMAGE),
        ("FATAL: while loading SIF: invalid SIF magic", Cause.IMAGE),
        ("reading descriptors: unexpected EOF", Cause.IMAGE),
        ("panic: runtime error: makeslice: len out of range", Cause.IMAGE),
        ("while checking system partition header: x", Cause.IMAGE),
        ("squashfuse_ll exited: Something went wrong trying to read the squashfs image.", Cause.IMAGE),
        ("no root filesystem found", Cause.IMAGE),
        ("kernel reported a bad superblock for squashfs image partition, possible causes", Cause.KERNEL),
        ("the image's architecture (arm64) could not run on the host's (amd64)", Cause.ARCH),
        ("required option --passphrase or --pem-path missing", Cause.ENCRYPTED),
        ("failed to open /dev/fuse: Permission denied", Cause.MACHINE),
        ("squashfuse_ll failed to mount /x in 10s", Cause.MACHINE),
        ("no loop devices available", Cause.MACHINE),
        ("Requesting capability set 0x1ff while permitted is 0x3f", Cause.MACHINE),
        ("something new", Cause.UNKNOWN),
    ],
)
def test_whose_fault_it_is(text: str, cause: Cause) -> None:
    assert cause_of(text) is cause


def test_the_last_word_holds_no_secret() -> None:
    done = Done(255, "", "INFO: x\nFATAL:   Get https://me:secret@h/x?token=secret2: refused\n")
    assert last_word(done) == "Get https://h/x?… refused"


def test_scratch_is_removed_even_when_it_is_read_only(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "a/b").mkdir(parents=True)
        (folder / "a/b/c").touch()
        (folder / "a/b").chmod(0)
        (folder / "a").chmod(0)
    assert os.listdir(tmp_path) == []


def test_nothing_else_starts_programs() -> None:
    """The image reader runs no program: only these two modules may."""
    here = Path(__file__).parents[2] / "poolmgr/sif"
    users = {p.name for p in here.glob("*.py") if "subprocess" in p.read_text()}
    assert users == {"child.py"}
    assert subprocess is not None
