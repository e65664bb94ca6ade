from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import Blob, Listing
from poolmgr.model.finding import Finding, Level, Verdict
from poolmgr.model.manifest import Gates, VariantRules
from poolmgr.model.task import Row
from poolmgr.plan.coverage import Coverage, cover
from poolmgr.plan.gates import Asked, Gate, GateVerdict, Look, coverage_gates, image_gates, judge

PASSED, FAILED, NOT_CHECKED = GateVerdict


def covered(count: int = 2, rows: list[Row] | None = None, total: int | None = None) -> Coverage:
    tasks = {f"t{i}": f"i/{i}.sif" for i in range(count)}
    held = Listing("pool", None, {p: Blob(p, 100) for p in tasks.values()})
    return cover("v", tasks, held, recorded=lambda p: None, rows=rows, total=total)


def by_name(gates: list[Gate]) -> dict[str, Gate]:
    return {g.name: g for g in gates}


def test_nothing_compared_has_failed() -> None:
    """E13: an empty set passes nothing."""
    assert judge("x", "audit", unit="images", wanted=0, compared=0, bad=0).verdict is FAILED
    gates = by_name(coverage_gates(covered(0), VariantRules(), Gates()))
    assert gates["present"].verdict is FAILED
    asked = Asked(Level.MOUNT, "default", "amd64", "host", "required")
    gates = by_name(image_gates(covered(0), {}, asked, VariantRules()))
    assert {g.verdict for g in gates.values()} == {FAILED}


def test_a_dataset_whose_rows_match_nothing_fails() -> None:
    rows = [Row("other", "acme/a:1", "row 0")]
    gates = by_name(coverage_gates(covered(rows=rows), VariantRules(), Gates(), dataset="d"))
    assert (gates["dataset"].verdict, gates["dataset"].bad) == (FAILED, 3)
    gates = by_name(coverage_gates(covered(rows=[]), VariantRules(), Gates(), dataset="d"))
    assert gates["dataset"].verdict is FAILED
    assert "no row" in gates["dataset"].why


def test_a_dataset_that_cannot_be_read_is_not_passed() -> None:
    gates = by_name(
        coverage_gates(covered(), VariantRules(), Gates(), dataset="hf://d", dataset_trouble="offline")
    )
    assert gates["dataset"].verdict is NOT_CHECKED
    assert not gates["dataset"].holds
    assert gates["dataset"].why == "offline"
    assert gates["own-images"].verdict is NOT_CHECKED


def test_only_a_gate_that_nobody_demanded_may_stay_unchecked() -> None:
    looks = {
        p: Look({"mount": Verdict.OK}, reasons={"inspect": "no apptainer"}) for p in ("i/0.sif", "i/1.sif")
    }
    for wish, holds in (("available", True), ("required", False)):
        gate = by_name(
            image_gates(covered(), looks, Asked(Level.MOUNT, "default", inspect=wish), VariantRules())
        )["inspect"]
        assert (gate.verdict, gate.holds) == (NOT_CHECKED, holds)
        assert gate.why == "no apptainer (2)"
    assert "inspect" not in by_name(
        image_gates(covered(), looks, Asked(Level.MOUNT, "default"), VariantRules())
    )


def test_an_image_that_nobody_looked_at_keeps_its_gate_open() -> None:
    """E7: eight images, two unchecked: incomplete, however many records there are."""
    looks = {f"i/{i}.sif": Look({"mount": Verdict.OK}, arch="amd64") for i in range(6)}
    gates = by_name(image_gates(covered(8), looks, Asked(Level.MOUNT, "default", "amd64"), VariantRules()))
    assert (gates["mount"].verdict, gates["mount"].compared, gates["mount"].wanted) == (NOT_CHECKED, 6, 8)
    assert gates["arch"].verdict is NOT_CHECKED


def test_looks_at_files_of_another_pool_do_not_count() -> None:
    looks = {f"other/{i}.sif": Look({"mount": Verdict.OK}) for i in range(100)}
    gate = by_name(image_gates(covered(), looks, Asked(Level.MOUNT, "default"), VariantRules()))["mount"]
    assert (gate.verdict, gate.compared) == (NOT_CHECKED, 0)


def test_wrong_architecture_fails_its_gate() -> None:
    """E11."""
    wrong = Finding("wrong-arch", "arch arm64, expected amd64")
    looks = {
        "i/0.sif": Look({"mount": Verdict.OK}, arch="amd64"),
        "i/1.sif": Look({"mount": Verdict.BAD}, (wrong,), arch="arm64"),
    }
    gate = by_name(image_gates(covered(), looks, Asked(Level.MOUNT, "x", "amd64"), VariantRules()))["arch"]
    assert (gate.verdict, gate.bad) == (FAILED, 1)


def test_data_without_checksums_needs_a_hash() -> None:
    for checks, verdict in (({}, NOT_CHECKED), ({"hash": Verdict.OK}, PASSED)):
        looks = {f"i/{i}.sif": Look({"data": Verdict.PARTIAL, **checks}) for i in range(2)}
        gate = by_name(image_gates(covered(), looks, Asked(Level.DATA, "manifest"), VariantRules()))["data"]
        assert gate.verdict is verdict


def test_content_rules_that_nothing_carries_out_are_not_checked() -> None:
    rules = VariantRules(require=("/app",), forbid=("/app/oracle",), modules=("pytest",))
    looks = {f"i/{i}.sif": Look({"mount": Verdict.OK}) for i in range(2)}
    gates = by_name(image_gates(covered(), looks, Asked(Level.MOUNT, "default"), rules))
    assert {gates[n].verdict for n in ("require", "forbid", "modules")} == {NOT_CHECKED}
    assert not any(gates[n].holds for n in ("require", "forbid", "modules"))


def test_a_subset_is_whole_only_when_it_was_asked_for() -> None:
    c = covered(2, total=7015)
    gates = by_name(coverage_gates(c, VariantRules(), Gates(), mirror=True))
    assert gates["whole"].verdict is FAILED
    assert "2 of 7,015 tasks" in gates["whole"].why
    assert "whole" not in by_name(coverage_gates(c, VariantRules(), Gates(), mirror=True, subset_asked=True))


def test_the_expected_number_of_tasks() -> None:
    gates = by_name(coverage_gates(covered(2), VariantRules(tasks=3), Gates()))
    assert gates["tasks"].verdict is FAILED
    assert gates["tasks"].why == "2 tasks, 3 expected"
    assert by_name(coverage_gates(covered(3), VariantRules(tasks=3), Gates()))["tasks"].verdict is PASSED


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_passed_means_all_compared_and_none_bad(wanted: int, compared: int, bad: int, required: bool) -> None:
    gate = judge("x", "y", unit="z", wanted=wanted, compared=compared, bad=bad, required=required)
    assert (gate.verdict is PASSED) == (bad == 0 and wanted > 0 and compared >= wanted)
    assert not (gate.verdict is FAILED and gate.holds)
