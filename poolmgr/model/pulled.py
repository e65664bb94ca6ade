"""The record of one pulled file: where it came from, at which digest, and what it is.

The names of the fields are those of ``blobs.parquet`` (docs/pool-format.md). A record is a line of
JSON that a crash may have torn, or that somebody edited: what is malformed is no record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poolmgr.errors import ReferenceInvalidError
from poolmgr.model.blob import path_trouble
from poolmgr.model.digest import parse_sha256
from poolmgr.model.reference import parse_reference
from poolmgr.model.stamp import Stamp

SCHEMA = 1
MAX_LINE = 64 << 10
_STAMP = ("size", "mtime_ns", "ctime_ns", "inode")


@dataclass(frozen=True, slots=True)
class Pulled:
    file: str
    """Its name in the folder."""
    source: str
    """The image reference in its full spelling, after aliases."""
    source_digest: str
    """``sha256:…`` that the registry had for it, and that was pulled."""
    size: int
    sha256: str
    tree_sha256: str | None
    arch: str | None
    built_with: str
    """Such as ``apptainer 1.4.5``."""
    added_at: str
    """UTC, ISO 8601."""
    stamp: Stamp | None = None
    """Of the file under its final name; None in the row that is written just before it gets that."""

    def row(self) -> dict[str, Any]:
        """Its fields as plain data, without the stamp."""
        return {
            "file": self.file,
            "source": self.source,
            "source_digest": self.source_digest,
            "size": self.size,
            "sha256": self.sha256,
            "tree_sha256": self.tree_sha256,
            "arch": self.arch,
            "built_with": self.built_with,
            "added_at": self.added_at,
        }

    def line(self) -> str:
        """The record as one line, with the stamp where there is one."""
        stamp = self.stamp
        extra = {} if stamp is None else {"stamp": [getattr(stamp, name) for name in _STAMP]}
        return json.dumps({"schema": SCHEMA, "kind": "image", **self.row(), **extra}, ensure_ascii=False)

    @staticmethod
    def parse(line: str) -> Pulled | None:
        """The record in ``line``; None for anything else."""
        if len(line) > MAX_LINE:
            return None
        try:
            raw = json.loads(line)
            return _record(raw) if isinstance(raw, dict) else None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ReferenceInvalidError):
            return None


def _record(raw: Mapping[str, Any]) -> Pulled | None:
    if type(raw["schema"]) is not int or raw["schema"] != SCHEMA or raw["kind"] != "image":
        return None
    file, size, stamp = raw["file"], raw["size"], raw.get("stamp")
    if not isinstance(file, str) or "/" in file or path_trouble(file):
        return None
    if type(size) is not int or not 0 <= size < 1 << 62:
        return None
    texts = [raw["built_with"], raw["added_at"], raw["arch"] or ""]
    if not all(isinstance(text, str) and text.isprintable() and len(text) < 200 for text in texts):
        return None
    if stamp is not None:
        if not isinstance(stamp, list) or len(stamp) != 4 or any(type(n) is not int for n in stamp):
            return None
        if any(abs(n) > 1 << 63 or not math.isfinite(n) for n in stamp):
            return None
    tree = raw["tree_sha256"]
    return Pulled(
        file,
        parse_reference(raw["source"]).canonical,
        "sha256:" + parse_sha256(raw["source_digest"]),
        size,
        parse_sha256(raw["sha256"]),
        None if tree is None else parse_sha256(tree),
        raw["arch"],
        raw["built_with"],
        raw["added_at"],
        None if stamp is None else Stamp(*stamp),
    )
