"""``adopt``: an existing folder of images becomes a pool where it lies; nothing is moved or renamed.

``plan`` looks and decides, ``carry_out`` hashes (where asked for) and writes: attestations as files
are hashed, then ``blobs.parquet``, then the index, last. Stopped at any moment and run again, it
goes on: what is attested is not hashed twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from poolmgr.errors import (
    AlreadyExistsError,
    BadFileError,
    Exit,
    FileMissingError,
    NothingComparedError,
    PoolChangedError,
    UsageError,
)
from poolmgr.model.blob import INDEX_NAME
from poolmgr.model.finding import Finding, Level, Verdict
from poolmgr.model.image_map import MAX_BYTES, ImageMap, parse_image_map
from poolmgr.model.index import MAX_INDEX_BYTES, Index
from poolmgr.model.task import Row
from poolmgr.ops.dataset import open_dataset
from poolmgr.ops.progress import Progress, Silent
from poolmgr.ops.push_folder import CLAIM
from poolmgr.ops.push_rows import COLUMNS, with_rows
from poolmgr.ops.state import State
from poolmgr.ops.targets import Target
from poolmgr.ops.verified import Wish
from poolmgr.ops.verify import Verifier
from poolmgr.ops.view import PoolView
from poolmgr.plan.adopt import (
    FEW,
    Adoption,
    Ask,
    ByMap,
    ByPath,
    ByRule,
    Files,
    Matcher,
    Unmatched,
    plan_adoption,
)
from poolmgr.plan.coverage import found
from poolmgr.plan.naming import Aliases
from poolmgr.settings import Settings
from poolmgr.store.blobs_table import TABLE_NAME
from poolmgr.store.claims import claimed
from poolmgr.store.files import create_durable, mapped_os_errors, swap_durable


@dataclass(frozen=True)
class Request:
    variant: str | None = None
    """The variant that the rows of ``image_map`` or ``dataset`` make."""
    image_map: Path | None = None
    dataset: str | None = None
    index: Path | None = None
    """An index to begin with; None: the folder's own, where it is the only source there is."""
    by_name: bool = False
    """Look for a path that is not there by its last part."""
    hashing: bool = False
    allow_unmatched: int = 0
    jobs: int | None = None


@dataclass(frozen=True)
class Adopted:
    """What became of it."""

    adoption: Adoption
    index_written: bool = False
    table_written: bool = False
    hashed: int = 0
    """Files that were hashed in this run."""
    hashed_bytes: int = 0
    remembered: int = 0
    """Files whose sha256 an earlier run had attested and that did not change since."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Path -> sha256, where hashes were asked for."""
    bad: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    """Path -> what is wrong with the image, found on the way of hashing it."""
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> tuple[tuple[str, ...], ...]:
        """Groups of paths with the same bytes."""
        groups: dict[str, list[str]] = {}
        for path, sha256 in sorted(self.hashes.items()):
            groups.setdefault(sha256, []).append(path)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)


@dataclass
class Adopt:
    """One run. ``view`` is the folder, opened with the rules that are to hold."""

    view: PoolView
    request: Request
    settings: Settings
    progress: Progress = field(default_factory=Silent)
    on_retry: Callable[[str], None] | None = None

    @cached_property
    def root(self) -> Path:
        if self.view.root is None:
            raise UsageError(f"{self.view.address} is no folder", hint="adopt takes a folder of this machine")
        return self.view.root

    @property
    def own_index(self) -> Path:
        return self.root / INDEX_NAME

    @cached_property
    def former(self) -> bytes | None:
        """The folder's own index as it was when this run began."""
        try:
            return self.view.store.read(INDEX_NAME, limit=MAX_INDEX_BYTES)
        except FileMissingError:
            return None

    # --- looking -----------------------------------------------------------------------------------

    def plan(self) -> Adoption:
        """What adopting would make of the folder; writes nothing.

        Raises ``UsageError`` without a source, ``AlreadyExistsError`` for an index that is no source,
        ``NothingComparedError`` when no row finds a file, and what reading the sources raises.
        """
        if self.view.is_mirror:
            raise AlreadyExistsError(
                f"{self.root} is a mirror that 'poolmgr fetch' made: it is a pool already",
                hint="its index is derived from its locks; 'poolmgr audit' checks it",
            )
        asks = self._asks()
        adoption = plan_adoption(asks, self.view.listing)
        if not adoption.variants:
            raise NothingComparedError(
                f"{self.root}: of {sum(adoption.rows.values()):,} rows, none has a file in this folder "
                f"of {len(self.view.listing.blobs):,} files; nothing was written",
                hint="is it the right folder, and the right naming rule (--rule)?",
                details=_some(adoption.unmatched),
            )
        return adoption

    def _asks(self) -> list[Ask]:
        asks: list[Ask] = []
        index = self._source_index()
        files = self._files
        if index is not None:
            for variant, tasks in index.variants.items():
                rows = [Row(task, path, f"{index.source}: {variant}") for task, path in tasks.items()]
                asks.append(Ask(variant, rows, ByPath(files), references=False))
        images = self._image_map()
        datasets = self._datasets()
        if images is not None and not datasets:
            variant = self._variant("the map's references become its tasks")
            datasets = {variant: [Row(p.reference, p.reference, images.where(p.line)) for p in images.pairs]}
        if index is not None and (both := sorted(datasets.keys() & index.variants.keys())):
            raise AlreadyExistsError(
                f"{index.source} has a variant {both[0]!r} already",
                hint="give another --variant; 'poolmgr push --remap' changes a variant that is there",
            )
        everything = [row.image for rows in datasets.values() for row in rows if row.image]
        for number, (variant, rows) in enumerate(datasets.items()):
            matcher: Matcher
            if images is not None:
                matcher = ByMap(images, files, Aliases(self.view.manifest.aliases))
                if number == 0:  # a line that cannot be read might have been any task's
                    rows = [*rows, *(Row(None, None, images.where(line), why) for line, why in images.bad)]
            else:
                matcher = ByRule(everything, files, self.view.listing, self.view.manifest)
            asks.append(Ask(variant, rows, matcher))
        if not asks:
            raise UsageError(
                f"nothing says which file of {self.root} belongs to which task",
                hint="give --images, --dataset or --index, or a manifest whose variants name datasets",
            )
        return asks

    @cached_property
    def _files(self) -> Files:
        roots = dict.fromkeys((str(self.root.absolute()), str(self.root.resolve())))
        return Files(self.view.listing, roots, by_name=self.request.by_name)

    def _source_index(self) -> Index | None:
        """The index to begin with: the one given, else the folder's own when nothing else is given."""
        given = self.request.index
        if given is not None and not _same(given, self.own_index):
            try:
                data = given.read_bytes()
            except OSError as e:
                raise BadFileError(f"--index {given}: cannot be read: {e.strerror}") from None
            index = Index.parse(data, str(given))
            if self.former is not None and not self._same_index(index):
                raise self._taken()
            return index
        if self.former is None:
            if given is not None:
                raise BadFileError(f"--index {given}: no such file")
            return None
        if given is None and (self.request.image_map is not None or self.request.dataset is not None):
            raise self._taken()
        return Index.parse(self.former, str(self.own_index))

    def _same_index(self, index: Index) -> bool:
        assert self.former is not None
        return dict(Index.parse(self.former, str(self.own_index)).variants) == dict(index.variants)

    def _taken(self) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"{self.own_index} is there already, and an index is never replaced by another source's",
            hint=f"--index {self.own_index} keeps its variants and adds the new one",
        )

    def _image_map(self) -> ImageMap | None:
        file = self.request.image_map
        if file is None:
            return None
        try:
            with file.open("rb") as reader:
                return parse_image_map(reader.read(MAX_BYTES + 1), file.name)
        except OSError as e:
            raise BadFileError(f"--images {file}: cannot be read: {e.strerror}") from None

    def _datasets(self) -> dict[str, list[Row]]:
        """Variant -> its rows: of the dataset given, else of those that the manifest names."""
        address = self.request.dataset
        if address is not None:
            variant = self._variant("a dataset makes one variant")
            return {variant: list(open_dataset(address, self.settings, on_retry=self.on_retry).rows)}
        if self.request.image_map is not None or self.request.index is not None or self.former is not None:
            return {}
        rules = self.view.manifest.variants
        wanted = (
            [self.request.variant] if self.request.variant else [v for v, r in rules.items() if r.dataset]
        )
        result = {}
        for variant in wanted:
            named = self.view.manifest.rules(variant).dataset
            if named is not None:
                result[variant] = list(open_dataset(named, self.settings, on_retry=self.on_retry).rows)
        return result

    def _variant(self, why: str) -> str:
        if not self.request.variant:
            raise UsageError(f"no variant was named: {why}", hint="give --variant NAME")
        return self.request.variant

    # --- acting ------------------------------------------------------------------------------------

    def refused(self, adoption: Adoption) -> bool:
        """Whether more rows are unmatched than were allowed; then nothing is written."""
        return len(adoption.unmatched) > self.request.allow_unmatched

    def exit(self, adopted: Adopted) -> Exit:
        """Not good when too many rows have no file, or a blob that a task names is bad."""
        named = adopted.adoption.blobs
        return Exit.BAD if self.refused(adopted.adoption) or named & adopted.bad.keys() else Exit.GOOD

    def carry_out(self, adoption: Adoption) -> Adopted:
        """Hash what is asked for, then write what is missing; writes nothing when ``refused``."""
        adopted = Adopted(adoption)
        if self.refused(adoption):
            return adopted
        if self.request.hashing:
            adopted = self._record(self._hash(adopted))
        return replace(adopted, index_written=self._write_index(adoption))

    def _hash(self, adopted: Adopted) -> Adopted:
        """The sha256 of every blob, named or not: as an attestation that holds has it, else read now."""
        hashes: dict[str, str] = {}
        bad: dict[str, tuple[Finding, ...]] = {}
        todo = []
        for path in sorted({*adopted.adoption.blobs, *adopted.adoption.unmapped}):
            try:
                standing = self.view.attested.standing(path, os.stat(self.view.file(path)))
            except OSError:
                standing = None  # reading it will say why
            if standing is not None and standing.sha256 is not None and standing.proves(Level.MOUNT, None):
                hashes[path] = standing.sha256
            else:
                todo.append(path)
        remembered = len(hashes)
        verifier = Verifier(Wish(Level.MOUNT, hashing=True, jobs=self.request.jobs), self.progress)
        size = 0
        for result in verifier.results([Target(p, self.view.file(p), self.view, p) for p in todo]):
            path = result.target.shown
            if result.sha256 is None or not result.checks.get("mount", Verdict.BAD).passes:
                why = result.findings or (found("not-checked", "; ".join(result.reasons.values())),)
                bad[path] = tuple(why)
            if result.sha256 is not None:
                hashes[path] = result.sha256
                size += result.size or 0
        return replace(
            adopted, hashes=hashes, bad=bad, hashed=len(hashes) - remembered, hashed_bytes=size,
            remembered=remembered, notes=tuple(verifier.notes),
        )  # fmt: skip

    def _record(self, adopted: Adopted) -> Adopted:
        """``blobs.parquet``: one that is there is compared, its rows stay, and what it lacks is added."""
        listed = self.view.listing.blobs
        recorded = self.view.recorded_blobs
        if recorded:
            bad = dict(adopted.bad)
            for path, sha256 in adopted.hashes.items():
                known = recorded.get(path)
                if known is not None and known.sha256 is not None and known.sha256 != sha256:
                    wrong = found("wrong-hash", f"{TABLE_NAME} records {known.sha256}, the file has {sha256}")
                    bad[path] = (*bad.get(path, ()), wrong)
            adopted = replace(adopted, bad=bad)
        rows = [
            dict.fromkeys(COLUMNS) | {"path": path, "size": listed[path].size, "sha256": sha256}
            for path, sha256 in sorted(adopted.hashes.items())
            if path not in adopted.bad and path not in recorded
        ]
        if not rows:
            return adopted
        table = self.root / TABLE_NAME
        self._write(table, lambda now: with_rows(now, rows, str(table)))
        return replace(adopted, table_written=True)

    def _write_index(self, adoption: Adoption) -> bool:
        """The index; False when the one that is there says the same already."""
        index = Index.build({v: dict(tasks) for v, tasks in adoption.variants.items()}, str(self.own_index))
        if self.former is None:
            create_durable(self.own_index, index.to_bytes())
            return True
        before = Index.parse(self.former, str(self.own_index))
        if before.variants.keys() >= index.variants.keys():
            return False  # it is the only source: what it says stays, also of tasks without a file
        kept = State(self.root).folder / "adopted" / f"{_stamp()}-{INDEX_NAME}"
        with mapped_os_errors(kept):
            kept.parent.mkdir(parents=True, exist_ok=True)
        create_durable(kept, self.former)
        self._write(self.own_index, lambda now: index.to_bytes() if now == self.former else None)
        return True

    def _write(self, file: Path, change: Callable[[bytes | None], bytes | None]) -> None:
        """``file`` becomes what ``change`` makes of its bytes; ``PoolChangedError`` if that is None.

        Under the claim that ``push`` writes under, so neither loses what the other wrote.
        """
        with claimed(self.root / CLAIM, waiting=self.progress.note):
            try:
                now = file.read_bytes()
            except FileNotFoundError:
                now = None
            data = change(now)
            if data is None or not swap_durable(file, data, now):
                raise PoolChangedError(
                    f"{file} changed while this was done; it was not touched", hint="run it again"
                )


def _some(unmatched: Sequence[Unmatched]) -> list[str]:
    """Why the first few have no file. That it is all of them is said, and a list would only hide it."""
    lines = [f"{u.task or u.where}: {u.finding}" for u in unmatched[:FEW]]
    return lines + ([f"… and {len(unmatched) - FEW:,} more"] if len(unmatched) > FEW else [])


def _stamp() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def _same(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return os.path.abspath(a) == os.path.abspath(b)
