"""A row of a task dataset, as far as images are concerned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    task: str | None
    """The task's id; None when the row has none that can be read."""
    image: str | None
    """The image reference or path that the row names; None when it names none."""
    where: str
    """The row's place, such as ``train.parquet row 17`` or ``tasks/a/task.toml``."""
    trouble: str | None = None
    """Why the row cannot be used, when it cannot."""
