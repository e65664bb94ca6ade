"""``gc``: frees what a mirror no longer needs, after proving that the pool it came from still holds it.

``plan`` looks, decides (plan/gc.py) and proves; ``carry_out`` frees exactly that. A file goes in two
steps: it is renamed out of sight, then it is looked again who needs it, and only then is it removed,
or put back (ops/busy.py says why). Killed in between, a file of a temporary name is left, which the
next run removes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from poolmgr.errors import AlreadyExistsError, Exit, NotAMirrorError, PoolError
from poolmgr.model.blob import INDEX_NAME, STATE_DIR
from poolmgr.model.index import Index
from poolmgr.model.lock import Lock
from poolmgr.ops.attest import load
from poolmgr.ops.busy import Wanted, wanted
from poolmgr.ops.fetch_locks import write_index
from poolmgr.ops.gc_proof import Prover
from poolmgr.ops.partials import scan
from poolmgr.ops.progress import Progress, Silent
from poolmgr.ops.state import State
from poolmgr.plan.coverage import found
from poolmgr.plan.gc import Candidate, Here, Kept, plan_gc
from poolmgr.settings import Settings
from poolmgr.store.files import destination_error, fsync_dir, publish
from poolmgr.temporary import remove_tree, temp_name, temp_owner

BATCH = 64
"""Files that are out of sight at once."""
_QUARANTINED = re.compile(r"([0-9a-f]{64})\.(sif|json)")


@dataclass(frozen=True)
class Request:
    forget: tuple[str, ...] = ()
    """Variants whose locks are removed first."""
    found_too: bool = False
    """Free also what fetch found there and proved, and did not write itself."""
    read_pool: bool = False
    """Read blobs whole from a pool that lists no sha256, to prove them."""


@dataclass(frozen=True, slots=True)
class Debris:
    """What a killed run left, or quarantine."""

    path: Path
    size: int
    kind: str
    """``partial``, ``quarantine``, ``temporary`` or ``busy``."""
    sha256: str | None = None
    """Of what is in quarantine."""


@dataclass(frozen=True)
class GcPlan:
    forget: tuple[str, ...]
    free: tuple[Candidate, ...]
    """Proven to be in the pool."""
    kept: tuple[Kept, ...]
    """Not named by any lock, and left: with the reason."""
    debris: tuple[Debris, ...]
    unseen: int
    """Unfinished files of processes that cannot be seen from this machine; left."""

    @property
    def size(self) -> int:
        return sum(c.size for c in self.free) + sum(d.size for d in self.debris)

    @property
    def empty(self) -> bool:
        return not (self.free or self.debris or self.forget)

    @property
    def exit(self) -> Exit:
        return Exit.BAD if any(k.finding.code == "gc-unproven" for k in self.kept) else Exit.GOOD


@dataclass(frozen=True)
class Freed:
    files: tuple[str, ...]
    """Paths of the blobs that are gone."""
    size: int
    """Bytes of all that is gone, debris included."""
    kept: tuple[Kept, ...]
    """Of the plan, what turned out to be needed or another file in the meantime."""
    debris: int


@dataclass
class Gc:
    """One run over the mirror at ``root``."""

    root: Path
    request: Request
    settings: Settings
    progress: Progress = field(default_factory=Silent)
    on_retry: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        self.folder = State(self.root)

    # --- looking -----------------------------------------------------------------------------------

    def plan(self) -> GcPlan:
        """What would be freed now, proven; removes nothing.

        Raises ``NotAMirrorError`` for a folder that ``fetch`` did not make, ``CredentialsError`` when the
        pool may not be asked.
        """
        identity = self.folder.identity()
        if identity is None:
            raise NotAMirrorError(
                f"{self.root} is no mirror: fetch never wrote to it, so there is nothing here to free",
                hint="gc frees what 'poolmgr fetch' put into a folder",
            )
        locks = self.folder.locks()
        if unknown := [v for v in self.request.forget if v not in locks]:
            from poolmgr.errors import UnknownVariantError

            raise UnknownVariantError(
                f"{self.root} has no lock of {unknown[0]!r}; it has: {', '.join(locks) or 'none'}",
                details=unknown,
            )
        going = [locks[v] for v in self.request.forget]
        former = [*self.folder.former_locks().values(), *going]
        staying = [lock for v, lock in locks.items() if v not in self.request.forget]
        busy = wanted(self.folder)
        freeing = plan_gc(
            staying, former, self._here(former, identity), wanted=busy.paths, found_too=self.request.found_too
        )
        free, kept = freeing.candidates, list(freeing.kept)
        if busy.everything:
            why = found("gc-wanted", "a running fetch cannot be asked what it counts on")
            kept += [Kept(c.path, c.size, why) for c in free]
            free = ()
        free, unproven = self._prove(free)
        debris, unseen = self._debris(busy)
        return GcPlan(self.request.forget, free, (*kept, *unproven), debris, unseen)

    def _here(self, former: Sequence[Lock], identity: str) -> dict[str, Here]:
        attested = load(self.folder.attest, identity)
        result = {}
        for path in {p for lock in former for p in lock.blobs}:
            try:
                st = _stat(self.root, path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                result[path] = Here(0, regular=False)  # a link on the way
                continue
            standing = attested.standing(path, st)
            result[path] = Here(
                st.st_size,
                regular=stat.S_ISREG(st.st_mode),
                sha256=standing.sha256 if standing else None,
                placed=standing is not None and standing.placed,
            )
        return result

    def _prove(self, candidates: Sequence[Candidate]) -> tuple[tuple[Candidate, ...], list[Kept]]:
        prover = Prover(
            self.root, self.settings, self.progress, self.on_retry, read_pool=self.request.read_pool
        )
        proven, unproven = [], []
        for candidate, why in prover.prove(candidates):
            if why is None:
                proven.append(candidate)
            else:
                finding = found("gc-unproven", why)
                unproven.append(Kept(candidate.path, candidate.size, finding))
        return tuple(proven), unproven

    def _debris(self, busy: Wanted) -> tuple[tuple[Debris, ...], int]:
        result = [Debris(path, 0, "busy") for path in busy.dead]
        unseen = 0
        for group in scan(self.folder.partial).values():
            for partial in group:
                if partial.owner.surely_dead():
                    result.append(Debris(partial.path, partial.size, "partial"))
                else:
                    unseen += 1
        with suppress(OSError), os.scandir(self.folder.quarantine) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                match = _QUARANTINED.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False) and match[1] not in busy.hashes:
                    size = entry.stat(follow_symlinks=False).st_size
                    result.append(Debris(Path(entry.path), size, "quarantine", match[1]))
        for path in _temporaries(self.root):
            owner = temp_owner(path.name)
            if owner is not None and owner.surely_dead():
                result.append(Debris(path, _size(path), "temporary"))
            else:
                unseen += 1
        return tuple(result), unseen

    # --- acting ------------------------------------------------------------------------------------

    def carry_out(self, plan: GcPlan) -> Freed:
        """Free what the plan says, in batches; what is needed by now, or another file by now, stays."""
        self._forget(plan.forget)
        gone: list[Candidate] = []
        kept: list[Kept] = []
        self.progress.begin("freeing", files=len(plan.free))
        try:
            for start in range(0, len(plan.free), BATCH):
                self._free(plan.free[start : start + BATCH], gone, kept)
        finally:
            self.progress.end()
        cleared = [d for d in plan.debris if self._clear(d)]
        self._drop_former()
        size = sum(c.size for c in gone) + sum(d.size for d in cleared)
        return Freed(tuple(c.path for c in gone), size, tuple(kept), len(cleared))

    def _forget(self, variants: Sequence[str]) -> None:
        """The locks of ``variants`` become former ones, and the mirror's index does without them."""
        for variant in variants:
            self.folder.retire(variant)
            self.folder.lock_file(variant).unlink(missing_ok=True)
        if variants:
            fsync_dir(self.folder.locks_folder)
        former = self.folder.former_locks()
        if not variants and not former:
            return
        locks = self.folder.locks()
        own = self.root / INDEX_NAME
        if locks:
            if variants:
                write_index(self.folder, locks)
            return
        try:
            index = Index.parse(own.read_bytes(), str(own))
        except (FileNotFoundError, PoolError):
            return
        known = [(lock.variant, dict(lock.tasks)) for lock in former.values()]
        if all((v, dict(tasks)) in known for v, tasks in index.variants.items()):
            own.unlink(missing_ok=True)  # derived from locks that are gone; it would name what is freed
            fsync_dir(self.root)

    def _free(self, batch: Sequence[Candidate], gone: list[Candidate], kept: list[Kept]) -> None:
        identity = self.folder.identity()
        attested = load(self.folder.attest, identity)
        needed = self._needed()
        hidden: list[tuple[Candidate, Path, bool]] = []
        for c in batch:
            if needed(c.path):
                kept.append(Kept(c.path, c.size, found("gc-wanted", "somebody needs it by now")))
                continue
            try:
                before = _stat(self.root, c.path)
                standing = attested.standing(c.path, before)
                if standing is None or standing.sha256 != c.sha256:
                    kept.append(
                        Kept(c.path, c.size, found("gc-changed", "it changed since the plan was made"))
                    )
                    continue
                temp = self._hide(c.path)
                after = temp.lstat()
                same = os.path.samestat(before, after) and before.st_mtime_ns == after.st_mtime_ns
                hidden.append((c, temp, same))
            except (FileNotFoundError, NotADirectoryError):
                continue  # another gc was first
        needed = self._needed()
        folders = set()
        for c, temp, same in hidden:
            folders.add((self.root / c.path).parent)
            if needed(c.path) or not same:
                with suppress(AlreadyExistsError):
                    publish(temp, self.root / c.path)
                temp.unlink(missing_ok=True)
                why = (
                    ("gc-wanted", "somebody needs it by now")
                    if same
                    else ("gc-changed", "it changed just now")
                )
                kept.append(Kept(c.path, c.size, found(*why)))
                continue
            temp.unlink(missing_ok=True)
            gone.append(c)
            self.progress.file_done(c.path)
        for folder in (*sorted(folders), self.folder.folder):
            fsync_dir(folder)

    def _hide(self, path: str) -> Path:
        """Out of sight in one step, through folders that are no links."""
        temp = temp_name(self.folder.folder)
        parent = _open_parent(self.root, path)
        try:
            os.rename(path.rpartition("/")[2], temp, src_dir_fd=parent)
        except FileNotFoundError:
            raise
        except OSError as e:
            raise destination_error(e, "free", self.root / path) from e
        finally:
            os.close(parent)
        return temp

    def _needed(self) -> Callable[[str], bool]:
        """Whether a lock or a running fetch needs a path, as it stands now."""
        busy = wanted(self.folder)
        named = {p for lock in self.folder.locks().values() for p in (*lock.blobs, *lock.tasks.values())}
        return lambda path: busy.everything or path in named or path in busy.paths

    def _clear(self, debris: Debris) -> bool:
        if debris.sha256 is not None and debris.sha256 in wanted(self.folder).hashes:
            return False
        with suppress(OSError):
            if debris.path.is_dir() and not debris.path.is_symlink():
                remove_tree(debris.path)
            else:
                debris.path.unlink()
        return not os.path.lexists(debris.path)

    def _drop_former(self) -> None:
        """Former locks have nothing more to say when each file of theirs is gone, or named by a lock."""
        named = {p for lock in self.folder.locks().values() for p in lock.blobs}
        for file, lock in self.folder.former_locks().items():
            if not any(os.path.lexists(self.root / path) for path in lock.blobs.keys() - named):
                file.unlink(missing_ok=True)


def _stat(root: Path, path: str) -> os.stat_result:
    """lstat of a file below ``root``; ``OSError`` when a folder on the way is a link."""
    parent = _open_parent(root, path)
    try:
        return os.stat(path.rpartition("/")[2], dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)


def _open_parent(root: Path, path: str) -> int:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path.split("/")[:-1]:
        try:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _temporaries(root: Path) -> Iterator[Path]:
    """Every temporary name of ours below ``root``, no link followed."""
    for folder, names, files in os.walk(root, followlinks=False):
        yield from (Path(folder, n) for n in (*names, *files) if n.startswith(".poolmgr-tmp-"))
        names[:] = [
            n
            for n in names
            if n == STATE_DIR or (not n.startswith(".") and not os.path.islink(os.path.join(folder, n)))
        ]


def _size(path: Path) -> int:
    with suppress(OSError):
        if not path.is_dir():
            return path.lstat().st_size
        return sum(f.lstat().st_size for f in path.rglob("*") if f.is_file() and not f.is_symlink())
    return 0
