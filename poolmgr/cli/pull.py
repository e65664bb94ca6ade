"""``poolmgr pull``: references of registries -> verified SIFs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from poolmgr.cli import options, text
from poolmgr.cli.causes import SHOWN, causes, error_fields, more
from poolmgr.cli.output import Output
from poolmgr.errors import BadFileError, Exit, PoolError, UsageError
from poolmgr.model.manifest import Manifest
from poolmgr.ops.pull import Pull
from poolmgr.ops.pull_facts import Outcome, Planned, Pulls, Request, Result, exit_of, names_in
from poolmgr.ops.view import PoolView
from poolmgr.plan.pull import Item, PullPlan, Refused, Wanted, parse_list, plan_pull
from poolmgr.plan.shard import ArrayTask, Shard, parse_shard
from poolmgr.settings import Settings, registry_login_files, slurm_array
from poolmgr.store.base import OnRetry

MAX_LIST = 256 << 20
ALL = "--all"


@click.command()
@click.argument("references", metavar="[REF…|PATH…]", nargs=-1)
@click.option(
    "--to", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
    help="The folder for the images; 'push' takes it as it is.",
)  # fmt: skip
@click.option(
    "--list", "list_file", metavar="TSV",
    help="Also the references in TSV ('-': stdin), one a line; after a tab, if wanted, the file's name.",
)  # fmt: skip
@click.option("--dataset", metavar="DATASET", help="Also the image of every task of a dataset.")
@options.pool
@options.manifest
@options.arch
@click.option("--shard", metavar="I/N", help="Only the I-th of N slices, told by file name (auto: Slurm's).")
@click.option(
    "--no-https", "insecure", metavar="HOST[:PORT]", multiple=True,
    help="Speak plain HTTP with this registry, and no other.",
)  # fmt: skip
@click.option(
    "--per-registry", type=click.IntRange(1, 64), default=4, show_default=True, metavar="N",
    help="Builds at once from one registry.",
)  # fmt: skip
@click.option(
    "--check", is_flag=True,
    help="Pull again and say whether stored files (PATH…, REF… in POOL, or all of POOL) hold what their "
    "references hold now; nothing is changed.",
)  # fmt: skip
@click.option("--no-identity", is_flag=True, help="Do not compute the tree identity of what is built.")
@click.option("--all", "everything", is_flag=True, help="Name every image, not the first few.")
@options.jobs(4)
@options.dry_run
@options.output(lines=True)
def pull(
    references: tuple[str, ...],
    to: Path | None,
    list_file: str | None,
    dataset: str | None,
    pool: str | None,
    manifest: str | None,
    arch: str | None,
    shard: str | None,
    insecure: tuple[str, ...],
    per_registry: int,
    check: bool,
    no_identity: bool,
    everything: bool,
    jobs: int,
    dry_run: bool,
    out: Output,
) -> Exit:
    """Build verified images from the references of registries.

    Each image is looked up first, pulled by the digest that was found, checked, and only then given
    its name; nothing is overwritten. With -p, what the pool has already is not pulled. Run again
    after any interruption: what is there is kept.
    """
    from poolmgr.sif.header import host_arch
    from poolmgr.store.oci import Registries
    from poolmgr.store.oci_login import logins

    if check == (to is not None):
        raise UsageError(
            "--check stores nothing, so --to does not go with it" if check else "no folder was named",
            hint="leave out --to" if check else "give --to DIR",
        )
    settings = Settings.read()
    progress = out.progress()
    view, rules = _rules(pool, manifest, settings, progress.note)
    paths = [word for word in references if check and _is_path(word)]
    words = [word for word in references if word not in paths]
    slice_ = _shard(shard)
    chosen = plan_pull(_wanted(words, list_file, dataset, settings, progress.note), rules, slice_)
    machine = arch or rules.gates.arch or host_arch()
    registries = Registries(logins(registry_login_files()), progress.note, insecure=insecure)
    if to is None:
        from poolmgr.cli.pull_check import check_all

        request = Request(Path(), machine, jobs, per_registry)
        return check_all(
            out,
            view,
            paths,
            chosen,
            request,
            registries,
            progress,
            slice_,
            dry_run=dry_run,
            everything=everything,
        )
    names = names_in(view) if view is not None else None
    request = Request(to, machine, jobs, per_registry, not no_identity, there=names)
    run = Pull(chosen, request, registries, progress)
    if not dry_run:
        run.ready()
    plan = run.plan()
    if dry_run:
        return _dry(out, to, chosen, plan, everything=everything)
    pulls = run.carry_out(plan)
    _show(out, to, pulls, everything=everything)
    return pulls.exit


def _is_path(word: str) -> bool:
    return word.startswith(("/", "./", "../", "~")) or word.endswith(".sif") or Path(word).is_file()


def _rules(
    pool: str | None, manifest: str | None, settings: Settings, note: OnRetry
) -> tuple[PoolView | None, Manifest]:
    """The pool that ``-p`` gave, and the manifest that names the files."""
    from poolmgr.ops.view import open_pool
    from poolmgr.store.locate import find_manifest

    if pool is not None:
        view = open_pool(pool, settings, manifest=manifest, on_retry=note)
        return view, view.manifest
    return None, find_manifest(manifest, settings) if manifest is not None else Manifest()


def _wanted(
    references: Iterable[str],
    list_file: str | None,
    dataset: str | None,
    settings: Settings,
    note: OnRetry,
) -> Iterable[Wanted]:
    found = [Wanted(reference) for reference in references]
    if list_file is not None:
        try:
            with click.open_file(list_file, "rb") as file:
                data = file.read(MAX_LIST + 1)
            if len(data) > MAX_LIST:
                raise BadFileError(f"--list {list_file}: more than {MAX_LIST:,} bytes")
            found += parse_list(data.decode("utf-8"), list_file)
        except (OSError, UnicodeDecodeError) as e:
            raise BadFileError(f"--list {list_file}: {getattr(e, 'strerror', None) or e}") from None
    if dataset is not None:
        from poolmgr.ops.dataset import open_dataset

        for row in open_dataset(dataset, settings, on_retry=note).rows:
            trouble = row.trouble or (None if row.image else "it names no image")
            found.append(Wanted(row.image or "", task=row.task, where=row.where, trouble=trouble))
    return found


def _shard(text: str | None) -> Shard | None:
    if text is None:
        return None
    found = slurm_array()
    return parse_shard(text, ArrayTask(**found) if found else None)


# --- what is printed ---------------------------------------------------------------------------------


def _dry(out: Output, to: Path, chosen: PullPlan, plan: tuple[Planned, ...], *, everything: bool) -> Exit:
    rows = [[text.name(p.item.name), _state(p), p.item.source] for p in plan if p.error is None]
    out.table(rows if everything else rows[:SHOWN], ["file", "state", "image"])
    more(out, len(rows), everything=everything, option=ALL)
    for p in plan:
        if p.error is None and p.in_pool is None:
            out.only_quiet(str(to / p.item.name))
        out.row(
            "image", **_item(p.item), result="failed" if p.error else _state(p), source_digest=p.digest,
            blob=p.in_pool, **error_fields(p.error),
        )  # fmt: skip
    errors = _errors([(p.item, p.error) for p in plan], chosen.refused)
    _refused(out, chosen.refused)
    causes(out, errors, everything=everything, option=ALL)
    states = [_state(p) for p in plan if p.error is None]
    counts = {name: states.count(name) for name in ("to-pull", "there", "in-pool")}
    out.line(
        f"{counts['to-pull']:,} to pull, {counts['there']:,} there, {counts['in-pool']:,} in the pool, "
        f"{len(errors):,} cannot be pulled{text.elsewhere(chosen.elsewhere)}"
    )
    out.row(
        "summary", dry_run=True, images=len(plan), to_pull=counts["to-pull"], there=counts["there"],
        in_pool=counts["in-pool"], failed=len(errors), other_shards=chosen.elsewhere,
        verdict="bad" if errors else "ok",
    )  # fmt: skip
    return exit_of([error for _, error in errors])


def _show(out: Output, to: Path, pulls: Pulls, *, everything: bool) -> None:
    good = [o for o in pulls.outcomes if o.result not in (Result.FAILED, Result.UNTRIED)]
    rows = [
        [
            text.name(o.row.file if o.row else o.blob or ""),
            o.result.value,
            text.size(o.row.size) if o.row else "",
            o.item.source,
        ]
        for o in good
    ]
    out.table(rows if everything else rows[:SHOWN], ["file", "result", "size", "image"], right=(2,))
    more(out, len(rows), everything=everything, option=ALL)
    for o in pulls.outcomes:
        if o.row is not None:
            out.only_quiet(str(to / o.row.file))
        out.row("image", **{**_item(o.item), **_result(o)})
    _refused(out, pulls.refused)
    errors = _errors([(o.item, o.error) for o in pulls.outcomes], pulls.refused)
    causes(out, errors, everything=everything, option=ALL)
    counts = {result: len(pulls.of(result)) for result in Result}
    line = f"{counts[Result.PULLED]:,} pulled, {counts[Result.KEPT]:,} kept"
    if counts[Result.IN_POOL]:
        line += f", {counts[Result.IN_POOL]:,} in the pool"
    line += f", {len(errors):,} failed"
    if counts[Result.UNTRIED]:
        line += f", {counts[Result.UNTRIED]:,} not tried"
    out.line(line + text.elsewhere(pulls.elsewhere))
    if pulls.stopped_by is not None and counts[Result.UNTRIED]:
        out.warn(f"stopped early: every further image would meet {pulls.stopped_by.code}")
    for name, path in (("record", pulls.listing), ("map", pulls.map)):
        if path is not None:
            out.line(f"{name:<6}  {text.name(str(path))}")
    out.row(
        "summary", pulled=counts[Result.PULLED], kept=counts[Result.KEPT], in_pool=counts[Result.IN_POOL],
        failed=len(errors), untried=counts[Result.UNTRIED], other_shards=pulls.elsewhere,
        causes={code: sum(e.code == code for _, e in errors) for code in sorted({e.code for _, e in errors})},
        record=str(pulls.listing) if pulls.listing else None, map=str(pulls.map) if pulls.map else None,
        verdict="bad" if errors or counts[Result.UNTRIED] else "ok",
    )  # fmt: skip


def _errors(
    items: Iterable[tuple[Item, PoolError | None]], refused: Iterable[Refused]
) -> list[tuple[str, PoolError]]:
    """Every failure; the messages name the image themselves."""
    return [("", error) for _, error in items if error] + [("", r.error) for r in refused]


def _refused(out: Output, refused: Iterable[Refused]) -> None:
    for r in refused:
        out.row("image", reference=r.given, tasks=list(r.tasks), result="failed", **error_fields(r.error))


def _state(p: Planned) -> str:
    return "there" if p.there else "in-pool" if p.in_pool else "to-pull"


def _item(item: Item) -> dict[str, object]:
    return {
        "file": item.name,
        "source": item.source,
        "references": list(item.given),
        "tasks": list(item.tasks),
    }


def _result(o: Outcome) -> dict[str, object]:
    if o.row is not None:
        return {"result": o.result.value, **o.row.row(), "source": o.item.source}
    blob = {"blob": o.blob} if o.blob else {}
    return {"result": o.result.value, **blob, **error_fields(o.error)}
