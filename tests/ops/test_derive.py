"""``derive`` end to end: recipes, real bases, real programs, and everything that may go wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poolmgr.errors import (
    AlreadyExistsError,
    DeriveFailedError,
    PoolError,
    RecipeInvalidError,
    UnknownTaskError,
    UsageError,
)
from poolmgr.model.finding import Level
from poolmgr.ops.derive import Derive
from poolmgr.ops.derive_build import post_section
from poolmgr.ops.derive_facts import Derived, Request, Result
from poolmgr.ops.pip_lock import pip_download
from poolmgr.ops.view import open_folder
from poolmgr.sif.check import check_file
from poolmgr.sif.derived import provenance_of
from poolmgr.sif.header import read_container
from poolmgr.sif.image import open_image
from poolmgr.sif.source import FileSource
from poolmgr.sif.write import minimal_image, write_sif
from poolmgr.sif.write_node import directory, file
from tests.conftest import RunPoolmgr
from tests.images import need
from tests.ops.wheel_kit import make_wheel, python_image_bytes
from tests.sif.tools import apptainer

ORACLE = b"the oracle's secret " * 50


@pytest.fixture(scope="session")
def python_pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One image with a running Python, for two tasks; a second image for a third."""
    pool = tmp_path_factory.mktemp("pool")
    (pool / "images").mkdir()
    (pool / "images/py__aaaaaaaaaaaa.sif").write_bytes(python_image_bytes())
    write_sif(
        pool / "images/plain__bbbbbbbbbbbb.sif",
        {
            "app/oracle": file(ORACLE),
            "app/task.txt": file(b"task\n"),
            "app/dir/a": file(b"a"),
            "bin": directory(),
        },
    )
    index = {
        "original": {
            "task_1": "images/py__aaaaaaaaaaaa.sif",
            "task_2": "images/py__aaaaaaaaaaaa.sif",
            "task_3": "images/plain__bbbbbbbbbbbb.sif",
        }
    }
    (pool / "task_to_blob.json").write_text(json.dumps(index))
    return pool


def write(folder: Path, text: str, base: str = '{ variant = "original" }') -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "recipe.toml"
    path.write_text(f'schema = 1\nname = "hard"\nbase = {base}\n{text}')
    return path


def derive(pool: Path, recipe: Path, to: Path, **options: object) -> Derived:
    run = Derive(open_folder(pool), Request(recipe, to, **options))  # type: ignore[arg-type]
    return run.carry_out(run.plan())


def content(path: Path) -> dict[str, bytes]:
    with FileSource(path) as source:
        image = open_image(source)
        return {p: image.read(p) for p, e in image.merged.items() if e.is_file}


def good(derived: Derived) -> None:
    assert not derived.of(Result.FAILED), [
        (o.error.message, o.error.details) for o in derived.outcomes if o.error
    ]


REMOVE = '[[step]]\nremove = ["/app/oracle*"]\n'
PLAIN = '{ blob = "images/plain__bbbbbbbbbbbb.sif" }'


@pytest.mark.parametrize("method", ["auto", "overlay"])
def test_a_removal_and_a_new_file(tmp_path: Path, python_pool: Path, method: str) -> None:
    recipe = write(
        tmp_path / "r",
        REMOVE + '[[step]]\nfiles = [{ from = "a.txt", to = "/app/a.txt", mode = "0755" }]\n'
        '[expect]\nrequire = ["/app/a.txt"]\n' + ('forbid = ["/app/oracle*"]\n' if method == "auto" else ""),
        PLAIN,
    )
    (tmp_path / "r/a.txt").write_text("hello\n")
    done = derive(python_pool, recipe, tmp_path / "out", method=method)
    good(done)
    made = done.outcomes[0]
    path = tmp_path / "out" / made.planned.name
    assert set(content(path)) == {"app/task.txt", "app/dir/a", "app/a.txt"}
    assert made.planned.method == ("rebuild" if method == "auto" else "overlay")
    assert (ORACLE[:40] in path.read_bytes()) is False  # compressed in the overlay's base
    with FileSource(path) as source:
        told = provenance_of(source, read_container(source))
        assert told is not None
        assert told["base_sha256"] == made.planned.sha256
        assert told["recipe_sha256"] == made.planned.digest
        assert told["reproducible"] is True
    assert path.stat().st_mode & 0o777 == 0o644
    shown = [p.name for p in (tmp_path / "out").iterdir() if not p.name.startswith(".")]
    assert shown == [made.planned.name]  # no task, so no map


def test_overlay_that_only_hides_fails_an_expectation_that_forbids(tmp_path: Path, python_pool: Path) -> None:
    recipe = write(tmp_path / "r", REMOVE + '[expect]\nforbid = ["/app/oracle"]\n', PLAIN)
    done = derive(python_pool, recipe, tmp_path / "out", method="overlay")
    error = done.outcomes[0].error
    assert error is not None
    assert any("still in the file" in line for line in error.details)
    assert list((tmp_path / "out").iterdir()) == []


def test_both_methods_give_one_tree_and_each_gives_the_same_bytes_again(
    tmp_path: Path, python_pool: Path
) -> None:
    make_wheel(tmp_path / "r/wheels" if (tmp_path / "r").mkdir() is None else tmp_path, "six", "1.16.0")
    recipe = write(
        tmp_path / "r",
        REMOVE + '[[step]]\npip = ["six==1.16.0"]\n[[step]]\nfiles = [{ from = "a", to = "/app/new/a" }]\n',
        '{ blob = "images/py__aaaaaaaaaaaa.sif" }',
    )
    (tmp_path / "r/a").write_text("a")
    Derive(open_folder(python_pool), Request(recipe, tmp_path)).lock(None)
    made = {}
    for method in ("overlay", "rebuild"):
        first = derive(python_pool, recipe, tmp_path / f"{method}1", method=method)
        again = derive(python_pool, recipe, tmp_path / f"{method}2", method=method)
        good(first)
        name = first.outcomes[0].planned.name
        assert (tmp_path / f"{method}1" / name).read_bytes() == (tmp_path / f"{method}2" / name).read_bytes()
        assert first.outcomes[0].sha256 == again.outcomes[0].sha256
        made[method] = first.outcomes[0]
    assert made["overlay"].tree_sha256 == made["rebuild"].tree_sha256 is not None
    assert made["overlay"].planned.name != made["rebuild"].planned.name
    one, two = (content(tmp_path / f"{m}1" / made[m].planned.name) for m in ("overlay", "rebuild"))
    assert one == two


@pytest.mark.apptainer
@pytest.mark.parametrize("method", ["overlay", "rebuild"])
def test_what_pip_installs_runs(tmp_path: Path, python_pool: Path, method: str) -> None:
    need("apptainer")
    folder = tmp_path / "r"
    folder.mkdir()
    make_wheel(folder / "wheels", "toplib", "1.0", requires=("lowlib>=1",), scripts={"toplib": "toplib:main"})
    make_wheel(folder / "wheels", "lowlib", "1.2")
    recipe = write(
        folder,
        '[[step]]\npip = ["toplib==1.0"]\n[expect]\nmodules = ["toplib", "lowlib"]\n'
        'run = ["/usr/bin/python3", "-c", "import toplib, lowlib; assert lowlib.VERSION == \'1.2\'"]\n',
    )
    # the third task's image has no interpreter: it fails, and the others do not
    run = Derive(open_folder(python_pool), Request(recipe, tmp_path / "out", method=method, jobs=2))
    with pytest.raises(PoolError, match="not in the image"):
        run.lock(None)
    (folder / "tasks.txt").write_text("task_1\ntask_2\n")
    recipe.write_text(recipe.read_text().replace('"original" }', '"original", tasks = "tasks.txt" }'))
    run = Derive(open_folder(python_pool), Request(recipe, tmp_path / "out", method=method))
    lock, new = run.lock(None)
    assert [sorted(w.name for w in wheels) for wheels in lock.sets.values()] == [["lowlib", "toplib"]]
    assert len(new) == 1
    done = derive(python_pool, recipe, tmp_path / "out", method=method)
    good(done)
    assert len(done.outcomes) == 1
    assert not done.outcomes[0].notes
    name = done.outcomes[0].planned.name
    assert json.loads((tmp_path / "out/hard.tasks.json").read_text()) == {"task_1": name, "task_2": name}
    image = tmp_path / "out" / name
    code = "import importlib.metadata as m; print(m.version('toplib'), len(m.files('toplib')))"
    for how in ("--no-privs", "--userns"):
        said = apptainer("exec", how, "--containall", "--no-home", image, "/usr/bin/python3", "-c", code)
        assert said.split()[0] == "1.0"
        assert int(said.split()[1]) >= 6
    said = apptainer("inspect", "--labels", image)
    assert "kind: python" in said


@pytest.mark.apptainer
def test_an_expected_command_that_fails_keeps_the_image_from_its_name(
    tmp_path: Path, python_pool: Path
) -> None:
    need("apptainer")
    recipe = write(
        tmp_path / "r",
        '[[step]]\nremove = ["/app/oracle"]\n[expect]\nrun = ["/usr/bin/python3", "-c", "import absent"]\n',
        '{ blob = "images/py__aaaaaaaaaaaa.sif" }',
    )
    done = derive(python_pool, recipe, tmp_path / "out")
    error = done.outcomes[0].error
    assert error is not None
    assert any("No module named 'absent'" in line for line in error.details)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.apptainer
def test_a_command_is_run_by_apptainer_and_marks_the_result(tmp_path: Path, python_pool: Path) -> None:
    need("apptainer")
    recipe = write(
        tmp_path / "r",
        REMOVE
        + '[[step]]\nrun = "echo made > /app/made"\n[[step]]\nfiles = [{ from = "a", to = "/app/made2" }]\n',
        '{ blob = "images/py__aaaaaaaaaaaa.sif" }',
    )
    (tmp_path / "r/a").write_text("a")
    done = derive(python_pool, recipe, tmp_path / "out")
    good(done)
    path = tmp_path / "out" / done.outcomes[0].planned.name
    held = content(path)
    assert held["app/made"] == b"made\n"
    assert held["app/made2"] == b"a"
    assert "app/oracle" not in held
    with FileSource(path) as source:
        told = provenance_of(source, read_container(source))
    assert told is not None
    assert told["reproducible"] is False


@pytest.mark.apptainer
def test_a_command_reaches_the_shell_as_it_was_written(tmp_path: Path, python_pool: Path) -> None:
    need("apptainer")
    text = "%post\n  %files 'a' \"b\" $HOME `x` \\\\ {{ name }} #\tüé\nend\n" + "long " * 2_000 + "\n"
    command = f"cat > /app/made <<'END'\n{text}END\nx=$(echo 'it''s'); echo \"$x\" >> /app/made"
    recipe = write(
        tmp_path / "r", f"[[step]]\nrun = {json.dumps(command)}\n", '{ blob = "images/py__aaaaaaaaaaaa.sif" }'
    )
    done = derive(python_pool, recipe, tmp_path / "out")
    good(done)
    held = content(tmp_path / "out" / done.outcomes[0].planned.name)
    assert held["app/made"] == f"{text}its\n".encode()
    with pytest.raises(DeriveFailedError, match="reads 60,000 of a section"):
        post_section(["true\n" * 20_000])


def test_one_failure_stops_no_other_and_the_map_names_only_what_is_there(
    tmp_path: Path, python_pool: Path
) -> None:
    recipe = write(tmp_path / "r", '[[step]]\nremove = ["/app/dir/a"]\n')
    done = derive(python_pool, recipe, tmp_path / "out", jobs=2)
    assert [o.result for o in done.outcomes].count(Result.FAILED) == 1
    assert done.exit == 3
    failed = done.of(Result.FAILED)[0]
    assert failed.error is not None
    assert "matches nothing" in failed.error.message
    assert json.loads((tmp_path / "out/hard.tasks.json").read_text()).keys() == {"task_3"}
    recipe.write_text(recipe.read_text().replace('"/app/dir/a"]', '"/app/dir/a"]\noptional = true'))
    good(derive(python_pool, recipe, tmp_path / "out2"))


def test_a_second_run_keeps_what_is_there_and_refuses_what_is_something_else(
    tmp_path: Path, python_pool: Path
) -> None:
    recipe = write(tmp_path / "r", REMOVE, PLAIN)
    first = derive(python_pool, recipe, tmp_path / "out")
    path = tmp_path / "out" / first.outcomes[0].planned.name
    before = path.stat()
    second = derive(python_pool, recipe, tmp_path / "out")
    assert second.outcomes[0].result is Result.KEPT
    assert second.outcomes[0].sha256 == first.outcomes[0].sha256
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    path.chmod(0o644)
    path.write_bytes(minimal_image("another"))
    third = derive(python_pool, recipe, tmp_path / "out")
    assert third.outcomes[0].result is Result.FAILED
    assert third.outcomes[0].error is not None
    assert third.outcomes[0].error.code == "already-exists"
    assert path.read_bytes() == minimal_image("another")


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, Path]:
    """A pool whose base is stored blocks, which carry no checksum, and a recipe for it."""
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    (pool / "images/a.sif").write_bytes(minimal_image("a", os.urandom(300_000)))
    (pool / "task_to_blob.json").write_text('{"v": {"t": "images/a.sif"}}')
    return pool, write(tmp_path / "r", '[[step]]\nremove = ["/etc/label"]\n', '{ variant = "v" }')


def nothing_is_made(*_: object) -> None:
    raise AssertionError("an image was made again")


@pytest.mark.parametrize("touched", [False, True])
def test_what_a_run_wrote_down_is_not_made_again(
    tmp_path: Path, stored: tuple[Path, Path], touched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, recipe = stored
    first = derive(pool, recipe, tmp_path / "out").outcomes[0]
    path = tmp_path / "out" / first.planned.name
    if touched:
        os.utime(path)
    else:
        monkeypatch.setattr("poolmgr.ops.derive_make.file_sha256", nothing_is_made)
    monkeypatch.setattr("poolmgr.ops.derive_make.build", nothing_is_made)
    again = derive(pool, recipe, tmp_path / "out").outcomes[0]
    assert again.result is Result.KEPT
    assert (again.sha256, again.size, again.tree_sha256, again.shared) == (
        first.sha256, first.size, first.tree_sha256, first.shared,
    )  # fmt: skip


@pytest.mark.parametrize("journal", [True, False])
def test_a_kept_image_is_proven_not_believed(
    tmp_path: Path, stored: tuple[Path, Path], journal: bool
) -> None:
    """One byte differs in a block without a checksum: every level passes, only the bytes can tell."""
    pool, recipe = stored
    first = derive(pool, recipe, tmp_path / "out").outcomes[0]
    path = tmp_path / "out" / first.planned.name
    before = path.stat()
    if not journal:
        shutil.rmtree(tmp_path / "out/.poolmgr")
        assert derive(pool, recipe, tmp_path / "out").outcomes[0].result is Result.KEPT
        shutil.rmtree(tmp_path / "out/.poolmgr")
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(before.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert check_file(path, Level.DATA).verdict.passes
    error = derive(pool, recipe, tmp_path / "out").outcomes[0].error
    assert error is not None
    assert error.code == "already-exists"


def test_other_expectations_are_held_against_what_is_there(tmp_path: Path, stored: tuple[Path, Path]) -> None:
    pool, recipe = stored
    good(derive(pool, recipe, tmp_path / "out"))
    recipe.write_text(recipe.read_text() + '[expect]\nrequire = ["/never"]\n')
    error = derive(pool, recipe, tmp_path / "out").outcomes[0].error
    assert error is not None
    assert "not what the recipe expects" in error.message


def test_two_runs_at_once_into_one_folder_both_succeed(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    tasks = {}
    for n in range(30):
        (pool / f"images/{n}.sif").write_bytes(minimal_image(f"{n}", os.urandom(200_000)))
        tasks[f"t{n}"] = f"images/{n}.sif"
    (pool / "task_to_blob.json").write_text(json.dumps({"v": tasks}))
    recipe = write(tmp_path / "r", '[[step]]\nremove = ["/payload"]\n', '{ variant = "v" }')
    command = [sys.executable, "-m", "poolmgr", "derive", recipe, "-p", pool, "--to", tmp_path / "out"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    runs = [
        subprocess.Popen([*map(str, command), "--json"], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    ends = [json.loads(run.communicate(timeout=120)[0].splitlines()[-1]) for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert [end["made"] + end["kept"] for end in ends] == [30, 30]
    assert sum(end["made"] for end in ends) == 30, "each image is given its name once"


def test_a_dry_run_tells_what_the_run_would_meet(tmp_path: Path, python_pool: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r/a").write_text("a")
    for steps in ('[[step]]\nremove = ["/nope"]\n', '[[step]]\nfiles = [{ from = "a", to = "/app" }]\n'):
        recipe = write(tmp_path / "r", steps, PLAIN)
        run = Derive(open_folder(python_pool), Request(recipe, tmp_path / "out"))
        (planned,) = run.rehearse(run.plan())
        (outcome,) = run.carry_out(run.plan()).outcomes
        assert planned.error is not None
        assert outcome.error is not None
        assert (planned.error.code, planned.error.message) == (outcome.error.code, outcome.error.message)
    recipe = write(tmp_path / "r", REMOVE, PLAIN)
    run = Derive(open_folder(python_pool), Request(recipe, tmp_path / "out"))
    (planned,) = run.rehearse(run.plan())
    assert planned.error is None
    (tmp_path / "out" / planned.name).write_bytes(minimal_image("another"))
    (planned,) = run.rehearse(run.plan())
    assert planned.error is not None
    assert planned.error.code == "already-exists"


def test_a_map_replaces_only_a_map(tmp_path: Path, python_pool: Path) -> None:
    recipe = write(tmp_path / "r", REMOVE)
    index = python_pool / "task_to_blob.json"
    before = index.read_bytes()
    with pytest.raises(AlreadyExistsError, match="no map of tasks"):
        derive(python_pool, recipe, tmp_path / "out", map=index)
    assert index.read_bytes() == before
    for _ in range(2):
        done = derive(python_pool, recipe, tmp_path / "out", map=tmp_path / "map.json")
    assert json.loads((tmp_path / "map.json").read_text()) == done.tasks


def test_the_bases_bytes_are_the_key_not_its_path(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    for name in ("a", "b", "c"):
        write_sif(
            pool / f"images/{name}.sif",
            {"app/oracle": file(ORACLE), "same": file(b"c" if name == "c" else b"")},
        )
    index = {"v": {"t1": "images/a.sif", "t2": "images/b.sif", "t3": "images/c.sif"}}
    (pool / "task_to_blob.json").write_text(json.dumps(index))
    recipe = write(tmp_path / "r", REMOVE, '{ variant = "v" }')
    done = derive(pool, recipe, tmp_path / "out")
    good(done)
    assert len(done.outcomes) == 2
    assert done.tasks["t1"] == done.tasks["t2"] != done.tasks["t3"]
    (pool / "images/a.sif").unlink()
    write_sif(pool / "images/a.sif", {"app/oracle": file(ORACLE), "changed": file(b"x")})
    again = derive(pool, recipe, tmp_path / "out")
    good(again)
    assert again.tasks["t1"] not in done.tasks.values()


def test_audit_says_which_derived_images_are_stale(tmp_path: Path, poolmgr: RunPoolmgr) -> None:
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    write_sif(pool / "images/a.sif", {"app/oracle": file(ORACLE)})
    index = {"v": {"t1": "images/a.sif"}}
    (pool / "task_to_blob.json").write_text(json.dumps(index))
    done = derive(pool, write(tmp_path / "r", REMOVE, '{ variant = "v" }'), pool / "derived")
    index["hard"] = {"t1": "derived/" + done.tasks["t1"]}
    (pool / "task_to_blob.json").write_text(json.dumps(index))

    def audit() -> tuple[int, str]:
        ran = poolmgr("audit", "hard", "-p", pool, "--json")
        return ran.returncode, ran.stdout + ran.stderr

    status, said = audit()
    assert status == 0
    assert "stale-derivation" not in said
    assert "not compared" in said  # nobody recorded the base's sha256
    other = tmp_path / "other.sif"
    write_sif(other, {"app/oracle": file(ORACLE), "more": file(b"x")})
    (pool / "images/a.sif").write_bytes(other.read_bytes())
    record(pool, "images/a.sif")
    status, said = audit()
    assert "stale-derivation" in said
    assert "images/a.sif has other bytes now" in said


def record(pool: Path, path: str) -> None:
    """Attest the blob's sha256, as a fetch or push would."""
    from poolmgr.model.attestation import Attestation
    from poolmgr.model.finding import Level, Verdict
    from poolmgr.model.stamp import Stamp
    from poolmgr.ops.attest import AttestWriter

    view = open_folder(pool)
    assert view.attest_folder is not None
    assert view.identity is not None
    data = (pool / path).read_bytes()
    stamp = Stamp.of((pool / path).stat())
    sha256 = hashlib.sha256(data).hexdigest()
    view.attest_folder.mkdir(parents=True, exist_ok=True)
    with AttestWriter(view.attest_folder) as writer:
        writer.add(Attestation(view.identity, path, stamp, {Level.MOUNT.value: Verdict.OK}, sha256))


@pytest.mark.skipif(os.geteuid() != 0, reason="a small filesystem needs root to mount")
def test_a_full_disk_is_an_error_and_leaves_no_half_file(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    (pool / "images/a.sif").write_bytes(minimal_image("a", os.urandom(3_000_000)))
    (pool / "task_to_blob.json").write_text('{"v": {"t": "images/a.sif"}}')
    recipe = write(tmp_path / "r", '[[step]]\nremove = ["/etc/label"]\n', '{ variant = "v" }')
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", out], check=True)
    try:
        for method in ("rebuild", "overlay"):
            done = derive(pool, recipe, out, method=method)
            assert done.outcomes[0].error is not None
            assert done.outcomes[0].error.code == "no-space"
            assert list(out.iterdir()) == []
    finally:
        subprocess.run(["umount", out], check=True)


def test_a_base_may_be_named_by_its_image_reference(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    write_sif(pool / "images/acme__env__17c682d5c609.sif", {"app/oracle": file(ORACLE)})
    (pool / "task_to_blob.json").write_text('{"v": {"t": "images/acme__env__17c682d5c609.sif"}}')
    recipe = write(tmp_path / "r", REMOVE, '{ image = "acme/env:17c682d5c609" }')
    done = derive(pool, recipe, tmp_path / "out")
    good(done)
    assert done.outcomes[0].planned.work.base == "images/acme__env__17c682d5c609.sif"


def test_the_real_pip_downloads_for_the_images_interpreter(
    tmp_path: Path, python_pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline: pip is told to look in a folder and not to ask an index."""
    make_wheel(tmp_path / "mirror", "toplib", "1.0", requires=("lowlib>=1",))
    make_wheel(tmp_path / "mirror", "lowlib", "1.2")
    make_wheel(tmp_path / "mirror", "lowlib", "1.3", tag="cp27-none-any")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "mirror"))
    recipe = write(
        tmp_path / "r", '[[step]]\npip = ["toplib==1.0"]\n', '{ blob = "images/py__aaaaaaaaaaaa.sif" }'
    )
    run = Derive(open_folder(python_pool), Request(recipe, tmp_path / "out"))
    lock, _ = run.lock(pip_download)
    (wheels,) = lock.sets.values()
    assert [(w.name, w.version) for w in wheels] == [("lowlib", "1.2"), ("toplib", "1.0")]
    assert {w.file for w in wheels} == {p.name for p in (tmp_path / "r/wheels").iterdir()}
    good(derive(python_pool, recipe, tmp_path / "out"))


def test_a_damaged_base_is_refused(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    whole = minimal_image("a", os.urandom(9000))
    (pool / "images/a.sif").write_bytes(whole[:-200])
    (pool / "task_to_blob.json").write_text('{"v": {"t": "images/a.sif"}}')
    done = derive(
        pool, write(tmp_path / "r", '[[step]]\nremove = ["/payload"]\n', '{ variant = "v" }'), tmp_path / "o"
    )
    assert done.outcomes[0].error is not None
    assert done.outcomes[0].error.code == "invalid-image"


def test_unknown_names_stop_before_anything_is_made(tmp_path: Path, python_pool: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r/tasks.txt").write_text("task_1\ntask_9\n")
    recipe = write(tmp_path / "r", REMOVE, '{ variant = "original", tasks = "tasks.txt" }')
    with pytest.raises(UnknownTaskError) as e:
        derive(python_pool, recipe, tmp_path / "out")
    assert e.value.details == ("task_9",)
    recipe = write(tmp_path / "r", REMOVE + '[tasks."task_x"]\nremove = ["/a"]\n')
    with pytest.raises(UnknownTaskError, match="tables"):
        derive(python_pool, recipe, tmp_path / "out")
    recipe = write(tmp_path / "r", REMOVE, '{ variant = "orignal" }')
    with pytest.raises(PoolError, match="orignal"):
        derive(python_pool, recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError):
        Derive(None, Request(recipe, tmp_path / "out"))


@pytest.mark.parametrize("how", ["link", "linked folder", "absent", "folder"])
def test_a_source_outside_the_recipes_folder_or_absent_is_refused(
    tmp_path: Path, python_pool: Path, how: str
) -> None:
    recipe = write(tmp_path / "r", '[[step]]\nfiles = [{ from = "d/a", to = "/a" }]\n', PLAIN)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/a").write_text("secret")
    if how == "link":
        (tmp_path / "r/d").mkdir()
        (tmp_path / "r/d/a").symlink_to(tmp_path / "secret/a")
    elif how == "linked folder":
        (tmp_path / "r/d").symlink_to(tmp_path / "secret")
    elif how == "folder":
        (tmp_path / "r/d/a").mkdir(parents=True)
    with pytest.raises(RecipeInvalidError, match=r"leads out|does not exist|not a file"):
        derive(python_pool, recipe, tmp_path / "out")


@pytest.mark.parametrize("change", ["absent", "changed", "not locked"])
def test_only_locked_wheels_are_installed(tmp_path: Path, python_pool: Path, change: str) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    wheel = make_wheel(folder / "wheels", "six", "1.16.0")
    recipe = write(folder, '[[step]]\npip = ["six==1.16.0"]\n', '{ blob = "images/py__aaaaaaaaaaaa.sif" }')
    run = Derive(open_folder(python_pool), Request(recipe, tmp_path / "out"))
    if change != "not locked":
        run.lock(None)
    if change == "absent":
        wheel.unlink()
    elif change == "changed":
        make_wheel(folder / "wheels", "six", "1.16.0", {"six/more.py": b"x"})
    done = derive(python_pool, recipe, tmp_path / "out")
    assert done.outcomes[0].error is not None
    words = {"absent": "not there", "changed": "is locked", "not locked": "does not lock"}[change]
    assert words in done.outcomes[0].error.message


def test_the_lock_is_the_same_text_each_time(tmp_path: Path, python_pool: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    make_wheel(folder / "wheels", "six", "1.16.0")
    recipe = write(folder, '[[step]]\npip = ["six==1.16.0"]\n', '{ blob = "images/py__aaaaaaaaaaaa.sif" }')
    texts = []
    for n in range(2):
        _, new = Derive(open_folder(python_pool), Request(recipe, tmp_path / "out")).lock(None)
        assert len(new) == 1 - n
        texts.append((folder / "recipe.lock.json").read_bytes())
    assert texts[0] == texts[1]


# --- the command line ---------------------------------------------------------------------------


def test_the_command_line(tmp_path: Path, python_pool: Path, poolmgr: RunPoolmgr) -> None:
    recipe = write(tmp_path / "r", REMOVE)
    dry = poolmgr("derive", recipe, "-p", python_pool, "--to", tmp_path / "out", "-n", "--json")
    assert dry.returncode == 0, dry.stderr
    rows = [json.loads(line) for line in dry.stdout.splitlines()]
    assert [r["kind"] for r in rows] == ["image", "image", "summary"]
    assert not (tmp_path / "out").exists()
    done = poolmgr("derive", recipe, "-p", python_pool, "--to", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["file"] for r in made[:2]] == [r["file"] for r in rows[:2]]
    assert made[-1]["made"] == 2
    assert made[-1]["tasks"] == 3
    shown = poolmgr("derive", recipe, "-p", python_pool, "--to", tmp_path / "out")
    assert shown.returncode == 0
    assert "2 kept" in shown.stdout
    quiet = poolmgr("derive", recipe, "-p", python_pool, "--to", tmp_path / "out", "-q")
    assert set(quiet.stdout.split()) == {r["file"] for r in rows[:2]}
    recipe = write(tmp_path / "r", '[[step]]\nremove = ["/app/dir/a"]\n')
    bad = poolmgr("derive", recipe, "-p", python_pool, "--to", tmp_path / "bad")
    assert bad.returncode == 3
    assert "failed (derive-failed): 1" in bad.stdout
    wrong = poolmgr("derive", recipe, "-p", python_pool, "--lock", "--to", "x")
    assert wrong.returncode == 2


def test_killed_at_any_moment_it_leaves_no_half_file_and_goes_on(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    (pool / "images").mkdir(parents=True)
    tasks = {}
    for n in range(40):
        (pool / f"images/{n}.sif").write_bytes(minimal_image(f"{n}", os.urandom(200_000)))
        tasks[f"t{n}"] = f"images/{n}.sif"
    (pool / "task_to_blob.json").write_text(json.dumps({"v": tasks}))
    recipe = write(tmp_path / "r", '[[step]]\nremove = ["/payload"]\n', '{ variant = "v" }')
    out = tmp_path / "out"
    command = [sys.executable, "-m", "poolmgr", "derive", recipe, "-p", pool, "--to", out, "-q"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    for _ in range(3):
        before = len(list(out.glob("*.sif"))) if out.exists() else 0
        child = subprocess.Popen([*map(str, command)], env=environment, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            if out.exists() and len(list(out.glob("*.sif"))) > before + 3:
                child.send_signal(signal.SIGKILL)
                break
            time.sleep(0.005)
        child.wait()
        for path in out.glob("*.sif"):
            with FileSource(path) as source:
                assert "payload" not in open_image(source).merged
    done = derive(pool, recipe, out)
    good(done)
    assert len(done.tasks) == 40
    assert done.of(Result.KEPT)
    assert not list(out.glob(".poolmgr-*")), "what the killed runs left is swept"
