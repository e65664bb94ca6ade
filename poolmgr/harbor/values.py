"""Single values of a ``task.toml``, read as leniently as pydantic reads them for Harbor."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

Table = dict[str, Any]
_INT_TEXT = re.compile(r"\s*[+-]?\d+(?:_\d+)*(?:\.0+)?\s*\Z")


class ConfigError(ValueError):
    """``task.toml`` is none that Harbor takes; the text names the key."""


def expected(where: str, what: str, found: object) -> ConfigError:
    return ConfigError(f"{where}: expected {what}, found {found!r}"[:300])


def at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def table(raw: Table, where: str, key: str, *, optional: bool = False) -> Any:
    """The table under ``key``: {} where it is missing, None where it may be."""
    if key not in raw:
        return None if optional else {}
    if not isinstance(raw[key], dict):
        raise expected(at(where, key), "a table", raw[key])
    return raw[key]


def list_of(raw: Table, where: str, key: str) -> list[Any]:
    value = raw.get(key, [])
    if not isinstance(value, list):
        raise expected(at(where, key), "a list", value)
    return value


def text(raw: Table, where: str, key: str) -> str | None:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise expected(at(where, key), "text", value)
    return value


def texts(raw: Table, where: str, key: str) -> list[str]:
    value = list_of(raw, where, key)
    for item in value:
        if not isinstance(item, str):
            raise expected(at(where, key), "a list of texts", item)
    return value


def texts_by_name(raw: Table, where: str, key: str) -> dict[str, str]:
    found: dict[str, str] = table(raw, where, key)
    for name, value in found.items():
        if not isinstance(value, str):
            raise expected(f"{at(where, key)}.{name}", "text", value)
    return found


def choice(raw: Table, where: str, key: str, choices: tuple[str, ...]) -> str | None:
    value = raw.get(key)
    if value is not None and value not in choices:
        raise expected(at(where, key), " or ".join(map(repr, choices)), value)
    return value


def number(raw: Table, where: str, key: str) -> float | None:
    value = raw.get(key)
    if value is None or isinstance(value, int | float):
        return value
    return _from_text(value, where, key, float)


def integer(raw: Table, where: str, key: str) -> int | None:
    value = raw.get(key)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        raise expected(at(where, key), "a whole number", value)
    if isinstance(value, str) and not _INT_TEXT.match(value):
        raise expected(at(where, key), "a whole number", value)
    return _from_text(value, where, key, lambda text: int(text.partition(".")[0]))


N = TypeVar("N")


def _from_text(value: object, where: str, key: str, read: Callable[[str], N]) -> N:
    if isinstance(value, str) and value.isascii():
        try:
            return read(value)
        except ValueError:
            pass
    raise expected(at(where, key), "a number", value)


def boolean(raw: Table, where: str, key: str) -> None:
    value = raw.get(key)
    if value is None or isinstance(value, bool) or value in (0, 1):
        return
    if isinstance(value, str) and value.lower() in _BOOLEANS:
        return
    raise expected(at(where, key), "true or false", value)


_BOOLEANS = {"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"}
