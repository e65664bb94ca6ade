"""Runs a user's SQL over a catalogue in a DuckDB that can reach nothing else.

Three fences, each enough by itself for what it covers: only a single statement that reads is run;
the database has no access to files or network but the catalogue's own files, and loads no
extension; the configuration is locked before the user's SQL is seen. Memory, threads and time are
limited.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolmgr.errors import QueryInvalidError, QueryRefusedError

READS = {"SELECT", "EXPLAIN"}
"""DESCRIBE, SHOW, SUMMARIZE, FROM and VALUES are SELECT statements to DuckDB."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_mb: int = 2048
    seconds: float = 60.0
    threads: int = 2


@contextmanager
def run(sql: str, tables: Mapping[str, Path], limits: Limits) -> Iterator[Any]:
    """The DuckDB relation of ``sql``, inside the fences; time runs until the block is left.

    ``QueryInvalidError`` for SQL that does not parse or run, ``QueryRefusedError`` for what the
    fences and the limits do not let through.
    """
    import duckdb

    for path in tables.values():
        if set("*?[") & set(str(path.resolve())):
            raise QueryRefusedError(
                f"{path}: DuckDB would take this path for a pattern", hint="move the catalogue"
            )
    connection = _open(tables, limits)
    timer = threading.Timer(limits.seconds, connection.interrupt)
    timer.daemon = True
    try:
        _check(connection, sql)
        timer.start()
        yield connection.execute(sql)
    except duckdb.InterruptException:
        raise QueryRefusedError(
            f"the query took more than {limits.seconds:g} seconds", hint="--timeout gives it longer"
        ) from None
    except duckdb.OutOfMemoryException:
        raise QueryRefusedError(
            f"the query needs more than {limits.memory_mb:,} MB of memory", hint="--memory-mb gives it more"
        ) from None
    except duckdb.PermissionException as e:
        raise QueryRefusedError(
            _first_line(e), hint="a query reads the catalogue's tables and nothing else"
        ) from None
    except duckdb.Error as e:
        raise QueryInvalidError(
            _first_line(e), hint="'poolmgr query --tables' shows tables and columns"
        ) from None
    finally:
        timer.cancel()
        connection.close()


def _open(tables: Mapping[str, Path], limits: Limits) -> Any:
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_unsigned_extensions": False,
            "memory_limit": f"{limits.memory_mb}MB",
            "threads": limits.threads,
            "temp_directory": "",
            "python_enable_replacements": False,
        },
    )
    for name, path in tables.items():
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({_quoted(path)})")  # noqa: S608
    connection.execute(f"SET allowed_paths = [{', '.join(_quoted(p) for p in tables.values())}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _quoted(path: Path) -> str:
    return "'" + str(path.resolve()).replace("'", "''") + "'"


def _check(connection: Any, sql: str) -> None:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise QueryRefusedError(f"expected one statement, found {len(statements)}")
    kind = statements[0].type.name
    if kind not in READS:
        raise QueryRefusedError(
            f"{kind} is not run: a query only reads", hint="use SELECT, DESCRIBE, SUMMARIZE or EXPLAIN"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n\n")[0].strip()
