"""``derive``: from a recipe and a pool to a folder of derived images that ``push`` takes as it is.

Every base is proven before it is used; nothing that fails a check gets its final name; a failure
stops its own image and no other. What is there already is kept when it is proven to be what would be
made, so an interrupted run goes on where it was: by the journal of the run that made it, else by
making it again and comparing the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from poolmgr.errors import (
    BadFileError,
    DeriveFailedError,
    NothingComparedError,
    PoolError,
    RecipeInvalidError,
    UnknownTaskError,
    UsageError,
)
from poolmgr.model.index import nearest
from poolmgr.model.ranges import Relative
from poolmgr.model.recipe import Pip, Run, Step
from poolmgr.model.recipe_lock import Key, LockedWheel, RecipeLock, lock_key
from poolmgr.ops.derive_facts import Derived, Outcome, Planned, Request, Result
from poolmgr.ops.derive_files import RecipeFiles, check_map, load_recipe, write_map
from poolmgr.ops.derive_make import Maker
from poolmgr.ops.pip_lock import Download, close
from poolmgr.ops.progress import Progress, Silent
from poolmgr.ops.resolve import vouch
from poolmgr.ops.shared_record import ENDING, write_record
from poolmgr.ops.view import PoolView
from poolmgr.plan.derive import (
    Work,
    described,
    file_name,
    method_of,
    recipe_digest,
    works,
)
from poolmgr.sif.apptainer import Apptainer
from poolmgr.sif.identity import file_sha256
from poolmgr.sif.image import open_image
from poolmgr.sif.python import Interpreter, find_interpreter
from poolmgr.sif.source import FileSource
from poolmgr.store.files import make_dirs
from poolmgr.temporary import sweep

T = TypeVar("T")
R = TypeVar("R")


class Derive:
    """One run: ``plan()``, then ``carry_out``; or ``lock()``."""

    def __init__(self, view: PoolView | None, request: Request, progress: Progress | None = None) -> None:
        self.request = request
        self.progress: Progress = progress or Silent()
        self.files: RecipeFiles = load_recipe(request.recipe)
        if view is None or view.root is None:
            raise UsageError(
                "derive reads the bases from a folder" + (f"; {view.address} is none" if view else ""),
                hint="fetch the variant first, then derive with -p MIRROR",
            )
        self.view = view
        self._map = request.map or request.to / f"{self.files.recipe.name}.tasks.json"

    @cached_property
    def works(self) -> tuple[Work, ...]:
        """What the recipe asks for. ``UnknownVariantError``, ``UnknownTaskError``, ``MissError`` …"""
        recipe = self.files.recipe
        base = recipe.base
        if base.variant is None:
            blob = base.blob
            if base.image is not None:
                from poolmgr.ops.resolve import resolve_reference

                assert self.view.root is not None
                path = resolve_reference(self.view, base.image)
                blob = Path(path).relative_to(self.view.root.absolute()).as_posix()
            assert blob is not None
            return (Work(blob, recipe.steps_of(None)),)
        tasks = self.view.index.variant(base.variant)
        wanted = self.files.task_list()
        if wanted is not None:
            unknown = [task for task in wanted if task not in tasks]
            if unknown:
                close_to = nearest(unknown[0], tasks)
                raise UnknownTaskError(
                    f"{len(unknown):,} of the recipe's {len(wanted):,} tasks are not in {base.variant!r}",
                    hint=f"nearest to {unknown[0]!r}: {', '.join(close_to)}" if close_to else "",
                    details=unknown,
                )
            tasks = {task: tasks[task] for task in wanted}
        found = works(recipe, tasks)
        if not found:
            raise NothingComparedError(
                f"the recipe has no step for any of the {len(tasks):,} tasks", hint="see docs/cli/derive.md"
            )
        return found

    # --- the plan -------------------------------------------------------------------------------

    def plan(self) -> tuple[Planned, ...]:
        """Every image, with its final name; those that cannot be made carry their error."""
        blobs = sorted({work.base for work in self.works})
        self.progress.begin("proving the bases", files=len(blobs))
        bases = dict(zip(blobs, self._each(self._prove, blobs), strict=True))
        self.progress.end()
        self.progress.begin("planning", files=len(self.works))
        planned = self._each(lambda work: self._plan(work, bases[work.base]), self.works)
        self.progress.end()
        return _joined(planned)

    def _prove(self, blob: str) -> tuple[Path, str] | PoolError:
        try:
            path = vouch(self.view, blob, blob)
            proven = self.view.attested.standing(blob, path.stat())
            sha256 = proven.sha256 if proven is not None else None
            if sha256 is None:
                with FileSource(path) as source:
                    sha256 = file_sha256(source)
            recorded = self.view.recorded(blob)
            if recorded is not None and recorded.sha256 not in (None, sha256):
                raise BadFileError(f"{path}: its sha256 is not the recorded one", hint="run 'poolmgr audit'")
            return path, sha256
        except PoolError as e:
            return e
        except OSError as e:
            return BadFileError(f"{blob}: {e.strerror}")
        finally:
            self.progress.file_done(blob)

    def _plan(self, work: Work, base: tuple[Path, str] | PoolError) -> Planned:
        try:
            if isinstance(base, PoolError):
                return Planned(work, error=base)
            path, sha256 = base
            method = method_of(self.request.method or self.files.recipe.method, work.steps)
            wheels = self._wheels(path, work.steps)
            digest = recipe_digest(described(work.steps, self.files.digests, wheels), method)
            name = file_name(work.base, self.files.recipe.name, sha256, digest)
            there = os.path.lexists(self.request.to / name)
            return Planned(work, path, sha256, method, wheels, digest, name, there)
        except PoolError as e:
            return Planned(work, error=e)
        except OSError as e:
            return Planned(work, error=BadFileError(f"{work.base}: {e.strerror}"))
        finally:
            self.progress.file_done(work.base)

    def _wheels(self, path: Path, steps: Sequence[Step]) -> tuple[tuple[LockedWheel, ...], ...]:
        """The locked wheels of each step, for the interpreters of the base at ``path``."""
        result: list[tuple[LockedWheel, ...]] = []
        for step in steps:
            if not isinstance(step, Pip):
                result.append(())
                continue
            key = lock_key(_interpreter(path, step.python).key, step.pins)
            lock = self.files.lock or RecipeLock()
            if key not in lock.sets:
                raise DeriveFailedError(
                    f"{self.files.lock_path} does not lock {', '.join(key[1])} for {key[0]}",
                    hint=f"run 'poolmgr derive --lock {self.request.recipe}' first",
                )
            result.append(lock.sets[key])
        return tuple(result)

    def rehearse(self, plan: Sequence[Planned]) -> tuple[Planned, ...]:
        """The plan with the errors that ``carry_out`` would meet, as far as bases and wheels show them."""
        self._need(plan)
        check_map(self._map)
        self.progress.begin("rehearsing", files=len(plan))
        with Maker(self.request, self.files) as maker:

            def rehearse(planned: Planned) -> Planned:
                try:
                    return replace(planned, error=maker.rehearse(planned))
                finally:
                    self.progress.file_done(planned.name or planned.work.base)

            rehearsed = self._each(rehearse, plan)
        self.progress.end()
        return tuple(rehearsed)

    def _need(self, plan: Sequence[Planned]) -> None:
        if any(isinstance(step, Run) for p in plan for step in p.work.steps):
            Apptainer.need()

    # --- the work -------------------------------------------------------------------------------

    def carry_out(self, plan: Sequence[Planned]) -> Derived:
        """Make every image of the plan; the map is written last, and names only what is proven."""
        self._need(plan)
        check_map(self._map)
        make_dirs(self.request.to)
        sweep(self.request.to)
        self.progress.begin("deriving", files=len(plan))
        with Maker(self.request, self.files) as maker:

            def make(planned: Planned) -> Outcome:
                try:
                    return maker.make(planned)
                finally:
                    self.progress.file_done(planned.name or planned.work.base)

            outcomes = self._each(make, plan)
        self.progress.end()
        good = [o for o in outcomes if o.result is not Result.FAILED]
        tasks = {task: o.planned.name for o in good for task in o.planned.work.tasks}
        if tasks:
            write_map(self._map, tasks)
        shared = {o.sha256: Relative(o.planned.sha256, o.shared) for o in good if o.shared}
        if shared:
            write_record(self.request.to / f"{self.files.recipe.name}{ENDING}", shared)
        return Derived(tuple(outcomes), self._map if tasks else None, tasks)

    # --- the lock -------------------------------------------------------------------------------

    def lock(self, download: Download | None) -> tuple[RecipeLock, tuple[Key, ...]]:
        """The closure of all pins for every interpreter among the bases, written beside the recipe.

        Also says which of its sets are new. Sets that nothing needs any more are dropped.
        """
        wanted: dict[Key, tuple[Interpreter, Pip]] = {}
        jobs = sorted({(w.base, s) for w in self.works for s in w.steps if isinstance(s, Pip)}, key=repr)
        if not jobs:
            raise RecipeInvalidError(
                f"{self.request.recipe}: no step installs anything, so nothing is to lock"
            )
        self.progress.begin("reading the bases' interpreters", files=len(jobs))

        def look(job: tuple[str, Pip]) -> tuple[Interpreter, Pip]:
            path = vouch(self.view, job[0], job[0])
            self.progress.file_done(job[0])
            return _interpreter(path, job[1].python), job[1]

        for interpreter, step in self._each(look, jobs):
            wanted[lock_key(interpreter.key, step.pins)] = (interpreter, step)
        self.progress.end()
        old = self.files.lock.sets if self.files.lock else {}
        sets = {}
        for key, (interpreter, step) in sorted(wanted.items(), key=lambda item: item[0]):
            self.progress.note(f"locking {', '.join(key[1])} for {key[0]}")
            sets[key] = close(step.pins, interpreter, self.files.inside(step.wheels), download)
        lock = RecipeLock(sets)
        self.files.write_lock(lock)
        return lock, tuple(key for key in sets if old.get(key) != sets[key])

    def _each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """``work`` on every item, several at once; an interrupt starts no further one."""
        items = list(items)
        results: dict[int, R] = {}
        with ThreadPoolExecutor(self.request.jobs, thread_name_prefix="derive") as pool:
            ahead: Iterator[tuple[int, T]] = iter(enumerate(items))
            running: dict[Future[R], int] = {}
            try:
                while True:
                    for number, item in ahead:
                        running[pool.submit(work, item)] = number
                        if len(running) >= self.request.jobs:
                            break
                    if not running:
                        break
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        results[running.pop(future)] = future.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return [results[n] for n in range(len(items))]


def _interpreter(path: Path, python: str) -> Interpreter:
    with FileSource(path) as source:
        return find_interpreter(open_image(source, str(path)), python)


def _joined(planned: Iterable[Planned]) -> tuple[Planned, ...]:
    """Images of equal bases and steps as one, although the bases lie under several paths."""
    kept: dict[tuple[str, str], Planned] = {}
    failed: list[Planned] = []
    for one in planned:
        if one.error is not None:
            failed.append(one)
            continue
        key = (one.sha256, one.digest)
        first = kept.get(key)
        if first is None:
            kept[key] = one
        else:
            tasks = tuple(sorted({*first.work.tasks, *one.work.tasks}))
            kept[key] = replace(first, work=replace(first.work, tasks=tasks))
    return (*kept.values(), *failed)
