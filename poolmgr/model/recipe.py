"""A recipe: the TOML file that says how images are derived from others (docs/cli/derive.md).

Unknown keys are errors that name the nearest known key. Every refusal names its line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from poolmgr.errors import RecipeInvalidError
from poolmgr.model.digest import parse_sha256
from poolmgr.model.index import nearest
from poolmgr.model.manifest import BRACES
from poolmgr.model.pin import Pin, combine, parse_pin

SCHEMA = 1
DEFAULT_PYTHON = "/usr/bin/python3"
DEFAULT_WHEELS = "wheels"
METHODS = ("auto", "overlay", "rebuild")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_HINT = "see docs/cli/derive.md"


@dataclass(frozen=True, slots=True)
class Remove:
    """Paths inside the image, each part of which may be a shell pattern."""

    paths: tuple[str, ...]
    optional: bool = False
    """Whether a path that matches nothing is no error."""


@dataclass(frozen=True, slots=True)
class Pip:
    pins: tuple[Pin, ...]
    python: str = DEFAULT_PYTHON
    """The interpreter inside the image that the wheels are installed for."""
    wheels: str = DEFAULT_WHEELS
    """Folder of wheels, relative to the recipe."""


@dataclass(frozen=True, slots=True)
class FileCopy:
    source: str
    """Relative to the recipe's folder."""
    to: str
    mode: int


@dataclass(frozen=True, slots=True)
class Files:
    files: tuple[FileCopy, ...]


@dataclass(frozen=True, slots=True)
class Run:
    command: str
    reproducible: bool = False
    """Whether the recipe's author declares that the command always does the same."""


Step = Remove | Pip | Files | Run


@dataclass(frozen=True, slots=True)
class BaseRef:
    """Exactly one of ``variant``, ``blob`` and ``image``."""

    variant: str | None = None
    tasks: str | None = None
    """File of task ids, one a line, relative to the recipe; None: every task of the variant."""
    blob: str | None = None
    image: str | None = None


@dataclass(frozen=True, slots=True)
class Expect:
    forbid: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    """One command, run in the finished image where Apptainer is installed."""


@dataclass(frozen=True)
class Recipe:
    name: str
    base: BaseRef
    steps: tuple[Step, ...]
    method: str = "auto"
    tasks: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    """Task -> what is done for it besides, or at other pins."""
    expect: Expect = field(default_factory=Expect)

    def steps_of(self, task: str | None) -> tuple[Step, ...]:
        """The steps for one task: its own pins replace those of the same name, the rest is added."""
        own = self.tasks.get(task, ()) if task is not None else ()
        steps = list(self.steps)
        python, wheels = DEFAULT_PYTHON, DEFAULT_WHEELS
        for extra in own:
            if not isinstance(extra, Pip):
                steps.append(extra)
                continue
            left = extra.pins
            for n, step in enumerate(steps):
                if isinstance(step, Pip):
                    python, wheels = step.python, step.wheels
                    pins, left = combine(step.pins, left)
                    steps[n] = Pip(pins, python, wheels)
            if left:
                steps.append(Pip(left, python, wheels))
        return tuple(steps)

    @staticmethod
    def parse(text: str, source: str) -> Recipe:
        """The recipe in ``text``; raises ``RecipeInvalidError`` naming the line, the key and ``source``."""
        try:
            raw = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as e:
            raise RecipeInvalidError(f"{source}: not TOML: {e}", hint=_HINT) from None
        return _Reader(source, text).recipe(raw)


class _Reader:
    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.lines = text.splitlines()

    def fail(self, where: str, what: str, *, at: str = "", hint: str = _HINT) -> RecipeInvalidError:
        """``at``: a word of the line to name."""
        line = self.line(at, where) if at else 0
        place = f"{self.source}:{line}" if line else self.source
        return RecipeInvalidError(f"{place}: {where}: {what}", hint=hint)

    def line(self, word: str, where: str) -> int:
        """Number of the line to name for ``word`` of the table ``where``; 0 without any.

        tomllib tells no lines, so the word is looked for: first from the key on in the table's own
        lines, as a quoted text before as a part of one, then anywhere.
        """
        first, last = self.section(where)
        key = re.compile(rf"\s*{re.escape(where.rpartition('.')[2].partition(' ')[0])}\s*=")
        own = next((n for n in range(first, last) if key.match(self.lines[n])), first)
        for begin, end in ((own, last), (first, last), (0, len(self.lines))):
            for form in (f'"{word}"', f"'{word}'", word):
                for n, text in enumerate(self.lines[begin:end], begin + 1):
                    if form in text and not text.lstrip().startswith("#"):
                        return n
        return 0

    def section(self, where: str) -> tuple[int, int]:
        """The lines of the table ``where``, from its header on, as a range; all lines where it has none."""
        step, task = re.match(r"step (\d+)", where), re.match(r'tasks\."(.*?)"', where)
        heads = [n for n, text in enumerate(self.lines) if text.lstrip().startswith("[")]
        if step:
            own = [n for n in heads if re.match(r"\s*\[\[\s*step\s*\]\]", self.lines[n])]
            own = own[int(step[1]) - 1 : int(step[1])]
        elif task:
            tables = [n for n in heads if re.match(r"\s*\[\s*tasks\b", self.lines[n])]
            own = [n for n in tables if task[1] in self.lines[n]]
        else:
            name = re.escape(where.partition(".")[0])
            own = [n for n in heads if re.match(rf"\s*\[\s*{name}\s*\]", self.lines[n])]
        if not own:
            return 0, len(self.lines)
        return own[0], next((n for n in heads if n > own[0]), len(self.lines))

    def recipe(self, raw: dict[str, Any]) -> Recipe:
        self.known(raw, "", ("schema", "name", "base", "method", "step", "tasks", "expect"))
        if raw.get("schema") != SCHEMA:
            raise self.fail("schema", f"expected {SCHEMA}, found {raw.get('schema')!r}", at="schema")
        name = raw.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self.fail(
                "name", f"expected up to 40 of a-z 0-9 . _ -, found {name!r}", at="name",
                hint="the name becomes part of file names",
            )  # fmt: skip
        method = raw.get("method", "auto")
        if method not in METHODS:
            raise self.fail("method", f"expected one of {', '.join(METHODS)}, found {method!r}", at="method")
        steps = raw.get("step", [])
        if not isinstance(steps, list):
            raise self.fail("step", "expected tables that begin with [[step]]", at="step")
        tasks = raw.get("tasks", {})
        if not isinstance(tasks, dict) or not all(isinstance(t, dict) for t in tasks.values()):
            raise self.fail("tasks", 'expected tables that begin with [tasks."…"]', at="tasks")
        result = Recipe(
            name,
            self.base(raw.get("base")),
            tuple(self.step(step, f"step {n}") for n, step in enumerate(steps, 1)),
            str(method),
            {task: self.task(table, f'tasks."{task}"') for task, table in tasks.items()},
            self.expect(raw.get("expect", {})),
        )
        if not result.steps and not any(result.tasks.values()):
            raise self.fail("step", "the recipe has no step, so it would derive nothing")
        if result.tasks and result.base.variant is None:
            raise self.fail("tasks", "only a base that is a variant has tasks", at="[tasks")
        return result

    def base(self, raw: object) -> BaseRef:
        table = self.table(raw, "base", ("variant", "tasks", "blob", "image"))
        values = {key: self.text(table, "base", key) for key in ("variant", "tasks", "blob", "image")}
        if sum(values[key] is not None for key in ("variant", "blob", "image")) != 1:
            raise self.fail("base", "exactly one of variant, blob and image is needed", at="base")
        if values["tasks"] is not None:
            if values["variant"] is None:
                raise self.fail("base.tasks", "belongs to a variant", at="base")
            self.inside(values["tasks"], "base.tasks")
        return BaseRef(**values)

    def step(self, raw: object, where: str) -> Step:
        if not isinstance(raw, dict):
            raise self.fail(where, f"expected a table, found {raw!r}")
        kinds = [key for key in ("remove", "pip", "files", "run") if key in raw]
        if len(kinds) != 1:
            self.known(raw, where, ("remove", "pip", "files", "run"))
            raise self.fail(where, f"exactly one of remove, pip, files and run is needed, found {kinds}")
        match kinds[0]:
            case "remove":
                self.known(raw, where, ("remove", "optional"))
                return Remove(self.removed(raw, where), self.flag(raw, where, "optional"))
            case "pip":
                self.known(raw, where, ("pip", "python", "wheels"))
                python = self.text(raw, where, "python") or DEFAULT_PYTHON
                self.image_path(python, f"{where}.python")
                wheels = self.text(raw, where, "wheels") or DEFAULT_WHEELS
                self.inside(wheels, f"{where}.wheels")
                return Pip(self.pins(raw, where), python, wheels)
            case "files":
                self.known(raw, where, ("files",))
                return Files(self.files(raw, where))
            case _:
                self.known(raw, where, ("run", "reproducible"))
                command = self.text(raw, where, "run")
                assert command is not None
                return Run(command, self.flag(raw, where, "reproducible"))

    def task(self, raw: dict[str, Any], where: str) -> tuple[Step, ...]:
        self.known(raw, where, ("remove", "pip", "files"))
        steps: list[Step] = []
        if "remove" in raw:
            steps.append(Remove(self.removed(raw, where)))
        if "pip" in raw:
            steps.append(Pip(self.pins(raw, where)))
        if "files" in raw:
            steps.append(Files(self.files(raw, where)))
        if not steps:
            raise self.fail(where, "an empty table: name pip, remove or files", at=where)
        return tuple(steps)

    def removed(self, raw: dict[str, Any], where: str) -> tuple[str, ...]:
        paths = self.texts(raw, where, "remove")
        for path in paths:
            self.image_path(path, f"{where}.remove")
        return paths

    def pins(self, raw: dict[str, Any], where: str) -> tuple[Pin, ...]:
        pins: list[Pin] = []
        for text in self.texts(raw, where, "pip"):
            try:
                pin = parse_pin(text)
            except ValueError as e:
                raise self.fail(f"{where}.pip", str(e), at=text) from None
            if any(pin.name == other.name and pin.marker == other.marker for other in pins):
                raise self.fail(f"{where}.pip", f"{pin.name} is pinned twice", at=text)
            pins.append(pin)
        return tuple(pins)

    def files(self, raw: dict[str, Any], where: str) -> tuple[FileCopy, ...]:
        rows = raw["files"]
        if not isinstance(rows, list) or not rows:
            raise self.fail(f"{where}.files", f"expected a list of tables, found {rows!r}", at="files")
        result = []
        for n, row in enumerate(rows, 1):
            place = f"{where}.files {n}"
            table = self.table(row, place, ("from", "to", "mode"))
            source, to = self.text(table, place, "from"), self.text(table, place, "to")
            if source is None or to is None:
                raise self.fail(place, "from and to are needed", at="files")
            self.inside(source, f"{place}.from")
            self.image_path(to, f"{place}.to")
            mode = self.text(table, place, "mode") or "0644"
            if not re.fullmatch(r"0?[0-7]{3,4}", mode):
                raise self.fail(
                    f"{place}.mode", f'expected octal text such as "0644", found {mode!r}', at=mode
                )
            result.append(FileCopy(source, to, int(mode, 8)))
        return tuple(result)

    def expect(self, raw: object) -> Expect:
        table = self.table(raw, "expect", ("forbid", "require", "modules", "run"))
        result = Expect(**{key: self.texts(table, "expect", key) for key in table})
        for module in result.modules:
            if not _MODULE.fullmatch(module):
                raise self.fail("expect.modules", f"{module!r} is not the name of a module", at=module)
        for rule in (*result.forbid, *result.require):
            if rule.startswith("sha256:"):
                try:
                    parse_sha256(rule)
                except ValueError as e:
                    raise self.fail("expect", str(e), at=rule) from None
            elif BRACES.search(rule):
                raise self.fail("expect", f"{rule!r}: braces are no wildcard; write one entry each", at=rule)
            else:
                self.image_path(rule, "expect")
        return result

    def image_path(self, path: str, where: str) -> None:
        """A place inside the image: absolute, without '..', not the root itself."""
        parts = path.split("/")
        if (
            not path.startswith("/")
            or ".." in parts
            or "\0" in path
            or not any(p not in ("", ".") for p in parts)
        ):
            raise self.fail(where, f"{path!r} is not an absolute path inside the image", at=path)

    def inside(self, path: str, where: str) -> None:
        """A place in the recipe's own folder."""
        if path.startswith("/") or ".." in path.split("/") or "\0" in path or "\\" in path:
            raise self.fail(where, f"{path!r} leaves the recipe's folder", at=path)

    def known(self, table: Mapping[str, Any], where: str, keys: Sequence[str]) -> None:
        for key in table:
            if key not in keys:
                close = nearest(key, keys, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(keys)}"
                raise self.fail(f"{where}.{key}" if where else key, "unknown key", at=key, hint=hint)

    def table(self, raw: object, where: str, keys: Sequence[str]) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise self.fail(where, f"expected a table, found {raw!r}", at=where)
        self.known(raw, where, keys)
        return raw

    def text(self, table: Mapping[str, Any], where: str, key: str) -> str | None:
        value = table.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.fail(f"{where}.{key}", f"expected text, found {value!r}", at=key)
        return value

    def texts(self, table: Mapping[str, Any], where: str, key: str) -> tuple[str, ...]:
        value = table.get(key)
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(v, str) and v.strip() for v in value)
        ):
            raise self.fail(f"{where}.{key}", f"expected a list of texts, found {value!r}", at=key)
        return tuple(value)

    def flag(self, table: Mapping[str, Any], where: str, key: str) -> bool:
        value = table.get(key, False)
        if not isinstance(value, bool):
            raise self.fail(f"{where}.{key}", f"expected true or false, found {value!r}", at=key)
        return value
