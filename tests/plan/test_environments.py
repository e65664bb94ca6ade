"""Counting: by hash, by role, by definition; over several datasets."""

from __future__ import annotations

from poolmgr.model.environment import (
    AGENT,
    VERIFIER,
    Definition,
    Environment,
    NotTask,
    Resources,
    Scheme,
    Task,
)
from poolmgr.model.finding import Finding, Severity
from poolmgr.plan.environments import shared, tally, union
from poolmgr.plan.sharing import sharing

DOCKERFILE = Definition.DOCKERFILE


def environment(
    digest: str | None, role: str = AGENT, definition: Definition = DOCKERFILE, memory: int = 1, **others: str
) -> Environment:
    hashes: dict[Scheme, str | None] = {Scheme.HARBOR: digest}
    hashes.update({Scheme(k.replace("_", "-")): v for k, v in others.items()})
    return Environment(role, "environment", definition, hashes, resources=Resources(memory_mb=memory))


def task(name: str, *environments: Environment, dataset: str = "d") -> Task:
    return Task(dataset, name, name, environments)


def test_agent_and_verifier_environments_are_counted_apart_and_together() -> None:
    (count,) = tally(
        [
            task("1", environment("a"), environment("v", VERIFIER)),
            task("2", environment("a"), environment("a", VERIFIER)),
            task("3", environment("b"), environment("v", "verifier:one")),
        ]
    )
    assert (count.tasks, count.agent, count.verifier, count.environments) == (3, 2, 2, 3)
    assert count.groups["a"].task_names == ["1", "2"], "a task whose roles share it counts once"
    assert count.sizes == [2, 2, 1]
    assert count.single_use == 1


def test_snapshots_leave_out_compose_and_images() -> None:
    (count,) = tally(
        [
            task("1", environment("a")),
            task("2", environment("b", definition=Definition.COMPOSE)),
            task("3", environment("c", definition=Definition.IMAGE)),
        ]
    )
    assert (count.environments, count.snapshots) == (3, 1)
    assert [g.hash for g in count.image_only] == ["c"]
    assert count.by_definition == {DOCKERFILE: 1, Definition.COMPOSE: 1, Definition.IMAGE: 1}


def test_different_resources_under_one_name_are_seen() -> None:
    (count,) = tally(
        [
            task("1", environment("a", memory=1)),
            task("2", environment("a", memory=8)),
            task("3", environment("b", memory=1)),
            task("4", environment("c", definition=Definition.COMPOSE, memory=1)),
            task("5", environment("c", definition=Definition.COMPOSE, memory=2)),
        ]
    )
    assert [g.hash for g in count.conflicts] == ["a"], "a compose environment has no snapshot to share"


def test_what_has_no_hash_is_named_and_not_counted() -> None:
    bad = Finding("env-not-utf8", "x")
    broken = Environment(AGENT, "environment", DOCKERFILE, {Scheme.HARBOR: None}, findings=(bad,))
    (count,) = tally([task("1", broken), NotTask("d", "2", "2", Finding("no-task-toml", "x", Severity.NOTE))])
    assert count.environments == 0
    assert count.unhashed == (("d", "1", AGENT),)
    assert [f.code for _, _, f in count.findings] == ["env-not-utf8", "no-task-toml"]
    assert [f.code for _, _, f in count.errors] == ["env-not-utf8"]
    assert count.reasons == {"no-task-toml": 1}


def test_several_datasets() -> None:
    counts = tally(
        [
            task("1", environment("a", dockerfile="x"), dataset="one"),
            task("1", environment("a", dockerfile="x"), dataset="two"),
            task("2", environment("b", dockerfile="x"), dataset="two"),
        ]
    )
    assert [(c.name, c.environments) for c in counts] == [("one", 1), ("two", 2)]
    assert shared(counts) == {"a": ["one", "two"]}
    together = union(counts)
    assert together.environments == 2
    assert together.groups["a"].task_names == ["one:1", "two:1"]
    assert together.others == {Scheme.DOCKERFILE: {"x"}}
    assert counts[0].groups["a"].task_names == ["1"], "the union leaves the counts as they were"


def test_sharing_of_a_variant() -> None:
    found = sharing({"1": "a", "2": "a", "3": "b", "4": "c"}, {"a": "X", "b": "X"}, {"a": "T"})
    assert (found.tasks, found.blobs, found.largest, found.single_use) == (4, 3, 2, 2)
    assert (found.sha256, found.with_sha256, found.trees, found.with_tree) == (1, 2, 1, 1)
