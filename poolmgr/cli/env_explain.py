"""``poolmgr env explain``: why a dataset needs as many environments as it does."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

import click

from poolmgr.cli import options, text
from poolmgr.cli.env_options import limits_option
from poolmgr.cli.output import Output
from poolmgr.errors import Exit
from poolmgr.harbor.archive import Limits
from poolmgr.ops.explain import explain_datasets
from poolmgr.plan.drivers import Driver, Explanation
from poolmgr.plan.environments import DEFAULT_LIMIT
from poolmgr.plan.wording import Kind

FEW = 12
MAX_WIDTH = 100
COLUMN = 19
"""Where the text begins, right of the two numbers."""


@click.command("explain")
@click.argument("datasets", nargs=-1, required=True, metavar="DATASET...")
@click.option("--list", "everything", is_flag=True, help="Show every driver and step, not the first ones.")
@limits_option
@options.output()
def command(datasets: tuple[str, ...], everything: bool, limits: Limits, out: Output) -> Exit:
    """Tell why datasets need as many environments as they do, and what would bring the number down.

    Every environment is taken apart into what can differ: the base image, each instruction and the
    tokens in it, each file, and bytes that no build reads. For each the environments are counted
    again as if it were the same in all. Exit 3 when something could not be read.
    """
    explanation, counts = explain_datasets(datasets, limits=limits, progress=out.progress())
    unhashed = sum(len(c.unhashed) for c in counts)
    errors = [f for c in counts for f in c.errors]
    _head(out, explanation)
    _drivers(out, explanation, everything)
    _steps(out, explanation, everything)
    _floor(out, explanation)
    if unhashed:
        out.line(f"not explained: {text.counted(unhashed, 'environment')} that Harbor cannot hash")
    for _, task, found in errors:
        out.line(out.styled(found.code, "red") + f"  {text.name(task)}: {text.name(str(found))}")
    for driver in explanation.drivers:
        out.only_quiet(driver.name)
    out.document(
        {"kind": "env-explain", **_as_json(explanation), "unhashed": unhashed, "errors": len(errors)}
    )
    return Exit.BAD if errors or unhashed else Exit.GOOD


def _head(out: Output, e: Explanation) -> None:
    out.line(
        out.styled(f"{text.counted(e.tasks, 'task')}, {text.counted(e.environments, 'environment')}", "bold")
    )
    if e.environments == 1:
        out.line("there is nothing to explain: all tasks share one environment")


def _drivers(out: Output, e: Explanation, everything: bool) -> None:
    if not e.drivers:
        return
    out.line()
    out.line("what differs; left: environments if this alone were the same in all")
    out.line()
    out.line(out.styled(f"{'values':>8}{'left':>9}", "dim"))
    shown = e.drivers if everything else e.drivers[:FEW]
    for d in shown:
        _wrap(out, f"{d.values:>8,}{d.remaining:>9,}  {d.kind}: {text.name(d.name)}", COLUMN + 2)
        if len(d.tokens) > 1:
            for token in d.tokens:
                out.line(f"{token.values:>8,}{token.remaining:>9,}    <{token.what}> alone")
        if d.kind not in (Kind.COPIED, Kind.UNREAD, Kind.FILE, Kind.NOISE):
            _wrap(out, " " * COLUMN + f"such as {_examples(d)}", COLUMN + 8, "dim")
        _wrap(out, " " * COLUMN + f"remedy: {d.remedy}", COLUMN + 8, "dim")
    if len(shown) < len(e.drivers):
        out.line(f"and {len(e.drivers) - len(shown):,} more (--list)")


def _examples(d: Driver) -> str:
    """The commonest values, and how many have each; one stands for all where all are different."""
    found = d.examples[:1] if d.examples[0][1] == 1 else d.examples
    return "; ".join(text.name(value) + (f" ({n:,})" if n > 1 else "") for value, n in found)


def _wrap(out: Output, line: str, indent: int, style: str = "") -> None:
    """``line`` over as many lines as it takes, the later ones indented."""
    width = max(60, min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns))
    for part in textwrap.wrap(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    ):
        out.line(out.styled(part, style) if style else part)


def _steps(out: Output, e: Explanation, everything: bool) -> None:
    if not e.steps:
        return
    out.line()
    out.line("the shortest way down, each step on top of the ones before:")
    before = e.environments
    for done, step in enumerate(e.steps, 1):
        names = " + ".join(text.name(name) for name in step.drivers[:3])
        more = f" + {len(step.drivers) - 3} more" if len(step.drivers) > 3 else ""
        line = f"  {before:,} → {step.remaining:,}: {names}{more} ({text.counted(step.values, 'value')})"
        _wrap(out, line, 6)
        for remedy in step.remedies:
            _wrap(out, f"      remedy: {remedy}", 14, "dim")
        before = step.remaining
        if before <= DEFAULT_LIMIT and not everything and done < len(e.steps):
            more = text.counted(len(e.steps) - done, "more step")
            out.line(f"  {before:,} → {e.steps[-1].remaining:,}: {more} (--list)")
            break


def _floor(out: Output, e: Explanation) -> None:
    if e.environments == 1:
        return
    out.line()
    if not e.steps:
        out.line("nothing brings the number down")
    if e.unread < e.environments:
        out.line(
            f"{e.environments - e.unread:,} of them exist only for what no build reads: "
            f"{e.unread:,} are left without it"
        )
    if e.bases > 1:
        _wrap(
            out,
            f"cannot be merged: {text.counted(e.bases, 'distinct base image')} for "
            f"{text.counted(e.tasks, 'task')}, so at least {e.bases:,} environments are left "
            "unless tasks are put on another base",
            2,
        )
    else:
        out.line("all environments have one base image: nothing in it keeps them apart")


def _as_json(e: Explanation) -> dict[str, Any]:
    return {
        "tasks": e.tasks,
        "environments": e.environments,
        "bases": e.bases,
        "without_what_no_build_reads": e.unread,
        "drivers": [_driver_json(d) for d in e.drivers],
        "steps": [
            {
                "drivers": list(s.drivers),
                "values": s.values,
                "remaining": s.remaining,
                "remedies": [r.value for r in s.remedies],
            }
            for s in e.steps
        ],
    }


def _driver_json(d: Driver) -> dict[str, Any]:
    return {
        "kind": d.kind.value,
        "name": d.name,
        "values": d.values,
        "remaining": d.remaining,
        "remedy": d.remedy.value,
        "examples": [{"value": value, "environments": n} for value, n in d.examples],
        "tokens": [{"what": t.what, "values": t.values, "remaining": t.remaining} for t in d.tokens],
    }
