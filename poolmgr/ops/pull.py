"""``pull``: references of registries -> verified SIFs in a folder, each with the digest it was made of.

Each image is looked up first (``plan``), so that what is missing or forbidden is known before
anything is built; then pulled by the digest that was found, checked, written down, and given its
name by a link that replaces nothing. Run again after any interruption: what is there is proven by
its record and kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from poolmgr.errors import (
    AlreadyExistsError,
    AmbiguousError,
    BadFileError,
    DamagedImageError,
    MachineCannotError,
    MissError,
    MissingToolError,
    NoSpaceError,
    NothingComparedError,
    PoolBusyError,
    PoolError,
    WrongArchitectureError,
)
from poolmgr.model.arch import runs_on
from poolmgr.model.finding import Level
from poolmgr.model.pulled import Pulled
from poolmgr.model.stamp import Stamp
from poolmgr.ops.crew import crew
from poolmgr.ops.progress import Progress, Silent
from poolmgr.ops.pull_build import Builder, Layers, Turns
from poolmgr.ops.pull_facts import Outcome, Planned, Pulls, Request, Result
from poolmgr.ops.pull_record import Record
from poolmgr.ops.state import State
from poolmgr.owner import Owner
from poolmgr.plan.pull import Item, PullPlan
from poolmgr.settings import machine_name
from poolmgr.sif.apptainer import Apptainer
from poolmgr.sif.check import check_file
from poolmgr.sif.identity import file_sha256
from poolmgr.sif.source import FileSource
from poolmgr.store.claims import Claims
from poolmgr.store.files import make_dirs, mapped_os_errors, publish_durable, temp_file, write_durable
from poolmgr.store.oci import Registries
from poolmgr.temporary import scratch_folder, sweep

LOOKUPS = 8
"""Look-ups at once; a HEAD costs a registry little."""
BUSY_LOOK = 0.5
"""Seconds between two looks at whether another run has finished with a target."""
ENDS_THE_RUN = (NoSpaceError, MachineCannotError, MissingToolError)
"""What every further image would meet too."""


class Pull:
    """One run: ``plan()``, then ``carry_out``."""

    def __init__(
        self, chosen: PullPlan, request: Request, registries: Registries, progress: Progress | None = None
    ) -> None:
        if not chosen.items and not chosen.refused and not chosen.elsewhere:
            raise NothingComparedError("no image was named", hint="give REF…, --list or --dataset")
        self.chosen = chosen
        self.request = request
        self.registries = registries
        self.progress: Progress = progress or Silent()
        self.stop = threading.Event()
        self._halt: PoolError | None = None
        self.turns = Turns(request.per_registry)

    def ready(self) -> None:
        """Make the folder, and raise ``DestinationError`` if it cannot be written: before any request."""
        if self.chosen.items:
            make_dirs(self.request.to)
            with temp_file(self.request.to):
                pass

    # --- the plan -----------------------------------------------------------------------------------

    def plan(self) -> tuple[Planned, ...]:
        """Every image, with the registry's digest for those that are not there yet."""
        self.progress.begin("looking up", files=len(self.chosen.items))
        try:
            items = self.chosen.items
            return tuple(crew(items, LOOKUPS, lambda _, item: self._look_up(item), self.interrupt))
        finally:
            self.progress.end()

    def _look_up(self, item: Item) -> Planned:
        try:
            if (blob := self._in_pool(item)) is not None:
                return Planned(item, in_pool=blob)
            if os.path.lexists(self.request.to / item.name):
                return Planned(item, there=True)
            return Planned(item, digest=self.registries.point(item.reference).digest)
        except PoolError as e:
            return Planned(item, error=e)
        finally:
            self.progress.file_done(item.name)

    def _in_pool(self, item: Item) -> str | None:
        if self.request.there is None:
            return None
        for given in item.given:
            try:
                return self.request.there.find(given).path
            except MissError:
                continue
            except AmbiguousError:
                raise
        return None

    # --- the work -----------------------------------------------------------------------------------

    def carry_out(self, plan: tuple[Planned, ...]) -> Pulls:
        """Build what is not there, a few at once; a failure stops no other image (but ``ENDS_THE_RUN``)."""
        if not plan:
            return Pulls((), self.chosen.refused, self.chosen.elsewhere)
        to = self.request.to
        apptainer = Apptainer.need() if any(p.digest for p in plan) else None
        make_dirs(to)
        sweep(to)
        owner = Owner.begin()
        record = Record(to, owner)
        claims = Claims(State(to).folder / "pull" / "claims", owner, machine_name())
        try:
            run = _Run(self, record, claims, apptainer)
            self.progress.begin("pulling", files=len(plan))
            try:
                with scratch_folder(to) as scratch:
                    outcomes = run.all(plan, scratch)
            finally:
                self.progress.end()
            sweep(to)  # a build that a killed run left behind may have gone on until now
            listing = record.publish()
            mapped = self._write_map(outcomes)
        finally:
            claims.close()
            record.close()
            owner.close()
        return Pulls(tuple(outcomes), self.chosen.refused, self.chosen.elsewhere, listing, mapped, self._halt)

    def _write_map(self, outcomes: Iterable[Outcome]) -> Path | None:
        import json

        rows = []
        for o in outcomes:
            file = o.blob if o.result is Result.IN_POOL else o.row.file if o.row else None
            if file is None:
                continue
            more = {"source": o.row.source, "source_digest": o.row.source_digest} if o.row else {}
            rows += [{"task": task, "file": file, **more} for task in o.item.tasks]
        if not rows:
            return None
        rows.sort(key=lambda row: row["task"])
        where = self.request.to / "pull.tasks.jsonl"
        write_durable(where, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows).encode())
        return where

    def interrupt(self) -> None:
        """End all waits and the builds that run."""
        self.stop.set()
        self.registries.close()

    def halt(self, error: PoolError) -> None:
        """Begin no further image."""
        self._halt = self._halt or error

    @property
    def halted(self) -> bool:
        return self._halt is not None or self.stop.is_set()


class _Run:
    """The part of a run that builds."""

    def __init__(self, pull: Pull, record: Record, claims: Claims, apptainer: Apptainer | None) -> None:
        self.pull = pull
        self.record = record
        self.claims = claims
        self.builder = None
        if apptainer is not None:
            self.builder = Builder(
                apptainer, pull.registries, pull.request.arch, pull.progress.note, pull.stop,
                pull.request.identity, pull.request.tries,
            )  # fmt: skip

    def all(self, plan: tuple[Planned, ...], scratch: Path) -> list[Outcome]:
        """The outcome of every planned image, in order."""
        jobs = max(1, min(self.pull.request.jobs, len(plan)))
        layers = [Layers(scratch / f"layers-{number}") for number in range(jobs)]

        def one(worker: int, planned: Planned) -> Outcome:
            try:
                return self.one(planned, scratch, layers[worker])
            finally:
                self.pull.progress.file_done(planned.item.name)

        return crew(plan, jobs, one, self.pull.interrupt)

    def one(self, planned: Planned, scratch: Path, layers: Layers) -> Outcome:
        item = planned.item
        if planned.error is not None:
            return Outcome(item, Result.FAILED, error=planned.error)
        if planned.in_pool is not None:
            return Outcome(item, Result.IN_POOL, blob=planned.in_pool)
        try:
            final = self.pull.request.to / item.name
            if os.path.lexists(final) and (row := self.record.of(item.name)) is not None and row.stamp:
                return self._keep(item, final, row)
            if self.pull.halted:
                return Outcome(item, Result.UNTRIED)
            self._claim(item)
            try:
                return self._have(planned, final, scratch, layers)
            finally:
                self.claims.give_up(item.name)
        except PoolError as e:
            if self.pull.stop.is_set():
                return Outcome(item, Result.UNTRIED)
            if isinstance(e, ENDS_THE_RUN):
                self.pull.halt(e)
            return Outcome(item, Result.FAILED, error=e)
        except OSError as e:
            return Outcome(item, Result.FAILED, error=BadFileError(f"{item.name}: {e.strerror}"))

    def _claim(self, item: Item) -> None:
        """Be the only one at work on the target; waits for another run that is."""
        told = False
        while (held := self.claims.take(item.name)) is not None:
            if not told:
                who = f"process {held.owner.pid} on {held.machine}" if held.owner else "another run"
                self.pull.progress.note(f"{item.name}: waiting for {who}, which is pulling it")
                told = True
            if self.pull.stop.wait(BUSY_LOOK):
                raise PoolBusyError(f"{item.name}: another run is pulling it")
        if told:
            self.record.refresh()

    def _have(self, planned: Planned, final: Path, scratch: Path, layers: Layers) -> Outcome:
        """The claimed target, kept or built."""
        item = planned.item
        if os.path.lexists(final):
            self.record.refresh()
            row = self.record.of(item.name)
            if row is None:
                raise AlreadyExistsError(
                    f"{final} is there, and no pull has a record of it",
                    hint="move it away, or make a pool of what is there with 'poolmgr adopt'; "
                    "nothing is overwritten",
                )
            return self._keep(item, final, row)
        digest = planned.digest
        if digest is None:  # it was there when the plan was made
            digest = self.pull.registries.point(item.reference).digest
        if self.builder is None:
            self.builder = Builder(
                Apptainer.need(), self.pull.registries, self.pull.request.arch, self.pull.progress.note,
                self.pull.stop, self.pull.request.identity, self.pull.request.tries,
            )  # fmt: skip
        with mapped_os_errors(final), scratch_folder(scratch) as own:
            made = own / "pulled.sif"
            with self.pull.turns.of(item.reference.host):
                if self.pull.halted:
                    return Outcome(item, Result.UNTRIED)
                self.builder.build(item.reference, digest, made, own, layers)
            row = self.builder.look(made, item.name, item.reference, digest)
            self.record.add(row)
            publish_durable(made, final)
        row = replace(row, stamp=Stamp.of(os.stat(final)))
        self.record.add(row)
        return Outcome(item, Result.PULLED, row)

    def _keep(self, item: Item, final: Path, row: Pulled) -> Outcome:
        """The file that is there, if it is the one on record and the record is of this image."""
        wanted = item.reference.digest
        if row.source != item.source and (wanted is None or wanted != row.source_digest):
            raise AlreadyExistsError(
                f"{final} is there, pulled from {row.source} and not from {item.source}",
                hint="move it away; nothing is overwritten",
            )
        if wanted is not None and wanted != row.source_digest:
            raise AlreadyExistsError(
                f"{final} is there, pulled at {row.source_digest} and not at {wanted}",
                hint="move it away; nothing is overwritten",
            )
        stamp = Stamp.of(os.stat(final))
        if row.stamp != stamp:
            with FileSource(final) as source:
                same = source.size == row.size and file_sha256(source) == row.sha256
            if not same:
                raise DamagedImageError(
                    f"{final} is not (any more) the file that was pulled: its sha256 is not the recorded one",
                    hint="move it away and run this again; nothing is overwritten",
                )
            row = replace(row, stamp=stamp)
            self.record.add(row)
        arch = self.pull.request.arch
        if row.arch is not None and not runs_on(row.arch, arch):
            raise WrongArchitectureError(
                f"{final} is for {row.arch}, and not for {arch}",
                hint="another folder for another architecture",
            )
        report = check_file(final, Level.MOUNT, arch=arch)
        if not report.verdict.passes:
            raise DamagedImageError(
                f"{final}: {'; '.join(map(str, report.findings)) or report.verdict.value}",
                hint="see 'poolmgr verify'",
            )
        return Outcome(item, Result.KEPT, row)
