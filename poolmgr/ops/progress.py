"""How a verb tells its caller what it is doing, without printing anything itself."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called from several threads at once; every method returns quickly."""

    def begin(self, what: str, *, files: int, size: int = 0) -> None:
        """A stretch of work starts, such as ``hashing``: so many files, so many bytes (0: unknown)."""
        ...

    def advance(self, size: int) -> None:
        """Bytes done since the last call; negative when a file starts over."""
        ...

    def file_done(self, path: str) -> None:
        """One file of the stretch has ended, well or not."""
        ...

    def note(self, message: str) -> None:
        """One line for the user: what is being retried and why, what was skipped."""
        ...

    def end(self) -> None:
        """The stretch is over."""
        ...


class Silent:
    """For callers that do not want to know."""

    def begin(self, what: str, *, files: int, size: int = 0) -> None:
        pass

    def advance(self, size: int) -> None:
        pass

    def file_done(self, path: str) -> None:
        pass

    def note(self, message: str) -> None:
        pass

    def end(self) -> None:
        pass
