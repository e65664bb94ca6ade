"""How work on one image is given up before its end: the caller's flag is looked at between blocks."""

from __future__ import annotations

from collections.abc import Callable

Stop = Callable[[], bool]
"""Whether the answer is wanted no more."""


class StoppedError(Exception):
    """The work was given up because its caller wanted the answer no more."""


def never() -> bool:
    return False
