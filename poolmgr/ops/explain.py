"""Collects every distinct environment of datasets with what its build reads, to be explained."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

from poolmgr.errors import NothingComparedError
from poolmgr.harbor import buildhash, dockerfile, envhash
from poolmgr.harbor.archive import Limits
from poolmgr.harbor.source import Found, tasks
from poolmgr.harbor.tree import Tree
from poolmgr.model.environment import Definition, Environment, NotTask, Scheme, Task
from poolmgr.ops.progress import Progress
from poolmgr.ops.survey import find
from poolmgr.plan.drivers import Explanation, Facts, explain
from poolmgr.plan.environments import Count, tally

HARBOR = frozenset({Scheme.HARBOR})


def explain_datasets(
    addresses: Sequence[str], *, limits: Limits | None = None, progress: Progress | None = None
) -> tuple[Explanation, list[Count]]:
    """Why the datasets at ``addresses`` together have as many environments as they have.

    Environments that Harbor cannot hash are in the counts' ``unhashed`` and not in the explanation.
    Raises ``NothingComparedError`` where no task was found.
    """
    seen: dict[str, Facts] = {}
    used: Counter[str] = Counter()

    def items() -> Iterator[Task | NotTask]:
        for found in tasks(find(addresses), HARBOR, limits):
            _collect(found, seen, used)
            if progress is not None:
                progress.file_done(found.item.where)
            yield found.item

    if progress is not None:
        progress.begin("reading environments", files=0)
    try:
        counts = tally(items())
    finally:
        if progress is not None:
            progress.end()
    if not seen:
        raise NothingComparedError(
            f"{', '.join(addresses)}: no environment that could be hashed",
            hint="'poolmgr env count' tells what was found instead",
        )
    facts = [
        Facts(f.hash, used[f.hash], f.files, f.raw, f.parsed, f.read, f.docker_image) for f in seen.values()
    ]
    return explain(facts), counts


def _collect(found: Found, seen: dict[str, Facts], used: Counter[str]) -> None:
    if not isinstance(found.item, Task) or found.tree is None:
        return
    for digest in {e.hash for e in found.item.environments if e.hash is not None}:
        used[digest] += 1
    for environment in found.item.environments:
        if environment.hash is not None and environment.hash not in seen:
            seen[environment.hash] = _facts(found.tree, environment, environment.hash)


def _facts(tree: Tree, environment: Environment, digest: str) -> Facts:
    base = tree.resolve(environment.folder)
    entries = tree.entries(base)
    paths = envhash.hashed_files(entries)
    files = {path: _sha256(tree, f"{base}/{path}") for path in paths}
    raw = b""
    parsed = None
    read: frozenset[str] = frozenset()
    if environment.definition is Definition.DOCKERFILE and envhash.DOCKERFILE in files:
        try:
            raw = tree.read(f"{base}/{envhash.DOCKERFILE}", dockerfile.MAX_DOCKERFILE)
            parsed = dockerfile.parse(raw)
        except dockerfile.DockerfileError:
            parsed = None
        else:
            ignore = buildhash.read_ignore(tree, base, entries)
            read = frozenset(buildhash.reads(parsed, entries, ignore).paths)
    return Facts(digest, 0, files, raw, parsed, read, environment.docker_image)


def _sha256(tree: Tree, path: str) -> str:
    digest = hashlib.sha256()
    for chunk in tree.chunks(path)[1]:
        digest.update(chunk)
    return digest.hexdigest()
