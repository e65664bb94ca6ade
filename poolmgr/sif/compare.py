"""In which paths two images differ, by the same lines that make their tree identity."""

from __future__ import annotations

from dataclasses import dataclass

from poolmgr.sif.identity import tree_lines
from poolmgr.sif.image import Image

APPTAINERS_OWN = ".singularity.d"
"""What Apptainer itself writes into an image: labels that name the reference and its own version, scripts."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths; each is in one of the three."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def lines(self) -> tuple[str, ...]:
        """``+ path``, ``- path`` and ``~ path``, in order of the paths."""
        marked = [(p, "+") for p in self.added] + [(p, "-") for p in self.removed]
        marked += [(p, "~") for p in self.changed]
        return tuple(f"{mark} {path}" for path, mark in sorted(marked))

    @property
    def of_the_image(self) -> Difference:
        """Without what Apptainer writes by itself."""
        return Difference(*map(_foreign, (self.added, self.removed, self.changed)))


def _foreign(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(p for p in paths if p != APPTAINERS_OWN and not p.startswith(APPTAINERS_OWN + "/"))


def difference(old: Image, new: Image, *, threads: int | None = None) -> Difference:
    """What ``new`` has that ``old`` has not, and so on. ``DamageError`` on a bad block of either."""
    before = dict(tree_lines(old, threads=threads))
    added, changed = [], []
    for path, line in tree_lines(new, threads=threads):
        known = before.pop(path, None)
        if known is None:
            added.append(path)
        elif known != line:
            changed.append(path)
    return Difference(tuple(added), tuple(before), tuple(changed))
