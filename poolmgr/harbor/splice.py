"""Set one value in JSON or TOML text and leave every other character as it is."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from poolmgr.harbor.rows import CONFIG, IMAGE, RowTroubleError, config_of, image_of

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Member:
    key: str
    value: Any
    start: int
    """First character of the value."""
    end: int


def members(text: str, at: int = 0) -> tuple[list[Member], int]:
    """The members of the JSON object that begins at ``at``, and where its closing brace stands.

    ``text`` must be JSON that was decoded before; anything else raises ``ValueError``.
    """
    at = _skip(text, at)
    if text[at : at + 1] != "{":
        raise ValueError("no object")
    found: list[Member] = []
    at = _skip(text, at + 1)
    while text[at] != "}":
        if found:
            at = _skip(text, at + 1)  # the comma
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)  # the colon
        value, end = _DECODER.raw_decode(text, start)
        found.append(Member(key, value, start, end))
        at = _skip(text, end)
    return found, at


def elements(text: str) -> Iterator[str]:
    """The text of each element of one JSON list."""
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield text[at:end]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _SPACE:
        at += 1
    return at


def set_member(text: str, key: str, value: str, at: int = 0) -> str:
    """The object at ``at`` with ``key`` set to ``value``; a new key becomes the last one."""
    new = json.dumps(value, ensure_ascii=text.isascii())
    found, brace = members(text, at)
    for member in found:
        if member.key == key:
            return text[: member.start] + new + text[member.end :]
    if not found:
        return f"{text[:brace]}{json.dumps(key)}: {new}{text[brace:]}"
    end = found[-1].end
    return f"{text[:end]}, {json.dumps(key)}: {new}{text[end:]}"


def set_row_image(text: str, image: str) -> str:
    """A JSON row that names ``image`` where it named one before (docs/cli/bind.md)."""
    found = {member.key: member for member in members(text)[0]}
    column, entry = found.get(IMAGE), found.get(CONFIG)
    config = config_of(entry.value) if entry else None
    if entry is None or not in_config(config, column.value if column else None):
        return set_member(text, IMAGE, image)
    if isinstance(entry.value, str):
        return set_member(text, CONFIG, set_member(entry.value, IMAGE, image))
    return set_member(text, IMAGE, image, entry.start)


def in_config(config: Any, column: object) -> bool:
    """Whether a row's image stands in ``env_config`` rather than in the ``image`` column."""
    return config is not None and (image_of(config.get(IMAGE)) is not None or column is None or column == "")


def set_docker_image(data: bytes, image: str) -> bytes:
    """A ``task.toml`` with ``[environment] docker_image`` set; comments and layout stay.

    Raises ``RowTroubleError`` where the text cannot be edited without changing anything else.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    text = data.decode("utf-8")
    try:
        document = tomlkit.parse(text)
        if "environment" not in document:
            document["environment"] = tomlkit.table()
        environment: Any = document["environment"]
        environment["docker_image"] = image
        edited = tomlkit.dumps(document)
        wanted = tomllib.loads(text)
        wanted.setdefault("environment", {})["docker_image"] = image
        same = repr(tomllib.loads(edited)) == repr(wanted) or tomllib.loads(edited) == wanted
    except (TOMLKitError, tomllib.TOMLDecodeError, RecursionError, TypeError, ValueError) as e:
        raise RowTroubleError(f"docker_image cannot be set: {e}") from None
    if not same:
        raise RowTroubleError("docker_image cannot be set without changing something else")
    return edited.encode()
