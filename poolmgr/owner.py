"""Who is writing: a mark for names of files, from which another process can see that the writer is dead.

No flock, which cluster filesystems break: a name carries machine boot, pid namespace, pid, the
process's start and a token of the run, so a pid that was given to another process is not mistaken
for the writer. A writer on another machine, or behind another pid namespace, is never surely dead.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from dataclasses import dataclass

MARK = r"[0-9a-f]{12}-\d{1,10}-\d{1,20}-[0-9a-f]{8}"
"""What ``str(owner)`` looks like, as a pattern for names."""

_PARTS = re.compile(r"([0-9a-f]{12})-(\d{1,10})-(\d{1,20})-([0-9a-f]{8})")
_live_runs: set[str] = set()


@dataclass(frozen=True, slots=True)
class Owner:
    """One run of one process. ``begin`` makes this process's own; ``close`` ends its claims."""

    domain: str
    """The set of processes that can see each other's life: one boot, one pid namespace."""
    pid: int
    start: int
    """Clock ticks after boot at which the process started."""
    run: str

    @classmethod
    def begin(cls) -> Owner:
        run = secrets.token_hex(4)
        _live_runs.add(run)
        return cls(_domain(), os.getpid(), _process_start(os.getpid()) or 0, run)

    @classmethod
    def parse(cls, mark: str) -> Owner | None:
        """The owner that a name's mark tells of; None for what is no mark."""
        match = _PARTS.fullmatch(mark)
        if match is None:
            return None
        domain, pid, start, run = match.groups()
        return cls(domain, int(pid), int(start), run)

    def __str__(self) -> str:
        return f"{self.domain}-{self.pid}-{self.start}-{self.run}"

    def close(self) -> None:
        _live_runs.discard(self.run)

    def surely_dead(self, domain: str | None = None) -> bool:
        """Whether the owner's end can be seen from here (``domain``: this process's, if known already)."""
        if self.domain != (_domain() if domain is None else domain):
            return False
        if self.pid == os.getpid():
            return self.run not in _live_runs
        return _process_start(self.pid) != self.start


_processes: dict[int, Owner] = {}


def this_process() -> Owner:
    """The owner that stands for the whole process, for names that no single run answers for."""
    pid = os.getpid()
    if pid not in _processes:  # also after a fork, which copies the parent's
        _processes[pid] = Owner.begin()
    return _processes[pid]


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _process_start(pid: int) -> int | None:
    """Clock ticks after boot at which ``pid`` started (proc(5), stat field 22); None if it is gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


def _domain() -> str:
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = secrets.token_hex(8)  # nobody's life can be seen: nothing is ever surely dead
    boot = _read("/proc/sys/kernel/random/boot_id").strip()
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:12]
