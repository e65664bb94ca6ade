"""What a pull comes to: which images, each once, under which names; and what is refused, by name.

References become one image where the manifest's aliases, the usual spellings, or a digest say that
they are; each image gets the file name that the list gives it, else the one of the manifest's naming
rule. Two images that would have one name (also by case) are both refused: neither may win by order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from poolmgr.errors import NameCollisionError, PoolError, ReferenceInvalidError
from poolmgr.model.blob import path_trouble
from poolmgr.model.manifest import Manifest
from poolmgr.model.reference import Reference, parse_reference
from poolmgr.plan.naming import Aliases, plan_names
from poolmgr.plan.shard import Shard

_SCHEME = re.compile(r"\s*([a-zA-Z][a-zA-Z0-9+.-]*)://")
MAX_LIST_LINE = 4096
_HINT = "a list has one image a line: the reference, and after a tab, if wanted, the file's name"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One mention of an image: by the user, in a list, or in a dataset's row."""

    reference: str
    file: str | None = None
    """The file name that the list gives it."""
    task: str | None = None
    where: str = ""
    """The place of the mention, for messages."""
    trouble: str | None = None
    """Why there is no reference to pull."""


@dataclass(frozen=True, slots=True)
class Item:
    """One image to have, however often it is mentioned."""

    name: str
    """File name."""
    reference: Reference
    given: tuple[str, ...]
    """How it is written, each way once, in order of appearance."""
    tasks: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The one full spelling of the reference; what is recorded."""
        return self.reference.canonical


@dataclass(frozen=True, slots=True)
class Refused:
    """A mention that no file can be made for."""

    given: str
    error: PoolError
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class PullPlan:
    items: tuple[Item, ...]
    """In order of first appearance; with a shard, its own only."""
    refused: tuple[Refused, ...] = ()
    elsewhere: int = 0
    """Images that other shards have."""


@dataclass
class _Group:
    reference: Reference
    given: dict[str, None] = field(default_factory=dict)
    tasks: dict[str, None] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """File name that a list gives -> where."""


def plan_pull(wanted: Iterable[Wanted], manifest: Manifest, shard: Shard | None = None) -> PullPlan:
    """The images that ``wanted`` mentions, each once. Pure; nothing is looked up."""
    aliases = Aliases(manifest.aliases)
    refused: list[Refused] = []
    groups: dict[str, _Group] = {}
    for one in wanted:
        tasks = (one.task,) if one.task else ()
        try:
            reference = _reference(one, aliases)
        except PoolError as e:
            if one.where and not e.message.startswith(one.where):
                e = ReferenceInvalidError(f"{one.where}: {e.message}", hint=e.hint)
            refused.append(Refused(one.reference or one.where, e, tasks))
            continue
        group = groups.setdefault(reference.pullable, _Group(reference))
        group.given.setdefault(one.reference)
        group.tasks.update(dict.fromkeys(tasks))
        if one.file is not None:
            group.files.setdefault(one.file, one.where)
    names: dict[str, _Group] = {}
    for group in groups.values():
        if len(group.files) > 1:
            refused.append(_refuse(group, _two_files(group)))
        else:
            names[next(iter(group.given))] = group
    fixed = {first: next(iter(group.files)) for first, group in names.items() if group.files}
    plan = plan_names(names, manifest.naming.rule, aliases, fixed=fixed)
    for first, why in plan.invalid:
        refused.append(_refuse(names[first], ReferenceInvalidError(why, hint="see docs/naming.md")))
    for collision in plan.collisions:
        for first in collision.references:
            others = [r for r in collision.references if r != first]
            refused.append(_refuse(names[first], _collision(first, collision.names, others)))
    items = tuple(
        Item(name, names[first].reference, tuple(names[first].given), tuple(names[first].tasks))
        for first, name in plan.names.items()
    )
    mine = tuple(i for i in items if shard is None or shard.holds(i.name))
    return PullPlan(mine, tuple(refused), len(items) - len(mine))


def _reference(one: Wanted, aliases: Aliases) -> Reference:
    if one.trouble is not None:
        raise ReferenceInvalidError(f"{one.where}: {one.trouble}", hint=_HINT)
    text = one.reference
    shown = repr(text if len(text) <= 200 else text[:200] + "…")
    scheme = _SCHEME.match(text)
    if scheme and scheme[1].lower() != "docker":
        raise ReferenceInvalidError(
            f"{shown} names no image of a registry: pull knows docker:// and no scheme",
            hint="write it as [HOST[:PORT]/]PATH[:TAG][@sha256:DIGEST]",
        )
    if not scheme and (text.strip().startswith(("/", "./", "../", "~")) or text.strip().endswith(".sif")):
        raise ReferenceInvalidError(
            f"{shown} is the path of a file, not an image of a registry",
            hint="'poolmgr adopt' makes a pool of files that are here",
        )
    if one.file is not None and (trouble := _name_trouble(one.file)):
        raise ReferenceInvalidError(f"{one.where}: the file name {one.file[:200]!r} {trouble}", hint=_HINT)
    reference = parse_reference(aliases.rewrite(text) or text)
    if reference.digest is not None and not reference.digest.startswith("sha256:"):
        raise ReferenceInvalidError(f"{shown}: pull knows sha256 digests only")
    return reference


def _name_trouble(name: str) -> str | None:
    if "/" in name:
        return "has a folder in it"
    if not name.endswith(".sif"):
        return "does not end in .sif"
    return path_trouble(name)


def _refuse(group: _Group, error: PoolError) -> Refused:
    return Refused(next(iter(group.given)), error, tuple(group.tasks))


def _two_files(group: _Group) -> PoolError:
    named = [f"{name} ({where})" if where else name for name, where in group.files.items()]
    return NameCollisionError(
        f"{group.reference.canonical}: one image, {len(named)} file names: {', '.join(named)}",
        hint="keep one of them; tasks can share a file",
    )


def _collision(first: str, names: tuple[str, ...], others: list[str]) -> PoolError:
    told = " and ".join(names)
    return NameCollisionError(
        f"{first}: {told} would be the file of {', '.join(others)} too",
        hint="another naming rule in the manifest, or names in the list, tell them apart",
        details=others,
    )


def parse_list(text: str, source: str) -> tuple[Wanted, ...]:
    """A list of images: a reference a line, and after a tab its file name (``launch_image_manifest.tsv``).

    There is no header; empty lines are skipped. What a line gets wrong is told by its number and
    refuses that line alone.
    """
    found = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        if len(line) > MAX_LIST_LINE:
            found.append(Wanted("", where=where, trouble=f"a line of {len(line):,} characters"))
            continue
        reference, *rest = (part.strip() for part in line.split("\t"))
        if len(rest) > 1:
            found.append(Wanted(reference, where=where, trouble=f"{len(rest) + 1} columns, at most 2 known"))
        elif not reference:
            found.append(Wanted("", where=where, trouble="no reference before the tab"))
        else:
            found.append(Wanted(reference, (rest[0] or None) if rest else None, where=where))
    return tuple(found)
