"""``fetch``: from a pool anywhere to a local mirror of some variants, proven whole."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from poolmgr.errors import (
    DestinationError,
    Exit,
    NoSpaceError,
    NotAMirrorError,
    PoolLacksBlobsError,
    UnknownTaskError,
    UsageError,
)
from poolmgr.model.blob import INDEX_NAME, Blob
from poolmgr.model.finding import Severity
from poolmgr.model.index import Assignments, Index, nearest
from poolmgr.ops.attest import AttestWriter
from poolmgr.ops.busy import busy, nothing_vanished, still_there
from poolmgr.ops.fetch_locks import keep_foreign_index, write_locks
from poolmgr.ops.fetch_records import listing_with_hashes, relatives_of
from poolmgr.ops.holding import look
from poolmgr.ops.partials import Partials
from poolmgr.ops.progress import Progress, Silent
from poolmgr.ops.state import State as Folder
from poolmgr.ops.transfer import Mover, Outcome, Result
from poolmgr.ops.view import PoolView
from poolmgr.plan.delta import MAX_WAVES
from poolmgr.plan.item import Item, State
from poolmgr.plan.transfer import FetchPlan, plan_fetch
from poolmgr.store.files import mapped_os_errors

DEFAULT_RESERVE = 1_000_000_000
"""Bytes that a fetch leaves free on the destination's filesystem."""
QUIET_HOLDER = 30.0
"""Seconds without a change after which a blob that another run is writing is fetched all the same."""


if TYPE_CHECKING:
    from poolmgr.store.hub_xet import XetDownloader

Download = Callable[[Blob, Path], None]


@dataclass(frozen=True)
class Request:
    to: Path
    variants: tuple[str, ...]
    """Empty: every variant of the index."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks of each variant; None: all."""
    jobs: int = 8
    reserve: int = DEFAULT_RESERVE
    rehash: bool = False
    """Hash again what attestations vouch for."""
    allow_missing: bool = False
    allow_legacy: bool = False
    adopt_existing: bool = False


@dataclass(frozen=True)
class Fetched:
    """The certificate of one fetch."""

    plan: FetchPlan
    outcomes: tuple[Outcome, ...]
    """One for every item of the plan that was not proven before, in path order."""
    locked: tuple[str, ...]
    """Variants whose lock was written."""
    notes: tuple[str, ...] = ()

    @cached_property
    def bad(self) -> tuple[Outcome, ...]:
        return tuple(o for o in self.outcomes if not o.good)

    @property
    def transferred(self) -> int:
        """Bytes that came from the pool, retries included."""
        return sum(o.transferred for o in self.outcomes)

    @property
    def reused(self) -> int:
        """Bytes of transferred blobs that came from their bases in the mirror."""
        return sum(o.reused for o in self.outcomes)

    @cached_property
    def damaged(self) -> tuple[str, ...]:
        """Files of the mirror that no longer hold what was proven of them, found when used as bases."""
        return tuple(sorted({o.damaged for o in self.outcomes if o.damaged is not None}))

    @property
    def proven(self) -> int:
        """Needed blobs that are in the mirror and proven."""
        kept = sum(i.blob.path not in self.damaged for i in self.plan.of(State.PROVEN))
        return kept + sum(o.good and o.item.blob.path not in self.damaged for o in self.outcomes)

    @property
    def exit(self) -> Exit:
        if self.plan.of(State.LACKING) or self.plan.findings or self.damaged:
            return Exit.BAD
        if any(o.result is not Result.TROUBLE for o in self.bad):
            refused = [o.error.exit for o in self.bad if o.error is not None]
            only_credentials = len(refused) == len(self.bad) and set(refused) == {Exit.CREDENTIALS}
            return Exit.CREDENTIALS if only_credentials else Exit.BAD
        return Exit.AGAIN if self.bad else Exit.GOOD


@dataclass
class Fetch:
    """One run: ``plan`` looks and decides, ``carry_out`` acts. Reads nothing of the environment."""

    view: PoolView
    request: Request
    progress: Progress = field(default_factory=Silent)
    transfer: str = "auto"
    """``http``: ranged reading through the store; ``xet``: whole files through the Hub's own client;
    ``auto``: ``http`` unless the request quota demands Xet."""
    _client: XetDownloader | None = None

    @cached_property
    def folder(self) -> Folder:
        return Folder(self.request.to)

    # --- looking -----------------------------------------------------------------------------------

    def plan(self) -> FetchPlan:
        """The plan that ``carry_out`` would follow now; writes nothing.

        Raises ``NotAMirrorError``, ``DestinationError``, ``UnknownVariantError``,
        ``UnknownTaskError`` and what reading the pool raises.
        """
        self._check_destination()
        index = self.view.index
        names = self.request.variants or tuple(index.variants)
        wanted = {name: self._wanted(index, name) for name in dict.fromkeys(names)}
        self._check_tasks(wanted)
        totals = {name: self.view.total_tasks(name) for name in wanted}
        expected = {name: self.view.manifest.rules(name).tasks for name in wanted}
        needed = {path for tasks in wanted.values() for path in tasks.values()}
        listing = listing_with_hashes(self.view, needed)
        blobs = [listing.blobs[p] for p in needed if p in listing.blobs]
        here = look(self.folder, blobs, rehash=self.request.rehash)
        absent = {b.path for b in blobs if here.blobs[b.path].size != b.size}
        relatives, notes = relatives_of(self.view, absent)
        plan = plan_fetch(wanted, totals, listing, here.blobs, expected, relatives, here.proven)
        if plan.saved and self.transfer == "xet":
            notes += (f"--transfer xet brings whole files: {plan.saved:,} bytes that are here come anew",)
            plan = plan.whole()
        return replace(plan, notes=notes + plan.notes)

    def check(self, plan: FetchPlan) -> None:
        """What must hold before the first byte: the pool has everything, and there is room for it."""
        lacking = plan.of(State.LACKING)
        if lacking and not self.request.allow_missing:
            raise PoolLacksBlobsError(
                f"{self.view.address} lacks {len(lacking):,} of the {len(plan.items):,} blobs that its own "
                "index names; nothing was fetched",
                hint="tell the pool's owner, or fetch the rest with --allow-missing (still exit 3)",
                details=[f"{i.blob.path}: {i.finding} (tasks: {', '.join(i.tasks)})" for i in lacking],
            )
        free = self.free()
        if plan.room and plan.room + self.request.reserve > free:
            raise NoSpaceError(
                f"{self.request.to}: {plan.room:,} bytes are needed and "
                f"{self.request.reserve:,} are kept in reserve, {free:,} are free; nothing was fetched",
                hint="free some room, fetch fewer tasks (--tasks), or set a smaller --reserve",
            )

    def free(self) -> int:
        """Bytes free for this user where the mirror is or will be."""
        return shutil.disk_usage(self._nearest_folder()).free

    def _nearest_folder(self) -> Path:
        """The destination, or what exists above it."""
        place = self.request.to.absolute()
        while not place.exists():
            place = place.parent
        return place

    def _check_destination(self) -> None:
        to = self.request.to
        if not to.exists():
            if to.is_symlink():
                raise DestinationError(
                    f"{to} is a symbolic link that leads nowhere", hint="remove it or restore its target"
                )
            above = self._nearest_folder()
            if not above.is_dir():
                raise DestinationError(f"{to}: {above} is not a folder", hint="give another path")
            return
        if not to.is_dir():
            raise DestinationError(
                f"{to} is not a folder", hint="give a folder, or a path that does not exist yet"
            )
        root = self.view.root
        if root is not None and root.exists() and to.samefile(root):
            raise UsageError(f"{to} is the pool itself", hint="give another folder with --to")
        ours = self.folder.identity() is not None
        if (to / INDEX_NAME).exists() and not ours and not self.request.adopt_existing:
            raise NotAMirrorError(
                f"{to} holds a {INDEX_NAME} that poolmgr did not write",
                hint="--adopt-existing keeps its good files, hashes them, and makes it a mirror of this pool",
            )

    def _wanted(self, index: Index, name: str) -> Assignments:
        tasks = index.variant(name)
        if self.request.tasks is None:
            return tasks
        return {task: tasks[task] for task in self.request.tasks if task in tasks}

    def _check_tasks(self, wanted: Mapping[str, Assignments]) -> None:
        """Every task that was asked for stands in at least one of the variants."""
        if self.request.tasks is None:
            return
        known = {task for tasks in wanted.values() for task in tasks}
        unknown = [task for task in self.request.tasks if task not in known]
        if unknown or not known:
            every = {task for name in wanted for task in self.view.index.variant(name)}
            close = nearest(unknown[0], every) if unknown else []
            raise UnknownTaskError(
                f"{len(unknown):,} of the {len(self.request.tasks):,} tasks asked for are in none of "
                f"the variants {', '.join(map(repr, wanted))}",
                hint=f"nearest to {unknown[0]!r}: {', '.join(close)}"
                if close
                else "the list holds one task id a line",
                details=unknown,
            )

    # --- acting ------------------------------------------------------------------------------------

    def carry_out(self, plan: FetchPlan) -> Fetched:
        """Do what the plan says. Stops cleanly on any exception in this thread; partial files stay."""
        self.check(plan)
        with mapped_os_errors(self.request.to):
            self.request.to.mkdir(parents=True, exist_ok=True)
            self.folder.folder.mkdir(exist_ok=True)
            self.folder.partial.mkdir(exist_ok=True)
        identity = self.folder.ensure_identity()
        with busy(self.folder, _needs(plan), [i.blob.sha256 for i in plan.items if i.blob.sha256]):
            return self._carry_out(still_there(self.folder.root, plan), identity)

    def _carry_out(self, plan: FetchPlan, identity: str) -> Fetched:
        if self.request.adopt_existing:
            keep_foreign_index(self.folder)
        stop = threading.Event()
        partials = Partials(self.folder.partial)
        todo = [i for i in plan.items if i.state not in (State.PROVEN, State.LACKING)]
        self.progress.begin("fetching", files=len(todo), size=sum(i.blob.size for i in todo))
        try:
            with AttestWriter(self.folder.attest) as attest, self._way(todo) as download:
                mover = Mover(
                    store=self.view.store,
                    folder=self.folder,
                    identity=identity,
                    attest=attest,
                    progress=self.progress,
                    partials=partials,
                    allow_legacy=self.request.allow_legacy,
                    stopped=stop.is_set,
                    download=download,
                )
                try:
                    outcomes = self._run(mover, todo, stop)
                finally:
                    mover.landing.settle()
            good = [o.item.blob for o in outcomes if o.good] + [i.blob for i in plan.of(State.PROVEN)]
            partials.sweep(b.sha256 for b in good if b.sha256)
        finally:
            partials.close()
            self.progress.end()
        outcomes.sort(key=lambda o: o.item.blob.path)
        nothing_vanished(self.folder.root, plan)
        locked, notes = write_locks(
            self.folder, self.view, plan, outcomes, allow_missing=self.request.allow_missing
        )
        return Fetched(plan, tuple(outcomes), locked, notes)

    @contextmanager
    def _way(self, todo: list[Item]) -> Iterator[Download | None]:
        """How whole files come: None for ranged reading, else what brings one (Xet)."""
        from poolmgr.store.hub import HubStore

        store = self.view.store
        if self.transfer == "xet" and not isinstance(store, HubStore):
            raise UsageError(f"{self.view.address} is not on the Hub: no Xet there", hint="--transfer http")
        # What is made of its base is read by ranges: a few kilobytes are not worth a whole file by Xet.
        coming = [i.blob for i in todo if i.transfer and i.base is None]
        if not coming or self.transfer == "http" or not isinstance(store, HubStore):
            yield None
            return
        from poolmgr.store.hub_xet import XetDownloader, quota_demands_xet

        if self.transfer == "auto":
            if not quota_demands_xet(coming, store.quota):
                yield None
                return
            self.progress.note(f"{len(coming):,} requests are over the quota that is left: using Xet")
        with XetDownloader(store) as self._client:
            yield self._client.download

    def _hang_up(self) -> None:
        """Wake the workers that wait for the other side, so that a stop is quick."""
        for other_side in (self._client, self.view.store):
            close = getattr(other_side, "close", None)
            if close is not None:
                close()

    def _run(self, mover: Mover, todo: list[Item], stop: threading.Event) -> list[Outcome]:
        """All items through the workers: bases before what is made of them, copies last.

        Of each group, what another fetch holds comes last: it may be a base of the next.
        """
        groups: dict[int, list[Item]] = {}
        for item in todo:
            group = MAX_WAVES + 1 if item.state is State.ELSEWHERE else item.wave
            groups.setdefault(group, []).append(item)
        done: list[Outcome] = []
        with ThreadPoolExecutor(self.request.jobs, thread_name_prefix="fetch") as pool:
            try:
                for _, items in sorted(groups.items()):
                    outcomes = self._all(pool, mover, items)
                    done += [o for o in outcomes if o.result is not Result.BUSY]
                    busy = [o.item for o in outcomes if o.result is Result.BUSY]
                    done += self._await_others(pool, mover, busy)
            except BaseException:
                stop.set()
                self._hang_up()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return done

    def _all(
        self, pool: ThreadPoolExecutor, mover: Mover, items: list[Item], *, wait_not: bool = False
    ) -> list[Outcome]:
        """The outcomes of ``items``; at most a few are queued at once, so that a stop is quick."""
        outcomes: list[Outcome] = []
        done: SimpleQueue[Future[Outcome]] = SimpleQueue()
        for number, item in enumerate(items, 1):
            pool.submit(mover.run, item, wait=wait_not).add_done_callback(done.put)
            if number - len(outcomes) >= 4 * self.request.jobs:
                outcomes.append(self._ended(done.get().result()))
        while len(outcomes) < len(items):
            outcomes.append(self._ended(done.get().result()))
        return outcomes

    def _ended(self, outcome: Outcome) -> Outcome:
        if outcome.result is not Result.BUSY:
            self.progress.file_done(outcome.item.blob.path)
        return outcome

    def _await_others(self, pool: ThreadPoolExecutor, mover: Mover, busy: list[Item]) -> list[Outcome]:
        """Blobs that another fetch was writing: its result is taken, or it falls silent."""
        if busy:
            self.progress.note(
                f"waiting for another fetch into {self.request.to}, which is writing {len(busy):,} blobs"
            )
        outcomes: list[Outcome] = []
        seen: dict[str, tuple[object, float]] = {}
        while busy:
            ready = []
            for item in busy:
                holders = mover.holders(item.blob)
                state, since = seen.get(item.blob.path, (None, 0.0))
                if state != holders:
                    since = time.monotonic()
                    seen[item.blob.path] = (holders, since)
                if not holders or time.monotonic() - since > QUIET_HOLDER:
                    there = (self.request.to / item.blob.path).exists()
                    ready.append(replace(item, state=State.UNPROVEN) if there else item)
            outcomes += self._all(pool, mover, ready, wait_not=True)
            gone = {item.blob.path for item in ready}
            busy = [item for item in busy if item.blob.path not in gone]
            if busy:
                time.sleep(0.2)
        return outcomes


def _needs(plan: FetchPlan) -> set[str]:
    """Every file of the destination that the plan counts on or will make."""
    paths = {i.blob.path for i in plan.items} | {i.source for i in plan.items if i.source}
    return paths | {i.base.path for i in plan.items if i.base is not None}


def failures(fetched: Fetched) -> list[tuple[Outcome, str]]:
    """Every blob that is not proven, with its reasons in one line."""
    return [
        (o, "; ".join(str(f) for f in o.findings if f.severity is Severity.ERROR) or o.result.value)
        for o in fetched.bad
    ]
