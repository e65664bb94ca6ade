"""The index of a pool, ``task_to_blob.json``: ``{variant: {task id: blob path}}``.

The contract is the real pool's (docs/pool-format.md). Everything in it is hostile until parsed:
keys given twice, other nesting, unsafe paths and empty variants are refused, by name.
"""

from __future__ import annotations

import bisect
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from types import MappingProxyType
from typing import Any

from poolmgr.errors import IndexInvalidError, UnknownTaskError, UnknownVariantError
from poolmgr.model.blob import case_clashes, path_trouble

MAX_INDEX_BYTES = 512 * 1024 * 1024
MAX_NAME = 512
COMPARED = 32
"""Words that are compared letter by letter with one that nobody has."""
Assignments = Mapping[str, str]
"""Task id -> blob path."""


def nearest(word: str, words: Iterable[str], count: int = 3) -> list[str]:
    """The ``count`` words most like ``word``, the most alike first.

    Of many words only those are compared that share the longest beginning or end with ``word``:
    comparing one task id with 14,601 takes 1.6 s, and a run may miss thousands of them.
    """
    words = list(words)
    if len(words) > COMPARED:
        words = list(dict.fromkeys(_neighbours(word, words, 1) + _neighbours(word, words, -1)))
    return difflib.get_close_matches(word, words, n=count, cutoff=0.5)


def _neighbours(word: str, words: list[str], step: int) -> list[str]:
    """The words beside which ``word`` would stand in order, read forwards (``step`` 1) or backwards (-1)."""
    order = sorted((w.casefold()[::step], w) for w in words)
    at = bisect.bisect_left(order, (word.casefold()[::step], ""))
    return [w for _, w in order[max(0, at - COMPARED // 4) : at + COMPARED // 4]]


@dataclass(frozen=True)
class Index:
    """Variants and their assignments, in the order of the file."""

    variants: Mapping[str, Assignments]
    source: str
    """Where it was read, for messages."""

    @staticmethod
    def parse(data: bytes, source: str) -> Index:
        """The index in ``data``; raises ``IndexInvalidError`` with every problem in ``details``."""
        if len(data) > MAX_INDEX_BYTES:
            raise IndexInvalidError(
                f"{source}: {len(data)} bytes, more than an index of {MAX_INDEX_BYTES} may have"
            )
        repeated: list[tuple[dict[str, Any], str]] = []

        def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            table = dict(pairs)
            if len(table) != len(pairs):
                seen: set[str] = set()
                for key, _ in pairs:
                    if key in seen:
                        repeated.append((table, key))
                    seen.add(key)
            return table

        try:
            raw = json.loads(
                data.decode("utf-8-sig"), object_pairs_hook=no_repeats, parse_constant=_no_constant
            )
        except UnicodeDecodeError as e:
            raise _bad(source, f"is not UTF-8 text (byte {e.start})") from None
        except RecursionError:
            raise _bad(source, "is nested far too deeply") from None
        except ValueError as e:
            raise _bad(source, _not_json(data, str(e))) from None
        if repeated:
            details = [f"{_owner(raw, table)}{key!r} stands more than once" for table, key in repeated]
            raise _bad(source, f"gives a key twice: {details[0]}", details)
        if not isinstance(raw, dict):
            raise _bad(
                source, f"holds a JSON {_kind(raw)} where {{variant: {{task: blob path}}}} was expected"
            )
        if not raw:
            raise _bad(source, "names no variant at all")
        return Index.build(raw, source)

    @staticmethod
    def build(raw: Mapping[str, Any], source: str) -> Index:
        """The index in an already decoded mapping, under the same rules as ``parse``."""
        problems: list[str] = []
        checked: dict[str, str | None] = {}
        variants: dict[str, Assignments] = {}
        for variant, tasks in raw.items():
            if trouble := name_trouble(variant):
                problems.append(f"variant {variant!r} {trouble}")
                continue
            if not isinstance(tasks, dict):
                problems.append(f"variant {variant!r} holds a JSON {_kind(tasks)}, not {{task: blob path}}")
                continue
            if not tasks:
                problems.append(f"variant {variant!r} has 0 tasks")
            for task, path in tasks.items():
                if trouble := name_trouble(task):
                    problems.append(f"variant {variant!r}: task {task!r} {trouble}")
                if not isinstance(path, str):
                    problems.append(
                        f"variant {variant!r}, task {task!r}: a JSON {_kind(path)} stands for its path"
                    )
                    continue
                if path not in checked:
                    checked[path] = path_trouble(path)
                if checked[path] is not None:
                    problems.append(f"variant {variant!r}, task {task!r}: the path {path!r} {checked[path]}")
            variants[variant] = MappingProxyType(tasks)
        for group in case_clashes(p for p, trouble in checked.items() if trouble is None):
            named = (f"{path!r} ({_user(variants, path)})" for path in group)
            problems.append(f"these paths differ only in case or Unicode form: {', '.join(named)}")
        if problems:
            raise _bad(
                source, problems[0] + (f" (and {len(problems) - 1} more)" if problems[1:] else ""), problems
            )
        return Index(MappingProxyType(variants), source)

    def variant(self, name: str) -> Assignments:
        """The assignments of one variant; the error lists those that exist, nearest first."""
        try:
            return self.variants[name]
        except KeyError:
            close = nearest(name, self.variants)
            order = close + [v for v in self.variants if v not in close]
            raise UnknownVariantError(
                f"{self.source} has no variant {name!r}; it has: {', '.join(order)}",
                hint=f"did you mean {order[0]!r}?" if close else "",
            ) from None

    def blob(self, variant: str, task: str) -> str:
        """The path that ``task`` of ``variant`` needs."""
        tasks = self.variant(variant)
        try:
            return tasks[task]
        except KeyError:

            def hint() -> str:
                if elsewhere := [v for v, t in self.variants.items() if task in t]:
                    return f"variant {', '.join(map(repr, elsewhere))} has it"
                close = nearest(task, tasks)
                return f"nearest: {', '.join(close)}" if close else ""

            raise UnknownTaskError(
                f"variant {variant!r} has no task {task!r} among its {len(tasks):,}", hint=hint
            ) from None

    def blobs(self, variants: Iterable[str] | None = None) -> frozenset[str]:
        """The distinct paths that the named variants (default: all) need."""
        names = self.variants if variants is None else list(variants)
        return frozenset(path for name in names for path in self.variant(name).values())

    def to_bytes(self) -> bytes:
        """The file's bytes: UTF-8 JSON, variants and tasks in order, one task a line, a final newline."""
        # what json.dumps(…, indent=1, ensure_ascii=False) gives, which is several times slower
        shown = encode_basestring
        variants = (
            f" {shown(variant)}: {{\n"
            + ",\n".join(f"  {shown(task)}: {shown(path)}" for task, path in sorted(tasks.items()))
            + "\n }"
            for variant, tasks in sorted(self.variants.items())
        )
        return ("{\n" + ",\n".join(variants) + "\n}\n").encode()


def tasks_by_blob(assignments: Assignments) -> dict[str, list[str]]:
    """Blob path -> its tasks, both in the order of the assignments."""
    result: dict[str, list[str]] = {}
    for task, path in assignments.items():
        result.setdefault(path, []).append(task)
    return result


def name_trouble(name: object) -> str | None:
    """Why a variant or task may not have this name, or None."""
    if not isinstance(name, str) or not name:
        return "is empty"
    if len(name) > MAX_NAME:
        return f"is {len(name)} characters long, more than {MAX_NAME}"
    if not name.isprintable():
        return "holds a control character"
    return None


def _no_constant(word: str) -> None:
    """``NaN`` and ``Infinity``, which Python's reader would take and JSON has not."""
    raise ValueError(f"{word} is no JSON value")


def _owner(raw: object, table: object) -> str:
    """The variant whose tasks are ``table``, as the beginning of a message; '' where it is none's."""
    if isinstance(raw, dict):
        for variant, tasks in raw.items():
            if tasks is table:
                return f"variant {variant!r}: task "
    return "the variant " if raw is table else ""


def _user(variants: Mapping[str, Assignments], path: str) -> str:
    """The first variant and task that need ``path``."""
    return next(
        (
            f"variant {v!r}, task {t!r}"
            for v, tasks in variants.items()
            for t, p in tasks.items()
            if p == path
        ),
        "",
    )


def _bad(source: str, what: str, details: Iterable[str] = ()) -> IndexInvalidError:
    return IndexInvalidError(
        f"{source}: {what}",
        hint="an index is {variant: {task id: blob path}}; see docs/pool-format.md",
        details=details,
    )


def _kind(value: object) -> str:
    kinds: dict[type, str] = {list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return kinds.get(type(value), "null" if value is None else "object")


def _not_json(data: bytes, why: str) -> str:
    head = data.lstrip()[:15].lower()
    if not head:
        return "is empty"
    if head.startswith((b"<!doctype", b"<html")):
        return "is an HTML page, not JSON (a login or error page in its place?)"
    if head.startswith(b"version https:/"):
        return "is a git-lfs pointer, not JSON (run 'git lfs pull')"
    return f"is not JSON: {why}"
