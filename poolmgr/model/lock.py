"""A lock: what ``fetch`` proved of one variant of a mirror, written last (``.poolmgr/lock/``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poolmgr.errors import MirrorInvalidError
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
            return Lock(
                variant=row["variant"],
                source=str(row["source"]),
                commit=row["commit"],
                manifest=str(row["manifest"]),
                tasks=index.variants[row["variant"]],
                total_tasks=int(row["total_tasks"]),
                blobs=blobs,
                time=float(row["time"]),
                complete=bool(row["complete"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise MirrorInvalidError(
                f"{where}: not a lock that this version can read: {e}",
                hint="run 'poolmgr fetch' for the variant again",
            ) from None
