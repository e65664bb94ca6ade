"""The tables of a catalogue, their columns, and a query for each everyday question."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """``text``, ``integer``, ``number`` or ``boolean``."""
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    meaning: str
    columns: tuple[Column, ...]


def _table(name: str, meaning: str, *columns: tuple[str, str, str]) -> Table:
    return Table(name, meaning, tuple(Column(*c) for c in columns))


TABLES = (
    _table(
        "blobs", "one row a file of a pool",
        ("pool", "text", "the pool's address"),
        ("path", "text", "inside the pool"),
        ("directory", "text", "the folder part of path, '' for the root"),
        ("size", "integer", "bytes; null where it is not known"),
        ("sha256", "text", "where it is on record"),
        ("tree_sha256", "text", "hash of the tree inside, where it is on record"),
        ("trouble", "text", "finding code of an entry that is no readable file"),
    ),
    _table(
        "assignments", "one row a variant and task",
        ("pool", "text", "the pool's address"),
        ("variant", "text", ""),
        ("task", "text", ""),
        ("blob", "text", "the path that the task needs"),
    ),
    _table(
        "checks", "one row a check on record (attestation) of a blob",
        ("pool", "text", "the pool's address"),
        ("path", "text", "inside the pool"),
        ("check_name", "text", "listed, header, mount, tables, data, hash, inspect or run"),
        ("verdict", "text", "ok, partial, bad, unchecked or unsupported"),
        ("codes", "text", "finding codes, separated by spaces"),
        ("sha256", "text", "of the bytes that were checked, where they were hashed"),
        ("size", "integer", "of the file as it was checked"),
        ("time", "number", "Unix seconds"),
    ),
    _table(
        "tasks", "one row a folder or row of a dataset, tasks or not",
        ("dataset", "text", "with the sub-dataset's name behind a slash"),
        ("task", "text", ""),
        ("where_read", "text", "the folder, or file and row"),
        ("is_task", "boolean", ""),
        ("steps", "integer", "0 for a single-step task"),
        ("codes", "text", "finding codes, separated by spaces"),
    ),
    _table(
        "environments", "one row a task and role",
        ("dataset", "text", "with the sub-dataset's name behind a slash"),
        ("task", "text", ""),
        ("role", "text", "agent, verifier or verifier:STEP"),
        ("definition", "text", "dockerfile, compose, image or none"),
        ("hash", "text", "Harbor's"),
        ("hash_legacy", "text", "Harbor's up to 0.17"),
        ("hash_dockerfile", "text", "of the Dockerfile alone"),
        ("hash_build", "text", "of what a build reads"),
        ("snapshot", "text", "the Daytona snapshot it needs; null where it needs none"),
        ("docker_image", "text", ""),
        ("dockerfile", "text", "the Dockerfile's text"),
        ("cpus", "number", "asked for"),
        ("memory_mb", "integer", "asked for"),
        ("storage_mb", "integer", "asked for"),
        ("gpus", "integer", "asked for"),
        ("files", "integer", "that count for Harbor's hash"),
        ("size", "integer", "their bytes"),
    ),
)  # fmt: skip

EXAMPLES = (
    (
        "distinct environments per dataset",
        "SELECT dataset, count(DISTINCT hash) AS environments, count(DISTINCT task) AS tasks\n"
        "FROM environments GROUP BY dataset ORDER BY environments DESC",
    ),
    (
        "environments that two datasets share",
        "SELECT hash, list(DISTINCT dataset) AS datasets FROM environments\n"
        "GROUP BY hash HAVING count(DISTINCT dataset) > 1",
    ),
    (
        "blobs shared by two variants",
        "SELECT a.blob FROM assignments a JOIN assignments b USING (pool, blob)\n"
        "WHERE a.variant < b.variant GROUP BY a.blob",
    ),
    (
        "tasks whose blob failed",
        "SELECT variant, task, blob, codes FROM assignments\n"
        "JOIN checks ON checks.pool = assignments.pool AND checks.path = blob WHERE verdict = 'bad'",
    ),
    (
        "largest blobs that only one task needs",
        "SELECT blob, any_value(size) AS size, any_value(task) AS task FROM assignments\n"
        "JOIN blobs ON blobs.pool = assignments.pool AND blobs.path = blob\n"
        "GROUP BY blob HAVING count(*) = 1 ORDER BY size DESC LIMIT 20",
    ),
    (
        "growth by directory",
        "SELECT directory, count(*) AS files, sum(size) AS bytes FROM blobs\n"
        "GROUP BY directory ORDER BY bytes DESC",
    ),
)
"""(question, SQL); a test runs every one."""
