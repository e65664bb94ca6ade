"""A lock: what ``fetch`` proved of one variant of a mirror, written last (``.poolmgr/lock/``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poolmgr.errors import IndexInvalidError, MirrorInvalidError
from poolmgr.model.blob import Blob, path_trouble
from poolmgr.model.digest import parse_sha256
from poolmgr.model.index import Index

SCHEMA = 1


@dataclass(frozen=True)
class Lock:
    variant: str
    source: str
    """The pool's printable address."""
    commit: str | None
    manifest: str
    """The manifest's text, '' where there was none."""
    tasks: Mapping[str, str]
    """Task -> blob path, for every task that was asked for."""
    total_tasks: int
    """Tasks of the variant in the pool's index; more than ``tasks`` holds when a subset was asked for."""
    blobs: Mapping[str, Blob]
    """Every blob that ``tasks`` needs and that was proven."""
    time: float
    complete: bool = True
    """False when some task has no proven blob (``--allow-missing``, failed transfers)."""

    @property
    def subset(self) -> bool:
        return len(self.tasks) < self.total_tasks

    def to_bytes(self) -> bytes:
        row = {
            "schema": SCHEMA,
            "kind": "lock",
            "variant": self.variant,
            "source": self.source,
            "commit": self.commit,
            "subset": self.subset,
            "total_tasks": self.total_tasks,
            "complete": self.complete,
            "time": self.time,
            "manifest": self.manifest,
            "blobs": {b.path: [b.size, b.sha256] for _, b in sorted(self.blobs.items())},
            "tasks": dict(sorted(self.tasks.items())),
        }
        return (json.dumps(row, indent=1, ensure_ascii=False) + "\n").encode()

    @staticmethod
    def parse(data: bytes, where: str) -> Lock:
        """The lock in ``data``; raises ``MirrorInvalidError`` naming ``where``."""
        try:
            row: dict[str, Any] = json.loads(data)
            if row["schema"] != SCHEMA or row["kind"] != "lock":
                raise ValueError(f"schema {row.get('schema')!r} is not {SCHEMA}")
            index = Index.build({row["variant"]: row["tasks"]}, where)
            blobs = {}
            for path, (size, sha256) in row["blobs"].items():
                if path_trouble(path):
                    raise ValueError(f"the path {path!r} {path_trouble(path)}")
                if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                    raise ValueError(f"{path}: size {size!r}")
                blobs[path] = Blob(path, size, None if sha256 is None else parse_sha256(sha256))
            tasks = index.variants[row["variant"]]
            total, complete = row["total_tasks"], row["complete"]
            if isinstance(total, bool) or not isinstance(total, int) or total < len(tasks):
                raise ValueError(f"total_tasks {total!r}, with {len(tasks):,} tasks")
            if not isinstance(complete, bool):
                raise ValueError(f"complete {complete!r}")
            lacking = sorted(set(tasks.values()) - set(blobs))
            if complete and lacking:
                raise ValueError(f"it is said to be complete and records nothing of {lacking[0]!r}")
            return Lock(
                variant=row["variant"],
                source=_text(row["source"]),
                commit=None if row["commit"] is None else _text(row["commit"]),
                manifest=_text(row["manifest"]),
                tasks=tasks,
                total_tasks=total,
                blobs=blobs,
                time=float(row["time"]),
                complete=complete,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexInvalidError) as e:
            raise MirrorInvalidError(
                f"{where}: not a lock that this version can read: {e}",
                hint="run 'poolmgr fetch' for the variant again",
            ) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, found {value!r}")
    return value
