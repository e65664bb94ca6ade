"""Naming: image references, the file names that rules make of them, aliases and collisions.

The grammar is that of the distribution project's ``reference`` package, which Docker, Apptainer
and every registry share. The rules are those that pools in the wild follow (docs/naming.md).
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

MAX_REFERENCE = 1024
"""Characters that are looked at; a reference has at most 255 + 1 + 128 + 1 + 135."""
MAX_REPOSITORY = 255
MAX_TAG = 128
DOCKER_HUB = "docker.io"

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_PART = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*")
_HOST = re.compile(
    r"(?:(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
    r"(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
)
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]*")
_DIGEST = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}")
_HUB_HOSTS = {DOCKER_HUB, "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"}


@dataclass(frozen=True, slots=True)
class Reference:
    """An image reference, taken apart. Two references to one image have equal ``canonical``."""

    host: str
    """Registry with its port; ``docker.io`` where none was written."""
    repository: str
    """Path at the registry; ``library/`` is written out."""
    tag: str | None
    """``latest`` where neither tag nor digest was written; None beside a digest alone."""
    digest: str | None
    """``sha256:…``"""

    @property
    def name(self) -> str:
        return f"{self.host}/{self.repository}"

    @property
    def canonical(self) -> str:
        """The one full spelling of the reference."""
        text = self.name
        if self.tag:
            text += f":{self.tag}"
        return f"{text}@{self.digest}" if self.digest else text

    @property
    def pullable(self) -> str:
        """As clients take it that refuse a tag beside a digest: the digest wins."""
        return f"{self.name}@{self.digest}" if self.digest else self.canonical

    def spellings(self) -> tuple[str, ...]:
        """Every usual way of writing this reference, the shortest first, the full one last."""
        hosts = [self.name]
        if self.host == DOCKER_HUB:
            hosts = [self.name] if _names_host(self.repository) else [self.repository, self.name]
            if self.repository.startswith("library/"):
                short = self.repository.removeprefix("library/")
                hosts = [short, f"{DOCKER_HUB}/{short}", *hosts]
        if self.digest:
            ends = [f"@{self.digest}", *([f":{self.tag}@{self.digest}"] if self.tag else [])]
        else:
            ends = ["", ":latest"] if self.tag == "latest" else [f":{self.tag}"]
        return tuple(host + end for host in hosts for end in ends)


def _names_host(path: str) -> bool:
    """Whether the first of several parts is read as a registry, not as a namespace."""
    first, slash, _ = path.partition("/")
    return bool(slash) and (first == "localhost" or "." in first or ":" in first or first.lower() != first)


def without_scheme(text: str) -> str:
    """The reference without ``docker://`` or another scheme, spaces and outer slashes."""
    text = text.strip()
    match = _SCHEME.match(text)
    return text[match.end() if match else 0 :].strip().strip("/")


def parse_reference(text: str) -> Reference:
    """The parts of an image reference; raises ``ReferenceInvalidError`` that says which part is wrong."""

    def bad(why: str) -> ReferenceInvalidError:
        shown = text if len(text) <= 200 else text[:200] + "…"
        return ReferenceInvalidError(
            f"{shown!r} is no image reference: {why}",
            hint="expected [HOST[:PORT]/]PATH[:TAG][@sha256:DIGEST]",
        )

    if len(text) > MAX_REFERENCE:
        raise bad(f"{len(text)} characters")
    rest = without_scheme(text)
    if not rest:
        raise bad("it is empty")
    rest, at, digest = rest.partition("@")
    if at:
        if not _DIGEST.fullmatch(digest):
            raise bad(f"the digest {digest!r} is not ALGORITHM:HEX")
        if digest.startswith("sha256:") and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise bad("a sha256 digest has 64 lower-case hex digits")
    tag: str | None = None
    colon = rest.rfind(":")
    if colon > rest.rfind("/"):
        rest, tag = rest[:colon], rest[colon + 1 :]
        if len(tag) > MAX_TAG:
            raise bad(f"the tag has {len(tag)} characters, more than {MAX_TAG}")
        if not _TAG.fullmatch(tag):
            raise bad(f"the tag {tag!r} is empty or holds a character that no tag has")
    first, slash, remainder = rest.partition("/")
    host = DOCKER_HUB
    if slash and _names_host(rest):
        if not _HOST.fullmatch(first):
            raise bad(f"the host {first!r} is none")
        host, rest = first, remainder
    if host in _HUB_HOSTS:
        host = DOCKER_HUB
        if "/" not in rest:
            rest = f"library/{rest}"
    if len(host) + 1 + len(rest) > MAX_REPOSITORY:
        raise bad(f"host and path have more than {MAX_REPOSITORY} characters")
    for part in rest.split("/"):
        if not part:
            raise bad("its path has an empty part")
        if not _PART.fullmatch(part):
            raise bad(f"{part!r} is no part of a repository's path (lower-case letters, digits, . _ -)")
    return Reference(host, rest, tag or (None if digest else "latest"), digest or None)


def canonical(text: str) -> str:
    """The one full spelling of a reference; for text that is none, the text without its scheme."""
    try:
        return parse_reference(text).canonical
    except ReferenceInvalidError:
        return without_scheme(text)


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
    references: Iterable[str], rule: str, aliases: Aliases | None = None, *, taken: Sequence[str] = ()
) -> NamePlan:
    """File names for ``references``; those of one image get one name, those that clash get none.

    An alias is applied first. Several spellings of one image take the name of the first one given.
    ``taken`` are references whose names are already in use in the pool.
    """
    names: dict[str, str] = {}
    invalid: list[tuple[str, str]] = []
    by_image: dict[str, str] = {}
    groups: dict[str, dict[str, tuple[str, list[str]]]] = {}
    wanted = dict.fromkeys(references)
    for given in dict.fromkeys((*taken, *wanted)):
        meant = (aliases.rewrite(given) if aliases else None) or given
        try:
            image = parse_reference(meant).canonical
            name = by_image.setdefault(image, file_name(meant, rule))
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
