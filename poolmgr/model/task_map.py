"""The map that a push is given: task -> image, as JSON, JSON Lines, CSV or TSV.

Somebody wrote it by hand or by script, so it is hostile until parsed; everything that is wrong with
it is told at once, by line or task.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from poolmgr.errors import MapInvalidError
from poolmgr.model.blob import path_trouble
from poolmgr.model.digest import parse_sha256
from poolmgr.model.index import name_trouble

MAX_MAP_BYTES = 512 << 20
_TASK = ("task", "task_id", "id")
_FILE = ("file", "blob", "path", "sif")
_IMAGE = ("image", "source", "ref", "reference")
_DIGEST = ("digest", "source_digest")
_HINT = "JSON {task: file}; or rows with the columns task and file (and image, digest); see docs/cli/push.md"


@dataclass(frozen=True, slots=True)
class MapRow:
    task: str
    file: str
    """A file that is pushed (its path or its name), or the path of a blob of the pool."""
    image: str | None = None
    """The image reference that the file was made of, where it is said."""
    digest: str | None = None
    """The registry's digest of that image: ``sha256:`` and 64 hex digits."""


@dataclass(frozen=True, slots=True)
class TaskMap:
    """A map as it was read: what can be understood of it, and what is wrong."""

    source: str
    rows: tuple[MapRow, ...]
    problems: tuple[str, ...] = ()

    def refuse(self, more: Iterable[str] = (), hint: str = "") -> None:
        """``MapInvalidError`` with everything that is wrong, ``more`` included, unless nothing is."""
        problems = [*self.problems, *more]
        if problems:
            rest = f" (and {len(problems) - 1:,} more)" if problems[1:] else ""
            raise MapInvalidError(f"{self.source}: {problems[0]}{rest}", hint=hint or _HINT, details=problems)


def parse_map(data: bytes, source: str) -> TaskMap:
    """The rows of a map; the form is told by the name's ending, else by the text itself.

    ``MapInvalidError`` for what is no map at all; rows that are wrong are problems of the map.
    """
    if len(data) > MAX_MAP_BYTES:
        raise _bad(source, f"{len(data):,} bytes, more than the {MAX_MAP_BYTES:,} that a map may have")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise _bad(source, f"not UTF-8 text (byte {e.start})") from None
    problems: list[str] = []
    rows: dict[str, MapRow] = {}
    for where, raw in _raw(text, source, problems):
        row = _row(where, raw, problems)
        if row is None:
            continue
        if row.task in rows:
            problems.append(f"{where}: task {row.task!r} stands more than once")
        rows[row.task] = row
    if not rows and not problems:
        raise _bad(source, "names no task")
    return TaskMap(source, tuple(rows.values()), tuple(problems))


# --- forms ------------------------------------------------------------------------------------------


def _raw(text: str, source: str, problems: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, fields) of every row, whatever the form."""
    ending = source.lower().rpartition(".")[2]
    head = text.lstrip()[:1]
    if ending in ("jsonl", "ndjson"):
        return _lines(text, problems)
    if ending == "json" or (ending not in ("csv", "tsv", "txt") and head in ("{", "[")):
        try:
            return _document(text, source, problems)
        except _ManyDocumentsError:
            return _lines(text, problems)
    first = text.partition("\n")[0]
    tabs = ending == "tsv" or (ending != "csv" and "\t" in first)
    return _table(_tabs(text) if tabs else _commas(text, problems), problems)


class _ManyDocumentsError(Exception):
    """The text is several JSON documents, so it is JSON Lines."""


def _document(text: str, source: str, problems: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(found)
        if len(table) != len(found):
            seen: set[str] = set()
            for key, _ in found:
                if key in seen:
                    problems.append(f"task {key!r} stands more than once")
                seen.add(key)
        return table

    try:
        raw = json.loads(text, object_pairs_hook=pairs, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        if isinstance(e, json.JSONDecodeError) and e.msg == "Extra data":
            raise _ManyDocumentsError from None
        raise _bad(source, f"not JSON: {e}") from None
    if isinstance(raw, dict):
        single = _field(raw, _TASK) is not None and _field(raw, _FILE) is not None
        if single and source.lower().rpartition(".")[2] != "json":
            raise _ManyDocumentsError
        return iter(
            [
                (
                    f"task {task!r}",
                    {**value, "task": task} if isinstance(value, dict) else _plain(task, value),
                )
                for task, value in raw.items()
            ]
        )
    if isinstance(raw, list):
        return iter([(f"row {n}", row if isinstance(row, dict) else {}) for n, row in enumerate(raw, 1)])
    raise _bad(source, "holds neither a JSON object nor a list")


def _plain(task: str, value: object) -> dict[str, Any]:
    return {"task": task, "file": value}


def _lines(text: str, problems: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as e:
            problems.append(f"line {number}: not JSON: {str(e)[:200]}")
            continue
        if not isinstance(row, dict):
            problems.append(f"line {number}: not a JSON object")
            continue
        yield f"line {number}", row


def _tabs(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if line.strip():
            yield number, line.split("\t")


def _commas(text: str, problems: list[str]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as e:
        problems.append(f"line {reader.line_num}: not CSV: {e}")


def _table(
    lines: Iterable[tuple[int, list[str]]], problems: list[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    header: list[str] | None = None
    for number, cells in lines:
        if header is None:
            named = [cell.strip().lower() for cell in cells]
            if set(named) & set(_TASK) and set(named) & set(_FILE):
                header = named
                continue
            header = ["task", "file"]
        if len(cells) != len(header):
            problems.append(f"line {number}: {len(cells)} columns, {len(header)} expected")
            continue
        yield f"line {number}", {k: v.strip() for k, v in zip(header, cells, strict=True)}


# --- one row ----------------------------------------------------------------------------------------


def _row(where: str, raw: Mapping[str, Any], problems: list[str]) -> MapRow | None:
    task, file = _field(raw, _TASK), _field(raw, _FILE)
    if not isinstance(task, str) or (trouble := name_trouble(task)):
        problems.append(f"{where}: the task's name {trouble if isinstance(task, str) else 'is missing'}")
        return None
    if not isinstance(file, str):
        problems.append(f"{where}: no file is named")
        return None
    if trouble := file_trouble(file):
        problems.append(f"{where}: {file!r} {trouble}")
        return None
    image, digest = _field(raw, _IMAGE) or None, _field(raw, _DIGEST) or None
    if image is not None and not (isinstance(image, str) and image.isprintable()):
        problems.append(f"{where}: {image!r} is no image reference")
        return None
    if digest is not None:
        try:
            digest = "sha256:" + parse_sha256(digest)
        except (ValueError, AttributeError):
            problems.append(f"{where}: {digest!r} is no digest")
            return None
    return MapRow(task, file, image, digest)


def file_trouble(file: str) -> str | None:
    """Why a map may not name a file so; an absolute path may still be one that was given to the push."""
    bare = file.lstrip("/") if file.startswith("/") else file.removeprefix("./")
    return path_trouble(bare)


def _field(raw: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((raw[name] for name in names if raw.get(name) is not None), None)


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON value")


def _bad(source: str, what: str) -> MapInvalidError:
    return MapInvalidError(f"{source}: {what}", hint=_HINT)
