"""What an image must hold and must not hold, found by reading its tree; nothing in it is run.

Paths are matched on the merged view, links followed inside the image. A forbidden file that an
overlay hides is still in the file for whoever opens it, and is reported as that. A ``sha256:``
entry forbids the content under whatever name, in every filesystem of the image.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from poolmgr.model.digest import parse_sha256
from poolmgr.model.finding import Finding
from poolmgr.sif.header import finding
from poolmgr.sif.identity import file_hashes
from poolmgr.sif.image import Image
from poolmgr.sif.tree import Entry

SHA256 = "sha256:"
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_STANDARD = re.compile(r"(^|/)lib(64)?/python3(\.\d+)?(/lib-dynload)?$")
_MAGIC = frozenset("*?[")
MAX_NAMED = 10
"""Paths that one finding names; the count is always whole."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What one variant demands of its images."""

    require: tuple[str, ...] = ()
    """Paths or globs that must be there."""
    forbid: tuple[str, ...] = ()
    """Paths, globs or ``sha256:…`` that must not."""
    modules: tuple[str, ...] = ()
    """Python modules that must be importable, such as ``yaml`` or ``google.protobuf``."""


def check_content(
    image: Image, rules: Rules, *, threads: int | None = None
) -> dict[str, tuple[Finding, ...]]:
    """Rule (``require``, ``forbid``, ``modules``) -> its findings, for every rule that is not empty.

    Raises ``DamageError`` when a file whose content is asked for cannot be read.
    """
    results: dict[str, tuple[Finding, ...]] = {}
    if rules.require:
        results["require"] = tuple(_required(image, rules.require))
    if rules.forbid:
        results["forbid"] = tuple(_forbidden(image, rules.forbid, threads))
    if rules.modules:
        results["modules"] = tuple(_modules(image, rules.modules))
    return results


def _required(image: Image, patterns: Iterable[str]) -> Iterator[Finding]:
    for pattern in patterns:
        if not any(True for _ in matches(image, pattern)):
            yield finding("content-missing", f"nothing in the image matches the required {pattern!r}")


def _forbidden(image: Image, patterns: Sequence[str], threads: int | None) -> Iterator[Finding]:
    hidden = {e.path: e for e in image.hidden} if len(image.parts) > 1 else {}
    digests: list[str] = []
    for pattern in patterns:
        if pattern.startswith(SHA256):
            digests.append(parse_sha256(pattern))
            continue
        seen = [e.path for e in matches(image, pattern)]
        if seen:
            yield finding("content-forbidden", f"holds {_named(seen)}, which {pattern!r} forbids")
        covered = [p for p in hidden if _match(p, pattern)]
        if covered:
            message = f"{_named(covered)}, which {pattern!r} forbids: hidden, still in the file"
            yield finding("content-hidden", message)
    if digests:
        yield from _forbidden_bytes(image, digests, hidden, threads)


def _forbidden_bytes(
    image: Image, digests: Sequence[str], hidden: Mapping[str, Entry], threads: int | None
) -> Iterator[Finding]:
    names: dict[tuple[int, int], list[Entry]] = {}
    for entry in (*image.merged.values(), *hidden.values()):
        if entry.is_file:
            names.setdefault((entry.layer, entry.number), []).append(entry)
    for layer in range(len(image.parts)):
        firsts = [group[0] for key, group in names.items() if key[0] == layer]
        hashes = file_hashes(image, firsts, threads=threads)
        for first in firsts:
            if hashes[first.path] not in digests:
                continue
            group = names[layer, first.number]
            what = f"which sha256:{hashes[first.path][:12]}… forbids"
            seen = [e.path for e in group if image.merged.get(e.path) == e]
            if seen:
                yield finding("content-forbidden", f"holds {_named(seen)}, {what}")
            covered = [e.path for e in group if image.merged.get(e.path) != e]
            if covered:
                yield finding("content-hidden", f"{_named(covered)}, {what}: hidden, still in the file")


def matches(image: Image, pattern: str) -> Iterator[Entry]:
    """What a path or a glob leads to: ``*``, ``?``, ``[…]`` within a name, ``**`` over any number of them.

    The folders before the first name with a wildcard may be links; a path that is a link which
    leads nowhere inside the image matches nothing.
    """
    parts = [p for p in pattern.split("/") if p not in ("", ".")]
    plain = 0
    while plain < len(parts) and not _MAGIC & set(parts[plain]):
        plain += 1
    if plain == len(parts):
        entry = image.find(pattern)
        if entry is not None and (entry.is_dir or not pattern.endswith("/")):
            yield entry
        return
    base = image.find("/".join(parts[:plain]))
    if base is None or not base.is_dir:
        return
    prefix = base.path + "/" if base.path else ""
    wanted = _compile("/".join(parts[plain:]))
    for path, entry in image.merged.items():
        if path.startswith(prefix) and wanted.fullmatch(path, len(prefix)):
            if entry.target and image.find(path) is None:
                continue
            yield entry


def _match(path: str, pattern: str) -> bool:
    clean = "/".join(p for p in pattern.split("/") if p not in ("", "."))
    if not _MAGIC & set(clean):
        return path == clean or path.startswith(clean + "/")
    return _compile(clean).fullmatch(path) is not None


@lru_cache(maxsize=1024)
def _compile(glob: str) -> re.Pattern[str]:
    out = []
    at = 0
    while at < len(glob):
        if glob.startswith("**/", at):
            out.append("(?:[^/]+/)*")
            at += 3
        elif glob.startswith("**", at):
            out.append(".*")
            at += 2
        elif glob[at] == "*":
            out.append("[^/]*")
            at += 1
        elif glob[at] == "?":
            out.append("[^/]")
            at += 1
        elif glob[at] == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end].replace("\\", "\\\\")
            negated = inside[:1] in ("!", "^")
            out.append(
                f"(?!/)[{'^' if negated else ''}{re.escape(inside[negated:]).replace(chr(92) + '-', '-')}]"
            )
            at = end + 1
        else:
            out.append(re.escape(glob[at]))
            at += 1
    return re.compile("".join(out), re.DOTALL)


def _modules(image: Image, modules: Iterable[str]) -> Iterator[Finding]:
    folders = [
        path
        for path, entry in image.merged.items()
        if entry.is_dir and (path.rpartition("/")[2] in PACKAGE_FOLDERS or _STANDARD.search(path))
    ]
    for module in modules:
        if not any(_has_module(image, folder, module) for folder in folders):
            where = (
                f"in {len(folders)} package folders" if folders else "and the image has no Python packages"
            )
            yield finding("module-missing", f"no module {module!r} {where}")


def _has_module(image: Image, folder: str, module: str) -> bool:
    path = f"{folder}/{module.replace('.', '/')}"
    for suffix in ("/__init__.py", ".py", ".so", ".abi3.so", "/__init__.pyc", ".pyc"):
        entry = image.find(path + suffix)
        if entry is not None and entry.is_file:
            return True
    if any(True for _ in matches(image, f"{_literal(path)}.*.so")):
        return True
    entry = image.find(path)  # a namespace package: a folder with modules and no __init__.py
    return (
        entry is not None
        and entry.is_dir
        and any(True for _ in matches(image, f"{_literal(entry.path)}/**/*.py"))
    )


def _literal(path: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", path)


def _named(paths: Sequence[str]) -> str:
    shown = ", ".join(repr("/" + p) for p in paths[:MAX_NAMED])
    return shown + (f" and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else "")
