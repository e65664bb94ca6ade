"""Audit on real folders of real SIFs; each finding and each attack has its own test."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from poolmgr.errors import DatasetInvalidError, UnknownTaskError, UnknownVariantError, UsageError
from poolmgr.model.attestation import Attestation
from poolmgr.model.blob import Blob
from poolmgr.model.finding import Level, Verdict
from poolmgr.model.lock import Lock
from poolmgr.model.manifest import Manifest
from poolmgr.model.stamp import Stamp
from poolmgr.model.task import Row
from poolmgr.ops import image_checks, look
from poolmgr.ops.audit import Audit, Request, audit
from poolmgr.ops.state import State
from poolmgr.ops.view import PoolView, open_folder
from poolmgr.plan.gates import Gate, GateVerdict
from poolmgr.sif.apptainer import Apptainer
from poolmgr.sif.write import minimal_image

PASSED, FAILED, NOT_CHECKED = GateVerdict
MANIFEST = 'schema = 1\n[pool]\nurl = "hf://datasets/acme/pool"\n[gates]\narch = "amd64"\n'


def fill(root: Path, index: Mapping[str, Mapping[str, str]]) -> Path:
    """A folder pool whose every named blob is a small real SIF."""
    for path in {p for tasks in index.values() for p in tasks.values()}:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(minimal_image(path))
    (root / "task_to_blob.json").write_text(json.dumps(index))
    return root


def mirror(root: Path, *, total: int | None = None, manifest: str = MANIFEST, prove: bool = True) -> Path:
    """``root`` as fetch would have left it: locks, and attestations of every blob (``prove``)."""
    state = State(root)
    identity = state.ensure_identity()
    rows = []
    for variant, tasks in json.loads((root / "task_to_blob.json").read_text()).items():
        blobs = {}
        for path in set(tasks.values()):
            data = (root / path).read_bytes()
            sha256 = hashlib.sha256(data).hexdigest()
            blobs[path] = Blob(path, len(data), sha256)
            checks = {"listed": Verdict.OK, "header": Verdict.OK, "mount": Verdict.OK, "hash": Verdict.OK}
            stamp = Stamp.of((root / path).stat())
            rows.append(Attestation(identity, path, stamp, checks, sha256, (), "amd64", {}, time.time()))
        state.write_lock(
            Lock(
                variant, "hf://datasets/acme/pool", "c" * 40, manifest, tasks, total or len(tasks), blobs, 1.0
            )
        )
    (root / "task_to_blob.json").unlink()
    if prove:
        state.attest.mkdir(parents=True, exist_ok=True)
        (state.attest / "fetch.jsonl").write_text("".join(r.to_line() for r in rows))
    return root


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Four tasks on three images in two directories, and a variant that shares one of them."""
    return fill(
        tmp_path / "pool",
        {
            "solvable": {
                "t1": "images/a.sif",
                "t2": "images/a.sif",
                "t3": "images/b.sif",
                "t4": "images_b00/c.sif",
            },
            "hardened": {"t1": "images/a.sif"},
        },
    )


def never(address: str) -> list[Row]:
    raise AssertionError(f"the dataset {address} was read")


def run(root: Path, rows: Callable[[str], list[Row]] = never, *, rules: str = "", **wish: object) -> Audit:
    view = open_folder(root)
    if rules:
        view.manifest = Manifest.parse(MANIFEST + rules, "test")
    elif not view.is_mirror:
        view.manifest = Manifest.parse(MANIFEST, "test")
    wish.setdefault("variants", ("solvable",))
    return audit(view, Request(**wish), rows)  # type: ignore[arg-type]


def gates(result: Audit, variant: int = 0) -> dict[str, Gate]:
    return {g.name: g for g in result.variants[variant].gates}


def codes(result: Audit) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for image in result.images.values():
        for finding in image.findings:
            found.setdefault(finding.code, set()).add(image.path)
    return found


def rows_in(root: Path) -> int:
    return sum(len(f.read_text().splitlines()) for f in State(root).attest.glob("*.jsonl"))


@pytest.fixture(autouse=True)
def _no_apptainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node; the tests of the inspect gate undo it."""
    monkeypatch.setattr(Apptainer, "find", staticmethod(lambda: None))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that audits open to read images."""
    opened: list[str] = []
    real = look.FileSource

    def counting(path: str | Path) -> look.FileSource:
        opened.append(Path(path).name)
        return real(path)

    monkeypatch.setattr(look, "FileSource", counting)
    return opened


# --- what is good ---------------------------------------------------------------------------------


def test_a_good_pool_passes_and_says_who_asked(pool: Path) -> None:
    result = run(pool, variants=())
    assert result.passed
    assert [v.name for v in result.variants] == ["solvable", "hardened"]
    assert {n: (g.verdict, g.asked_by) for n, g in gates(result).items()} == {
        "present": (PASSED, "audit"),
        "mount": (PASSED, "default"),
        "arch": (PASSED, "manifest"),
        "inspect": (NOT_CHECKED, "default"),
    }
    assert {i.verdict for i in result.images.values()} == {Verdict.OK}
    assert result.images["images/a.sif"].variants == ("solvable", "hardened")


def test_each_distinct_image_is_read_once_over_all_variants(pool: Path, reads: list[str]) -> None:
    run(pool, variants=(), jobs=4)
    assert sorted(reads) == ["a.sif", "b.sif", "c.sif"]


def test_what_was_attested_is_not_read_again_until_asked(pool: Path, reads: list[str]) -> None:
    assert run(pool).passed
    reads.clear()
    again = run(pool)
    assert (again.passed, reads, again.remembered) == (True, [], 3)
    assert run(pool, rehash=True).passed
    assert len(reads) == 3


def test_a_deeper_level_than_attested_is_looked_at(pool: Path, reads: list[str]) -> None:
    run(pool, level=Level.HEADER)
    reads.clear()
    assert run(pool, level=Level.MOUNT).passed
    assert len(reads) == 3
    reads.clear()
    assert run(pool, level=Level.HEADER).passed
    assert reads == []


def test_a_mirror_passes_without_reading_a_byte(pool: Path, reads: list[str]) -> None:
    result = run(mirror(pool))
    assert result.passed
    assert reads == []
    names = gates(result)
    assert {names[n].verdict for n in ("whole", "present", "record", "mount", "arch", "hash")} == {PASSED}


def test_a_mirror_copied_elsewhere_is_hashed_again(pool: Path, tmp_path: Path) -> None:
    mirror(pool)
    copy = tmp_path / "copy"
    shutil.copytree(pool, copy)
    result = run(copy)
    assert result.passed
    assert result.hashed == sum((copy / p).stat().st_size for p in result.images)
    assert (run(copy).hashed, run(copy).remembered) == (0, 3)


def test_a_blob_linked_inside_the_pool_counts(pool: Path) -> None:
    (pool / "images/b.sif").unlink()
    (pool / "images/b.sif").symlink_to("a.sif")
    assert run(pool).passed


# --- what is not there ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "spoil"),
    [
        ("missing", lambda f: f.unlink()),
        ("zero-byte", lambda f: f.write_bytes(b"")),
        ("is-directory", lambda f: (f.unlink(), f.mkdir())),
        ("other-case", lambda f: f.rename(f.with_name("B.sif"))),
        ("dangling-link", lambda f: (f.unlink(), f.symlink_to("nowhere.sif"))),
        (
            "outward-link",
            lambda f: (f.rename(f.parents[2] / "out.sif"), f.symlink_to(f.parents[2] / "out.sif")),
        ),
        ("not-a-file", lambda f: (f.unlink(), os.mkfifo(f))),
    ],
)
def test_every_kind_of_absence(pool: Path, code: str, spoil: Callable[[Path], object]) -> None:
    spoil(pool / "images/b.sif")
    result = run(pool)
    assert not result.passed
    assert codes(result) == {code: {"images/b.sif"}}
    assert result.variants[0].coverage.by_code() == {code: ("images/b.sif",)}
    assert gates(result)["present"].bad == 1
    assert gates(result)["mount"].verdict is NOT_CHECKED
    assert result.images["images/b.sif"].verdict is Verdict.BAD


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(pool: Path) -> None:
    (pool / "images/b.sif").chmod(0)
    assert codes(run(pool)) == {"unreadable": {"images/b.sif"}}


def test_every_name_is_given_however_many(tmp_path: Path) -> None:
    """A8 defect 10: a rebuild list can be taken from the report."""
    index = {"v": {f"t{i}": f"images/{i:03d}.sif" for i in range(60)}}
    (tmp_path / "images").mkdir()
    (tmp_path / "task_to_blob.json").write_text(json.dumps(index))
    (tmp_path / "images/000.sif").write_bytes(minimal_image("x"))
    result = run(tmp_path, variants=("v",))
    assert result.variants[0].coverage.named("missing") == tuple(f"images/{i:03d}.sif" for i in range(1, 60))


def test_orphans_and_room_are_told_and_pass(pool: Path) -> None:
    (pool / "images/left.sif").write_bytes(minimal_image("left"))
    result = run(pool, variants=("hardened",))
    assert result.passed
    assert [b.path for b in result.orphans] == ["images/left.sif"]
    assert {d.path: (d.entries, d.hard_room) for d in result.directories if d.path} == {
        "images": (3, 9_997),
        "images_b00": (1, 9_999),
    }


# --- what is there and is not right ---------------------------------------------------------------


@pytest.mark.parametrize("share", [0.9, 0.5, 0.05])
def test_a_truncated_image(pool: Path, share: float) -> None:
    """E5: inspect passes these; the header's own promise tells."""
    file = pool / "images/b.sif"
    os.truncate(file, int(file.stat().st_size * share))
    result = run(pool)
    assert gates(result)["mount"].bad == 1
    assert result.images["images/b.sif"].verdict is Verdict.BAD
    assert result.images["images/a.sif"].verdict is Verdict.OK


@pytest.mark.parametrize(
    "data",
    [b"<!DOCTYPE html><html>502</html>", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"],
)
def test_not_an_image_at_all(pool: Path, data: bytes) -> None:
    """E5: each says what the file is instead."""
    (pool / "images/b.sif").write_bytes(data)
    result = run(pool)
    (finding,) = result.images["images/b.sif"].findings
    assert result.images["images/b.sif"].verdict is Verdict.BAD
    assert any(word in finding.message.lower() for word in ("html", "lfs"))


def test_wrong_architecture(pool: Path) -> None:
    """E11."""
    (pool / "images/b.sif").write_bytes(minimal_image("b", arch="arm64"))
    result = run(pool)
    assert codes(result) == {"wrong-arch": {"images/b.sif"}}
    assert (gates(result)["arch"].verdict, gates(result)["mount"].verdict) == (FAILED, PASSED)
    assert codes(run(pool)) == {"wrong-arch": {"images/b.sif"}}, "also from memory"
    assert run(pool, arch="arm64").images["images/b.sif"].verdict is Verdict.OK, "the file itself is good"


def test_below_the_floor(pool: Path) -> None:
    result = run(pool, rules="min_bytes = 10_000_000\n")
    assert codes(result) == {"below-floor": {"images/a.sif", "images/b.sif", "images_b00/c.sif"}}
    assert gates(result)["floor"].verdict is FAILED


def test_another_size_than_on_record(pool: Path) -> None:
    mirror(pool)
    with (pool / "images/b.sif").open("ab") as file:
        file.write(b"x")
    result = run(pool)
    assert codes(result)["wrong-size"] == {"images/b.sif"}
    assert (gates(result)["record"].verdict, gates(result)["hash"].verdict) == (FAILED, FAILED)


def test_other_bytes_of_equal_size_and_mtime(pool: Path) -> None:
    """E6 and A8 defect 5: an equal size and a restored mtime hide nothing."""
    mirror(pool)
    file = pool / "images/b.sif"
    before = file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    other = file.with_name("other")
    other.write_bytes(data)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(file)
    for again in range(2):
        result = run(pool)
        assert codes(result) == {"wrong-hash": {"images/b.sif"}}, again
        assert gates(result)["hash"].bad == 1


def test_a_file_touched_but_right_is_proven_again(pool: Path) -> None:
    mirror(pool)
    os.utime(pool / "images/b.sif", ns=(1, 1))
    result = run(pool)
    assert result.passed
    assert result.hashed == (pool / "images/b.sif").stat().st_size


def test_unproven_files_of_a_mirror_are_hashed(pool: Path) -> None:
    result = run(mirror(pool, prove=False))
    assert result.passed
    assert gates(result)["hash"].compared == 3
    assert rows_in(pool) == 3


def test_rehash_finds_what_no_stamp_shows(pool: Path) -> None:
    """A bad disk changes bytes and no inode: here the attestation is forged to match."""
    mirror(pool)
    file = pool / "images/b.sif"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    attest = State(pool).attest / "fetch.jsonl"
    rows = [Attestation.from_line(line) for line in attest.read_text().splitlines()]
    from dataclasses import replace

    forged = [replace(r, stamp=Stamp.of(file.stat())) if r.path == "images/b.sif" else r for r in rows]
    attest.write_text("".join(r.to_line() for r in forged))
    assert run(pool).passed
    assert codes(run(pool, rehash=True)) == {"wrong-hash": {"images/b.sif"}}
    assert codes(run(pool)) == {"wrong-hash": {"images/b.sif"}}


# --- the three scripts' defects (facts: users A8) --------------------------------------------------


def test_an_old_full_run_and_a_new_empty_report_do_not_clear_a_rebuilt_file(
    pool: Path, reads: list[str]
) -> None:
    """Defect 1, E7: coverage is of files as they are now, never of records."""
    assert run(pool).passed
    os.truncate(pool / "images/b.sif", 20_000)
    (State(pool).attest / "99999999T000000Z-new.jsonl").write_text("")
    reads.clear()
    assert not run(pool).passed
    assert reads == ["b.sif"]


def test_nothing_compared_is_a_failure(pool: Path) -> None:
    """Defect 2, E13: a subset that meets no task of a variant."""
    result = run(pool, variants=("solvable", "hardened"), tasks=frozenset({"t3"}))
    assert (result.variants[0].passed, result.variants[1].passed) == (True, False)
    assert gates(result, 1)["present"].why == "there was nothing to compare"


def test_attestations_of_another_pool_do_not_count_and_are_said(pool: Path, tmp_path: Path) -> None:
    """Defect 3: same names, same files even, another pool."""
    other = fill(tmp_path / "other", json.loads((pool / "task_to_blob.json").read_text()))
    run(other)
    (pool / ".poolmgr").mkdir()
    shutil.copytree(State(other).attest, State(pool).attest)
    result = run(pool)
    assert result.remembered == 0
    assert any("3 attestation rows of another pool" in n for n in result.notes)


def test_a_failed_audit_leaves_nothing_that_passes_the_next(pool: Path) -> None:
    """Defect 4."""
    os.truncate(pool / "images/b.sif", 20_000)
    assert [run(pool).passed for _ in range(3)] == [False] * 3


def test_audit_looks_at_the_file_that_the_resolver_finds(pool: Path) -> None:
    """Defect 6."""
    from poolmgr.errors import InvalidImageError
    from poolmgr.ops.resolve import resolve_task

    assert run(pool).passed
    assert resolve_task(open_folder(pool), "t3", "solvable") == pool / "images/b.sif"
    os.truncate(pool / "images/b.sif", 20_000)
    assert not run(pool).passed
    with pytest.raises(InvalidImageError):
        resolve_task(open_folder(pool), "t3", "solvable")


def test_a_good_file_clears_an_older_bad_word(pool: Path) -> None:
    """Defect 7."""
    good = (pool / "images/b.sif").read_bytes()
    os.truncate(pool / "images/b.sif", 20_000)
    assert not run(pool).passed
    (pool / "images/b.sif").write_bytes(good)
    assert run(pool).passed
    assert run(pool).passed


def test_a_false_bad_word_does_not_last(pool: Path) -> None:
    """Defect 7 again: the same file, called bad by an older run that erred."""
    st = (pool / "images/b.sif").stat()
    view = open_folder(pool)
    row = Attestation(
        view.identity or "", "images/b.sif", Stamp.of(st), {"mount": Verdict.BAD}, None,
        (), None, {}, 1.0,
    )  # fmt: skip
    State(pool).attest.mkdir(parents=True)
    (State(pool).attest / "old.jsonl").write_text(row.to_line())
    assert run(pool).passed


def test_torn_and_foreign_lines_are_ignored_and_said(pool: Path) -> None:
    """Defect 11: an odd message makes nothing unreadable."""
    assert run(pool).passed
    (file,) = State(pool).attest.glob("*.jsonl")
    whole = file.read_text()
    file.write_text(whole + '{"schema":1,"kind":"attestation","pa\n' + whole.splitlines()[0][:-30])
    result = run(pool)
    assert result.passed
    assert result.remembered == 3
    assert any("cannot be read were ignored" in n and "and 1 more" in n for n in result.notes)


def test_a_pool_that_cannot_keep_attestations_is_still_audited(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("a file")
    view = open_folder(pool)
    view.attest_folder = tmp_path / "in-the-way" / "attest"
    result = audit(view, Request(("solvable",), arch="amd64"), never)
    assert result.passed
    assert any("not remembered" in n for n in result.notes)


def test_attestations_may_lie_elsewhere(pool: Path, tmp_path: Path, reads: list[str]) -> None:
    def view() -> PoolView:
        opened = open_folder(pool)
        opened.attest_folder = tmp_path / "kept"
        return opened

    for _ in range(2):
        assert audit(view(), Request(("solvable",)), never).passed
    assert sorted(reads) == ["a.sif", "b.sif", "c.sif"]
    assert not (pool / ".poolmgr").exists()


def test_a_file_that_changes_while_it_is_read_is_unchecked(
    pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = look.check

    def changing(source: look.FileSource, level: Level, **more: object) -> object:
        report = real(source, level, **more)  # type: ignore[arg-type]
        os.utime(pool / "images/b.sif", ns=(1, 1))
        return report

    monkeypatch.setattr(look, "check", changing)
    (pool / "images/b.sif").touch()
    result = run(pool, jobs=1)
    assert not result.passed
    assert result.images["images/b.sif"].verdict is Verdict.UNCHECKED
    assert gates(result)["mount"].why == "it changed while it was being read (1)"
    assert rows_in(pool) == 2


# --- datasets ---------------------------------------------------------------------------------------

WITH_DATASET = '[variants.solvable]\ndataset = "data.jsonl"\n'


def good_rows(tasks: Iterable[str]) -> list[Row]:
    return [Row(t, f"acme/env:{t}", f"data.jsonl row {i}") for i, t in enumerate(tasks)]


def test_the_manifests_dataset_is_compared(pool: Path) -> None:
    asked: list[str] = []

    def rows(address: str) -> list[Row]:
        asked.append(address)
        return good_rows(["t1", "t2", "t3", "t4"])

    result = run(pool, rows, rules=WITH_DATASET)
    assert (result.passed, asked) == (True, ["data.jsonl"])
    assert gates(result)["dataset"].asked_by == "manifest"


def test_dataset_differences_fail_by_name(pool: Path) -> None:
    rows = [*good_rows(["t1", "t1", "t2", "t3", "t9"]), Row("t4", None, "row 5")]
    result = run(pool, lambda _: rows, dataset="x")
    assert not result.passed
    assert result.variants[0].coverage.by_code() == {
        "row-without-assignment": ("t9",),
        "row-without-image": ("t4",),
        "duplicate-row": ("t1",),
    }
    assert gates(result)["dataset"].asked_by == "--dataset"


def test_generic_images_fail_their_gate(pool: Path) -> None:
    rows = [*good_rows(["t1", "t2"]), Row("t3", "ubuntu:22.04", "r"), Row("t4", "ubuntu:22.04", "r")]
    result = run(pool, lambda _: rows, dataset="x")
    assert gates(result)["own-images"].verdict is FAILED
    assert gates(result)["dataset"].verdict is PASSED
    assert result.variants[0].coverage.named("generic-image") == ("t3", "t4")


def test_a_dataset_of_the_manifest_that_cannot_be_read_is_not_checked(pool: Path) -> None:
    def offline(address: str) -> list[Row]:
        raise DatasetInvalidError("offline")

    result = run(pool, offline, rules=WITH_DATASET)
    assert not result.passed
    assert gates(result)["dataset"].verdict is NOT_CHECKED
    assert "--no-dataset" in gates(result)["dataset"].why
    with pytest.raises(DatasetInvalidError):
        run(pool, offline, dataset="x")
    waived = run(pool, offline, rules=WITH_DATASET, no_dataset=True)
    assert waived.passed
    assert any("was not compared" in n for n in waived.notes)


def test_one_dataset_belongs_to_one_variant(pool: Path) -> None:
    with pytest.raises(UsageError, match="several"):
        run(pool, variants=(), dataset="x")


# --- rules ------------------------------------------------------------------------------------------


FORBID = '[variants.solvable]\nforbid = ["/payload"]\n'


def test_content_rules_are_carried_out_per_variant_on_valid_images_only(pool: Path) -> None:
    os.truncate(pool / "images_b00/c.sif", 20_000)
    result = run(pool, rules=FORBID, variants=("solvable", "hardened"))
    gate = gates(result)["forbid"]
    assert (gate.verdict, gate.bad, gate.compared, gate.why) == (FAILED, 2, 2, "bad already (1)")
    assert codes(result)["content-forbidden"] == {"images/a.sif", "images/b.sif"}
    assert "forbid" not in gates(result, 1)
    assert result.variants[1].passed


def test_a_forbidden_path_is_the_variants_affair_and_not_the_files(pool: Path) -> None:
    assert not run(pool, rules=FORBID).passed
    result = run(pool, rules="[variants.hardened]\ntasks = 1\n")
    assert (result.passed, result.remembered) == (True, 3)


def test_content_that_was_seen_is_remembered_for_its_rule(
    pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = image_checks.open_image

    def counting(source: image_checks.FileSource, where: str) -> object:
        opened.append(Path(where).name)
        return real(source, where)

    monkeypatch.setattr(image_checks, "open_image", counting)
    require = '[variants.solvable]\nrequire = ["/etc/label"]\n'
    assert run(pool, rules=require).passed
    assert sorted(opened) == ["a.sif", "b.sif", "c.sif"]
    opened.clear()
    result = run(pool, rules=require)
    assert (result.passed, result.remembered, opened) == (True, 3, [])
    assert not run(pool, rules='[variants.solvable]\nrequire = ["/etc/other"]\n').passed
    assert len(opened) == 3


def test_a_missing_module_fails_its_gate(pool: Path) -> None:
    result = run(pool, rules='[variants.solvable]\nmodules = ["pytest"]\n')
    assert (gates(result)["modules"].verdict, gates(result)["modules"].bad) == (FAILED, 3)


def test_content_rules_below_the_level_that_reads_images_are_not_passed(pool: Path) -> None:
    result = run(pool, rules=FORBID, level=Level.LISTED)
    assert not result.passed
    assert gates(result)["forbid"].verdict is NOT_CHECKED
    assert "level listed does not look into images" in gates(result)["forbid"].why


def test_inspect_without_apptainer(pool: Path) -> None:
    result = run(pool, inspect="available")
    assert result.passed
    assert gates(result)["inspect"].why == "Apptainer is not installed (3)"
    assert not run(pool, inspect="required").passed
    assert "inspect" not in gates(run(pool, inspect="off"))


@pytest.mark.apptainer
def test_inspect_by_apptainer_is_remembered(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    inspected: list[str] = []
    real = Apptainer.inspect

    def counting(self: Apptainer, image: Path) -> object:
        inspected.append(image.name)
        return real(self, image)

    monkeypatch.setattr(Apptainer, "inspect", counting)
    os.truncate(pool / "images/b.sif", 20_000)
    result = run(pool, inspect="required")
    gate = gates(result)["inspect"]
    assert (gate.compared, gate.bad, gate.why) == (2, 0, "bad already (1)")
    assert sorted(inspected) == ["a.sif", "c.sif"]
    assert run(pool, inspect="required").remembered == 2
    assert len(inspected) == 2


def test_the_expected_number_of_tasks(pool: Path) -> None:
    assert gates(run(pool, rules="[variants.solvable]\ntasks = 5\n"))["tasks"].why == "4 tasks, 5 expected"
    assert run(pool, rules="[variants.solvable]\ntasks = 4\n").passed


# --- subsets and variants -----------------------------------------------------------------------------


def test_a_subset_mirror_passes_only_as_the_subset_it_is(pool: Path) -> None:
    mirror(pool, total=7_015)
    result = run(pool)
    assert not result.passed
    assert "4 of 7,015 tasks" in gates(result)["whole"].why
    assert run(pool, tasks=frozenset({"t1", "t2", "t3", "t4"})).passed
    with pytest.raises(UnknownTaskError) as caught:
        run(pool, tasks=frozenset({"t1", "t5000"}))
    assert caught.value.details == ("t5000",)


def test_an_unknown_variant_names_those_that_exist(pool: Path) -> None:
    with pytest.raises(UnknownVariantError, match="solvable"):
        run(pool, variants=("solvabel",))


def test_level_listed_says_that_bytes_were_not_looked_at(pool: Path, reads: list[str]) -> None:
    os.truncate(pool / "images/b.sif", 20_000)
    result = run(pool, level=Level.LISTED)
    assert result.passed
    assert reads == []
    assert any("bytes were not looked at" in n for n in result.notes)


def test_ctrl_c_keeps_what_was_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fill(tmp_path / "many", {"v": {f"t{i}": f"images/{i}.sif" for i in range(40)}})
    real = look.check
    seen: list[int] = []

    def interrupted(*args: object, **kwargs: object) -> object:
        seen.append(1)
        if len(seen) == 20:
            raise KeyboardInterrupt
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(look, "check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(root, variants=("v",), jobs=1)
    assert rows_in(root) == 19
    monkeypatch.setattr(look, "check", real)
    assert run(root, variants=("v",)).remembered == 19
