"""Naming: the file names that rules make of image references, aliases and collisions.

The rules are those that pools in the wild follow (docs/naming.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from poolmgr.errors import ManifestInvalidError, ReferenceInvalidError
from poolmgr.model.blob import fold, path_trouble
from poolmgr.model.reference import MAX_REFERENCE, parse_reference, without_scheme

# --- rules: reference -> file name ----------------------------------------------------------------


def _tmax(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "__", without_scheme(text)).strip("._-")


def _apptainer(text: str) -> str:
    name = without_scheme(text).rpartition("/")[2]
    name, colon, rest = name.partition(":")
    return f"{name}_{rest.partition(':')[0] if colon else 'latest'}"


def _harbor(text: str) -> str:
    text = without_scheme(text)
    if ":" not in text:
        text += ":latest"
    return text.replace("/", "_").replace(":", "_")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


RULES: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {"tmax": _tmax, "apptainer": _apptainer, "harbor": _harbor, "sha256": _sha256}
)
"""Rule -> stem of the file name. ``tmax``: every run of other characters becomes ``__``.
``apptainer``: what ``apptainer pull`` names a file (``NAME_TAG``; the organisation is lost).
``harbor``: Harbor's singularity cache. ``sha256``: the hash of the reference as written."""
SEPARATORS: Mapping[str, str] = MappingProxyType({"tmax": "__", "apptainer": "_", "harbor": "_"})
"""Rule -> what stands before a trailing hash in its file names."""


def file_name(text: str, rule: str) -> str:
    """The name of the SIF file that holds the image ``text`` in a pool that follows ``rule``.

    Only text that gives a name which is safe inside a pool is taken; anything else raises
    ``ReferenceInvalidError``.
    """
    name = RULES[rule](text) + ".sif"
    trouble = path_trouble(name) or ("has a slash" if "/" in name else None)
    if name == ".sif" or trouble:
        raise ReferenceInvalidError(
            f"{text[:200]!r} gives no usable file name under the rule {rule!r}: "
            f"{name[:200]!r} {trouble or 'is empty'}",
            hint="see docs/naming.md",
        )
    return name


# --- aliases --------------------------------------------------------------------------------------

_HOLE = re.compile(r"\{([^{}]*)\}")
_HOLE_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Aliases:
    """Rewrites of references, from a manifest: ``"mirror:5000/env/{tag}:latest" = "acme/env:{tag}"``.

    A ``{name}`` stands for one or more of ``A-Z a-z 0-9 . _ -``; a pattern covers the whole
    reference, in any of its spellings. The first pattern that fits is applied, once.
    """

    def __init__(self, table: Mapping[str, str]) -> None:
        self._rules = [(self._pattern(key), value) for key, value in table.items() if self._fits(key, value)]

    @staticmethod
    def _fits(key: str, value: str) -> bool:
        holes = _HOLE.findall(key)
        for name in (*holes, *_HOLE.findall(value)):
            if not _HOLE_NAME.fullmatch(name):
                raise ManifestInvalidError(
                    f"aliases.{key!r}: {{{name}}} is no placeholder", hint="write it as in {tag}"
                )
        if unknown := sorted(set(_HOLE.findall(value)) - set(holes)):
            raise ManifestInvalidError(
                f"aliases.{key!r}: {value!r} uses {{{unknown[0]}}}, which the pattern does not have",
                hint=f"it has: {', '.join(holes) or 'none'}",
            )
        if len(key) > MAX_REFERENCE or len(holes) > 4 or "}{" in key:
            raise ManifestInvalidError(
                f"aliases.{key[:80]!r}: too long, too many placeholders, or two without text between",
                hint="see docs/naming.md",
            )
        return True

    @staticmethod
    def _pattern(key: str) -> re.Pattern[str]:
        seen: set[str] = set()
        parts: list[str] = []
        at = 0
        key = without_scheme(key)
        for hole in _HOLE.finditer(key):
            parts.append(re.escape(key[at : hole.start()]))
            name = hole[1]
            parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>[A-Za-z0-9._-]+)")
            seen.add(name)
            at = hole.end()
        return re.compile("".join(parts) + re.escape(key[at:]))

    def rewrite(self, text: str) -> str | None:
        """The reference that ``text`` stands for, or None when no alias covers it."""
        if not self._rules or len(text) > MAX_REFERENCE:
            return None
        forms = [without_scheme(text)]
        with contextlib.suppress(ReferenceInvalidError):
            forms += [s for s in parse_reference(text).spellings() if s != forms[0]]
        for pattern, value in self._rules:
            for form in forms:
                if match := pattern.fullmatch(form):
                    return _HOLE.sub(lambda hole, m=match: m[hole[1]], value)  # type: ignore[misc]
        return None


# --- naming many at once ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Collision:
    """Different images that would have one file name (or names that differ only in case)."""

    names: tuple[str, ...]
    references: tuple[str, ...]


@dataclass(frozen=True)
class NamePlan:
    names: Mapping[str, str]
    """Reference as given -> file name, for those that collide with nothing."""
    collisions: tuple[Collision, ...]
    invalid: tuple[tuple[str, str], ...]
    """(reference, why) for texts that are no image reference or give no name."""


def plan_names(
    references: Iterable[str],
    rule: str,
    aliases: Aliases | None = None,
    *,
    taken: Sequence[str] = (),
    fixed: Mapping[str, str] = MappingProxyType({}),
) -> NamePlan:
    """File names for ``references``; those of one image get one name, those that clash get none.

    An alias is applied first. Several spellings of one image take the name of the first one given.
    ``taken`` are references whose names are already in use in the pool; ``fixed`` gives some of
    ``references`` names that the rule does not make.
    """
    names: dict[str, str] = {}
    invalid: list[tuple[str, str]] = []
    by_image: dict[str, str] = {}
    groups: dict[str, dict[str, tuple[str, list[str]]]] = {}
    wanted = dict.fromkeys(references)
    for given in dict.fromkeys((*taken, *wanted)):
        meant = (aliases.rewrite(given) if aliases else None) or given
        try:
            image = parse_reference(meant).pullable
            name = by_image.setdefault(image, fixed.get(given) or file_name(meant, rule))
        except ReferenceInvalidError as e:
            invalid.append((given, e.message))
            continue
        names[given] = name
        groups.setdefault(fold(name), {}).setdefault(image, (name, []))[1].append(given)
    collisions = []
    for group in groups.values():
        if len(group) > 1:
            clashing = tuple(r for _, given in group.values() for r in given)
            collisions.append(Collision(tuple(sorted({name for name, _ in group.values()})), clashing))
            for reference in clashing:
                names.pop(reference, None)
    return NamePlan(
        MappingProxyType({r: names[r] for r in wanted if r in names}), tuple(collisions), tuple(invalid)
    )
