"""What ``derive`` leaves beside its images for ``push``: the bytes that each shares with its base.

Whoever pushes a derived image need not hold its base. A record names a blob by its sha256, so it
can never be taken for another's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poolmgr.model.digest import parse_sha256
from poolmgr.model.ranges import MAX_TEXT, Relative
from poolmgr.store.files import write_durable

ENDING = ".ranges.json"
MAX_RECORD = 256 << 20


def write_record(file: Path, blobs: Mapping[str, Relative]) -> None:
    """``blobs``: sha256 of a derived image -> its base and what they share."""
    rows = {s: {"base_sha256": r.base_sha256, "shared_ranges": r.shared} for s, r in sorted(blobs.items())}
    body = {"schema": 1, "kind": "shared-ranges", "blobs": rows}
    write_durable(file, (json.dumps(body, indent=1) + "\n").encode())


def read_record(file: Path) -> Mapping[str, Relative]:
    """The record in ``file``; rows that cannot be are left out. ``ValueError`` for what is no record."""
    if file.stat().st_size > MAX_RECORD:
        raise ValueError(f"larger than {MAX_RECORD >> 20} MiB")
    try:
        body = json.loads(file.read_bytes())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(body, dict) or body.get("schema") != 1 or not isinstance(body.get("blobs"), dict):
        raise ValueError("not a record of shared ranges")
    found: dict[str, Relative] = {}
    for sha256, row in body["blobs"].items():
        relative = _relative(row)
        if relative is not None:
            found[sha256] = relative
    return found


def _relative(row: Any) -> Relative | None:
    try:
        base, text = parse_sha256(row["base_sha256"]), row["shared_ranges"]
    except (ValueError, AttributeError, KeyError, TypeError):
        return None
    return Relative(base, text) if isinstance(text, str) and len(text) <= MAX_TEXT else None
