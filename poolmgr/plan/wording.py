"""Words for what differs between environments: tokens by class, instructions as templates, remedies."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from poolmgr.model.dockerfile import Instruction
from poolmgr.plan.align import tokens

FEW_BASES = 12
"""Tags of one image for which a dedicated base each is still a plan."""


class Kind(StrEnum):
    NOISE = "noise"
    """Bytes of the Dockerfile that no build reads."""
    UNREAD = "unread file"
    """Hashed by Harbor, copied by no instruction."""
    BASE = "base image"
    INSTRUCTION = "instruction"
    COPIED = "copied file"
    FILE = "file"
    """Of an environment without a Dockerfile that could be parsed."""
    IMAGE = "docker_image"


class Remedy(StrEnum):
    DROP = "drop it: no build reads it"
    RUN_TIME = "move it to run time: into the instruction, the solution and the test script"
    UNION = "union it: install what all of them need in one environment"
    DEDICATED = "bake a dedicated base for each value"
    NONE = "none: these are different base images"


def in_order(part: str) -> list[tuple[int, str]]:
    """Sorts ``9`` before ``10``, so that tokens stand as in their instruction."""
    return [(int(digits or 0), letters) for digits, letters in re.findall(r"(\d*)(\D*)", part)]


def shown(value: tuple[tuple[str, str], ...], varying: Mapping[str, object]) -> str:
    """One environment's texts of the parts that vary, to be read."""
    known = dict(value)
    texts = [known[part].strip() for part in varying if known.get(part, "").strip()]
    return " ".join(t if len(t) <= 60 else t[:57] + "…" for t in texts[:4]) or "(nothing there)"


def template(instruction: Instruction, what: Mapping[str, str]) -> str:
    """The instruction with its varying tokens as ``<commit>``, ``<URL>`` …"""
    words: list[str] = []
    glue = "" if instruction.command not in ("ENV", "ARG", "LABEL", "COPY", "ADD") else " "
    for part, text in tokens(instruction):
        if part == "form":
            continue
        if part == "tag" and (text or part in what):
            words.append(":")
        if part == "digest" and (text or part in what):
            words.append("@")
        if part == "stage" and text:
            words.append(" ")
        if part.startswith("flag"):
            text = f"{text} "
        words.append(f"<{what[part]}>" if part in what else text)
        words.append(glue)
    body = _REPEATED.sub(lambda m: (m[1] or m[2]) + " ", "".join(words)).strip()
    body = re.sub(r"(?<=\w)(?=<packages>)", " ", re.sub(r"> +", "> ", body))
    text = f"{instruction.command} {body}"
    return text if len(text) <= 160 else _cut(text)


_REPEATED = re.compile(r"(<[A-Za-z]+>)(?:\s*\1)+|(<[A-Za-z]+>)(?=\w)")
"""One placeholder many times over, or one that took the space behind it along."""


def _cut(text: str) -> str:
    """A long instruction with its head and the neighbourhood of what varies."""
    spots = [m.start() for m in re.finditer(r"<[A-Za-z]+>", text)] or [0]
    pieces = [text[:50]]
    end = 50
    for at in spots[:6]:
        start = max(end, at - 25)
        stop = max(end, at + 15)
        pieces.append(("…" if start > end else "") + text[start:stop])
        end = max(end, stop)
    return "".join(pieces) + ("…" if end < len(text) else "")


_CLASSES: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("commit", re.compile(r"(?=.*\d)[0-9a-f]{7,64}\Z").match),
    ("number", re.compile(r"\d+\Z").match),
    ("URL", re.compile(r"[\"']?(https?|git|ssh)(://|\+|@)").match),
    ("package", re.compile(r"[\"']?[A-Za-z0-9][\w.+\[\]-]*(==|~=|>=|<=|=|@)[\w.*+:~-]+[\"']?\Z").match),
    ("version", re.compile(r"[\"']?v?\d+(\.[\w*+-]+)+[\"']?\Z").match),
    ("path", re.compile(r"[\"']?[\w.@~-]*/[\w./@~-]*[\"']?\Z").match),
)


def token_class(part: str, texts: set[str]) -> str:
    """What kind of token stands at a place, judged by all its values."""
    if part in ("repository", "tag", "digest", "stage"):
        return part
    if part.startswith(("flag", "heredoc")):
        return part.rstrip("0123456789")
    given = [t for t in texts if t]
    for name, matches in _CLASSES:
        if given and all(matches(t) for t in given):
            return name
    return "text"


PACKAGES = "packages"
_INSTALLS = re.compile(
    r"\b(apt-get|apt|apk|yum|dnf|pip3?|uv|conda|mamba|npm|yarn|pnpm|gem|cargo|go)\b.*\b(install|add|get)\b"
)
_FETCHES = re.compile(r"\b(git (clone|checkout|fetch|reset|pull)|curl|wget)\b")
_PIN = re.compile(r"[\"']?([A-Za-z0-9][\w.+-]*)(?:\[[^\]]*\])?(==|=|@)([\w.*+:~-]+)")


def installs(text: str) -> bool:
    """Whether an instruction installs packages, and fetches nothing that is of one task alone."""
    return bool(_INSTALLS.search(text)) and not _FETCHES.search(text)


def package_class(word: str) -> str:
    """The class of a token in an instruction that installs packages."""
    return PACKAGES if word in ("text", "package") else word


def remedy(
    kind: Kind, name: str, what: Mapping[str, str], varying: Mapping[str, Sequence[str]], values: int
) -> Remedy:
    """What can be done about a driver; ``what`` and ``varying``: part -> its class, its texts."""
    classes = set(what.values())
    if kind in (Kind.NOISE, Kind.UNREAD):
        return Remedy.DROP
    if kind in (Kind.BASE, Kind.IMAGE):
        is_tags = bool(classes) and (classes <= {"tag", "stage"} or name.startswith("ARG "))
        return Remedy.DEDICATED if is_tags and values <= FEW_BASES else Remedy.NONE
    if kind is Kind.INSTRUCTION and installs(name) and classes <= {PACKAGES} | {"flag"}:
        return Remedy.RUN_TIME if _pins_conflict(varying.values()) else Remedy.UNION
    return Remedy.RUN_TIME


def _pins_conflict(columns: Iterable[Sequence[str]]) -> bool:
    """Whether one package is pinned to two versions: no environment can have both."""
    versions: dict[str, set[str]] = defaultdict(set)
    for texts in columns:
        for text in set(texts):
            for package, _, version in _PIN.findall(text):
                versions[package].add(version)
    return any(len(found) > 1 for found in versions.values())
