"""``poolmgr query``: SQL over a catalogue of pools and datasets."""

from __future__ import annotations

import csv
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from poolmgr.catalogue.build import files_of
from poolmgr.catalogue.query import Answer, Limits, run
from poolmgr.catalogue.schema import EXAMPLES, TABLES
from poolmgr.cli import options, text
from poolmgr.cli.output import Output
from poolmgr.errors import AlreadyExistsError, Exit, UsageError
from poolmgr.ops.progress import Progress
from poolmgr.settings import Settings
from poolmgr.store.files import mapped_os_errors, publish_durable
from poolmgr.temporary import sweep, temp_name

MAX_SQL = 1 << 20


@click.command("query")
@click.argument("sql", required=False, metavar="[SQL|-]")
@click.option(
    "-p", "--pool", "pools", multiple=True, metavar="POOL", help="Put this pool into the catalogue."
)
@click.option(
    "-d", "--dataset", "datasets", multiple=True, metavar="DATASET", help="Put this dataset's tasks into it."
)
@click.option(
    "--catalogue", type=click.Path(path_type=Path), metavar="DIR",
    help="Read this catalogue; with -p or -d make it, and keep it there.",
)  # fmt: skip
@click.option("--tables", is_flag=True, help="Show the tables, and a query for each everyday question.")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "parquet"]), default="table", show_default=True,
    help="How to print the rows; --json is one document.",
)  # fmt: skip
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write CSV or Parquet to a new file.",
)
@click.option(
    "--memory-mb", type=click.IntRange(64), default=Limits().memory_mb, show_default=True, metavar="N"
)
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=Limits().seconds, show_default=True, metavar="SECONDS"
)
@options.output()
def query(
    sql: str | None, pools: tuple[str, ...], datasets: tuple[str, ...], catalogue: Path | None, tables: bool,
    form: str, output: Path | None, memory_mb: int, timeout: float, out: Output,
) -> Exit:  # fmt: skip
    """Run SQL over the blobs, tasks, checks and environments of pools and datasets.

    The tables are built from -p and -d, or read from a catalogue that was made before. The query
    reads them and can reach nothing else: no files, no network. '-' reads the SQL from stdin.
    """
    if tables:
        _show_tables(out)
        return Exit.GOOD
    makes = bool(pools or datasets)
    if not makes and catalogue is None:
        raise UsageError("nothing to query", hint="name a pool (-p), a dataset (-d) or a --catalogue DIR")
    if sql is None and not (makes and catalogue):
        raise UsageError("no SQL was given", hint="'poolmgr query --tables' shows what there is to ask")
    if form == "parquet" and output is None:
        raise UsageError("Parquet is written to a file", hint="give -o FILE")
    with _catalogue(catalogue, pools, datasets, out.progress()) as (folder, errors):
        if sql is not None:
            limits = Limits(memory_mb, timeout, os.cpu_count() or 1)
            with run(_sql(sql), files_of(folder), limits, arrow=form == "parquet") as answer:
                _print(answer, form, output, out)
        elif catalogue is not None:
            out.line("made the catalogue:")
            out.answer(str(catalogue))
            out.document({"kind": "query", "catalogue": str(catalogue), "errors": errors})
    if errors:
        out.warn(f"{text.counted(errors, 'error')} in the datasets: see the column codes of the table tasks")
    return Exit.BAD if errors else Exit.GOOD


def _sql(word: str) -> str:
    if word != "-":
        return word
    given = sys.stdin.read(MAX_SQL + 1)
    if len(given) > MAX_SQL:
        raise UsageError(f"the SQL on stdin is longer than {MAX_SQL:,} characters")
    return given


@contextmanager
def _catalogue(
    folder: Path | None, pools: tuple[str, ...], datasets: tuple[str, ...], progress: Progress
) -> Iterator[tuple[Path, int]]:
    """The catalogue's folder, made first where pools or datasets are named."""
    if not (pools or datasets):
        assert folder is not None
        yield folder, 0
        return
    from poolmgr.ops.catalogue import build

    settings = Settings.read()
    views: list[Any] = []
    if pools:
        from poolmgr.ops.view import open_pool

        views = [open_pool(address, settings, on_retry=progress.note) for address in pools]
    with tempfile.TemporaryDirectory(prefix="poolmgr-catalogue-") as place:
        made = folder or Path(place) / "catalogue"
        yield made, build(made, datasets, views, target=settings.daytona_target, progress=progress)


def _print(answer: Answer, form: str, output: Path | None, out: Output) -> None:
    if output is not None:
        count = _to_file(answer, form, output)
        out.line(f"{text.counted(count, 'row')}:")
        out.answer(str(output))
        out.document({"kind": "query", "rows": count, "output": str(output)})
        return
    if form == "csv" and not out.json:
        out.answer(_csv_line(answer.columns))
        for chunk in answer.chunks():
            out.answer(*map(_csv_line, chunk))
        return
    rows = answer.fetchall()
    out.table([["NULL" if v is None else str(v) for v in row] for row in rows], answer.columns)
    out.line(out.styled(text.counted(len(rows), "row"), "dim"))
    for row in rows:
        out.only_quiet(str(row[0]))
    out.document({"kind": "query", "columns": answer.columns, "rows": rows})


def _to_file(answer: Answer, form: str, output: Path) -> int:
    """Write all rows to the new file ``output``, which is whole or not there; how many they were."""
    if os.path.lexists(output):
        raise AlreadyExistsError(f"{output} is there already, and nothing is ever overwritten")
    sweep(output.parent)
    temporary = temp_name(output.parent)
    count = 0
    try:
        with mapped_os_errors(output):
            if form == "parquet":
                from pyarrow.parquet import ParquetWriter

                with answer.arrow() as reader, ParquetWriter(temporary, reader.schema) as file:
                    for batch in reader:
                        file.write_batch(batch)
                        count += batch.num_rows
            else:
                with open(temporary, "x", newline="", encoding="utf-8") as text_file:
                    writer = csv.writer(text_file)
                    writer.writerow(answer.columns)
                    for rows in answer.chunks():
                        writer.writerows(rows)
                        count += len(rows)
        publish_durable(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _csv_line(row: Any) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(row)
    return line.getvalue()


def _show_tables(out: Output) -> None:
    for table in TABLES:
        out.line(out.styled(table.name, "bold") + f": {table.meaning}")
        out.table([[c.name, c.type, c.meaning] for c in table.columns], indent=2)
        out.only_quiet(table.name)
        out.line()
    for question, sql in EXAMPLES:
        out.line(out.styled(question, "bold"))
        out.line("  " + sql.replace("\n", "\n  "))
        out.line()
    out.document(
        {
            "kind": "query-tables",
            "tables": {t.name: {c.name: c.type for c in t.columns} for t in TABLES},
            "examples": dict(EXAMPLES),
        }
    )
