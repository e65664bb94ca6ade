"""Which machine runs images of which architecture; names as in a SIF header (``amd64``, ``arm64`` …)."""

from __future__ import annotations

_RUNS_TOO = {"amd64": "386", "arm64": "arm"}


def runs_on(image: str, machine: str) -> bool:
    """Whether an image of one architecture runs on a machine of the other without emulation."""
    return image == machine or _RUNS_TOO.get(machine) == image
