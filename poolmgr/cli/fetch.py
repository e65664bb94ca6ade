"""``poolmgr fetch``: bring variants of a pool into a local mirror, proven whole."""

from __future__ import annotations

import re
from pathlib import Path

import click

from poolmgr.cli import options, text
from poolmgr.cli.output import Output
from poolmgr.errors import Exit, PoolLacksBlobsError, UsageError
from poolmgr.ops.fetch import DEFAULT_RESERVE, Fetch, Fetched, Request, failures
from poolmgr.ops.transfer import Result
from poolmgr.ops.view import open_pool
from poolmgr.plan.item import Item, State
from poolmgr.plan.transfer import FetchPlan
from poolmgr.settings import Settings

_SHOWN = {
    State.PROVEN: "proven before",
    State.UNPROVEN: "there, to be hashed",
    State.ELSEWHERE: "there under another name, to be copied",
    State.PARTIAL: "begun, to be continued",
    State.WRONG: "wrong, to be replaced",
    State.MISSING: "missing, to be fetched",
    State.QUARANTINED: "in quarantine, not fetched again",
    State.LACKING: "not in the pool",
}
SHOWN_NOTES = 5
"""Of many hints that cannot be used, so many are shown: each costs bytes and nothing else."""
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


class Size(click.ParamType[int]):
    """Bytes, bare or with a unit: ``500MB``, ``2GiB``."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})\s*([kmgt]i?|)b?", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a size such as 500MB or 2GiB", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


@click.command()
@click.argument("variants", nargs=-1, metavar="VARIANT...")
@click.option(
    "--to",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The folder to make a mirror of.",
)
@click.option("--all", "everything", is_flag=True, help="Every variant of the pool.")
@options.tasks
@click.option("--transfer", type=click.Choice(["auto", "http", "xet"]), default="auto", show_default=True,
              help="How bytes come from the Hub: ranged HTTP resumes inside a file, "
              "Xet needs fewer requests.")  # fmt: skip
@click.option("--rehash", is_flag=True, help="Hash again what was proven before.")
@click.option(
    "--allow-missing", is_flag=True, help="Fetch what there is although blobs are missing (still exit 3)."
)
@click.option("--allow-legacy", is_flag=True, help="Take bare and Singularity 2 squashfs images for valid.")
@click.option(
    "--adopt-existing", is_flag=True, help="Make a mirror of a folder that holds somebody else's index."
)
@click.option("--reserve", type=Size(), default=DEFAULT_RESERVE, metavar="SIZE", show_default="1GB",
              help="Room to leave free on the destination.")  # fmt: skip
@options.pool
@options.manifest
@options.jobs(8)
@options.dry_run
@options.output(lines=True)
def fetch(
    variants: tuple[str, ...], to: Path, everything: bool, tasks: str | None, transfer: str, rehash: bool,
    allow_missing: bool, allow_legacy: bool, adopt_existing: bool, reserve: int, pool: str | None,
    manifest: str | None, jobs: int, dry_run: bool, out: Output,
) -> Exit:  # fmt: skip
    """Bring variants of a pool into a local folder, and prove that they are whole.

    Only the blobs that the variants need are fetched. Each is hashed as it arrives, compared with
    the pool's listing at one commit, checked as an image, and only then given its name. Run again
    after any interruption: finished blobs are not fetched again, begun ones are continued.
    """
    if everything and variants:
        raise UsageError("--all and named variants exclude each other")
    if not everything and not variants:
        raise UsageError(
            "no variant was named", hint="name one or more, or give --all; 'poolmgr status' lists them"
        )
    progress = out.progress()
    view = open_pool(pool, Settings.read(), manifest=manifest, on_retry=progress.note)
    request = Request(
        to=to,
        variants=variants,
        tasks=options.read_tasks(tasks) if tasks is not None else None,
        jobs=jobs,
        reserve=reserve,
        rehash=rehash,
        allow_missing=allow_missing,
        allow_legacy=allow_legacy,
        adopt_existing=adopt_existing,
    )
    run = Fetch(view, request, progress, transfer)
    plan = run.plan()
    _show_plan(out, run, plan)
    if dry_run:
        for item in plan.items:
            out.row("image", **_item_row(item), action=item.state.value)
            if item.state not in (State.LACKING, State.QUARANTINED):
                out.only_quiet(item.blob.path)
        out.row("summary", **_plan_row(run, plan), dry_run=True)
        try:
            run.check(plan)
        except PoolLacksBlobsError as e:
            out.warn(e.message)
            return Exit.BAD
        return Exit.BAD if plan.of(State.LACKING) or plan.findings else Exit.GOOD
    fetched = run.carry_out(plan)
    _show_rows(out, plan, fetched)
    _show_certificate(out, run, fetched)
    return fetched.exit


# --- the plan ------------------------------------------------------------------------------------


def _show_plan(out: Output, run: Fetch, plan: FetchPlan) -> None:
    commit = run.view.store.commit
    out.line(f"pool  {text.name(run.view.address)}" + (f" at commit {commit[:12]}" if commit else ""))
    out.line(f"to    {text.name(str(run.request.to))}")
    for variant, tasks in plan.variants.items():
        of = f" of {plan.totals[variant]:,}" if len(tasks) != plan.totals[variant] else ""
        blobs = len(set(tasks.values()))
        out.line(f"      {text.name(variant)}: {len(tasks):,}{of} tasks on {text.counted(blobs, 'blob')}")
    rows = []
    for state, words in _SHOWN.items():
        items = plan.of(state)
        if items:
            size = sum(i.blob.size for i in items)
            coming = sum(i.transfer for i in items)
            rows.append([words, f"{len(items):,}", text.size(size), text.size(coming) if coming else ""])
    out.table(rows, ["blobs", "count", "size", "to transfer"], right=(1, 2, 3))
    made = [i for i in plan.items if i.base is not None]
    if made:
        out.line(
            f"saved {text.size(plan.saved)}: {text.counted(len(made), 'blob')} to be made of "
            + ("its base" if len(made) == 1 else "their bases")
        )
    out.line(f"free  {text.size(run.free())}, of which {text.size(run.request.reserve)} stay free")
    for finding in plan.findings:
        out.warn(str(finding))
    for note in plan.notes[:SHOWN_NOTES]:
        out.warn(note)
    if len(plan.notes) > SHOWN_NOTES:
        out.warn(f"{len(plan.notes) - SHOWN_NOTES:,} more blobs whose shared_ranges cannot be")


def _item_row(item: Item) -> dict[str, object]:
    row: dict[str, object] = {"path": item.blob.path, "size": item.blob.size, "sha256": item.blob.sha256}
    row |= {"tasks": list(item.tasks), "state": item.state.value, "transfer": item.transfer}
    if item.base is not None:
        row |= {"base": item.base.path, "saved": item.saved}
    if item.finding:
        row["findings"] = [item.finding.as_json()]
    return row


def _plan_row(run: Fetch, plan: FetchPlan) -> dict[str, object]:
    return {
        "pool": run.view.address,
        "commit": run.view.store.commit,
        "to": str(run.request.to),
        "variants": {v: {"tasks": len(t), "of": plan.totals[v]} for v, t in plan.variants.items()},
        "tasks": plan.tasks,
        "blobs": len(plan.items),
        "bytes": plan.size,
        "to_transfer": plan.transfer,
        "saved": plan.saved,
        "states": {s.value: len(plan.of(s)) for s in State},
        "findings": [f.as_json() for f in plan.findings],
    }


# --- the certificate -----------------------------------------------------------------------------


def _show_rows(out: Output, plan: FetchPlan, fetched: Fetched) -> None:
    for item in plan.of(State.PROVEN):
        out.row("image", **_item_row(item), result=Result.KEPT.value, transferred=0)
        out.only_quiet(item.blob.path)
    for outcome in fetched.outcomes:
        row = _item_row(outcome.item)
        if outcome.findings:
            row["findings"] = [f.as_json() for f in outcome.findings]
        out.row(
            "image", **row, result=outcome.result.value, transferred=outcome.transferred,
            reused_bytes=outcome.reused,
        )  # fmt: skip
        if outcome.good:
            out.only_quiet(outcome.item.blob.path)
    for item in plan.of(State.LACKING):
        out.row("image", **_item_row(item), result="lacking", transferred=0)


def _show_certificate(out: Output, run: Fetch, fetched: Fetched) -> None:
    plan = fetched.plan
    bad = failures(fetched)
    lacking = plan.of(State.LACKING)
    if bad or lacking:
        out.line()
        for outcome, why in bad:
            out.line(
                out.styled(f"{outcome.result.value}  ", "red")
                + f"{text.name(outcome.item.blob.path)}: {text.name(why)}"
            )
            out.line(f"    needed by {text.name(', '.join(outcome.item.tasks))}")
        for item in lacking:
            out.line(out.styled("lacking  ", "red") + f"{text.name(item.blob.path)}: {item.finding}")
            out.line(f"    needed by {text.name(', '.join(item.tasks))}")
    for path in fetched.damaged:
        out.line(
            out.styled("damaged  ", "red")
            + f"{text.name(path)}: it lies in the mirror and has not the bytes any more that were proven"
        )
    if fetched.damaged:
        out.hint("--rehash hashes every file of the mirror again, and fetches what is wrong")
    counts = {r: sum(o.result is r for o in fetched.outcomes) for r in Result}
    kept = counts[Result.KEPT] + len(plan.of(State.PROVEN))
    out.line()
    words = [
        f"{text.counted(counts[Result.TRANSFERRED], 'blob')} transferred ({text.size(fetched.transferred)})",
        f"{kept:,} kept",
    ]
    if counts[Result.COPIED]:
        words.append(f"{counts[Result.COPIED]:,} copied")
    if fetched.reused:
        words.append(f"{text.size(fetched.reused)} taken from bases that were here")
    not_proven = len(bad) + len(lacking) + sum(i.blob.path in fetched.damaged for i in plan.of(State.PROVEN))
    words.append(f"{not_proven:,} failed")
    out.line(", ".join(words))
    for note in fetched.notes:
        out.warn(note)
    for variant, tasks in plan.variants.items():
        paths = set(tasks.values())
        out.row(
            "variant", variant=variant, tasks=len(tasks), of=plan.totals[variant], blobs=len(paths),
            locked=variant in fetched.locked,
        )  # fmt: skip
    verdict = fetched.exit
    if verdict is Exit.GOOD:
        says = out.styled("proven", "green")
        whole = sum(plan.totals.values())
        of = f"all {plan.tasks:,}" if plan.tasks == whole else f"{plan.tasks:,} of {whole:,}"
        out.line(
            f"{says}: {of} tasks have their image, "
            f"{text.counted(len(plan.items), 'blob')}, {text.size(plan.size)}"
        )
    elif not_proven == 0:
        but = [str(f) for f in plan.findings]
        if fetched.damaged:
            but.append(f"{text.counted(len(fetched.damaged), 'other file')} of the mirror lost its bytes")
        out.line("every blob is proven, but: " + "; ".join(but))
    else:
        out.line(
            out.styled("not whole", "red") + f": {fetched.proven:,} of {len(plan.items):,} blobs are proven"
        )
        if verdict is Exit.AGAIN:
            out.hint("the trouble was passing: run the same command again to go on")
        elif not fetched.locked:
            out.hint("no lock was written; --allow-missing makes a mirror of what there is")
    out.row(
        "summary", **_plan_row(run, plan), proven=fetched.proven, transferred=counts[Result.TRANSFERRED],
        transferred_bytes=fetched.transferred, reused=kept + counts[Result.COPIED],
        reused_bytes=fetched.reused, failed=not_proven, damaged=list(fetched.damaged),
        results={r.value: n for r, n in counts.items() if n}, locked=list(fetched.locked),
        verdict=_word(fetched, not_proven),
        exit=int(verdict),
    )  # fmt: skip


def _word(fetched: Fetched, not_proven: int) -> str:
    """The verdict, for the summary row."""
    if fetched.exit is Exit.GOOD:
        return "proven"
    if not_proven:
        return "not whole"
    return "damaged" if fetched.damaged else "other task count"
