"""Rows of task datasets in Parquet and JSON: which image does each task ask for?

A row that cannot be read is a ``Row`` with ``trouble``, never a row less. Where things stand
(docs/cli/bind.md): ``env_config`` is a struct or a JSON text with ``image`` and ``task_id``; what it
does not say is taken from the columns ``image`` and ``task_id``, and last, beside an
``env_config``, the task id from ``ground_truth``.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from poolmgr.errors import DatasetInvalidError, PoolError
from poolmgr.model.index import name_trouble
from poolmgr.model.task import Row

Opener = Callable[[str], BinaryIO]
"""Name inside the dataset -> the file, open, binary and seekable."""
CONFIG, IMAGE, TASK, TRUTH = "env_config", "image", "task_id", "ground_truth"
MAX_LINE = 64 * 1024 * 1024
"""Bytes of one JSON line; a longer one is skipped and said."""
MAX_JSON = 256 * 1024 * 1024
"""Bytes of a file that is one JSON list, which is held in memory."""
MAX_CONFIG = 1024 * 1024
"""Characters of an ``env_config`` that is a JSON text."""
MAX_IMAGE = 4096
BATCH = 1024
"""Parquet rows that are in memory at once."""
JSON_ENDS = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json", ".json.gz")


class RowTroubleError(ValueError):
    """Why a row cannot be used, in one line."""


def read_rows(name: str, opener: Opener) -> Iterator[Row]:
    """The rows of one Parquet or JSON file, in order, ``where`` naming file and row (from 1).

    A file that cannot be read (any further) ends in a row with trouble. Errors of the opener
    itself (a missing file, a network that stays away) are raised.
    """
    read = _parquet_rows if name.endswith(".parquet") else _json_rows
    yield from read(name, opener)


def row_of(values: Mapping[str, Any], where: str) -> Row:
    """What the decoded columns ``env_config``, ``image``, ``task_id`` and ``ground_truth`` say."""
    task: str | None = None
    try:
        config = config_of(values.get(CONFIG))
        task = task_of(config, values)
        image = image_of(None if config is None else config.get(IMAGE))
        if image is None:
            image = image_of(values.get(IMAGE))
        return Row(task, image, where)
    except RowTroubleError as e:
        return Row(task, None, where, str(e))


def config_of(value: object) -> Mapping[str, Any] | None:
    """``env_config`` as a table, None where the row has none."""
    if value is None or isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise RowTroubleError(f"env_config is {_shown(value)}, neither a struct nor a JSON text")
    if not value.strip():
        return None
    if len(value) > MAX_CONFIG:
        raise RowTroubleError(f"env_config has {len(value)} characters, more than {MAX_CONFIG}")
    try:
        table = load_json(value)
    except RowTroubleError as e:
        raise RowTroubleError(f"env_config {e}") from None
    if table is not None and not isinstance(table, dict):
        raise RowTroubleError(f"env_config is a JSON text that holds {_shown(table)}, not an object")
    return table


def task_of(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> str:
    """The row's task id; two that differ are trouble, and so is none."""
    inner = _task(None if config is None else config.get(TASK), f"{CONFIG}.{TASK}")
    outer = _task(values.get(TASK), TASK)
    if inner is not None and outer is not None and inner != outer:
        raise RowTroubleError(f"env_config.task_id is {inner!r}, task_id is {outer!r}")
    task = inner if inner is not None else outer
    if task is None and config is not None:
        truth = values.get(TRUTH)
        task = _task(truth if isinstance(truth, str) else None, TRUTH)
    if task is None:
        raise RowTroubleError("the row has no task id (env_config.task_id, task_id)")
    return task


def _task(value: object, where: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64:
        return str(value)
    if not isinstance(value, str):
        raise RowTroubleError(f"{where} is {_shown(value)}, not a text")
    if trouble := name_trouble(value):
        raise RowTroubleError(f"{where} {value[:80]!r} {trouble}")
    return value


def image_of(value: object) -> str | None:
    """An image reference or path as a row gives it, None where it gives none."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise RowTroubleError(f"image is {_shown(value)}, not a text")
    image = value.strip()
    if len(image) > MAX_IMAGE or not image.isprintable():
        raise RowTroubleError(f"image {image[:80]!r} is longer than {MAX_IMAGE} or holds a control character")
    return image or None


def load_json(text: str | bytes) -> Any:
    """One JSON value; raises ``RowTroubleError``, also where an object has one key twice."""
    try:
        return json.loads(
            text.decode("utf-8") if isinstance(text, bytes) else text, object_pairs_hook=_no_repeats
        )
    except UnicodeDecodeError as e:
        raise RowTroubleError(f"is not UTF-8 (byte {e.start})") from None
    except RecursionError:
        raise RowTroubleError("is nested far too deeply") from None
    except RowTroubleError:
        raise
    except ValueError as e:
        raise RowTroubleError(f"is not JSON: {e}") from None


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RowTroubleError(f"has the key {twice[:80]!r} twice in one object")
    return table


def _shown(value: object) -> str:
    text = repr(value)
    return f"a {type(value).__name__} ({text[:60]}{'…' if len(text) > 60 else ''})"


# --- JSON -----------------------------------------------------------------------------------------


def open_lines(name: str, opener: Opener) -> BinaryIO:
    """The file, unpacked where its name ends in ``.gz``."""
    file = opener(name)
    return gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file  # type: ignore[return-value]


def lines_of(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line with its end) of every line; an over-long one is cut to ``MAX_LINE`` + 1 bytes."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        yield number, line
        rest = line if len(line) > MAX_LINE else b"\n"
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE)


def is_list(name: str, opener: Opener) -> bool:
    """Whether a ``.json`` file is one JSON list rather than one object a line."""
    if not name.removesuffix(".gz").endswith(".json"):
        return False
    with open_lines(name, opener) as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def decode_line(line: bytes) -> Any:
    """The value of one line of ``lines_of``, None for a blank one; raises ``RowTroubleError``."""
    if len(line) > MAX_LINE:
        raise RowTroubleError(f"is longer than {MAX_LINE} bytes")
    bare = line.removeprefix(b"\xef\xbb\xbf").strip()
    return load_json(bare) if bare else None


def _json_rows(name: str, opener: Opener) -> Iterator[Row]:
    number = 0
    try:
        if is_list(name, opener):
            with open_lines(name, opener) as file:
                data = file.read(MAX_JSON + 1)
            if len(data) > MAX_JSON:
                raise RowTroubleError(f"is one JSON list of more than {MAX_JSON} bytes")
            for number, value in enumerate(load_json(data.removeprefix(b"\xef\xbb\xbf")), 1):
                yield _json_row(value, f"{name} row {number}")
            return
        with open_lines(name, opener) as file:
            for number, line in lines_of(file):
                where = f"{name} line {number}"
                try:
                    if (value := decode_line(line)) is None and not line.strip():
                        continue
                except RowTroubleError as e:
                    yield Row(None, None, where, f"the line {e}")
                    continue
                yield _json_row(value, where)
    except RowTroubleError as e:
        yield Row(None, None, name, f"the file {e}")
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        yield Row(None, None, f"{name} after line {number}", f"the gzip data is broken: {e}")


def _json_row(value: object, where: str) -> Row:
    if not isinstance(value, dict):
        return Row(None, None, where, f"holds {_shown(value)}, not an object")
    return row_of(value, where)


# --- Parquet ----------------------------------------------------------------------------------------


def open_parquet(name: str, file: BinaryIO, *, buffer_size: int = 0) -> Any:
    """A ``pyarrow.parquet.ParquetFile``; raises ``DatasetInvalidError`` naming the file.

    Columns are read whole, or ``buffer_size`` bytes at a time.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file, pre_buffer=False, buffer_size=buffer_size)
    except PoolError:
        raise
    except (pa.ArrowException, OSError, ValueError) as e:
        raise DatasetInvalidError(
            f"{name}: not a Parquet file that can be read: {_first_line(e)}",
            hint="fetch the file again; a cut Parquet file has lost its footer",
        ) from None


def _parquet_rows(name: str, opener: Opener) -> Iterator[Row]:
    import pyarrow as pa

    number = 0
    with opener(name) as file:
        try:
            parquet = open_parquet(name, file)
            columns = columns_of(parquet.schema_arrow)
            if not columns:
                raise DatasetInvalidError(
                    f"has none of the columns {CONFIG}, {IMAGE}, {TASK}; it has: "
                    + ", ".join(parquet.schema_arrow.names[:20])
                )
            for batch in parquet.iter_batches(batch_size=BATCH, columns=columns, use_threads=False):
                for values in batch.to_pylist():
                    number += 1
                    yield row_of(values, f"{name} row {number}")
        except DatasetInvalidError as e:
            yield Row(None, None, name, e.message.removeprefix(f"{name}: "))
        except PoolError:
            raise
        except (pa.ArrowException, OSError, ValueError) as e:
            yield Row(None, None, f"{name} after row {number}", f"cannot be read: {_first_line(e)}")


def columns_of(schema: Any) -> list[str]:
    """The leaves worth reading: never a message, a transcript or a picture."""
    import pyarrow.types as t

    columns = []
    for field in schema:
        kind = field.type.value_type if t.is_dictionary(field.type) else field.type
        text = t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind)
        if field.name == CONFIG and t.is_struct(kind):
            columns += [f"{CONFIG}.{f.name}" for f in kind if f.name in (IMAGE, TASK)]
        elif (field.name in (CONFIG, IMAGE, TASK, TRUTH) and text) or (
            field.name == TASK and t.is_integer(kind)
        ):
            columns.append(field.name)
    return [] if columns == [TRUTH] else columns


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
