"""Explaining: every number is a count over the changed environments."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from poolmgr.harbor import buildhash, dockerfile
from poolmgr.harbor.tree import Kind as Entry
from poolmgr.plan.drivers import Explanation, Facts, Kind, Remedy, explain


def facts(text: str, files: dict[str, str] | None = None) -> Facts:
    files = files or {}
    raw = text.encode()
    parsed = dockerfile.parse(raw)
    entries = dict.fromkeys(("Dockerfile", *files), Entry.FILE)
    read = frozenset(buildhash.reads(parsed, entries, "").paths)
    digests = {p: hashlib.sha256(t.encode()).hexdigest() for p, t in {"Dockerfile": text, **files}.items()}
    return Facts(
        hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest(), 1, digests, raw, parsed, read
    )


def told(*texts: str) -> Explanation:
    return explain([facts(t) for t in dict.fromkeys(texts)])


HEAD = "FROM ubuntu:22.04\nRUN apt-get update\n"


def test_a_commit_in_a_clone() -> None:
    e = told(
        *[f"{HEAD}RUN git clone https://x.org/r.git && cd r && git checkout {n:040x}\n" for n in range(20)]
    )
    (driver,) = e.drivers
    assert (driver.kind, driver.values, driver.remaining) == (Kind.INSTRUCTION, 20, 1)
    assert driver.name == "RUN git clone https://x.org/r.git && cd r && git checkout <commit>"
    assert driver.remedy is Remedy.RUN_TIME
    assert [(s.drivers, s.values, s.remaining) for s in e.steps] == [((driver.name,), 20, 1)]
    assert e.bases == 1


def test_the_tokens_of_an_instruction_are_counted_alone() -> None:
    e = told(
        *[f"FROM a\nRUN git clone https://x.org/{n % 3} && git checkout {n % 7:040x}\n" for n in range(21)]
    )
    (driver,) = e.drivers
    assert [(t.what, t.values, t.remaining) for t in driver.tokens] == [("URL", 3, 7), ("commit", 7, 3)]


def test_parts_of_the_base_image() -> None:
    e = told("FROM python:3.9\n", "FROM python:3.10\n", "FROM node:3.9\n")
    (driver,) = e.drivers
    assert driver.kind is Kind.BASE
    assert [(t.what, t.values) for t in driver.tokens] == [("repository", 2), ("tag", 2)]
    assert driver.remedy is Remedy.NONE
    assert e.bases == 3
    assert told("FROM python:3.9\n", "FROM python:3.10\n").drivers[0].remedy is Remedy.DEDICATED


def test_what_no_build_reads_is_told_apart() -> None:
    e = explain(
        [
            facts("# one\nFROM a\nCOPY x /\n", {"x": "1", "notes": "1"}),
            facts("# two\nFROM a\nCOPY x /\n", {"x": "1", "notes": "2"}),
            facts("# two\r\nFROM a\r\nCOPY x /\r\n", {"x": "1", "notes": "2"}),
            facts("# one\nFROM a\nCOPY x /\n", {"x": "2", "notes": "1"}),
        ]
    )
    assert {(d.kind, d.name) for d in e.drivers} == {
        (Kind.NOISE, "comments"),
        (Kind.NOISE, "line ends"),
        (Kind.UNREAD, "notes"),
        (Kind.COPIED, "x"),
    }
    assert e.unread == 2
    assert all(d.remedy is Remedy.DROP for d in e.drivers if d.kind in (Kind.NOISE, Kind.UNREAD))
    assert [s.remaining for s in e.steps] == [2, 1]


def test_an_instruction_that_only_some_have() -> None:
    e = told("FROM a\nRUN x\nENV A=1\n", "FROM a\nRUN x\nUSER me\nENV A=1\n")
    (driver,) = (d for d in e.drivers if d.kind is Kind.INSTRUCTION)
    assert (driver.name, driver.values, driver.remaining) == ("USER (in some)", 2, 1)


def test_a_longer_list_of_packages() -> None:
    e = told("FROM a\nRUN apt-get install -y a b\n", "FROM a\nRUN apt-get install -y a b c\n")
    (driver,) = e.drivers
    assert driver.remedy is Remedy.UNION
    assert driver.remaining == 1


def test_values_that_vary_together_are_held_together() -> None:
    e = told(*[f"FROM a\nENV COMMIT={n:040x}\nRUN git checkout {n:040x}\n" for n in range(9)])
    assert [d.remaining for d in e.drivers] == [9, 9], "neither alone helps"
    assert [(len(s.drivers), s.remaining) for s in e.steps] == [(2, 1)]


def test_one_environment_has_nothing_to_explain() -> None:
    e = told("FROM a\n")
    assert (e.environments, e.drivers, e.steps) == (1, (), ())


def test_images_without_a_folder() -> None:
    e = explain([Facts(i, 1, {}, docker_image=i) for i in ("a:1", "b:1")])
    assert [(d.kind, d.values) for d in e.drivers] == [(Kind.IMAGE, 2)]
    assert e.bases == 2


LINES = st.lists(
    st.sampled_from(
        [
            "RUN a b",
            "RUN a  b",
            "RUN a c",
            "# note",
            "",
            "ENV A=1",
            "ENV A=2",
            "COPY x /",
            "RUN a \\\n  b",
            "USER u",
        ]
    ),
    max_size=5,
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(["FROM a:1", "FROM a:2", "FROM b"]), LINES), min_size=1, max_size=8)
)
def test_different_dockerfiles_are_never_taken_for_one(files: list[tuple[str, list[str]]]) -> None:
    texts = list(dict.fromkeys("\n".join([head, *lines]) + "\n" for head, lines in files))
    e = explain([facts(t, {"x": "1"}) for t in texts])
    assert e.environments == len(texts)
    if len(texts) > 1:
        assert e.drivers, "what differs is in some driver"
        assert all(1 <= d.remaining <= len(texts) for d in e.drivers)
        assert e.steps[-1].remaining == 1, "holding everything constant leaves one"
