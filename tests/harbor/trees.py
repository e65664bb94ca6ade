"""Makes task folders and archives for tests."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

TASK_TOML = 'schema_version = "1.4"\n\n[environment]\ncpus = 1\nmemory_mb = 2048\n'
DOCKERFILE = "FROM ubuntu:22.04\nRUN true\n"


def write_task(
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    toml: str = TASK_TOML,
    files: Mapping[str, str] | None = None,
) -> Path:
    """A task that Harbor takes, with ``environment``'s files (None: one Dockerfile)."""
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "environment").mkdir()
    environment = {"Dockerfile": DOCKERFILE} if environment is None else environment
    for path, text in {
        **{f"environment/{p}": t for p, t in environment.items()},
        "tests/test.sh": "#!/bin/sh\n",
        **(files or {}),
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
    return folder


def tar_of(folder: Path, *, compress: bool = True, format: int = tarfile.PAX_FORMAT) -> bytes:  # noqa: A002
    """The folder as task archives hold it: members relative to the task."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for child in sorted(folder.iterdir()):
            tar.add(child, arcname=child.name)
    return gzip.compress(out.getvalue()) if compress else out.getvalue()


def write_parquet(path: Path, rows: list[tuple[str | None, bytes | None]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "path": pa.array([r[0] for r in rows], pa.string()),
            "task_binary": pa.array([r[1] for r in rows], pa.binary()),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path
