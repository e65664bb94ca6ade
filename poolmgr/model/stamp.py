"""A stamp: what stat(2) says of a file at the moment it was proven.

While size, mtime, ctime and inode all still hold, the proof holds: ctime cannot be set back by
an ordinary user, so a file swapped in with its mtime restored is noticed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StatLike(Protocol):
    """The part of ``os.stat_result`` that a stamp needs."""

    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime_ns(self) -> int: ...
    @property
    def st_ino(self) -> int: ...


class Stamp(NamedTuple):
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @staticmethod
    def of(st: StatLike) -> Stamp:
        return Stamp(st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino)
