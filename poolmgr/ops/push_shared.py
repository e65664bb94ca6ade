"""What pushed images share with their bases: from the record that ``derive`` left, or found anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from poolmgr.model.blob import Blob
from poolmgr.model.ranges import Relative, SharedRanges
from poolmgr.ops.progress import Progress
from poolmgr.ops.push_files import LocalFile
from poolmgr.ops.shared import shared_ranges
from poolmgr.ops.shared_record import ENDING, read_record
from poolmgr.plan.derive import base_of
from poolmgr.sif.identity import file_sha256
from poolmgr.sif.source import FileSource

_ANY = 1 << 50
"""A size that every file is below: whoever uses the ranges judges them by the true ones."""


class Shared:
    """Asked for one image after another; each record is read and each base looked for once.

    A base is one of the files that are pushed, or a blob of the pool where that is a folder: of its
    sha256, or of the name that ``derive`` makes names of, and then it is hashed.
    """

    def __init__(
        self, files: Iterable[LocalFile], held: Mapping[str, Blob], root: Path | None, progress: Progress
    ) -> None:
        self._progress = progress
        self._bases: dict[str, Path] = {}
        self._unknown: dict[str, list[Path]] = {}
        for path, blob in held.items():
            if root is None:
                break
            if blob.sha256 is not None:
                self._bases[blob.sha256] = root / path
            elif blob.trouble is None:
                self._unknown.setdefault(path.rpartition("/")[2], []).append(root / path)
        self._bases |= {f.sha256: f.path for f in files}
        self._records: dict[Path, Mapping[str, Relative]] = {}
        self._known: dict[str, str | None] = {}

    def of(self, file: LocalFile) -> str | None:
        """The text of the ranges that ``file`` shares with its base; None where that cannot be known."""
        if file.sha256 not in self._known:
            base = (file.provenance or {}).get("base_sha256")
            self._known[file.sha256] = self._find(file, base) if isinstance(base, str) else None
        return self._known[file.sha256]

    def _find(self, file: LocalFile, base: str) -> str | None:
        record = self._record(file.path.parent).get(file.sha256)
        if record is not None and record.base_sha256 == base:
            try:
                return SharedRanges.parse(record.shared, file.size, _ANY).text() or None
            except ValueError:
                pass  # a record of nonsense is as good as none
        try:
            path = self._base(base, base_of(file.path.name))
            if path is None:
                return None
            with FileSource(file.path) as target, FileSource(path) as source:
                return shared_ranges(target, source).text() or None
        except OSError:
            return None

    def _base(self, sha256: str, stem: str | None) -> Path | None:
        for path in self._unknown.pop(f"{stem}.sif", ()):
            self._progress.note(f"hashing {path.name}, of which no sha256 is on record")
            with FileSource(path) as source:
                self._bases.setdefault(file_sha256(source), path)
        return self._bases.get(sha256)

    def _record(self, folder: Path) -> Mapping[str, Relative]:
        if folder not in self._records:
            found: dict[str, Relative] = {}
            try:
                names = sorted(folder.glob("*" + ENDING))
            except OSError:
                names = []
            for name in names:
                try:
                    found |= read_record(name)
                except (OSError, ValueError) as e:
                    self._progress.note(f"{name}: {e}; what its images share with their bases is not known")
            self._records[folder] = found
        return self._records[folder]
