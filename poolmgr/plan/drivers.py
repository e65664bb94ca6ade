"""Why a dataset has as many environments as it has: what differs between them, and what would help.

Every environment is taken apart into drivers: the base image, each instruction, each file, what no
build reads. Holding a driver constant and counting the environments again tells what it costs. The
counts are exact: the changed environments are hashed again, driver by driver; nothing is estimated.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from poolmgr.model.dockerfile import Dockerfile, Instruction
from poolmgr.plan import layout
from poolmgr.plan.align import Place, align, coarse, tokens

MAX_STEPS = 20
EXAMPLES = 3


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
    DEDICATED = "bake a dedicated base for each value, if there are few"
    NONE = "none: these are different base images"


@dataclass(frozen=True)
class Facts:
    """One distinct environment."""

    hash: str
    tasks: int
    files: Mapping[str, str]
    """Every file that Harbor hashes -> sha256 of its content."""
    raw: bytes = b""
    """The Dockerfile, where there is one."""
    parsed: Dockerfile | None = None
    read: frozenset[str] = frozenset()
    """Files that a build reads, where the Dockerfile could be parsed."""
    docker_image: str | None = None


@dataclass(frozen=True)
class Token:
    """A part of an instruction that differs between environments."""

    what: str
    """``commit``, ``URL``, ``version``, ``path``, ``number``, ``text``, or ``tag``, ``repository`` …"""
    values: int
    remaining: int
    """Environments left if this alone were the same in all."""


@dataclass(frozen=True)
class Driver:
    kind: Kind
    name: str
    """As a person reads it: ``RUN git clone <URL> && git checkout <commit>``, or a path."""
    values: int
    """Distinct values; absence is one."""
    remaining: int
    """Environments left if this alone were the same in all."""
    remedy: Remedy
    examples: tuple[tuple[str, int], ...]
    """The commonest values, with how many environments have each."""
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True)
class Step:
    drivers: tuple[str, ...]
    """Names of the drivers that are held constant in this step: more than one where they vary together."""
    values: int
    remaining: int
    """Environments left after this step and all before it."""
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True)
class Explanation:
    environments: int
    tasks: int
    drivers: tuple[Driver, ...]
    """The one that helps most alone comes first."""
    steps: tuple[Step, ...]
    bases: int
    """Distinct base images: what is left whatever else is done, unless bases are merged."""
    unread: int
    """Environments left once nothing is hashed that no build reads."""


Key = tuple[Kind, str]
Parts = dict[Key, dict[str, str]]
"""Driver -> its part -> its text in one environment."""


def explain(environments: Sequence[Facts]) -> Explanation:
    """The explanation of ``environments``, which differ by hash."""
    taken, names, instructions = _take_apart(environments)
    table = _Table(taken)
    drivers = [_driver(table, key, names[key], instructions.get(key)) for key in table.keys]
    order = sorted(
        range(len(drivers)), key=lambda d: (drivers[d].remaining, -drivers[d].values, drivers[d].name)
    )
    harmless = [d for d, key in enumerate(table.keys) if key[0] in (Kind.NOISE, Kind.UNREAD)]
    bases = [d for d, key in enumerate(table.keys) if key[0] in (Kind.BASE, Kind.IMAGE)]
    return Explanation(
        environments=len(environments),
        tasks=sum(e.tasks for e in environments),
        drivers=tuple(drivers[d] for d in order),
        steps=_steps(table, drivers, order, harmless),
        bases=table.only(bases),
        unread=table.without(harmless),
    )


class _Table:
    """Environments by drivers, each cell a number; only drivers that vary are in it."""

    def __init__(self, environments: Sequence[Parts]) -> None:
        self.environments = environments
        every = dict.fromkeys(key for e in environments for key in e)
        self.keys: list[Key] = []
        self.values: list[list[tuple[tuple[str, str], ...]]] = []
        self._cells: list[list[int]] = []
        for key in every:
            column = [tuple(sorted(e.get(key, {}).items())) for e in environments]
            if len(set(column)) > 1:
                cells = {value: _number(len(self.keys), value) for value in set(column)}
                self.keys.append(key)
                self.values.append(column)
                self._cells.append([cells[value] for value in column])
        self.whole = [sum(row) for row in zip(*self._cells, strict=True)] or [0] * len(environments)

    def without(self, held: Iterable[int], start: Sequence[int] | None = None) -> int:
        """How many environments stay distinct when the drivers ``held`` are the same in all."""
        return len(set(self.less(held, start)))

    def less(self, held: Iterable[int], start: Sequence[int] | None = None) -> list[int]:
        rows = list(self.whole if start is None else start)
        for d in held:
            rows = [row - cell for row, cell in zip(rows, self._cells[d], strict=True)]
        return rows

    def only(self, kept: Sequence[int]) -> int:
        """How many stay distinct when everything but ``kept`` is the same in all."""
        rows = [0] * len(self.environments)
        for d in kept:
            rows = [row + cell for row, cell in zip(rows, self._cells[d], strict=True)]
        return len(set(rows))

    def partition(self, d: int) -> tuple[int, ...]:
        """Which environments have equal values: equal for drivers that always vary together."""
        first: dict[int, int] = {}
        return tuple(first.setdefault(cell, n) for n, cell in enumerate(self._cells[d]))

    def without_part(self, d: int, part: str) -> int:
        """How many stay distinct when one part of driver ``d`` is the same in all."""
        rows = self.less([d])
        kept = [tuple(item for item in value if item[0] != part) for value in self.values[d]]
        cells = {value: _number(d, value) for value in set(kept)}
        return len({row + cells[value] for row, value in zip(rows, kept, strict=True)})


def _number(d: int, value: tuple[tuple[str, str], ...]) -> int:
    """A cell as a number whose sums tell sets of cells apart (a multiset hash of 192 bits)."""
    text = repr((d, value)).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=24).digest(), "big")


# --- taking environments apart ------------------------------------------------------------------


def _take_apart(
    environments: Sequence[Facts],
) -> tuple[list[Parts], dict[Key, str], dict[Key, Instruction]]:
    taken: list[Parts] = [defaultdict(dict) for _ in environments]
    names: dict[Key, str] = {}
    instructions: dict[Key, Instruction] = {}
    with_file = [n for n, e in enumerate(environments) if e.parsed is not None]
    if with_file:
        files = [e.parsed for e in environments if e.parsed is not None]
        aligned = align(files)
        for n, parsed, texts in zip(with_file, files, aligned.texts, strict=True):
            for place, text in texts.items():
                key = _key(place, aligned.shown, names, instructions)
                taken[n][key][place.part] = text
            for kind, text in layout.layout(environments[n].raw, parsed).items():
                taken[n][(Kind.NOISE, kind)]["text"] = text
    _add_files(environments, taken)
    for n, e in enumerate(environments):
        if not e.files:
            taken[n][(Kind.IMAGE, "docker_image")]["image"] = e.docker_image or ""
    _tell_apart(environments, taken)
    for parts in taken:
        for key in parts:
            names.setdefault(key, key[1])
    return taken, names, instructions


def _key(
    place: Place,
    shown: Mapping[tuple[int, str], Instruction],
    names: dict[Key, str],
    instructions: dict[Key, Instruction],
) -> Key:
    instruction = shown.get((place.slot, place.extra))
    if instruction is None:
        key = (Kind.INSTRUCTION, place.extra)
        names[key] = place.extra
        return key
    kind = Kind.BASE if instruction.command == "FROM" else Kind.INSTRUCTION
    key = (kind, f"{place.slot} {place.extra}")
    if key not in names:
        names[key] = f"{coarse(instruction)} (in some)" if place.extra else instruction.text
        instructions[key] = instruction
    return key


def _add_files(environments: Sequence[Facts], taken: list[Parts]) -> None:
    """Files by path where every environment has them; the others together by folder."""
    having: Counter[tuple[Kind, str]] = Counter()
    for e in environments:
        having.update((_file_kind(e, path), path) for path in e.files if _counts(e, path))
    for e, parts in zip(environments, taken, strict=True):
        for path, digest in e.files.items():
            if not _counts(e, path):
                continue
            kind = _file_kind(e, path)
            if having[kind, path] == len(environments):
                parts[kind, path]["content"] = digest
            else:
                folder = path.rpartition("/")[0]
                parts[kind, f"{folder}/*" if folder else "*"][path] = digest


def _counts(e: Facts, path: str) -> bool:
    return e.parsed is None or path != "Dockerfile"


def _file_kind(e: Facts, path: str) -> Kind:
    if e.parsed is None:
        return Kind.FILE
    return Kind.COPIED if path in e.read else Kind.UNREAD


def _tell_apart(environments: Sequence[Facts], taken: list[Parts]) -> None:
    """Number the Dockerfiles that agree in everything taken apart and differ in their bytes all the same."""
    alike: dict[str, set[bytes]] = defaultdict(set)
    forms = [repr(sorted((k, sorted(v.items())) for k, v in parts.items())) for parts in taken]
    for form, e in zip(forms, environments, strict=True):
        alike[form].add(e.raw)
    for form, e, parts in zip(forms, environments, taken, strict=True):
        if len(alike[form]) > 1:
            parts[Kind.NOISE, layout.SPACING]["bytes"] = str(sorted(alike[form]).index(e.raw))


# --- describing them ------------------------------------------------------------------------------


def _driver(table: _Table, key: Key, name: str, instruction: Instruction | None) -> Driver:
    d = table.keys.index(key)
    column = table.values[d]
    parts = sorted({part for value in column for part, _ in value}, key=_in_order)
    varying: dict[str, list[str]] = {}
    for part in parts:
        texts = [dict(value).get(part, "") for value in column]
        if len(set(texts)) > 1:
            varying[part] = texts
    what = {part: _class(part, set(texts)) for part, texts in varying.items()}
    if instruction is not None and key[1].endswith(" "):
        name = _template(instruction, what)
    found = Counter(_shown(value, varying) for value in column).most_common(EXAMPLES)
    several = len(varying) > 1
    return Driver(
        kind=key[0],
        name=name,
        values=len(set(column)),
        remaining=table.without([d]),
        remedy=_remedy(key[0], name, set(what.values())),
        examples=tuple(found),
        tokens=tuple(
            Token(what[part], len(set(texts)), table.without_part(d, part) if several else table.without([d]))
            for part, texts in varying.items()
            if instruction is not None
        ),
    )


def _in_order(part: str) -> list[tuple[int, str]]:
    """Sorts ``9`` before ``10``, so that tokens stand as in their instruction."""
    return [(int(digits or 0), letters) for digits, letters in re.findall(r"(\d*)(\D*)", part)]


def _shown(value: tuple[tuple[str, str], ...], varying: Mapping[str, object]) -> str:
    known = dict(value)
    texts = [known[part] for part in varying if known.get(part)]
    return " … ".join(t if len(t) <= 60 else t[:57] + "…" for t in texts[:4]) or "(not there)"


def _template(instruction: Instruction, what: Mapping[str, str]) -> str:
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
    body = "".join(words).strip()
    text = f"{instruction.command} {body}"
    return text if len(text) <= 160 else _cut(text)


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


def _class(part: str, texts: set[str]) -> str:
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


_INSTALLS = re.compile(
    r"\b(apt-get|apt|apk|yum|dnf|pip3?|uv|conda|mamba|npm|yarn|pnpm|gem|cargo|go)\b.*\b(install|add|get)\b"
)
_FETCHES = re.compile(r"\b(git (clone|checkout|fetch|reset|pull)|curl|wget)\b")


def _remedy(kind: Kind, name: str, classes: set[str]) -> Remedy:
    if kind in (Kind.NOISE, Kind.UNREAD):
        return Remedy.DROP
    if kind in (Kind.BASE, Kind.IMAGE):
        return Remedy.DEDICATED if classes <= {"tag", "stage"} and classes else Remedy.NONE
    if kind is Kind.INSTRUCTION and _INSTALLS.search(name) and not _FETCHES.search(name):
        return Remedy.UNION
    return Remedy.RUN_TIME


# --- the sequence that brings the count down ------------------------------------------------------


def _steps(
    table: _Table, drivers: Sequence[Driver], order: Sequence[int], harmless: Sequence[int]
) -> tuple[Step, ...]:
    """Greedy: each step holds the driver, or the drivers that vary together, that leave the fewest."""
    together: dict[tuple[int, ...], list[int]] = {}
    for d in order:
        together.setdefault(table.partition(d), []).append(d)
    groups = [g for g in together.values() if len(g) > 1]
    if len(harmless) > 1:
        groups.insert(0, list(harmless))
    rows = list(table.whole)
    left = list(order)
    remaining = len(set(rows))
    steps: list[Step] = []
    while remaining > 1 and left and len(steps) < MAX_STEPS:
        candidates = [[d] for d in left] + [
            g for g in ([d for d in g if d in left] for g in groups) if len(g) > 1
        ]
        best = min(
            candidates,
            key=lambda g: (table.without(g, rows), len(g), -max(drivers[d].values for d in g)),
        )
        rows = table.less(best, rows)
        left = [d for d in left if d not in best]
        remaining = len(set(rows))
        steps.append(
            Step(
                drivers=tuple(drivers[d].name for d in best),
                values=max(drivers[d].values for d in best),
                remaining=remaining,
                remedies=tuple(dict.fromkeys(drivers[d].remedy for d in best)),
            )
        )
    return tuple(steps)
