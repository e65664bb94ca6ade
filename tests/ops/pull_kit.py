"""Pulls as the tests of several files need them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from poolmgr.model.manifest import Manifest
from poolmgr.ops.pull import Pull
from poolmgr.ops.pull_facts import Pulls, Request
from poolmgr.plan.pull import Wanted, plan_pull
from poolmgr.store.oci import Registries
from poolmgr.store.oci_login import Logins
from tests.loopback.registry import Registry


class Notes(list[str]):
    """A progress that keeps what it is told."""

    def begin(self, what: str, *, files: int, size: int = 0) -> None:
        pass

    def advance(self, size: int) -> None:
        pass

    def file_done(self, path: str) -> None:
        pass

    def note(self, message: str) -> None:
        self.append(message)

    def end(self) -> None:
        pass


def start(
    registry: Registry, to: Path, *references: str | Wanted, logins: Iterable[Path] = (),
    manifest: Manifest | None = None, notes: Notes | None = None, tries: int = 3, **options: object,
) -> Pull:  # fmt: skip
    told = notes if notes is not None else Notes()
    wanted = [r if isinstance(r, Wanted) else Wanted(r) for r in references]
    registries = Registries(Logins(tuple(logins)), told.note, insecure=[registry.host], tries=tries)
    request = Request(to, **{"arch": "amd64", "jobs": 2, "tries": tries, **options})  # type: ignore[arg-type]
    return Pull(plan_pull(wanted, manifest or Manifest()), request, registries, told)


def pull(registry: Registry, to: Path, *references: str | Wanted, **options: object) -> Pulls:
    run = start(registry, to, *references, **options)  # type: ignore[arg-type]
    return run.carry_out(run.plan())


def codes(pulls: Pulls) -> list[str]:
    """The error codes of all that failed, in order."""
    return [o.error.code for o in pulls.outcomes if o.error] + [r.error.code for r in pulls.refused]
