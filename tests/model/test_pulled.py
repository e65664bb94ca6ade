"""Records of pulled files read back, and nothing else is taken for one."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.pulled import Pulled
from poolmgr.model.stamp import Stamp

ROW = Pulled(
    "acme__env__1.sif", "docker.io/acme/env:1", "sha256:" + "ab" * 32, 5, "cd" * 32, None, "amd64",
    "apptainer 1.4.5", "2026-01-02T03:04:05+00:00", Stamp(5, 1, 2, 3),
)  # fmt: skip


def test_a_record_reads_back() -> None:
    assert Pulled.parse(ROW.line()) == ROW
    assert "\n" not in ROW.line()


@given(st.integers(0, len(ROW.line()) - 1))
def test_a_torn_line_is_no_record(at: int) -> None:
    assert Pulled.parse(ROW.line()[:at]) is None


ANY = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers())
)


@given(st.sampled_from([*ROW.row(), "stamp", "schema", "kind"]), ANY)
def test_a_record_with_another_value_is_refused_or_sound(key: str, value: object) -> None:
    found = Pulled.parse(json.dumps({**json.loads(ROW.line()), key: value}))
    if found is not None:
        assert Pulled.parse(found.line()) == found
        assert "/" not in found.file
        assert found.size >= 0


@given(st.text(max_size=100))
def test_any_line_is_read(line: str) -> None:
    Pulled.parse(line)
    Pulled.parse("[" * 100_000)
