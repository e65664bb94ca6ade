"""Why a dataset has as many environments as it has: what differs between them, and what would help.

Every environment is taken apart into drivers: the base image, each instruction, each file, what no
build reads. Holding a driver constant and counting the environments again tells what it costs. The
counts are exact: the changed environments are hashed again, driver by driver; nothing is estimated.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from poolmgr.model.dockerfile import Dockerfile, Instruction
from poolmgr.plan import layout, wording
from poolmgr.plan.align import Place, align, base_arguments, coarse
from poolmgr.plan.wording import Kind, Remedy

MAX_STEPS = 20
EXAMPLES = 3


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
Value = tuple[tuple[str, str], ...]
"""(part, text) of one driver in one environment, sorted; () where it is not there."""


def explain(environments: Sequence[Facts]) -> Explanation:
    """The explanation of ``environments``, which differ by hash."""
    taken, names, instructions = _take_apart(environments)
    table = _Table(taken)
    drivers = [_driver(table, d, key, names[key], instructions.get(key)) for d, key in enumerate(table.keys)]
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
    """Environments by drivers, each cell a number; only drivers that vary are in it.

    A driver's commonest value is the number 0, so that what only some environments have costs only
    these to hold constant: real datasets have thousands of such drivers.
    """

    def __init__(self, environments: Sequence[Parts]) -> None:
        self.size = len(environments)
        having: dict[Key, dict[int, Value]] = defaultdict(dict)
        for n, parts in enumerate(environments):
            for key, texts in parts.items():
                having[key][n] = tuple(sorted(texts.items()))
        self.keys: list[Key] = []
        self.values: list[list[Value]] = []
        self._cells: list[dict[int, int]] = []
        for key, known in having.items():
            column = [known.get(n, ()) for n in range(self.size)]
            found = Counter(column)
            if len(found) > 1:
                self._cells.append(_cells(len(self.keys), column, found))
                self.keys.append(key)
                self.values.append(column)
        self.whole = _Rows(self._sums(range(len(self.keys))))

    def _sums(self, drivers: Iterable[int]) -> list[int]:
        rows = [0] * self.size
        for d in drivers:
            for n, cell in self._cells[d].items():
                rows[n] += cell
        return rows

    def _held(self, drivers: Sequence[int]) -> dict[int, int]:
        """Environment -> the sum of its cells of ``drivers``."""
        if len(drivers) == 1:
            return self._cells[drivers[0]]
        found: dict[int, int] = defaultdict(int)
        for d in drivers:
            for n, cell in self._cells[d].items():
                found[n] += cell
        return found

    def without(self, held: Sequence[int], start: _Rows | None = None) -> int:
        """How many environments stay distinct when the drivers ``held`` are the same in all."""
        return (start or self.whole).distinct_without(self._held(held))

    def less(self, held: Sequence[int], start: _Rows) -> _Rows:
        return _Rows(start.without(self._held(held)))

    def only(self, kept: Sequence[int]) -> int:
        """How many stay distinct when everything but ``kept`` is the same in all."""
        return len(set(self._sums(kept)))

    def partition(self, d: int) -> tuple[tuple[int, int], ...]:
        """Which environments have equal values: equal for drivers that always vary together."""
        first: dict[int, int] = {}
        return tuple((n, first.setdefault(cell, n)) for n, cell in sorted(self._cells[d].items()))

    def without_parts(self, d: int, parts: frozenset[str]) -> int:
        """How many stay distinct when ``parts`` of driver ``d`` are the same in all."""
        rows = self.whole.without(self._cells[d])
        kept = [tuple(item for item in value if item[0] not in parts) for value in self.values[d]]
        cells = _cells(d, kept, Counter(kept))
        return len({row + cells.get(n, 0) for n, row in enumerate(rows)})


class _Rows:
    """One number an environment, equal where the environments are."""

    def __init__(self, rows: list[int]) -> None:
        self._rows = rows
        self._counts = Counter(rows)

    def __len__(self) -> int:
        """How many are distinct."""
        return len(self._counts)

    def without(self, held: Mapping[int, int]) -> list[int]:
        rows = list(self._rows)
        for n, cell in held.items():
            rows[n] -= cell
        return rows

    def distinct_without(self, held: Mapping[int, int]) -> int:
        """How many would be distinct; only the rows that change are looked at."""
        removed = Counter(self._rows[n] for n in held)
        added = {self._rows[n] - cell for n, cell in held.items()}
        gone = sum(self._counts[row] == count and row not in added for row, count in removed.items())
        return len(self._counts) - gone + sum(row not in self._counts for row in added)


def _cells(d: int, column: Sequence[Value], found: Counter[Value]) -> dict[int, int]:
    """Environment -> its number, for those that have another value than the commonest."""
    ((commonest, _),) = found.most_common(1)
    numbers = {value: _number(d, value) for value in found if value != commonest}
    return {n: numbers[value] for n, value in enumerate(column) if value != commonest}


def _number(d: int, value: Value) -> int:
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
        choosing = base_arguments(aligned, files)
        for n, parsed, texts in zip(with_file, files, aligned.texts, strict=True):
            for place, text in texts.items():
                key = _key(place, aligned.shown, choosing, names, instructions)
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
    choosing: Set[tuple[int, str]],
    names: dict[Key, str],
    instructions: dict[Key, Instruction],
) -> Key:
    instruction = shown.get((place.slot, place.extra))
    if instruction is None:
        key = (Kind.INSTRUCTION, place.extra)
        names[key] = place.extra
        return key
    is_base = instruction.command == "FROM" or (place.slot, place.extra) in choosing
    kind = Kind.BASE if is_base else Kind.INSTRUCTION
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
                parts[kind, f"{folder}/* (in some)" if folder else "* (in some)"][path] = digest


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


def _driver(table: _Table, d: int, key: Key, name: str, instruction: Instruction | None) -> Driver:
    found = Counter(table.values[d])
    parts = sorted({part for value in found for part, _ in value}, key=wording.in_order)
    varying: dict[str, list[str]] = {}
    for part in parts:
        texts = [dict(value).get(part, "") for value in found]
        if len(set(texts)) > 1:
            varying[part] = texts
    what = {part: wording.token_class(part, set(texts)) for part, texts in varying.items()}
    if instruction is not None and wording.installs(instruction.text):
        what = {part: wording.package_class(word) for part, word in what.items()}
    if instruction is not None and key[1].endswith(" "):
        name = wording.template(instruction, what)
    examples: Counter[str] = Counter()
    for value, count in found.items():
        examples[wording.shown(value, varying)] += count
    return Driver(
        kind=key[0],
        name=name,
        values=len(found),
        remaining=table.without([d]),
        remedy=wording.remedy(key[0], name, what, varying, len(found)),
        examples=tuple(examples.most_common(EXAMPLES)),
        tokens=_tokens(table, d, what, varying) if instruction is not None else (),
    )


def _tokens(
    table: _Table, d: int, what: Mapping[str, str], varying: Mapping[str, Sequence[str]]
) -> tuple[Token, ...]:
    """The tokens of driver ``d`` that differ, each counted alone; the packages of a list are one."""
    together: dict[str, list[str]] = {}
    for part, word in what.items():
        together.setdefault(word if word == wording.PACKAGES else part, []).append(part)
    return tuple(
        Token(
            what[parts[0]],
            len(set(zip(*(varying[part] for part in parts), strict=True))),
            table.without_parts(d, frozenset(parts)),
        )
        for parts in together.values()
    )


# --- the sequence that brings the count down ------------------------------------------------------


def _steps(
    table: _Table, drivers: Sequence[Driver], order: Sequence[int], harmless: Sequence[int]
) -> tuple[Step, ...]:
    """Greedy: each step holds the driver, or the drivers that vary together, that leave the fewest.

    What has no remedy is never held; steps at the end that bring nothing are left out.
    """
    order = [d for d in order if drivers[d].remedy is not Remedy.NONE]
    together: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for d in order:
        together.setdefault(table.partition(d), []).append(d)
    groups = [g for g in together.values() if len(g) > 1]
    if len(harmless) > 1:
        groups.insert(0, list(harmless))
    rows = table.whole
    left = list(order)
    remaining = len(rows)
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
        remaining = len(rows)
        steps.append(
            Step(
                drivers=tuple(drivers[d].name for d in best),
                values=max(drivers[d].values for d in best),
                remaining=remaining,
                remedies=tuple(dict.fromkeys(drivers[d].remedy for d in best)),
            )
        )
    while steps and steps[-1].remaining == (steps[-2].remaining if len(steps) > 1 else len(table.whole)):
        steps.pop()
    return tuple(steps)
