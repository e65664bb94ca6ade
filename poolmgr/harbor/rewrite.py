"""Row files, copied with another image in each row and everything else as it was."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from poolmgr.errors import DatasetInvalidError
from poolmgr.harbor.rows import (
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
        source = open_parquet(name, file)
        schema = source.schema_arrow
        columns = columns_of(schema)
        metadata = source.metadata
        with pq.ParquetWriter(
            cast(io.IOBase, out),
            schema,
            compression=_codecs(metadata),
            version=metadata.format_version if metadata.format_version in ("1.0", "2.4", "2.6") else "2.6",
            store_schema=b"ARROW:schema" in (metadata.metadata or {}),
            write_page_index=_has_page_index(metadata),
            use_compliant_nested_type=not any(".list.item" in leaf for leaf in _leaves(metadata)),
        ) as writer:
            for group in range(metadata.num_row_groups):
                table = source.read_row_group(group, use_threads=False)
                values = source.read_row_group(group, columns=columns, use_threads=False).to_pylist()
                images = [image_for(_task(v)) for v in values]
                table = _with_images(name, table, values, images)
                if None in images:
                    table = table.filter([image is not None for image in images])
                if table.num_rows or metadata.num_rows == 0:
                    writer.write_table(table, row_group_size=max(1, table.num_rows))


def _with_images(name: str, table: Any, values: list[dict[str, Any]], images: list[str | None]) -> Any:
    """``table`` with each row's image set where it stood (docs/cli/bind.md)."""
    configs: dict[int, str] = {}
    column: dict[int, str] = {}
    names = set(table.schema.names)
    kind: Any = table.schema.field(CONFIG).type if CONFIG in names else None
    struct = kind is not None and hasattr(kind, "get_field_index")
    no_member = struct and kind.get_field_index(IMAGE) < 0
    has_column = IMAGE in names and _is_text(table.schema.field(IMAGE).type)
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
        at = table.schema.get_field_index(CONFIG)
        old = table.column(at)
        new = _struct(old, configs) if struct else _texts(old, configs, within=True)
        table = table.set_column(at, table.schema.field(at), new)
    if column:
        at = table.schema.get_field_index(IMAGE)
        table = table.set_column(at, table.schema.field(at), _texts(table.column(at), column, within=False))
    return table


def _texts(column: Any, images: dict[int, str], *, within: bool) -> Any:
    """Text values replaced; ``within``: the image inside each JSON text."""
    import pyarrow as pa

    old = column.to_pylist()
    for i, image in images.items():
        old[i] = set_member(old[i], IMAGE, image) if within else image
    if pa.types.is_dictionary(column.type):
        return pa.array(old, type=column.type.value_type).dictionary_encode().cast(column.type)
    return pa.array(old, type=column.type)


def _struct(column: Any, images: dict[int, str]) -> Any:
    import pyarrow as pa

    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
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


def _leaves(metadata: Any) -> list[str]:
    return [metadata.schema.column(i).path for i in range(metadata.num_columns)]


def _has_page_index(metadata: Any) -> bool:
    if metadata.num_row_groups == 0 or metadata.row_group(0).num_columns == 0:
        return False
    return bool(metadata.row_group(0).column(0).has_column_index)
