"""The process that runs a user's SQL, and can do nothing else: ``python -m poolmgr.catalogue.worker``.

DuckDB counts what its buffers hold against ``memory_limit`` and looks for an interrupt between
chunks of rows; one value of gigabytes escapes both (``repeat``, ``range``, ``lpad``). So the kernel
holds the limits: this process has no more address space than it was given, writes no file, and is
ended from outside when its time is up. It reads copies of the tables that lie in memory, sealed: COPY
inside EXPLAIN or WITH is a reading statement to DuckDB, and would empty a table's own file.

Reads one JSON request on stdin; answers in frames on stdout (one letter, eight bytes of length):
S ready, C columns, R rows, A Arrow stream, then D done or E the error.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import re
import resource
import shutil
import signal
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

READS = {"SELECT", "EXPLAIN"}
"""DESCRIBE, SHOW, SUMMARIZE, FROM and VALUES are SELECT statements to DuckDB."""
ONLY_READS = "a query only reads (SELECT, DESCRIBE, SUMMARIZE, EXPLAIN)"
WRITES = frozenset(
    b"ALTER ATTACH CALL CHECKPOINT COPY CREATE DELETE DETACH DROP EXECUTE EXPORT IMPORT INSERT INSTALL LOAD"
    b" MERGE PRAGMA PREPARE RESET SET TRUNCATE UPDATE USE VACUUM".split()
)
"""Words that begin other statements, which EXPLAIN and WITH can hold."""
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
ROWS = 100
"""Rows in a frame: few, as a row may be large."""
ARROW_ROWS = 20_000
SLACK = 768 << 20
"""Address space beyond the limit for what DuckDB and Python take besides data: stacks, arenas, code."""
HEAD = struct.Struct(">cQ")


class RefusalError(Exception):
    """What the fences do not let through."""


def main() -> None:
    request = json.load(sys.stdin)
    out = sys.stdout.buffer
    # Killed even where no Python runs any more, and should the parent be gone.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(request["seconds"]) + 90)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tables: dict[str, str] = {}
    try:
        tables = {name: sealed(path) for name, path in request["tables"].items()}
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        _answer({**request, "tables": tables}, out)
        send(out, b"D", b"")
    except BrokenPipeError:
        sys.stderr.close()
    except Exception as e:  # noqa: BLE001, the other side tells what it means
        said = _error(e)
        for name, path in tables.items():
            said["message"] = said["message"].replace(f"'{path}'", f"'{request['tables'][name]}'")
        send(out, b"E", json.dumps(said).encode())


def sealed(path: str) -> str:
    """The path, valid in this process, of a copy of ``path`` in memory that nothing can change any more."""
    copy = os.memfd_create(os.path.basename(path), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(path, "rb") as source, open(copy, "wb", closefd=False) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, SEALS)
    return f"/proc/self/fd/{copy}"


def send(out: BinaryIO, kind: bytes, payload: bytes | memoryview) -> None:
    out.write(HEAD.pack(kind, len(payload)))
    out.write(payload)
    out.flush()


def _error(error: Exception) -> dict[str, str]:
    import duckdb

    kinds = (
        (duckdb.InterruptException, "time"),
        ((duckdb.OutOfMemoryException, MemoryError), "memory"),
        ((duckdb.PermissionException, RefusalError), "refused"),
        (duckdb.Error, "invalid"),
    )
    kind = next((kind for classes, kind in kinds if isinstance(error, classes)), "broken")
    text = str(error).strip().split("\n\n")[0].strip()
    if "failed to allocate" in text.lower() or "bad_alloc" in text or "allocation failure" in text.lower():
        kind = "memory"
    if isinstance(error, duckdb.IOException) and "Operation not permitted" in text:
        kind = "refused"  # a sealed table
    return {"kind": kind, "message": text or type(error).__name__}


def _answer(request: dict[str, Any], out: BinaryIO) -> None:
    connection = open_database(request["tables"], request["memory_mb"], request["threads"])
    if request["arrow"]:
        import pyarrow  # noqa: F401, before the limit
    _limit_memory(request["memory_mb"] << 20)
    send(out, b"S", b"")
    check(connection, request["sql"])
    answer = connection.execute(request["sql"])
    columns = [column[0] for column in answer.description]
    send(out, b"C", json.dumps(columns).encode())
    if request["arrow"]:
        _send_arrow(answer, out)
        return
    while rows := answer.fetchmany(ROWS):
        plain = [[_plain(value) for value in row] for row in rows]
        send(out, b"R", json.dumps(plain, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _limit_memory(size: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + size + SLACK
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def open_database(tables: Mapping[str, str], memory_mb: int, threads: int) -> Any:
    """A DuckDB connection that sees ``tables`` (name -> absolute path) and reaches nothing else."""
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_unsigned_extensions": False,
            "memory_limit": f"{memory_mb}MB",
            "threads": threads,
            "temp_directory": "",
            "python_enable_replacements": False,
        },
    )
    for name, path in tables.items():
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({_quoted(path)})")  # noqa: S608
    connection.execute(f"SET allowed_paths = [{', '.join(map(_quoted, tables.values()))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "''") + "'"


def check(connection: Any, sql: str) -> None:
    """Raises ``RefusalError`` for all but one statement that reads."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise RefusalError(f"expected one statement, found {len(statements)}")
    try:
        kind = statements[0].type.name
    except ValueError:  # a kind that the Python module has no name for
        kind = "this statement"
    if kind not in READS:
        raise RefusalError(f"{kind} is not run: {ONLY_READS}")
    if inner := _inner_statement(sql.encode("utf-8", "surrogatepass")):
        raise RefusalError(f"{inner} inside {kind} is not run: {ONLY_READS}")


def _inner_statement(sql: bytes) -> str | None:
    """The word of a statement in ``EXPLAIN …`` or ``WITH x AS (…)`` that does more than read, or None."""
    import duckdb

    tokens = [at for at, kind in duckdb.tokenize(sql.decode("utf-8", "replace")) if kind.name != "comment"]
    words = [match[0].upper() for at in tokens if (match := re.compile(rb"\w+|.", re.DOTALL).match(sql, at))]
    for before, word, after in zip(words, words[1:], [*words[2:], b""], strict=False):
        opens = before in (b"(", b")", b"EXPLAIN", b"ANALYZE")
        if opens and word in WRITES and (after in (b"", b"(", b"'", b'"') or after[:1].isalpha()):
            return word.decode()
    return None


def _plain(value: Any) -> Any:
    """As JSON has it; what JSON has not, as text."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value)


class _Frames(io.RawIOBase):
    """A file whose writes are frames."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        send(self._out, b"A", view)
        return len(view)


def _send_arrow(answer: Any, out: BinaryIO) -> None:
    import pyarrow as pa

    stream = getattr(answer, "to_arrow_reader", None) or answer.fetch_record_batch  # DuckDB 1
    reader = stream(ARROW_ROWS)
    with pa.ipc.new_stream(_Frames(out), reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


if __name__ == "__main__":
    main()
