"""What a push does: which files a pool needs, where each goes, what the tasks map to, what is refused.

Decides on hashes and names alone, so that the plan that ``-n`` prints is the plan that is carried
out, and so that it can be made again on top of what somebody else pushed meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from poolmgr.model.blob import Blob, fold, path_trouble
from poolmgr.model.index import Assignments
from poolmgr.model.manifest import HUB_HARD_LIMIT, Layout
from poolmgr.plan.placement import place


@dataclass(frozen=True, slots=True)
class Candidate:
    """A local file that passed every check."""

    key: str
    """The file as the user named it; unique."""
    name: str
    """The file name that it is to have in the pool."""
    size: int
    sha256: str
    tree_sha256: str | None = None
    derived: bool = False


@dataclass(frozen=True)
class Held:
    """What the pool has at one moment."""

    variants: Mapping[str, Assignments]
    blobs: Mapping[str, Blob]
    """Path -> blob, with its sha256 where one is known."""
    trees: Mapping[str, str] = field(default_factory=dict)
    """Path -> tree_sha256, where one is on record."""
    entries: Mapping[str, int] = field(default_factory=dict)
    """Directory -> direct entries."""


@dataclass(frozen=True)
class Wish:
    variant: str
    files: Mapping[str, str]
    """Task -> key of a candidate."""
    blobs: Mapping[str, str] = field(default_factory=dict)
    """Task -> path of a blob that the pool has."""
    same_tree: bool = False
    """Map to a blob with the same tree instead of adding the file."""
    remap: bool = False
    """Whether a task may leave the blob that it has now."""
    layout: Layout = field(default_factory=Layout)


class Action(StrEnum):
    ADD = "add"
    REUSE = "reuse"
    """The pool has the same bytes."""
    SAME_TREE = "same-tree"
    """The pool has another file with the same tree, and that will do."""
    TWIN = "twin"
    """Another file of this push has the same bytes (or tree), and is added."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    candidate: Candidate
    action: Action
    path: str
    """Where its bytes are, or will be, in the pool."""
    tasks: tuple[str, ...]
    same_tree: tuple[str, ...] = ()
    """Other blobs of the pool, or files of this push, with the same tree."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason not to push."""

    code: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Change:
    task: str
    old: str | None
    """None: the task is new."""
    new: str | None
    """None: the task is taken out."""


@dataclass(frozen=True)
class PushPlan:
    variant: str
    files: tuple[PlannedFile, ...]
    changes: tuple[Change, ...]
    """Tasks whose blob is not what it was, sorted."""
    unchanged: int
    """Tasks that map to the right blob already."""
    is_new: bool
    """Whether the pool has no variant of that name yet."""
    directories: Mapping[str, tuple[int, int]]
    """Directory -> (files that are added, entries that it has then)."""
    problems: tuple[Problem, ...] = ()

    def of(self, action: Action) -> tuple[PlannedFile, ...]:
        return tuple(f for f in self.files if f.action is action)

    def with_problems(self, more: Iterable[Problem]) -> PushPlan:
        return replace(self, problems=(*self.problems, *more))

    @property
    def added(self) -> tuple[PlannedFile, ...]:
        """What is to be sent, in the order in which it must be: one directory after the other."""
        return tuple(sorted(self.of(Action.ADD), key=lambda f: f.candidate.derived))

    @property
    def size(self) -> int:
        """Bytes that are to be uploaded."""
        return sum(f.candidate.size for f in self.added)

    @property
    def replaced(self) -> tuple[Change, ...]:
        return tuple(c for c in self.changes if c.old is not None)


def plan_push(candidates: Iterable[Candidate], held: Held, wish: Wish) -> PushPlan:
    """The plan; equal input in any order gives an equal plan. Everything that is wrong is a problem of it."""
    ordered = sorted(candidates, key=lambda c: (c.name, c.sha256, c.key))
    tasks: dict[str, list[str]] = {}
    for task, key in sorted(wish.files.items()):
        tasks.setdefault(key, []).append(task)
    matched = _Matcher(held, wish.same_tree).match(ordered)
    problems = _name_problems([c for c, (action, _) in matched if action is Action.ADD], held)
    places = _places([c for c, (action, _) in matched if action is Action.ADD], held, wish.layout)
    twins, trees = _twins(ordered), _by_tree(held)
    files = []
    for candidate, (action, target) in matched:
        path = target if action in (Action.REUSE, Action.SAME_TREE) else places[target]
        same = twins.get(candidate.tree_sha256 or "", ())
        there = trees.get(candidate.tree_sha256 or "", ())
        same = (*(key for key in same if key != candidate.key), *(p for p in there if p != path))
        files.append(PlannedFile(candidate, action, path, tuple(tasks.get(candidate.key, ())), same))
    home = {f.candidate.key: f.path for f in files}
    assign = {task: home[key] for task, key in wish.files.items()}
    for task, path in wish.blobs.items():
        assign[task] = path
        blob = held.blobs.get(path)
        if blob is None:
            problems.append(Problem("no-such-blob", f"task {task!r}: the pool has no blob {path!r}"))
        elif blob.trouble is not None or blob.size == 0:
            trouble = blob.trouble or "zero-byte"
            problems.append(
                Problem("bad-blob", f"task {task!r}: the pool's {path} cannot be used: {trouble}")
            )
    now = held.variants.get(wish.variant, {})
    changes = changes_of(now, assign)
    if not wish.remap:
        problems += [
            Problem("task-taken", f"task {c.task!r} of {wish.variant!r} has {c.old} now, not {c.new}")
            for c in changes
            if c.old is not None
        ]
    directories, full = _room([f.path for f in files if f.action is Action.ADD], held)
    return PushPlan(
        variant=wish.variant,
        files=tuple(files),
        changes=changes,
        unchanged=len(assign) - len(changes),
        is_new=wish.variant not in held.variants,
        directories=MappingProxyType(directories),
        problems=(*problems, *full),
    )


def changes_of(now: Assignments, wanted: Mapping[str, str | None]) -> tuple[Change, ...]:
    """What has to change in ``now``, sorted by task; None in ``wanted`` takes a task out."""
    return tuple(
        Change(task, now.get(task), path) for task, path in sorted(wanted.items()) if now.get(task) != path
    )


def apply(
    variants: Mapping[str, Assignments], variant: str, changes: Iterable[Change]
) -> dict[str, Assignments]:
    """The index with the changes in it. A variant that loses its last task goes too."""
    tasks = dict(variants.get(variant, {}))
    for change in changes:
        if change.new is None:
            tasks.pop(change.task, None)
        else:
            tasks[change.task] = change.new
    result: dict[str, Assignments] = {v: dict(t) for v, t in variants.items() if v != variant}
    if tasks:
        result[variant] = tasks
    return result


# --- parts ------------------------------------------------------------------------------------------

_Match = tuple[Action, str]
"""What is to be done, and the path (reuse) or the file name (add, twin) where the bytes are."""


class _Matcher:
    """Finds the bytes, and the trees, that are there already."""

    def __init__(self, held: Held, same_tree: bool) -> None:
        used = {path for tasks in held.variants.values() for path in tasks.values()}
        self._same_tree = same_tree
        self._bytes: dict[str, list[str]] = {}
        self._trees: dict[str, list[str]] = {}
        # A blob that some variant names goes before one that none does, then the first by name.
        for path in sorted(held.blobs, key=lambda p: (p not in used, p)):
            blob = held.blobs[path]
            if blob.trouble is None and blob.sha256 is not None:
                self._bytes.setdefault(blob.sha256, []).append(path)
                if path in held.trees:
                    self._trees.setdefault(held.trees[path], []).append(path)

    def match(self, ordered: Sequence[Candidate]) -> list[tuple[Candidate, _Match]]:
        result: list[tuple[Candidate, _Match]] = []
        first: dict[str, str] = {}
        for candidate in ordered:
            result.append((candidate, self._one(candidate, first)))
        return result

    def _one(self, c: Candidate, first: dict[str, str]) -> _Match:
        if there := self._bytes.get(c.sha256):
            own = [path for path in there if path.rpartition("/")[2] == c.name]
            return Action.REUSE, (own or there)[0]
        if c.sha256 in first:
            return Action.TWIN, first[c.sha256]
        if self._same_tree and c.tree_sha256 is not None:
            if there := self._trees.get(c.tree_sha256):
                return Action.SAME_TREE, there[0]
            if c.tree_sha256 in first:
                return Action.TWIN, first[c.tree_sha256]
            first[c.tree_sha256] = c.name
        first[c.sha256] = c.name
        return Action.ADD, c.name


def _twins(ordered: Sequence[Candidate]) -> dict[str, tuple[str, ...]]:
    """Tree -> the files of this push that have it, where there are several."""
    groups: dict[str, list[str]] = {}
    for c in ordered:
        if c.tree_sha256 is not None:
            groups.setdefault(c.tree_sha256, []).append(c.key)
    return {tree: tuple(keys) for tree, keys in groups.items() if len(keys) > 1}


def _by_tree(held: Held) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for path in sorted(held.trees):
        if path in held.blobs:
            groups.setdefault(held.trees[path], []).append(path)
    return groups


def _name_problems(added: Sequence[Candidate], held: Held) -> list[Problem]:
    """Names that something else has already, here or in the pool, in any directory and any case."""
    problems = []
    taken: dict[str, list[str]] = {}
    for path in sorted(held.blobs):
        taken.setdefault(fold(path.rpartition("/")[2]), []).append(path)
    wanted: dict[str, Candidate] = {}
    for c in added:
        trouble = path_trouble(c.name) or ("has a slash" if "/" in c.name else None)
        if trouble is not None:
            problems.append(Problem("unsafe-name", f"{c.key}: the name {c.name!r} {trouble}"))
            continue
        key = fold(c.name)
        for path in taken.get(key, ()):
            if path.rpartition("/")[2] == c.name:
                problems.append(
                    Problem(
                        "name-taken",
                        f"{c.key}: the pool has {path} with other bytes; a new version is a new name",
                    )
                )
            else:
                problems.append(
                    Problem(
                        "other-case",
                        f"{c.key}: the name {c.name!r} and the pool's {path} differ only in case",
                    )
                )
        other = wanted.setdefault(key, c)
        if other is not c:
            how = "one name" if other.name == c.name else "names that differ only in case"
            problems.append(
                Problem(
                    "name-clash",
                    f"{c.key} and {other.key} are different files and would have {how}, {c.name!r}",
                )
            )
    return problems


def _places(added: Sequence[Candidate], held: Held, layout: Layout) -> dict[str, str]:
    """File name -> path, by the family that the file belongs to."""
    placed: dict[str, str] = {}
    used = dict(held.entries)
    for family, derived in ((layout.plain, False), (layout.derived, True)):
        names = [c.name for c in added if c.derived is derived]
        # Names that the pool has already are another file's: those are problems, not places.
        new = place(names, family=family, held=(), used=used, limit=layout.max_entries)
        for path in new.values():
            folder = path.rpartition("/")[0]
            used[folder] = used.get(folder, 0) + 1
        placed |= new
    return placed


def _room(paths: Sequence[str], held: Held) -> tuple[dict[str, tuple[int, int]], list[Problem]]:
    """Directory -> (added, entries then); and the directories that would pass the Hub's hard limit.

    One that is past it already lies in no repository of the Hub, and holds no push up.
    """
    added = Counter(path.rpartition("/")[0] for path in paths)
    then = Counter(dict(held.entries))
    known = {fold(d): d for d in held.entries}
    problems = []
    for folder, count in sorted(added.items()):
        then[folder] += count
        if folder not in held.entries:
            if (other := known.get(fold(folder))) is not None:
                problems.append(
                    Problem(
                        "other-case", f"the directory {folder} and the pool's {other} differ only in case"
                    )
                )
            then[folder.rpartition("/")[0]] += 1
    problems += [
        Problem(
            "hard-limit",
            f"{folder or 'the root'} would have {then[folder]:,} entries; the Hub takes {HUB_HARD_LIMIT:,}",
        )
        for folder in sorted({*added, *(f.rpartition("/")[0] for f in added if f not in held.entries)})
        if then[folder] > HUB_HARD_LIMIT >= held.entries.get(folder, 0)
    ]
    return {folder: (count, then[folder]) for folder, count in sorted(added.items())}, problems
