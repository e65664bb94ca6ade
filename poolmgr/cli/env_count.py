"""``poolmgr env count``: how many distinct environments, and snapshots, datasets need."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from poolmgr.cli import options, text
from poolmgr.cli.env_options import limits_option, schemes_option
from poolmgr.cli.output import Output
from poolmgr.errors import Exit, UsageError
from poolmgr.harbor.archive import Limits
from poolmgr.model.environment import SNAPSHOT_HASH, Definition, Scheme, snapshot_name
from poolmgr.model.finding import Finding, Severity
from poolmgr.ops.environments import count
from poolmgr.plan.environments import DEFAULT_LIMIT, Count, Group, shared, union
from poolmgr.settings import Settings

FEW_NAMES = 5


@click.command("count")
@click.argument("datasets", nargs=-1, metavar="[DATASET...]")
@options.pool
@click.option("--variant", metavar="NAME", help="Count a pool's variant by blob instead (needs -p).")
@click.option(
    "--limit", type=click.IntRange(0), metavar="N",
    help=f"Exit 3 when more than N snapshots are needed. Default: the manifest's, else {DEFAULT_LIMIT}.",
)  # fmt: skip
@click.option("--by", type=click.Choice(["hash"]), help="List the tasks of every environment.")
@click.option("--exact", is_flag=True, help="Print every environment's hash.")
@click.option("--list", "everything", is_flag=True, help="Name every task of every finding.")
@schemes_option
@limits_option
@options.manifest
@options.jobs()
@options.output()
def command(
    datasets: tuple[str, ...], pool: str | None, variant: str | None, limit: int | None, by: str | None,
    exact: bool, everything: bool, schemes: frozenset[Scheme], limits: Limits, manifest: str | None,
    jobs: int | None, out: Output,
) -> Exit:  # fmt: skip
    """Count the distinct environments of datasets, and the Daytona snapshots they need.

    Nothing is unpacked to disk. Environments are told apart as Harbor tells them apart. Exit 3 when
    more snapshots are needed than the limit, or when something could not be read.
    """
    if pool is not None or variant is not None:
        from poolmgr.cli.env_variant import count_pool

        if pool is None or variant is None or datasets:
            raise UsageError("a variant is counted with -p POOL --variant NAME and no DATASET")
        return count_pool(pool, variant, limit, out, manifest)
    if not datasets:
        raise UsageError("no dataset was named", hint="poolmgr env count DATASET…, or -p POOL --variant NAME")
    if limit is None and manifest is not None:
        from poolmgr.store.locate import find_manifest

        limit = find_manifest(manifest, Settings.read()).environments_limit
    limit = DEFAULT_LIMIT if limit is None else limit
    jobs = jobs or min(os.cpu_count() or 1, 8)
    counts = count(datasets, schemes, limits=limits, jobs=jobs, progress=out.progress())
    together = union(counts) if len(counts) > 1 else counts[0]
    over = [c for c in (*counts, *([together] if len(counts) > 1 else [])) if c.snapshots > limit]
    empty = [c for c in counts if not c.tasks]
    verdict = Exit.BAD if over or empty or together.errors else Exit.GOOD
    if len(counts) == 1:
        _block(out, together, limit)
    else:
        _table(out, counts, together, limit)
    _listing(out, together, by == "hash", exact)
    _findings(out, together, everything)
    for c in empty:
        out.line(out.styled("empty", "red") + f": {text.name(c.name)} has no task at all")
    for digest in together.groups:
        out.only_quiet(digest)
    target = Settings.read().daytona_target
    out.document(
        {
            "kind": "env-count",
            "limit": limit,
            "passed": verdict is Exit.GOOD,
            "over_limit": [c.name for c in over],
            "datasets": [_as_json(c, target) for c in counts],
            "together": _numbers(together),
            "shared": [{"hash": h, "datasets": names} for h, names in shared(counts).items()],
        }
    )
    if over:
        out.hint(f"'poolmgr env explain {datasets[0]}' tells why there are so many")
    return verdict


def _block(out: Output, c: Count, limit: int) -> None:
    out.line(out.styled(text.name(c.name), "bold") + f": {text.counted(c.tasks, 'task')}")
    rows = [
        ("environments", text.number(c.environments), f"agent {c.agent:,}, verifier {c.verifier:,}"),
        ("snapshots", text.number(c.snapshots), _against(c.snapshots, limit)),
    ]
    if c.not_tasks:
        rows.insert(0, ("not tasks", text.number(len(c.not_tasks)), _reasons(c)))
    if compose := c.by_definition.get(Definition.COMPOSE):
        rows.append(("compose", text.number(compose), "Docker in Docker: they need no snapshot of their own"))
    if c.image_only:
        rows.append(
            ("image only", text.number(len(c.image_only)), "no Dockerfile: auto_snapshot fails on them")
        )
    if c.groups:
        sizes = c.sizes
        average = sum(sizes) / len(sizes)
        rows.append(
            (
                "reuse",
                f"{average:.1f}",
                f"tasks an environment; largest {sizes[0]:,}, single-use {c.single_use:,}",
            )
        )
    if c.conflicts:
        rows.append(
            ("resources", text.number(len(c.conflicts)), "different resources are asked for under one name")
        )
    if c.unhashed:
        rows.append(("no hash", text.number(len(c.unhashed)), "environments that Harbor cannot hash"))
    for scheme in sorted(c.others.keys() | c.without.keys()):
        found, without = len(c.others.get(scheme, ())), len(c.without.get(scheme, ()))
        rows.append((f"by {scheme}", text.number(found), _compare(scheme, found, c.environments, without)))
    out.table(rows, right=[1], indent=2)


def _against(snapshots: int, limit: int) -> str:
    if snapshots > limit:
        return f"over the limit of {limit:,}"
    return f"within the limit of {limit:,}"


def _compare(scheme: Scheme, found: int, harbor: int, without: int) -> str:
    """``without``: how many of Harbor's have no hash by this scheme, and cannot be compared."""
    if scheme is Scheme.BUILD:
        left = f"; {text.counted(without, 'environment')} without such a hash left out" if without else ""
        if not found:
            return f"what builds really read: nothing could be compared{left}"
        over = harbor - without - found
        if over == 0:
            return f"what builds really read: as many as Harbor counts{left}"
        word = "over" if over > 0 else "under"
        return f"what builds really read: Harbor is {abs(over):,} {word}{left}"
    return {Scheme.LEGACY: "Harbor up to 0.17 and the forks"}.get(scheme, "the text of the Dockerfile alone")


def _reasons(c: Count) -> str:
    return ", ".join(f"{code} {n:,}" for code, n in sorted(c.reasons.items()))


def _table(out: Output, counts: Sequence[Count], together: Count, limit: int) -> None:
    """One line a dataset, with the columns in which anything stands; then all of them as one."""
    columns: dict[str, Callable[[Count], int]] = {
        "tasks": lambda c: c.tasks,
        "not tasks": lambda c: len(c.not_tasks),
        "environments": lambda c: c.environments,
        "snapshots": lambda c: c.snapshots,
        "compose": lambda c: c.by_definition.get(Definition.COMPOSE, 0),
        "image only": lambda c: len(c.image_only),
        **{
            f"by {scheme}": lambda c, scheme=scheme: len(c.others.get(scheme, ()))  # type: ignore[misc]
            for scheme in sorted(together.others)
        },
    }
    always = ("tasks", "environments", "snapshots")
    kept = {name: of for name, of in columns.items() if name in always or any(map(of, counts))}
    rows = [
        [
            text.name(c.name),
            *(text.number(of(c)) for of in kept.values()),
            "over" if c.snapshots > limit else "",
        ]
        for c in counts
    ]
    out.table(rows, ["dataset", *kept, ""], right=range(1, 1 + len(kept)))
    out.line()
    _block(out, together, limit)
    both = text.counted(len(shared(counts)), "environment")
    out.line(f"  shared by two or more of the datasets: {both}")


def _listing(out: Output, c: Count, by_hash: bool, exact: bool) -> None:
    if not (by_hash or exact):
        return
    out.line()
    for group in sorted(c.groups.values(), key=lambda g: (-len(g.task_names), g.hash)):
        names = group.task_names
        digest = group.hash if exact else group.hash[:SNAPSHOT_HASH]
        out.line(f"{digest}  {text.counted(len(names), 'task')}  {group.definition}")
        if by_hash:
            for name in names:
                out.line(f"    {text.name(name)}")


def _findings(out: Output, c: Count, everything: bool) -> None:
    grouped: dict[tuple[str, str], tuple[Finding, list[str]]] = {}
    for _, task, found in c.findings:
        if found.severity is Severity.NOTE and not everything:
            continue
        grouped.setdefault((found.code, str(found)), (found, []))[1].append(task)
    for found, names in grouped.values():
        color = "red" if found.severity is Severity.ERROR else "yellow"
        shown = names if everything else names[:FEW_NAMES]
        more = f" and {len(names) - len(shown):,} more (--list)" if len(shown) < len(names) else ""
        out.line(
            out.styled(found.code, color) + f"  {text.name(', '.join(shown))}{more}: {text.name(str(found))}"
        )
    for group in c.conflicts:
        asked = "; ".join(f"{r} ({n:,})" for r, n in group.resources.most_common())
        out.line(out.styled("resources", "yellow") + f"  {group.hash[:SNAPSHOT_HASH]}: {asked}")


def _numbers(c: Count) -> dict[str, Any]:
    sizes = c.sizes
    return {
        "tasks": c.tasks,
        "not_tasks": len(c.not_tasks),
        "environments": c.environments,
        "agent": c.agent,
        "verifier": c.verifier,
        "snapshots": c.snapshots,
        "compose": c.by_definition.get(Definition.COMPOSE, 0),
        "image_only": len(c.image_only),
        "undefined": c.by_definition.get(Definition.NONE, 0),
        "unhashed": len(c.unhashed),
        "largest": sizes[0] if sizes else 0,
        "average": round(sum(sizes) / len(sizes), 3) if sizes else 0,
        "single_use": c.single_use,
        "conflicting_resources": len(c.conflicts),
        "by_scheme": {scheme.value: len(found) for scheme, found in sorted(c.others.items())},
        "without_by_scheme": {scheme.value: len(found) for scheme, found in sorted(c.without.items())},
    }


def _as_json(c: Count, target: str | None) -> dict[str, Any]:
    return {
        "dataset": c.name,
        **_numbers(c),
        "reasons": dict(c.reasons),
        "groups": [_group_json(group, target) for group in c.groups.values()],
        "not_task_list": [{"name": n.name, "where": n.where, **n.finding.as_json()} for n in c.not_tasks],
        "findings": [{"task": task, **found.as_json()} for _, task, found in c.findings],
    }


def _group_json(group: Group, target: str | None) -> dict[str, Any]:
    return {
        "hash": group.hash,
        "snapshot": snapshot_name(group.hash, target) if group.needs_snapshot else None,
        "definition": group.definition.value,
        "docker_image": group.first.docker_image,
        "tasks": group.task_names,
        "roles": sorted({role for _, _, role in group.tasks}),
        "resources": [{**r.as_json(), "tasks": n} for r, n in group.resources.most_common()],
    }
