"""Scheme ``build``: a hash over what a build of the environment really reads, and nothing else.

In it: the instructions (comments, blank lines and line ends folded away), the context files that
COPY, ADD and bind mounts name, less what .dockerignore takes out, with permission bits, links and
empty folders. Harbor's hash has more (every file, raw bytes) and less (no modes, no links), so the
two counts differ in both directions; docs/env-hash.md tells how to read that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from poolmgr.harbor.dockerfile import Source, context_sources
from poolmgr.harbor.tree import Kind, Tree
from poolmgr.model.dockerfile import Dockerfile

IGNORE_FILES = ("Dockerfile.dockerignore", ".dockerignore")
MAX_IGNORE = 1 << 20


@dataclass(frozen=True, slots=True)
class Reads:
    """What a build reads of its context."""

    paths: tuple[str, ...]
    """Relative to the context, sorted; folders and links among them."""
    missing: tuple[Source, ...]
    """Sources that name nothing: the build fails."""
    added: tuple[Source, ...]
    """ADD from the context, which Daytona's SDK does not upload."""
    unknown: tuple[Source, ...]
    """Sources that cannot be known, for which every file counts as read."""


def reads(parsed: Dockerfile, entries: Mapping[str, Kind], ignore: str) -> Reads:
    """What a build reads among ``entries``; ``ignore`` is the text of the .dockerignore."""
    kept = _kept(entries, ignore)
    found: set[str] = set()
    missing: list[Source] = []
    added: list[Source] = []
    unknown: list[Source] = []
    for source in context_sources(parsed):
        if source.command == "ADD":
            added.append(source)
        if source.pattern is None:
            unknown.append(source)
        matched = _matches(source.pattern, kept)
        if not matched and source.pattern not in (None, "."):
            missing.append(source)
        found |= matched
    return Reads(tuple(sorted(found)), tuple(missing), tuple(added), tuple(unknown))


def build_hash(
    tree: Tree, base: str, entries: Mapping[str, Kind], parsed: Dockerfile | None, paths: Iterable[str]
) -> str:
    """The digest over the instructions of ``parsed`` (None: no Dockerfile) and the context ``paths``."""
    digest = hashlib.sha256(b"poolmgr build 1\n")
    if parsed is not None:
        for item in canonical(parsed):
            _put(digest.update, item)
    for path in paths:
        kind = entries[path]
        at = f"{base}/{path}"
        _put(digest.update, path)
        _put(digest.update, f"{kind.name} {0 if kind is Kind.LINK else tree.mode(at):o}")
        if kind is Kind.LINK:
            _put(digest.update, tree.target(at))
        elif kind is Kind.FILE:
            size, chunks = tree.chunks(at)
            digest.update(size.to_bytes(8, "big"))
            for chunk in chunks:
                digest.update(chunk)
    return digest.hexdigest()


def canonical(parsed: Dockerfile) -> Iterable[str]:
    """The Dockerfile's meaning as a sequence of texts: equal texts build alike from equal files."""
    for name, value in parsed.directives:
        yield f"# {name}={value}"
    for i in parsed.instructions:
        yield f"{i.command} {i.inner} {'json' if i.is_json else 'shell'} {len(i.flags)} {len(i.words)}"
        yield from i.flags
        yield from i.words
        for heredoc in i.heredocs:
            yield heredoc.name
            yield heredoc.content


def _put(update: object, text: str) -> None:
    raw = text.encode("utf-8", "surrogateescape")
    update(len(raw).to_bytes(4, "big") + raw)  # type: ignore[operator]


def read_ignore(tree: Tree, base: str, entries: Mapping[str, Kind]) -> str:
    """The .dockerignore that a build obeys; '' where there is none."""
    for name in IGNORE_FILES:
        if entries.get(name) is Kind.FILE:
            return tree.read(f"{base}/{name}", MAX_IGNORE).decode("utf-8", "replace")
    return ""


def _matches(pattern: str | None, kept: Mapping[str, Kind]) -> set[str]:
    """The source itself and, where it is a folder, everything below it."""
    if pattern is None or pattern == ".":
        return set(kept)
    exact = re.compile(glob(pattern) + r"(?:/.*)?\Z", re.DOTALL)
    return {path for path in kept if exact.match(path)}


def glob(pattern: str) -> str:
    """A Go ``filepath.Match`` pattern as a regular expression: no wildcard crosses a slash."""
    out = []
    i = 0
    while i < len(pattern):
        char = pattern[i]
        close = pattern.find("]", i + 2) if char == "[" else -1
        if char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif close > 0:
            body = pattern[i + 1 : close].replace("\\", "\\\\").replace("[", "\\[")
            out.append(f"[{body}]")
            i = close
        elif char == "\\" and i + 1 < len(pattern):
            i += 1
            out.append(re.escape(pattern[i]))
        else:
            out.append(re.escape(char))
        i += 1
    return "".join(out)


def _kept(entries: Mapping[str, Kind], ignore: str) -> Mapping[str, Kind]:
    """What .dockerignore leaves of the context, by moby's rules: the last matching line wins."""
    rules = []
    for line in ignore.splitlines():
        text = line.strip()
        if not text or line.startswith("#"):
            continue
        negated = text.startswith("!")
        parts = [p for p in text.removeprefix("!").strip().split("/") if p not in ("", ".")]
        if parts:
            expression = "/".join("\0" if p == "**" else glob(p.replace("**", "*")) for p in parts)
            expression = expression.replace("\0/", "(?:.*/)?").replace("/\0", "/.*").replace("\0", ".*")
            rules.append((re.compile(expression + r"(?:/.*)?\Z", re.DOTALL), negated))
    if not rules:
        return entries

    def is_kept(path: str) -> bool:
        kept = True
        for expression, negated in rules:
            if expression.match(path):
                kept = negated
        return kept

    return {path: kind for path, kind in entries.items() if is_kept(path)}
