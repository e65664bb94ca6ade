"""A pinned requirement: one distribution at one version, as a recipe names it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_HASH = re.compile(r"sha256=([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Pin:
    """``name[extras]==version``, or ``name @ URL#sha256=…``; an environment marker may follow."""

    text: str
    """As written, but for blanks at the ends."""
    name: str
    """Canonical (PEP 503)."""
    version: str | None
    """None where a URL names the wheel."""
    extras: tuple[str, ...] = ()
    url: str | None = None
    sha256: str | None = None
    marker: str | None = None


def parse_pin(text: str) -> Pin:
    """The pin in ``text``; ``ValueError`` says why it is none.

    Refused: no version, a range, a wildcard, more than one clause, ``===``, and a URL without the
    sha256 of what it leads to: whatever could give other bytes tomorrow.
    """
    try:
        requirement = Requirement(text)
    except InvalidRequirement as e:
        raise ValueError(f"{text!r} is not a requirement: {str(e).splitlines()[0]}") from None
    name = canonicalize_name(requirement.name)
    extras = tuple(sorted(canonicalize_name(e) for e in requirement.extras))
    marker = str(requirement.marker) if requirement.marker else None
    text = text.strip()
    if requirement.url:
        found = _HASH.search(requirement.url.partition("#")[2])
        if not requirement.url.startswith("https://") or found is None:
            raise ValueError(f"{text!r}: a URL must be https:// and end in #sha256=…, the hash of the wheel")
        return Pin(text, name, None, extras, requirement.url, found[1], marker)
    clauses = list(requirement.specifier)
    if not clauses:
        raise ValueError(f"{text!r} has no version; write {requirement.name}==VERSION")
    if len(clauses) > 1 or clauses[0].operator != "==" or clauses[0].version.endswith(".*"):
        raise ValueError(f"{text!r} allows more than one version; write {requirement.name}==VERSION")
    return Pin(text, name, clauses[0].version, extras, marker=marker)


def combine(pins: tuple[Pin, ...], other: tuple[Pin, ...]) -> tuple[tuple[Pin, ...], tuple[Pin, ...]]:
    """(``pins`` with those of ``other`` in the place of the same names, what is left of ``other``)."""
    replace = {pin.name: pin for pin in other}
    done = tuple(replace.pop(pin.name, pin) for pin in pins)
    return done, tuple(replace.values())
