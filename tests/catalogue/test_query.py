"""The sandbox around a user's SQL, and the tables it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poolmgr.catalogue.build import MARK, CatalogueWriter, files_of
from poolmgr.catalogue.query import Limits, run
from poolmgr.catalogue.schema import EXAMPLES, TABLES
from poolmgr.errors import AlreadyExistsError, BadFileError, PoolError, QueryInvalidError, QueryRefusedError


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("c") / "it's a catalogue"
    with CatalogueWriter(folder) as writer:
        for n in range(6):
            place = {"dataset": f"d{n % 2}", "task": f"t{n}"}
            writer.add("tasks", {**place, "is_task": True, "steps": 0, "codes": ""})
            writer.add(
                "environments", {**place, "role": "agent", "hash": f"h{n % 3}", "cpus": 1.5, "memory_mb": n}
            )
            blob = {"pool": "p", "path": f"b{n % 2}/{n}.sif"}
            writer.add("blobs", {**blob, "directory": f"b{n % 2}", "size": n * 100, "sha256": "x"})
            writer.add(
                "checks", {**blob, "check_name": "mount", "verdict": "bad" if n == 5 else "ok", "codes": "x"}
            )
            for variant in ("one", "two") if n < 2 else ("one",):
                row = {"pool": "p", "variant": variant, "task": f"t{n}", "blob": blob["path"]}
                writer.add("assignments", row)
    return folder


def ask(catalogue: Path, sql: str, limits: Limits | None = None) -> list[tuple[Any, ...]]:
    with run(sql, files_of(catalogue), limits or Limits()) as answer:
        return answer.fetchall()


def test_distinct_environments_per_dataset(catalogue: Path) -> None:
    sql = "SELECT dataset, count(DISTINCT hash) FROM environments GROUP BY 1 ORDER BY 1"
    assert ask(catalogue, sql) == [("d0", 3), ("d1", 3)]


ANSWERS = {
    "distinct environments per dataset": [("d0", 3, 3), ("d1", 3, 3)],
    "environments that two datasets share": 3,
    "blobs shared by two variants": [("b0/0.sif",), ("b1/1.sif",)],
    "tasks whose blob failed": [("one", "t5", "b1/5.sif", "x")],
    "largest blobs that only one task needs": 4,
    "growth by directory": [("b1", 3, 900), ("b0", 3, 600)],
}


@pytest.mark.parametrize(("question", "sql"), EXAMPLES, ids=[q for q, _ in EXAMPLES])
def test_every_example_answers_its_question(catalogue: Path, question: str, sql: str) -> None:
    rows = ask(catalogue, sql)
    expected = ANSWERS[question]
    if isinstance(expected, int):
        assert len(rows) == expected
    elif "ORDER" in sql and question != "distinct environments per dataset":
        assert rows == expected
    else:
        assert sorted(rows) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1", "FROM tasks LIMIT 1", "VALUES (1)", "DESCRIBE tasks", "SHOW TABLES", "SUMMARIZE tasks",
        "EXPLAIN SELECT 1", "WITH x AS (SELECT 1) SELECT * FROM x", "SELECT 1 -- done", "SELECT 1;",
    ],
)  # fmt: skip
def test_what_reads_is_run(catalogue: Path, sql: str) -> None:
    assert ask(catalogue, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "COPY tasks TO '{out}'", "COPY (SELECT 1) TO '{out}' (FORMAT parquet)", "EXPORT DATABASE '{out}'",
        "ATTACH '{out}'", "SELECT * FROM read_csv('{secret}')", "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_blob('{secret}')", "SELECT * FROM '{secret}'",
        "SELECT * FROM read_parquet('{secret}')",
        "SELECT * FROM read_json_auto('{secret}')", "SELECT * FROM glob('{folder}/*')",
        "SELECT * FROM parquet_metadata('{secret}')", "SELECT * FROM sniff_csv('{secret}')",
        "SELECT * FROM read_csv('http://127.0.0.1:1/x')", "SELECT * FROM read_parquet('hf://datasets/a/b/c.parquet')",
        "INSTALL httpfs", "LOAD httpfs", "SET memory_limit = '100GB'", "RESET enable_external_access",
        "SET enable_external_access = true", "PRAGMA enable_external_access = true",
        "CREATE TABLE x AS SELECT 1",
        "INSERT INTO tasks SELECT * FROM tasks", "DROP VIEW tasks", "CREATE SECRET (TYPE s3)",
        "SELECT 1; COPY tasks TO '{out}'", "EXPLAIN ANALYZE COPY tasks TO '{out}'", "CALL pragma_version()",
        "PREPARE x AS SELECT 1", "SELECT * FROM duckdb_secrets()", "IMPORT DATABASE '{folder}'", "",
        "SELECT * FROM query('COPY tasks TO ''{out}''')", "COPY tasks TO '{own}'",
        "SELECT getenv('HOME')", "SELECT * FROM connection", "CHECKPOINT", "VACUUM", "USE memory",
    ],
)  # fmt: skip
def test_what_leaves_the_catalogue_is_refused(catalogue: Path, tmp_path: Path, sql: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\nTOPSECRET,1\n")
    before = {p: p.read_bytes() for p in catalogue.iterdir()}
    filled = sql.format(
        out=tmp_path / "out",
        secret=secret,
        folder=tmp_path,
        own=str(catalogue / "tasks.parquet").replace("'", "''"),
    )
    with pytest.raises((QueryRefusedError, QueryInvalidError)) as caught:
        ask(catalogue, filled)
    assert "TOPSECRET" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["secret.csv"]
    assert {p: p.read_bytes() for p in catalogue.iterdir()} == before


def test_time_is_limited(catalogue: Path) -> None:
    sql = "SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c WHERE a.range < c.range"
    with pytest.raises(QueryRefusedError, match=r"0\.3 seconds"):
        ask(catalogue, sql, Limits(seconds=0.3))


def test_memory_is_limited(catalogue: Path) -> None:
    sql = "SELECT list(range || 'x' || range) FROM range(30000000)"
    with pytest.raises(QueryRefusedError, match="100 MB"):
        ask(catalogue, sql, Limits(memory_mb=100))


def test_bad_sql_is_explained(catalogue: Path) -> None:
    with pytest.raises(QueryInvalidError, match="nosuch"):
        ask(catalogue, "SELECT nosuch FROM tasks")
    with pytest.raises(QueryInvalidError, match=r"(?i)syntax"):
        ask(catalogue, "SELEC 1")


def test_a_catalogue_is_whole_or_not_there(tmp_path: Path) -> None:
    def stopped() -> None:
        with CatalogueWriter(tmp_path / "c") as writer:
            writer.add("tasks", {"dataset": "d"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stopped()
    assert list(tmp_path.iterdir()) == []
    with CatalogueWriter(tmp_path / "c"):
        pass
    with pytest.raises(AlreadyExistsError):
        CatalogueWriter(tmp_path / "c")
    assert {p.stem for p in (tmp_path / "c").glob("*.parquet")} == {t.name for t in TABLES}
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_what_is_no_catalogue_is_refused(tmp_path: Path) -> None:
    for spoil in ("mark", "json", "schema", "table"):
        folder = tmp_path / spoil
        with CatalogueWriter(folder):
            pass
        match spoil:
            case "mark":
                (folder / MARK).unlink()
            case "json":
                (folder / MARK).write_text("{")
            case "schema":
                (folder / MARK).write_text('{"schema": 99}')
            case "table":
                (folder / "tasks.parquet").unlink()
        with pytest.raises(PoolError) as caught:
            files_of(folder)
        assert isinstance(caught.value, BadFileError)


def test_a_name_that_is_not_utf8_is_kept_as_escapes(tmp_path: Path) -> None:
    with CatalogueWriter(tmp_path / "c") as writer:
        writer.add("tasks", {"task": "caf\udce9"})
    assert ask(tmp_path / "c", "SELECT task FROM tasks") == [("caf\\udce9",)]
