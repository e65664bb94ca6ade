"""The sandbox around a user's SQL, and the tables it reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from poolmgr.catalogue import worker
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


def fenced(catalogue: Path, sql: str) -> list[tuple[Any, ...]]:
    """As ``ask``, inside the database's own fences alone: no process, no kernel around it."""
    tables = {name: str(path.resolve()) for name, path in files_of(catalogue).items()}
    with worker.open_database(tables, 512, 1) as connection:
        worker.check(connection, sql)
        rows: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
        return rows


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
    rows = fenced(catalogue, sql)
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
    assert fenced(catalogue, sql)


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
        "SELECT * FROM read_csv('{own}/../../secret.csv')", "SELECT * FROM glob('{own}/../*')",
        "SELECT * FROM read_text(['{own}', '{secret}'])", "SELECT * FROM read_ndjson_objects('{secret}')",
        "SELECT * FROM parquet_kv_metadata('{secret}')", "SELECT * FROM read_duckdb('{secret}')",
        "SELECT * FROM query('SELECT * FROM read_csv(''{secret}'')')",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('FROM read_csv(''{secret}'')'))",
        "DESCRIBE SELECT * FROM read_csv('{secret}')", "SUMMARIZE SELECT * FROM '{secret}'",
        "EXPLAIN COPY tasks TO '{out}'", "SELECT * FROM 's3://bucket/x.parquet'",
        "SELECT * FROM sqlite_scan('{secret}', 'x')", "SELECT * FROM postgres_scan('', 'a', 'b')",
        "SELECT * FROM read_xlsx('{secret}')", "SELECT * FROM st_read('{secret}')",
        "SELECT * FROM delta_scan('{folder}')", "SELECT * FROM duckdb_extensions()",
        "SELECT * FROM which_secret('s3://x', 's3')", "SELECT * FROM enable_logging()",
        "CALL enable_logging('QueryLog', storage = 'file', storage_path = '{out}')",
        "CALL enable_profiling()",
        "UPDATE EXTENSIONS", "PRAGMA memory_limit = '10GB'", "PRAGMA database_list", "SET VARIABLE x = 1",
        "BEGIN",
        "CREATE MACRO m() AS 1", "CREATE TEMP TABLE t AS SELECT 1", "ALTER VIEW tasks RENAME TO t",
        "COMMENT ON VIEW tasks IS 'x'", "DELETE FROM tasks", "UPDATE tasks SET task = 'x'", "DETACH memory",
        "MERGE INTO tasks USING tasks t ON true WHEN MATCHED THEN DELETE", "EXECUTE x", "DEALLOCATE x",
        "COPY FROM DATABASE memory TO x", "SELECT 1; SELECT 2", "SELECT * FROM sys",
        "SELECT * FROM pandas_scan(1)",
        "SELECT current_setting('s3_secret_access_key')",
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
    import duckdb

    with pytest.raises((duckdb.Error, worker.RefusalError)) as caught:
        fenced(catalogue, filled)
    assert "TOPSECRET" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["secret.csv"]
    assert {p: p.read_bytes() for p in catalogue.iterdir()} == before


@pytest.mark.parametrize(
    ("sql", "error", "why"),
    [
        ("COPY tasks TO '/tmp/x'", QueryRefusedError, "COPY is not run"),
        ("SELECT * FROM read_csv('/etc/passwd')", QueryRefusedError, "Permission"),
        ("SELECT nosuch FROM tasks", QueryInvalidError, "nosuch"),
        ("SELEC 1", QueryInvalidError, "(?i)syntax"),
        ("", QueryRefusedError, "one statement"),
    ],
)
def test_what_is_refused_is_explained(catalogue: Path, sql: str, error: type[PoolError], why: str) -> None:
    with pytest.raises(error, match=why):
        ask(catalogue, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c WHERE a.range < c.range",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r",
        "SELECT bitstring('1', 2000000000)",
    ],
)
def test_time_is_limited(catalogue: Path, sql: str) -> None:
    with pytest.raises(QueryRefusedError, match=r"0\.3 seconds"):
        ask(catalogue, sql, Limits(seconds=0.3))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT list(range || 'x' || range) FROM range(30000000)",
        "WITH RECURSIVE r AS (SELECT 'x' AS s UNION ALL SELECT s || s FROM r) SELECT max(length(s)) FROM r",
        # One value beyond DuckDB's own accounting: the kernel's limit holds these.
        "SELECT repeat('x', 4000000000)", "SELECT range(1000000000)", "SELECT format('{:>2000000000}', 'x')",
    ],
)  # fmt: skip
def test_memory_is_limited(catalogue: Path, sql: str) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with pytest.raises(QueryRefusedError, match="100 MB of memory"):
        ask(catalogue, sql, Limits(memory_mb=100))
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert after == before or after < 1200 << 10


def test_a_large_answer_is_not_held_as_a_whole(catalogue: Path) -> None:
    sql = "SELECT repeat('x', 100000) FROM range(1200)"
    with pytest.raises(QueryRefusedError, match="more than 100 MB"):
        ask(catalogue, sql, Limits(memory_mb=100))
    with run(sql, files_of(catalogue), Limits(memory_mb=1000)) as answer:
        assert sum(len(rows) for rows in answer.chunks()) == 1200


def test_the_process_has_no_token_and_writes_no_file(
    catalogue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "s" * 30)
    with run("SELECT 1", files_of(catalogue), Limits()) as answer:
        child = Path(f"/proc/{answer.pid}")
        assert b"HF_TOKEN" not in (child / "environ").read_bytes()
        limits = (child / "limits").read_text()
        assert [line.split()[3] for line in limits.splitlines() if "Max file size" in line] == ["0"]
        assert answer.fetchall() == [(1,)]
    assert not child.exists()


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        (
            "EXPLAIN ANALYZE COPY (SELECT 1) TO '{own}' (FORMAT csv, USE_TMP_FILE false)",
            "COPY inside EXPLAIN",
        ),
        ("EXPLAIN (ANALYZE) /* x */ COPY (SELECT 1) TO '{own}' (USE_TMP_FILE false)", "COPY inside EXPLAIN"),
        (
            "WITH x AS (COPY (SELECT 1) TO '{own}' (FORMAT csv, USE_TMP_FILE false)) FROM x",
            "COPY inside SELECT",
        ),
        ("WITH x AS MATERIALIZED (copy tasks TO '{own}') FROM x", "COPY inside SELECT"),
        ("WITH x AS (INSERT INTO tasks VALUES (1)) SELECT 1", "INSERT inside SELECT"),
        ("EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1", "CREATE inside EXPLAIN"),
        ("EXPLAIN ANALYZE SET threads = 50", "SET inside EXPLAIN"),
        ("EXPLAIN ANALYZE CHECKPOINT", "CHECKPOINT inside EXPLAIN"),
    ],
)
def test_a_reading_statement_that_holds_a_writing_one_is_refused(
    catalogue: Path, sql: str, word: str
) -> None:
    own = catalogue / "tasks.parquet"
    before = own.read_bytes()
    with pytest.raises(QueryRefusedError, match=word):
        ask(catalogue, sql.format(own=str(own).replace("'", "''")))
    assert own.read_bytes() == before


@pytest.mark.parametrize("form", ["(FORMAT csv, USE_TMP_FILE false)", "(USE_TMP_FILE false)", ""])
def test_no_statement_can_change_a_table(catalogue: Path, form: str) -> None:
    import duckdb

    own = catalogue / "tasks.parquet"
    before = own.read_bytes()
    path = worker.sealed(str(own))
    with worker.open_database({"tasks": path}, 512, 1) as connection:
        with pytest.raises(duckdb.Error):
            connection.execute(f"COPY (SELECT 1) TO '{path}' {form}")
        assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (6,)
    assert own.read_bytes() == before
    os.close(int(path.rpartition("/")[2]))


def test_words_that_only_look_like_writing_are_run(catalogue: Path) -> None:
    sql = """SELECT count("copy"), max(update), 'x (COPY y)' AS "COPY" -- (COPY a
        FROM (SELECT 'é' AS "copy", 2 AS update) /* (COPY b */"""
    assert ask(catalogue, sql) == [(1, 2, "x (COPY y)")]


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "tasks.parquet"
    broken.write_bytes(b"PAR1")
    with pytest.raises(QueryInvalidError, match=str(broken)), run("FROM tasks", {"tasks": broken}, Limits()):
        pass


def test_values_of_every_type(catalogue: Path) -> None:
    (row,) = ask(
        catalogue, "SELECT 1::HUGEINT, 1.5, 0.5::DOUBLE, 'nan'::DOUBLE, NULL, true, [1, 2], DATE '2026-01-02'"
    )
    assert row == (1, "1.5", 0.5, "nan", None, True, [1, 2], "2026-01-02")
    assert ask(catalogue, "SELECT 1 WHERE false") == []
    assert ask(catalogue, "SELECT * FROM test_all_types()")


def test_arrow_that_ends_early_is_explained(catalogue: Path) -> None:
    sql = "SELECT a.range FROM range(100000000) a, range(100000000) b"
    with (
        pytest.raises(QueryRefusedError, match=r"0\.5 seconds"),
        run(sql, files_of(catalogue), Limits(seconds=0.5), arrow=True) as answer,
    ):
        for _ in answer.arrow():
            pass


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
