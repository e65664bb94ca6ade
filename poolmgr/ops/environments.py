"""Counts and looks up the environments of task datasets; prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from poolmgr.errors import AmbiguousError, NothingComparedError, UnknownTaskError
from poolmgr.harbor import envhash
from poolmgr.harbor.archive import Limits
from poolmgr.harbor.source import Found, Part, tasks
from poolmgr.harbor.tree import Kind, Tree, UnreadableError
from poolmgr.model.environment import Environment, Scheme, Task
from poolmgr.model.index import nearest
from poolmgr.ops.progress import Progress
from poolmgr.ops.survey import find, stream
from poolmgr.plan.environments import Count, tally

MAX_SHOWN = 1 << 20
"""Files larger than this are told apart by their hash, not shown."""


def count(
    addresses: Sequence[str],
    schemes: frozenset[Scheme] = frozenset(),
    *,
    limits: Limits | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[Count]:
    """One count for each dataset and sub-dataset at ``addresses``; Harbor's scheme is always computed.

    Raises ``DatasetInvalidError`` for an address that holds nothing to read, and
    ``NothingComparedError`` where everything was read and no task was found.
    """
    parts = find(addresses)
    wanted = schemes | {Scheme.HARBOR}
    with closing(stream(parts, wanted, limits=limits, jobs=jobs, progress=progress)) as items:
        counts = tally(items)
    if not any(c.tasks for c in counts):
        seen = sum(len(c.not_tasks) for c in counts)
        raise NothingComparedError(
            f"{', '.join(addresses)}: no task among the {seen:,} folders and rows",
            hint="a task is a folder with a task.toml, or a row of path and task_binary",
            details=[f"{n.where}: {n.finding.code}: {n.finding}" for c in counts for n in c.not_tasks],
        )
    return counts


@dataclass(frozen=True)
class File:
    """One entry of an environment's folder, in full."""

    kind: Kind
    mode: int
    size: int = 0
    sha256: str = ""
    target: str = ""
    """Where a link leads."""
    content: bytes | None = None
    """None for links, folders, and files too large to be shown."""


@dataclass(frozen=True)
class Detail:
    """One environment with everything in its folder."""

    task: Task
    environment: Environment
    files: dict[str, File]
    """By path, sorted; what Harbor's hash leaves out is in it too."""

    @property
    def hashed(self) -> frozenset[str]:
        """The paths that Harbor's hash covers."""
        return frozenset(envhash.hashed_files({path: file.kind for path, file in self.files.items()}))


def every_scheme(parts: Sequence[Part], limits: Limits | None = None) -> Iterator[Found]:
    return tasks(parts, frozenset(Scheme), limits)


def show(addresses: Sequence[str], wanted: str, limits: Limits | None = None) -> tuple[Detail, list[str]]:
    """The environment whose hash begins with ``wanted``, or that the task of that name has; and its tasks.

    Raises ``UnknownTaskError`` when there is none and ``AmbiguousError`` when several begin so.
    """
    detail: Detail | None = None
    users: list[str] = []
    names: list[str] = []
    prefix = wanted.removeprefix("harbor__").partition("__")[0].lower()
    for found in every_scheme(find(addresses), limits):
        if not isinstance(found.item, Task) or found.tree is None:
            continue
        names.append(found.item.name)
        for environment in found.item.environments:
            digest = environment.hash or ""
            hit = found.item.name == wanted or (len(prefix) >= 4 and digest.startswith(prefix))
            if detail is not None and digest == detail.environment.hash:
                users.append(found.item.name)
            elif hit and detail is None:
                detail = read_detail(found.tree, found.item, environment)
                users.append(found.item.name)
            elif hit and found.item.name != wanted:
                assert detail is not None
                raise AmbiguousError(
                    f"{wanted!r} begins more than one environment's hash",
                    hint="give more digits",
                    details=[detail.environment.hash or "", digest],
                )
    if detail is None:
        close = nearest(wanted, names)
        raise UnknownTaskError(
            f"no environment hash begins with {wanted!r}, and no task has that name",
            hint=f"nearest: {', '.join(close)}" if close else "'poolmgr env ls' lists the hashes",
        )
    return detail, list(dict.fromkeys(users))


def pair(
    addresses: Sequence[str], first: str, second: str, limits: Limits | None = None
) -> tuple[Detail, Detail]:
    """The agent environments of two tasks; ``UnknownTaskError`` names the task that is not there."""
    found_details: dict[str, Detail] = {}
    names: list[str] = []
    for found in every_scheme(find(addresses), limits):
        if not isinstance(found.item, Task) or found.tree is None:
            continue
        names.append(found.item.name)
        if found.item.name in (first, second) and found.item.name not in found_details:
            found_details[found.item.name] = read_detail(found.tree, found.item, found.item.environments[0])
    for name in (first, second):
        if name not in found_details:
            close = nearest(name, names)
            raise UnknownTaskError(
                f"no task {name!r} among the {len(names):,} read",
                hint=f"nearest: {', '.join(close)}" if close else "",
            )
    return found_details[first], found_details[second]


def read_detail(tree: Tree, task: Task, environment: Environment) -> Detail:
    """Every entry of the environment's folder; what cannot be read keeps its kind alone."""
    base = tree.resolve(environment.folder)
    files = {path: _file(tree, f"{base}/{path}", kind) for path, kind in sorted(tree.entries(base).items())}
    return Detail(task, environment, files)


def _file(tree: Tree, path: str, kind: Kind) -> File:
    try:
        mode = tree.mode(path)
        if kind is Kind.LINK:
            return File(kind, mode, target=tree.target(path))
        if kind is not Kind.FILE:
            return File(kind, mode)
        size, chunks = tree.chunks(path)
        if size > MAX_SHOWN:
            return File(kind, mode, size, envhash.text_hash(chunks))
        content = b"".join(chunks)
        return File(kind, mode, size, envhash.text_hash([content]), content=content)
    except UnreadableError:
        return File(kind, 0)
