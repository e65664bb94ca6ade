"""Row files, copied with another image in each row and everything else as it was."""

from __future__ import annotations

import gzip
import io
import itertools
import mmap
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from poolmgr.errors import DatasetInvalidError
from poolmgr.harbor.rows import (
    BATCH,
    CONFIG,
    IMAGE,
    Opener,
    RowTroubleError,
    columns_of,
    config_of,
    decode_line,
    is_list,
    lines_of,
    load_json,
    open_lines,
    open_parquet,
    row_of,
)
from poolmgr.harbor.splice import elements, in_config, set_member, set_row_image

HELD = 64 * 1024 * 1024
"""Bytes of the largest Parquet row group that is held in memory."""
AT_ONCE = 8 * 1024 * 1024
"""Bytes, about, of the rows of a Parquet file that are decoded at once."""
STREAM = 1024 * 1024
"""Bytes read at once of each column of a Parquet file that is copied."""
ImageFor = Callable[[str], str | None]
"""Task id -> the image that its row is to name; None leaves the row out."""


def rewrite(name: str, opener: Opener, out: BinaryIO, image_for: ImageFor) -> None:
    """Write the row file ``name`` to ``out``. Its rows have been read before, without trouble.

    Raises ``DatasetInvalidError`` where a row has no place for an image.
    """
    try:
        if name.endswith(".parquet"):
            _parquet(name, opener, out, image_for)
            return
        packed = gzip.GzipFile(fileobj=out, mode="wb", filename="", mtime=0) if name.endswith(".gz") else None
        for part in _json(name, opener, image_for):
            (packed or out).write(part)
        if packed:
            packed.close()
    except ValueError as e:
        raise DatasetInvalidError(f"{name}: a row cannot be written anew: {e}") from None


def _task(values: dict[str, Any]) -> str:
    row = row_of(values, "")
    if row.task is None or row.trouble is not None:
        raise RowTroubleError(row.trouble or "no task id")
    return row.task


def _json(name: str, opener: Opener, image_for: ImageFor) -> Iterator[bytes]:
    with open_lines(name, opener) as file:
        if not is_list(name, opener):
            for _, line in lines_of(file):
                value = decode_line(line)
                if value is None:
                    yield line
                elif (image := image_for(_task(value))) is not None:
                    yield set_row_image(line.decode("utf-8-sig"), image).encode()
            return
        text = file.read().decode("utf-8-sig")
    kept = []
    for element in elements(text):
        if (image := image_for(_task(load_json(element)))) is not None:
            kept.append(set_row_image(element, image))
    yield ("[\n" + ",\n".join(kept) + "\n]\n").encode()


def _parquet(name: str, opener: Opener, out: BinaryIO, image_for: ImageFor) -> None:
    import pyarrow.parquet as pq

    with opener(name) as file:
        source = open_parquet(name, file, buffer_size=STREAM)
        schema = source.schema_arrow
        columns = columns_of(schema)
        metadata = source.metadata
        with pq.ParquetWriter(
            cast(io.IOBase, out),
            schema,
            compression=_codecs(metadata),
            use_dictionary=_dictionaries(metadata),
            write_batch_size=64,  # a column's dictionary is measured, and given up, no oftener
            version=metadata.format_version if metadata.format_version in ("1.0", "2.4", "2.6") else "2.6",
            store_schema=b"ARROW:schema" in (metadata.metadata or {}),
            write_page_index=_has_page_index(metadata),
            use_compliant_nested_type=not any(".list.item" in leaf for leaf in _leaves(metadata)),
        ) as writer:
            for group in range(metadata.num_row_groups):
                table = _table(schema, _batches(name, source, group, columns, image_for), out)
                if table.num_rows or metadata.num_rows == 0:
                    writer.write_table(table, row_group_size=max(1, table.num_rows))


def _batches(name: str, source: Any, group: int, columns: list[str], image_for: ImageFor) -> Iterator[Any]:
    """The rows of one row group with their images, a few at a time."""
    import pyarrow as pa

    about = source.metadata.row_group(group)
    some = max(1, min(BATCH, AT_ONCE * about.num_rows // max(1, about.total_byte_size)))
    wanted = {column.partition(".")[0] for column in columns}
    for batch in source.iter_batches(batch_size=some, row_groups=[group], use_threads=False):
        values = batch.select([n for n in batch.schema.names if n in wanted]).to_pylist()
        images = [image_for(_task(v)) for v in values]
        batch = _with_images(name, batch, values, images)
        if None in images:
            batch = batch.filter(pa.array([image is not None for image in images]))
        if batch.num_rows:
            yield batch


def _table(schema: Any, batches: Iterator[Any], out: BinaryIO) -> Any:
    """``batches`` as the one table that a row group is written from.

    What is more than ``HELD`` bytes is not held in memory: it goes to a file without a name beside
    ``out``, and the table's bytes are that file, mapped.
    """
    import pyarrow as pa

    first, size = [], 0
    for batch in batches:
        first.append(batch)
        size += batch.nbytes
        if size > HELD:
            break
    else:
        return pa.Table.from_batches(first, schema)
    with tempfile.TemporaryFile(dir=Path(out.name).parent) as spill:
        with pa.ipc.new_stream(spill, schema) as writer:
            for batch in itertools.chain(first, batches):
                writer.write_batch(batch)
        del first, batch
        spill.flush()
        mapped = mmap.mmap(spill.fileno(), 0, access=mmap.ACCESS_READ)
    return pa.ipc.open_stream(pa.py_buffer(mapped)).read_all()


def _with_images(name: str, batch: Any, values: list[dict[str, Any]], images: list[str | None]) -> Any:
    """``batch`` with each row's image set where it stood (docs/cli/bind.md)."""
    configs: dict[int, str] = {}
    column: dict[int, str] = {}
    names = set(batch.schema.names)
    kind: Any = batch.schema.field(CONFIG).type if CONFIG in names else None
    struct = kind is not None and hasattr(kind, "get_field_index")
    no_member = struct and kind.get_field_index(IMAGE) < 0
    has_column = IMAGE in names and _is_text(batch.schema.field(IMAGE).type)
    for i, (row, image) in enumerate(zip(values, images, strict=True)):
        if image is None:
            continue
        config = config_of(row.get(CONFIG)) if kind is not None else None
        if in_config(config, row.get(IMAGE) if has_column else None) and not no_member:
            configs[i] = image
        elif has_column:
            column[i] = image
        else:
            raise DatasetInvalidError(
                f"{name}: row of task {_task(row)!r} has no place for an image",
                hint="a row needs an env_config with an image, or an image column",
            )
    if configs:
        at = batch.schema.get_field_index(CONFIG)
        old = batch.column(at)
        new = _struct(old, configs) if struct else _texts(old, configs, within=True)
        batch = batch.set_column(at, batch.schema.field(at), new)
    if column:
        at = batch.schema.get_field_index(IMAGE)
        batch = batch.set_column(at, batch.schema.field(at), _texts(batch.column(at), column, within=False))
    return batch


def _texts(column: Any, images: dict[int, str], *, within: bool) -> Any:
    """Text values replaced; ``within``: the image inside each JSON text."""
    import pyarrow as pa

    old = column.to_pylist()
    for i, image in images.items():
        old[i] = set_member(old[i], IMAGE, image) if within else image
    if pa.types.is_dictionary(column.type):
        return pa.array(old, type=column.type.value_type).dictionary_encode().cast(column.type)
    return pa.array(old, type=column.type)


def _struct(whole: Any, images: dict[int, str]) -> Any:
    import pyarrow as pa

    at = whole.type.get_field_index(IMAGE)
    children = [whole.field(i) for i in range(whole.type.num_fields)]
    children[at] = _texts(children[at], images, within=False)
    return pa.StructArray.from_arrays(children, fields=list(whole.type), mask=whole.is_null())


def _is_text(kind: Any) -> bool:
    import pyarrow.types as t

    kind = kind.value_type if t.is_dictionary(kind) else kind
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def _codecs(metadata: Any) -> dict[str, str] | str:
    """Leaf -> codec, as the first row group has it."""
    names = {"UNCOMPRESSED": "none", "LZ4_RAW": "lz4", "LZO": "snappy"}
    if metadata.num_row_groups == 0:
        return "snappy"
    group = metadata.row_group(0)
    leaves = [group.column(i) for i in range(group.num_columns)]
    return {leaf.path_in_schema: names.get(leaf.compression, leaf.compression.lower()) for leaf in leaves}


def _dictionaries(metadata: Any) -> list[str] | bool:
    """The leaves that have a dictionary page in the first row group."""
    if metadata.num_row_groups == 0:
        return True
    group = metadata.row_group(0)
    leaves = [group.column(i) for i in range(group.num_columns)]
    return [leaf.path_in_schema for leaf in leaves if leaf.has_dictionary_page]


def _leaves(metadata: Any) -> list[str]:
    return [metadata.schema.column(i).path for i in range(metadata.num_columns)]


def _has_page_index(metadata: Any) -> bool:
    if metadata.num_row_groups == 0 or metadata.row_group(0).num_columns == 0:
        return False
    return bool(metadata.row_group(0).column(0).has_column_index)
