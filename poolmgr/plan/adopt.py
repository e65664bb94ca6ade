"""Adopting a folder: which of its files is the image of which task. Pure; nothing is moved or renamed.

A row finds its file in one of three ways: by a map of references and files, by the naming rule
(plan/resolve.py, as ``resolve`` will), or by an index that is there already. A row that does not
find exactly one usable file is unmatched, with a finding that says why; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Protocol

from poolmgr.errors import AmbiguousError, MissError, ReferenceInvalidError
from poolmgr.model.blob import Listing, case_clashes, fold, path_trouble
from poolmgr.model.finding import Finding
from poolmgr.model.image_map import ImageMap, Pair
from poolmgr.model.index import Assignments, name_trouble
from poolmgr.model.manifest import Manifest
from poolmgr.model.reference import canonical, without_scheme
from poolmgr.model.task import Row
from poolmgr.plan.coverage import absence, found, orphans
from poolmgr.plan.naming import Aliases, plan_names
from poolmgr.plan.resolve import Names

MANY_MISSES = 100
"""Rows without a file after which no nearest name is looked for: the rule or folder is the wrong one."""

FEW = 4
"""Names that a row's finding gives of those that it clashes with."""


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A row that has no file."""

    variant: str
    task: str | None
    image: str | None
    where: str
    finding: Finding


@dataclass(frozen=True)
class Adoption:
    """What adopting would make of the folder."""

    variants: Mapping[str, Assignments]
    """The index to be: variant -> task -> path, matched rows only."""
    rows: Mapping[str, int]
    """Variant -> rows that were looked at."""
    unmatched: tuple[Unmatched, ...]
    unmapped: tuple[str, ...]
    """Files of the folder that look like blobs and that no task names, sorted."""
    aliases: Mapping[str, tuple[str, ...]]
    """Path -> the references, as written, of the one image that it is known by; only where several."""
    clashes: tuple[tuple[str, ...], ...]
    """Groups of files whose paths differ only in case or Unicode form."""
    unused: tuple[Finding, ...] = ()
    """Lines of the map that no task uses."""

    @property
    def blobs(self) -> frozenset[str]:
        return frozenset(path for tasks in self.variants.values() for path in tasks.values())

    @property
    def tasks(self) -> int:
        return sum(len(tasks) for tasks in self.variants.values())


class Matcher(Protocol):
    """A way from a row's image to a file."""

    def find(self, image: str) -> str | Finding:
        """The path of the one file, or why there is none."""
        ...

    def unused(self) -> tuple[Finding, ...]:
        """What was given to match with and no row asked for."""
        ...


class Files:
    """The files of the folder, by path and by name."""

    def __init__(self, listing: Listing, roots: Iterable[str] = (), *, by_name: bool = False) -> None:
        """``roots``: spellings of the folder's own absolute path; ``by_name``: a path that is not
        there is looked for by its last part, as a bare name always is."""
        self._listing = listing
        self._roots = tuple(root.rstrip("/") + "/" for root in roots)
        self._by_name = by_name
        self._names: dict[str, list[str]] = {}
        self._folded: dict[str, str] = {}
        for path in listing.blobs:
            self._names.setdefault(path.rpartition("/")[2], []).append(path)
            self._folded[fold(path)] = path
        self._refused = dict(listing.refused)

    def find(self, written: str) -> str | Finding:
        """The path of the usable file that ``written`` names, or a finding."""
        path = written
        for root in self._roots:
            if path.startswith(root):
                path = path[len(root) :]
                break
        while path.startswith("./"):
            path = path[2:].lstrip("/")
        if trouble := path_trouble(path):
            return found("unsafe-path", f"{written[:200]!r} {trouble}")
        blob = self._listing.blobs.get(path)
        if blob is None and ("/" not in path or self._by_name):
            same = self._names.get(path.rpartition("/")[2], [])
            if len(same) > 1:
                return found("ambiguous-name", f"{len(same)} files have this name: {_few(same)}")
            if same:
                path, blob = same[0], self._listing.blobs[same[0]]
        if blob is None:
            return absence(path, self._listing, self._folded, self._refused)
        if blob.trouble is not None:
            return found(blob.trouble, f"{path} cannot be used as a file ({blob.trouble})")
        if blob.size == 0:
            return found("zero-byte", f"{path} has 0 bytes")
        return path


class ByMap:
    """By a map of references and files. One image has one file, and one file is one image."""

    def __init__(self, images: ImageMap, files: Files, aliases: Aliases) -> None:
        self._aliases = aliases
        self._images = images
        self._files = files
        self._images_of: dict[str, str] = {}
        self._pairs: dict[str, Pair] = {}
        self._more_files: dict[str, set[str]] = {}
        self._shared: dict[str, set[str]] = {}
        self._sharing: dict[str, str] = {}
        self._asked: set[str] = set()
        users: dict[str, str] = {}
        for pair in images.pairs:
            image = self._image(pair.reference)
            first = self._pairs.setdefault(image, pair)
            if first.file != pair.file:
                self._more_files.setdefault(image, {first.file}).add(pair.file)
            user = users.setdefault(pair.file, image)
            if user != image:
                self._shared.setdefault(pair.file, {user}).add(image)

    def _image(self, reference: str) -> str:
        """The one full spelling of the image that ``reference`` stands for."""
        image = self._images_of.get(reference)
        if image is None:
            image = self._images_of[reference] = canonical(self._aliases.rewrite(reference) or reference)
        return image

    def find(self, image: str) -> str | Finding:
        key = self._image(image)
        self._asked.add(key)
        pair = self._pairs.get(key)
        if pair is None:
            return found("no-file", f"{self._images.source} has no line for {image[:200]!r}")
        place, file = self._images.where(pair.line), pair.file
        if key in self._more_files:
            files = self._more_files[key]
            return found("image-conflict", f"one image with several files: {_few(files)}", place)
        if file in self._shared:
            users = self._sharing.get(file)
            if users is None:
                users = self._sharing[file] = _few(self._shared[file])
            return found("name-collision", f"{file} is given for different images: {users}", place)
        result = self._files.find(file)
        if isinstance(result, Finding):
            return Finding(result.code, f"{file}: {result.message}", result.severity, place)
        return result

    def unused(self) -> tuple[Finding, ...]:
        left = sorted((pair.line, image) for image, pair in self._pairs.items() if image not in self._asked)
        return tuple(
            found("unused-line", f"no task uses {image!r}", self._images.where(line)) for line, image in left
        )


class ByRule:
    """By the naming rule, as ``resolve`` finds a reference; colliding names match nothing."""

    def __init__(self, images: Iterable[str], files: Files, listing: Listing, manifest: Manifest) -> None:
        self._files = files
        self._names = Names(listing.blobs, manifest, place="the folder")
        plan = plan_names(images, manifest.naming.rule, Aliases(manifest.aliases))
        self._clash = {r: c for c in plan.collisions for r in c.references}
        self._misses = 0

    def find(self, image: str) -> str | Finding:
        if image.endswith(".sif") and image.startswith("/"):
            return self._files.find(image)
        clash = self._clash.get(image)
        if clash is not None:
            others = _few([r for r in clash.references if r != image])
            return found("name-collision", f"{' and '.join(clash.names)} would be the name of {others} too")
        try:
            path = self._names.find(image).path
        except AmbiguousError as e:
            return found("ambiguous-name", e.message)
        except (MissError, ReferenceInvalidError) as e:
            self._misses += 1
            hint = e.hint if self._misses <= MANY_MISSES else ""
            return found("no-file", e.message + (f" ({hint})" if hint.startswith("nearest: ") else ""))
        return self._files.find(path)

    def unused(self) -> tuple[Finding, ...]:
        return ()


class ByPath:
    """By a path that an index gives."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def find(self, image: str) -> str | Finding:
        return self._files.find(image)

    def unused(self) -> tuple[Finding, ...]:
        return ()


@dataclass(frozen=True)
class Ask:
    """The rows of one variant, and how they find their files."""

    variant: str
    rows: Sequence[Row]
    matcher: Matcher
    references: bool = True
    """Whether the rows' images are references, of which several may name one image."""


@dataclass
class _Variant:
    tasks: dict[str, str] = field(default_factory=dict)
    images: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Task -> (image, where) of its first row."""
    conflicting: set[str] = field(default_factory=set)


def plan_adoption(asks: Sequence[Ask], listing: Listing) -> Adoption:
    """Match every row of every ask against the folder's ``listing``."""
    unmatched: list[Unmatched] = []
    variants: dict[str, _Variant] = {}
    references: dict[str, dict[str, None]] = {}
    for ask in asks:
        variant = variants.setdefault(ask.variant, _Variant())
        known: dict[str, str | Finding] = {}
        for row in ask.rows:
            result = _match(row, ask.matcher, known)
            if isinstance(result, Finding):
                unmatched.append(Unmatched(ask.variant, row.task, row.image, row.where, result))
                continue
            assert row.task is not None
            assert row.image is not None
            if variant.tasks.setdefault(row.task, result) != result:
                variant.conflicting.add(row.task)
                first = variant.images[row.task]
                message = f"{first[1]} gives it {first[0]!r}, another image"
                unmatched.append(
                    Unmatched(
                        ask.variant,
                        row.task,
                        row.image,
                        row.where,
                        found("duplicate-row", message, row.where),
                    )
                )
                continue
            variant.images.setdefault(row.task, (row.image, row.where))
            if ask.references:
                references.setdefault(result, {})[without_scheme(row.image)] = None
    _drop_conflicts(variants, unmatched)
    clashes = case_clashes(p for p, blob in listing.blobs.items() if blob.trouble is None)
    _drop_clashes(variants, clashes, unmatched)
    chosen = {name: dict(v.tasks) for name, v in variants.items() if v.tasks}
    named = frozenset(path for tasks in chosen.values() for path in tasks.values())
    return Adoption(
        variants=chosen,
        rows={name: sum(len(a.rows) for a in asks if a.variant == name) for name in variants},
        unmatched=tuple(unmatched),
        unmapped=orphans(listing, named),
        aliases={p: tuple(refs) for p, refs in sorted(references.items()) if len(refs) > 1},
        clashes=clashes,
        unused=tuple(f for ask in asks for f in ask.matcher.unused()),
    )


def _few(names: Collection[str]) -> str:
    """The first of ``names``: who shares one file is told of each row, so all names would be their square."""
    first = nsmallest(FEW, names)
    return ", ".join(first) + (f" and {len(names) - FEW:,} more" if len(names) > FEW else "")


def _match(row: Row, matcher: Matcher, known: dict[str, str | Finding]) -> str | Finding:
    """The row's file; each image is looked for once."""
    if row.trouble is not None or row.task is None:
        return found("bad-row", row.trouble or "the row has no task id", row.where)
    if trouble := name_trouble(row.task):
        return found("bad-row", f"the task id {row.task[:80]!r} {trouble}", row.where)
    if not row.image or not row.image.strip():
        return found("row-without-image", "no image is named for the task", row.where)
    if row.image not in known:
        known[row.image] = matcher.find(row.image)
    return known[row.image]


def _drop_conflicts(variants: Mapping[str, _Variant], unmatched: list[Unmatched]) -> None:
    """A task that two rows give different images has none: which of the two is right is not ours to say."""
    for name, variant in variants.items():
        for task in sorted(variant.conflicting):
            image, where = variant.images[task]
            variant.tasks.pop(task)
            message = "another row gives it another image"
            unmatched.append(Unmatched(name, task, image, where, found("duplicate-row", message, where)))


def _drop_clashes(
    variants: Mapping[str, _Variant], clashes: Sequence[Sequence[str]], unmatched: list[Unmatched]
) -> None:
    """An index may not name two paths that differ only in case, so neither is named."""
    clashing = {path for group in clashes for path in group}
    users_of: dict[str, list[tuple[str, str, str]]] = {}
    for name, variant in variants.items():
        for task, path in variant.tasks.items():
            if path in clashing:
                users_of.setdefault(path, []).append((name, task, path))
    for group in clashes:
        users = [user for path in group for user in users_of.get(path, ())]
        if len({path for _, _, path in users}) < 2:
            continue
        for name, task, path in users:
            image, where = variants[name].images[task]
            others = _few([p for p in group if p != path])
            finding = found("case-clash", f"{path} differs only in case or Unicode form from {others}", where)
            variants[name].tasks.pop(task)
            unmatched.append(Unmatched(name, task, image, where, finding))
