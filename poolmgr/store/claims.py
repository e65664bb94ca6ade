"""Claims: one run at work on a target, across processes and machines, without file locks.

A claim is a file whose name is the target's key and a number, made by a link that never replaces;
the highest number is the claim in force, and the file names its owner. Whoever finds the owner dead
makes the next number: of two takers one succeeds, and nobody ever removes a claim that is in force.
An owner is dead when its end can be seen (poolmgr/owner.py), or, on another machine, when it has not
touched its claim for ``STALE`` seconds by the filesystem's own clock.

Two kinds. A plain claim saves work and no more: what is given up leaves nothing behind, and who slept
between looking and making may hold a claim beside another (a target that is only ever made by a link
that does not replace bears that). An ``exact`` one leaves a number that says "released", so numbers
never go back: the sleeper finds a higher one when it looks again, and gives way.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from poolmgr.errors import AlreadyExistsError, PoolBusyError
from poolmgr.owner import Owner
from poolmgr.settings import machine_name
from poolmgr.store.files import create_durable, make_dirs, mapped_os_errors, temp_file

BEAT = 30.0
"""Seconds between two touches of a claim by its owner."""
STALE = 600.0
RELEASED = "released"
PATIENCE = 60.0
"""Seconds that ``claimed`` waits for a live owner; its claim is held only while an index is written."""
_PAUSE = (0.05, 1.0)
_INDEX = "index"
_NAME = re.compile(r"([0-9a-f]{64})\.(\d{1,9})\.claim")


@dataclass(frozen=True, slots=True)
class Held:
    """A claim that is in force for another run."""

    owner: Owner | None
    """None when the file does not say it."""
    machine: str
    file: Path
    released: bool = False
    """Whether this is the mark that an exact claim left behind: it is free."""


class Claims:
    """The claims of one folder, seen by one run. ``close`` gives up all that it holds."""

    def __init__(
        self, folder: Path, owner: Owner, machine: str, *, beat: float = BEAT, exact: bool = False
    ) -> None:
        self.folder = folder
        self.owner = owner
        self.machine = machine
        self._beat = beat
        self._exact = exact
        self._mine: dict[str, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None

    def take(self, target: str) -> Held | None:
        """Claim ``target`` (any text); None when it is ours now, else who has it.

        After a claim was taken the target must be looked for once more: its last owner may have
        made it just before. Raises what writing to the folder raises.
        """
        key = _key(target)
        make_dirs(self.folder)
        body = f"{self.owner}\n{self.machine}\n".encode()
        while True:
            numbers = self._numbers(key)
            number = 0
            if numbers:
                held = self._read(self._path(key, numbers[-1]))
                if held is None:
                    continue  # given up meanwhile
                if not held.released and not self._is_dead(held):
                    return held
                number = numbers[-1] + 1
            try:
                create_durable(self._path(key, number), body)
            except AlreadyExistsError:
                continue  # another was first: look who
            if self._exact and self._numbers(key)[-1:] != [number]:
                self._path(key, number).unlink(missing_ok=True)  # a higher one was made while we slept
                continue
            with self._lock:
                self._mine[key] = number
                if self._heart is None:
                    self._heart = threading.Thread(target=self._keep_alive, name="claims", daemon=True)
                    self._heart.start()
            self._forget(key, number)
            return None

    def give_up(self, target: str) -> None:
        """End the claim on ``target``, if it is ours, and remove the dead ones below it."""
        self._drop(_key(target))

    def close(self) -> None:
        self._stop.set()
        for key in list(self._mine):
            self._drop(key)

    def _drop(self, key: str) -> None:
        with self._lock:
            mine = self._mine.pop(key, None)
        if mine is None:
            return
        if self._exact:
            with contextlib.suppress(AlreadyExistsError):  # another took us for dead: it is in force
                create_durable(self._path(key, mine + 1), RELEASED.encode())
        self._forget(key, mine + 1)

    def _forget(self, key: str, below: int) -> None:
        for number in self._numbers(key):
            if number < below:
                with contextlib.suppress(OSError):
                    self._path(key, number).unlink()

    def _path(self, key: str, number: int) -> Path:
        return self.folder / f"{key}.{number}.claim"

    def _numbers(self, key: str) -> list[int]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        found = (_NAME.fullmatch(name) for name in names if name.startswith(key))
        return sorted(int(match[2]) for match in found if match)

    def _read(self, path: Path) -> Held | None:
        try:
            with path.open("rb") as file:
                lines = file.read(1024).decode("utf-8", "replace").split("\n")
        except FileNotFoundError:
            return None
        except OSError:
            return Held(None, "", path)
        machine = "".join(c for c in (lines[1] if len(lines) > 1 else "") if c.isprintable())[:100]
        return Held(Owner.parse(lines[0]), machine, path, released=lines == [RELEASED])

    def _is_dead(self, held: Held) -> bool:
        if held.owner is not None and held.owner.domain == self.owner.domain:
            return held.owner.surely_dead(self.owner.domain)
        try:
            touched = held.file.stat().st_mtime
        except FileNotFoundError:
            return False  # the next look will tell
        return self._now() - touched > STALE

    def _now(self) -> float:
        """The time by the clock that also stamps the claims."""
        with temp_file(self.folder) as (fd, path), mapped_os_errors(path):
            os.write(fd, b"?")
            return os.fstat(fd).st_mtime

    def _keep_alive(self) -> None:
        while not self._stop.wait(self._beat):
            with self._lock:
                held = list(self._mine.items())
            for key, number in held:
                with contextlib.suppress(OSError):
                    os.utime(self._path(key, number))


@contextlib.contextmanager
def claimed(
    folder: Path, patience: float = PATIENCE, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """The block runs while this run alone holds the exact claim on the index that lies in ``folder``.

    ``PoolBusyError`` when a live owner, or one on another machine, keeps it for ``patience`` seconds.
    """
    owner = Owner.begin()
    claims = Claims(folder, owner, machine_name(), exact=True)
    try:
        until, pause = time.monotonic() + patience, _PAUSE[0]
        told = False
        while (held := claims.take(_INDEX)) is not None:
            who = f"process {held.owner.pid} on {held.machine}" if held.owner else "another run"
            if time.monotonic() > until:
                raise PoolBusyError(
                    f"{folder.parent.parent}: {who} is writing the index, and has been for"
                    f" {patience:.0f} s ({held.file})",
                    hint=f"run the command again when it is done; a run that died on another machine is"
                    f" taken for dead {STALE / 60:.0f} minutes after its last sign of life",
                )
            if not told and waiting is not None:
                waiting(f"waiting for {who}, which is writing the index")
                told = True
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE[1])
        yield
    finally:
        claims.close()
        owner.close()


def _key(target: str) -> str:
    return hashlib.sha256(target.encode("utf-8", "surrogateescape")).hexdigest()
