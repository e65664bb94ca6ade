"""Generic images: references that name an operating system and no task's own build.

A build that fails silently leaves such a name in a task's row (docs/cli/audit.md, "Generic images").
What counts, exactly, after the scheme, the Docker Hub's host, ``library/`` and a digest are taken off:

- declared: a reference that an entry of the manifest's ``gates.generic_images`` names. An entry
  without a tag covers every tag. Wrong for any row that carries it.
- bare: one of ``BARE``, with any tag. Wrong when two tasks or more share it, unusual when one has it.
- an entry that begins with ``!`` allows what it names: tasks that really run on it.

Language images (``python:3.12-slim``) are not in ``BARE``: many tasks rightly run on them; a pool
for which they are a sign of failure declares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

BARE = frozenset(
    (
        "almalinux",
        "alpine",
        "amazonlinux",
        "archlinux",
        "busybox",
        "centos",
        "clearlinux",
        "debian",
        "fedora",
        "hello-world",
        "opensuse/leap",
        "opensuse/tumbleweed",
        "oraclelinux",
        "photon",
        "rockylinux",
        "ubuntu",
    )
)
"""Images of a bare operating system, as the Docker Hub names them."""

_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://")
_HUB = re.compile(r"^(?:(?:[a-z0-9-]+\.)*docker\.io/)?(?:library/)?")
_MIRROR = re.compile(r"^[a-z0-9.-]+(?::[0-9]+)?/(?:.*/)?library/(?=[^/]+$)")


class Generic(Enum):
    DECLARED = "declared"
    BARE = "bare"


def split_reference(reference: str) -> tuple[str, str | None]:
    """(name, tag or None) of an image reference, lower-case, without scheme, Hub host and digest.

    A registry's ``…/library/NAME`` (a mirror of the Hub's official images) counts as ``NAME``.
    """
    bare = _SCHEME.sub("", reference.strip()).strip("/").lower().split("@", 1)[0]
    head, slash, last = bare.rpartition("/")
    name, _, tag = last.partition(":")
    full = _HUB.sub("", head + slash + name)
    return _MIRROR.sub("", full), tag or None


class GenericImages:
    """The rule above for one manifest; answers are remembered a reference."""

    def __init__(self, declared: Iterable[str] = ()) -> None:
        self._declared: dict[str, set[str | None]] = {}
        self._allowed: dict[str, set[str | None]] = {}
        for entry in declared:
            table = self._allowed if entry.startswith("!") else self._declared
            name, tag = split_reference(entry.removeprefix("!"))
            table.setdefault(name, set()).add(tag)
        self._known: dict[str, Generic | None] = {}

    def kind(self, reference: str) -> Generic | None:
        """How ``reference`` is generic, or None when it is not."""
        if reference not in self._known:
            self._known[reference] = self._look(reference)
        return self._known[reference]

    def _look(self, reference: str) -> Generic | None:
        name, tag = split_reference(reference)
        if _names(self._allowed, name, tag):
            return None
        if _names(self._declared, name, tag):
            return Generic.DECLARED
        return Generic.BARE if name in BARE else None


def _names(table: dict[str, set[str | None]], name: str, tag: str | None) -> bool:
    tags = table.get(name, ())
    return None in tags or (tag or "latest") in tags
