"""Explaining: every number is a count over the changed environments."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from poolmgr.harbor import buildhash, dockerfile, envhash
from poolmgr.harbor.tree import Kind as Entry
from poolmgr.plan.drivers import Explanation, Facts, explain
from poolmgr.plan.wording import Kind, Remedy


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
        fixed = [d for d in e.drivers if d.remedy is Remedy.NONE]
        left = e.bases if fixed else 1
        assert (e.steps[-1].remaining if e.steps else e.environments) == left, "all else held constant"


def test_nothing_merges_500_tasks_on_500_base_images() -> None:
    e = told(*[f"FROM swebench/repo_{n}:latest\nWORKDIR /testbed\n# {n % 7}\n" for n in range(500)])
    assert (e.environments, e.bases, e.steps) == (500, 500, ())
    assert {d.remedy for d in e.drivers if d.kind is Kind.BASE} == {Remedy.NONE}


def test_many_tags_are_no_plan_for_dedicated_bases() -> None:
    few, many = (told(*[f"FROM a:v{n}\n" for n in range(count)]).drivers[0].remedy for count in (12, 13))
    assert (few, many) == (Remedy.DEDICATED, Remedy.NONE)


def test_packages_are_united_unless_their_pins_conflict() -> None:
    united = told("FROM a\nRUN pip install x==1 y==2\n", "FROM a\nRUN pip install x==1 z==3\n")
    conflicting = told("FROM a\nRUN pip install x==1\n", "FROM a\nRUN pip install x==2\n")
    assert united.drivers[0].remedy is Remedy.UNION
    assert conflicting.drivers[0].remedy is Remedy.RUN_TIME


def test_packages_are_one_token_in_their_instruction() -> None:
    lists = ("gfortran git libblas", "git", "gcc git")
    e = told(*[f"FROM a\nRUN apt-get install -y {names} && rm -rf /x\n" for names in lists])
    (driver,) = e.drivers
    assert driver.name == "RUN apt-get install -y <packages> git <packages> && rm -rf /x"
    assert [(t.what, t.values, t.remaining) for t in driver.tokens] == [("packages", 3, 1)]


# --- every number again, by rendering the changed environments and hashing them as Harbor does ---------

PARTS: dict[str, list[str]] = {
    "tag": ["3.8", "3.9"],
    "commit": [f"{n:040x}" for n in range(1, 5)],
    "packages": ["git", "git gcc", "make git"],
    "env": ["1", "2"],
    "user": ["", "USER me\n"],
    "comment": ["# a", "# b", "# c"],
    "ends": ["\n", "\r\n"],
    "copied": ["x", "y"],
    "unread": ["x", "y"],
}
DRIVERS = {
    "FROM": "tag", "RUN git": "commit", "RUN apt-get": "packages", "ENV": "env", "USER": "user",
    "comments": "comment", "line ends": "ends", "data.txt": "copied", "notes.txt": "unread",
}  # fmt: skip


def render(e: dict[str, str]) -> dict[str, str]:
    text = (
        f"{e['comment']}\nFROM python:{e['tag']}\nRUN apt-get install -y {e['packages']} && true\n{e['user']}"
        f"RUN git clone https://x.org/r && git checkout {e['commit']}\nENV V={e['env']}\nCOPY data.txt /\n"
    )
    return {"Dockerfile": text.replace("\n", e["ends"]), "data.txt": e["copied"], "notes.txt": e["unread"]}


def harbor(files: dict[str, str]) -> str:
    def chunks(path: str) -> tuple[int, Iterator[bytes]]:
        data = files[path].encode()
        return len(data), iter((data,))

    return envhash.harbor_hash(sorted(files), chunks, docker_image=None, folder="environment")


def left(environments: list[dict[str, str]], held: set[str]) -> int:
    """Environments that Harbor tells apart when the parts ``held`` are the same in all."""
    return len({harbor(render({**e, **{name: PARTS[name][0] for name in held}})) for e in environments})


def part_of(driver: str) -> str:
    return next(part for start, part in DRIVERS.items() if driver.startswith(start))


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.fixed_dictionaries({k: st.sampled_from(v) for k, v in PARTS.items()}), min_size=1, max_size=12
    )
)
def test_every_number_is_what_hashing_the_changed_environments_gives(made: list[dict[str, str]]) -> None:
    unique = {harbor(render(e)): e for e in made}
    environments = list(unique.values())
    e = explain(
        [
            facts(r["Dockerfile"], {k: v for k, v in r.items() if k != "Dockerfile"})
            for r in map(render, environments)
        ]
    )
    assert e.environments == left(environments, set())
    for driver in e.drivers:
        part = part_of(driver.name)
        assert driver.remaining == left(environments, {part}), driver.name
        assert driver.values == len({made[part] for made in environments})
    held: set[str] = set()
    for step in e.steps:
        held |= {part_of(name) for name in step.drivers}
        assert step.remaining == left(environments, held)
    assert e.unread == left(environments, {"comment", "ends", "unread"})
    assert e.bases == left(environments, set(PARTS) - {"tag"})


def test_an_argument_that_chooses_the_base_image_is_a_base() -> None:
    e = told(
        *[f"ARG V=3.{v}\nARG X={x}\nFROM python:${{V}}-slim\nARG V\n" for v in range(3) for x in range(2)]
    )
    found = {(d.kind, d.values, d.remaining, d.remedy) for d in e.drivers}
    assert found == {(Kind.BASE, 3, 2, Remedy.DEDICATED), (Kind.INSTRUCTION, 2, 3, Remedy.RUN_TIME)}
    assert e.bases == 3
