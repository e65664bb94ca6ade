"""Image references, parsed as every registry and client parses them.

The grammar is that of the distribution project's ``reference`` package, which Docker, Apptainer
and every registry share: ``[HOST[:PORT]/]PATH[:TAG][@ALGORITHM:HEX]``. What is written in front of
the first slash is a host when it holds a dot, a colon or an upper-case letter, or is ``localhost``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from poolmgr.errors import ReferenceInvalidError

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
    def sought(self) -> str:
        """What a registry is asked for: the digest where there is one, else the tag."""
        return self.digest or self.tag or "latest"

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
        port = first.rpartition("]")[2].rpartition(":")[2]
        if port.isdigit() and ":" in first and not (len(port) <= 5 and 0 < int(port) < 65536):
            raise bad(f"{first[:80]!r} has no port that exists")
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
