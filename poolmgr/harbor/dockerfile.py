"""Dockerfiles as BuildKit's own parser reads them (the ``dockerfile`` package), and what they copy.

The parser takes some texts that a build then refuses, so an unknown instruction and a file that
does not begin with FROM are refused here as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from poolmgr.errors import MissingToolError
from poolmgr.model.dockerfile import Dockerfile, Heredoc, Instruction

MAX_DOCKERFILE = 4 << 20
INSTRUCTIONS = frozenset(
    {
        "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
        "MAINTAINER", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
    }
)  # fmt: skip
_DIRECTIVE = re.compile(r"#\s*(syntax|escape|check)\s*=\s*(.+?)\s*$", re.IGNORECASE)
_VARIABLE = re.compile(r"\\?\$(?:(\w+)|\{(\w+)(?::?([-+])([^}]*))?\})")
_REMOTE = re.compile(r"^(https?|git|ssh)://|^git@|\.git(#.*)?$")


class DockerfileError(Exception):
    """The text is no Dockerfile that BuildKit builds; the text says why."""


def fold(data: bytes) -> str:
    """The text with CRLF as LF, as Daytona and BuildKit read it."""
    return data.decode("utf-8", "replace").replace("\r\n", "\n").removeprefix("\ufeff")


def parse(data: bytes) -> Dockerfile:
    """The instructions in ``data``; ``DockerfileError``, ``MissingToolError`` without the parser."""
    try:
        import dockerfile
    except ImportError:
        raise MissingToolError(
            "BuildKit's parser (the Python package 'dockerfile') is not installed",
            hint="pip install 'poolmgr[dockerfile]'; where it has no wheel, Go must be there to build it",
        ) from None

    text = fold(data)
    if len(data) > MAX_DOCKERFILE:
        raise DockerfileError(f"{len(data):,} bytes, more than the {MAX_DOCKERFILE:,} that are parsed")
    if "\0" in text:
        raise DockerfileError("holds a NUL byte")
    try:
        found = dockerfile.parse_string(text)
    except (dockerfile.GoParseError, ValueError) as e:
        raise DockerfileError(str(e)) from None
    instructions = tuple(
        Instruction(
            command=c.cmd.upper(),
            words=tuple(c.value),
            flags=tuple(c.flags),
            heredocs=tuple(Heredoc(h.name, h.content) for h in c.heredocs),
            line=c.start_line,
            end_line=c.end_line,
            inner=(c.sub_cmd or "").upper(),
            is_json=c.json,
        )
        for c in found
    )
    _check(instructions)
    return Dockerfile(instructions, _directives(text))


_WORD_WITH_DIGIT = re.compile(rb"\w*\d\w*")


def trouble(data: bytes) -> str | None:
    """Why BuildKit would not parse ``data``, or None.

    Files of one template, which differ in commits, versions and names with a number, are parsed
    once: what stands in a word has no say in whether a file parses, but for a heredoc's name.
    """
    form = data if b"<<" in data else _WORD_WITH_DIGIT.sub(b"0", data)
    return None if _parses(form) else _trouble(data)


@lru_cache(maxsize=4096)
def _parses(data: bytes) -> bool:
    return _trouble(data) is None


def _trouble(data: bytes) -> str | None:
    try:
        parse(data)
    except DockerfileError as e:
        return str(e)
    return None


def _check(instructions: tuple[Instruction, ...]) -> None:
    begun = False
    for i in instructions:
        if i.command not in INSTRUCTIONS:
            raise DockerfileError(f"line {i.line}: unknown instruction {i.command}")
        if i.command == "FROM":
            begun = True
            if len(i.words) not in (1, 3):
                raise DockerfileError(f"line {i.line}: FROM takes an image, and AS with a name")
        elif not begun and i.command != "ARG":
            raise DockerfileError(f"line {i.line}: no build stage yet, FROM has to come first")
        elif i.command in ("COPY", "ADD") and len(i.words) < 2:
            raise DockerfileError(f"line {i.line}: {i.command} needs a source and a destination")
    if not begun:
        raise DockerfileError("has no FROM")


def _directives(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for line in text.split("\n"):
        match = _DIRECTIVE.match(line)
        if match is None:
            break
        found.append((match[1].lower(), match[2]))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Source:
    """One thing that an instruction reads from the build context."""

    pattern: str | None
    """A path or glob relative to the context; None when it cannot be known, so it may be anything."""
    command: str
    """``COPY``, ``ADD`` or ``RUN`` (a bind mount)."""
    line: int


def context_sources(parsed: Dockerfile) -> tuple[Source, ...]:
    """Everything that a build reads from its context, in the order of the file.

    Variables are expanded from ARG defaults and ENV; one whose value is not in the file makes the
    source unknown. Sources from other stages and images, heredocs and URLs are not in the context.
    """
    found: list[Source] = []
    before: dict[str, str] = {}
    stage: dict[str, str] | None = None
    for i in parsed.instructions:
        known = before if stage is None else stage
        if i.command == "FROM":
            stage = {}
        elif i.command == "ARG":
            for word in i.words:
                name, given, default = word.partition("=")
                value = _expand(_unquote(default), known) if given else before.get(name)
                _set(known, name, value)
        elif i.command == "ENV":
            for name, value in zip(i.words[::2], i.words[1::2], strict=False):
                _set(known, name, _expand(_unquote(value), known))
        elif i.command in ("COPY", "ADD") and i.flag("from") is None:
            heredocs = {h.name for h in i.heredocs}
            for word in i.words[:-1]:
                if word.startswith("<<") and word.lstrip("<-").strip("\"'") in heredocs:
                    continue
                if not (i.command == "ADD" and _REMOTE.search(word)):
                    found.append(Source(_clean(_expand(word, known)), i.command, i.line))
        elif i.command == "RUN":
            found += _mounts(i, known)
    return tuple(found)


def _mounts(run: Instruction, known: dict[str, str]) -> list[Source]:
    found = []
    for flag in run.flags:
        if not flag.startswith("--mount="):
            continue
        options = dict(part.partition("=")[::2] for part in flag.removeprefix("--mount=").split(","))
        if options.get("type", "bind") == "bind" and "from" not in options:
            source = options.get("source", options.get("src", "."))
            found.append(Source(_clean(_expand(source, known)), "RUN", run.line))
    return found


def _set(known: dict[str, str], name: str, value: str | None) -> None:
    if value is None:
        known.pop(name, None)
    else:
        known[name] = value


def _unquote(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _expand(text: str, known: dict[str, str]) -> str | None:
    """``text`` with its variables filled in; None when one of them has no value here."""
    missing = False

    def fill(match: re.Match[str]) -> str:
        nonlocal missing
        if match[0].startswith("\\"):
            return match[0][1:]
        value = known.get(match[1] or match[2])
        if match[3] == "-":
            return value or match[4]
        if match[3] == "+":
            return match[4] if value else ""
        if value is None:
            missing = True
            return ""
        return value

    filled = _VARIABLE.sub(fill, text)
    return None if missing else filled


def _clean(source: str | None) -> str | None:
    """A source as a path in the context: ``/a/../b/`` is ``b``, and the context itself is ``.``."""
    if source is None:
        return None
    parts: list[str] = []
    for part in _unquote(source).split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or "."
