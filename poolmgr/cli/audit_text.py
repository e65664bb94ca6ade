"""What an audit looks like on a terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from poolmgr.cli import text
from poolmgr.cli.output import Output
from poolmgr.model.finding import CODES, Finding, Severity, Verdict
from poolmgr.ops.audit import Audit, VariantAudit
from poolmgr.plan.gates import Gate, GateVerdict

FEW = 5
"""Names shown of each difference without ``--list``."""
FEW_TASKS = 3
_STYLE = {GateVerdict.PASSED: "green", GateVerdict.FAILED: "red", GateVerdict.NOT_CHECKED: "yellow"}


def show(out: Output, result: Audit, *, everything: bool) -> None:
    """The whole answer in the text form."""
    if not out.is_text:
        return
    _head(out, result)
    cut = 0
    for variant in result.variants:
        cut += _variant(out, result, variant, everything)
    cut += _pool(out, result, everything)
    _foot(out, result, cut)


def _head(out: Output, result: Audit) -> None:
    kind = "mirror" if result.mirror else ""
    at = f"commit {result.commit[:12]}" if result.commit else ""
    asked = result.asked
    words = [kind, at, f"level {asked.level.value} ({_by(asked.level_by)})"]
    if asked.arch is not None:
        words.append(f"{asked.arch} ({_by(asked.arch_by)})")
    out.line(out.styled(text.name(result.address), "bold"))
    out.line("  " + " · ".join(w for w in words if w))


def _by(who: str) -> str:
    return {"manifest": "asked for by the manifest", "host": "this machine's", "default": "the default"}.get(
        who, who
    )


def _variant(out: Output, result: Audit, variant: VariantAudit, everything: bool) -> int:
    c = variant.coverage
    size = sum(result.images[p].size or 0 for p in c.present)
    tasks = text.counted(len(c.tasks), "task")
    if len(c.tasks) != c.total:
        tasks = f"{len(c.tasks):,} of {text.counted(c.total, 'task')}"
    out.line()
    out.line(
        f"{out.styled(text.name(variant.name), 'bold')}: {tasks} on "
        f"{text.counted(len(c.needed), 'distinct image')}, {text.size(size)}"
    )
    _gates(out, variant.gates)
    names: dict[str, list[tuple[str, Finding, tuple[str, ...]]]] = {}
    for path, tasks_of in c.needed.items():
        findings = dict.fromkeys(
            (*c.images.get(path, ()), *(variant.looks[path].findings if path in variant.looks else ()))
        )
        for finding in findings:
            names.setdefault(finding.code, []).append((path, finding, tasks_of))
    for task, row_findings in c.rowwise.items():
        for finding in row_findings:
            names.setdefault(finding.code, []).append((task, finding, ()))
    return _differences(out, names, everything)


def _gates(out: Output, gates: Sequence[Gate]) -> None:
    name_width = max(len(g.name) for g in gates)
    indent = 2 + 11 + 2 + name_width + 2
    columns = max(60, shutil.get_terminal_size((100, 24)).columns)
    for gate in gates:
        word = gate.verdict.value.upper() if gate.verdict is GateVerdict.FAILED else gate.verdict.value
        said = textwrap.wrap(text.name(_count(gate)), columns - indent, break_long_words=False) or [""]
        style = _STYLE[gate.verdict]
        out.line(f"  {out.styled(word.ljust(11), style)}  {gate.name.ljust(name_width)}  {said[0]}")
        for more in said[1:]:
            out.line(" " * indent + more)


def _count(gate: Gate) -> str:
    unit = gate.unit if gate.wanted != 1 else gate.unit.removesuffix("s")
    if gate.verdict is GateVerdict.NOT_CHECKED:
        words = f"{gate.compared:,} of {gate.wanted:,} {unit}"
    elif gate.bad:
        words = (
            f"{gate.bad:,} of {gate.wanted:,} {unit} bad" if gate.unit == "images" else f"{gate.bad:,} differ"
        )
    else:
        words = f"{gate.wanted:,} {unit}"
    return f"{words}; {gate.why}" if gate.why else words


def _differences(
    out: Output, names: Mapping[str, list[tuple[str, Finding, tuple[str, ...]]]], everything: bool
) -> int:
    """Every difference under its code; returns how many were left out."""
    cut = 0
    for code in CODES:
        entries = [e for e in names.get(code, ()) if e[1].severity is not Severity.NOTE]
        if not entries:
            continue
        style = "red" if entries[0][1].severity is Severity.ERROR else "yellow"
        out.line()
        out.line(f"  {out.styled(code, style)}  {len(entries):,}: {CODES[code].meaning}")
        shown = entries if everything else entries[:FEW]
        for name, finding, tasks in shown:
            out.line(f"    {text.name(name)}")
            told = str(finding) if finding.where else finding.message
            out.line(f"      {text.name(told)}")
            if tasks:
                out.line(f"      needed by {_tasks(tasks, everything)}")
        if len(shown) < len(entries):
            cut += len(entries) - len(shown)
            out.line(f"    … and {len(entries) - len(shown):,} more")
    return cut


def _tasks(tasks: Sequence[str], everything: bool) -> str:
    shown = tasks if everything else tasks[:FEW_TASKS]
    rest = len(tasks) - len(shown)
    return text.name(", ".join(shown)) + (f" and {rest:,} more" if rest else "")


def _pool(out: Output, result: Audit, everything: bool) -> int:
    out.line()
    rows = [
        [f"{d.path or '(root)'}", f"{d.entries:,}", f"{d.room:,}", f"{d.hard_room:,}"]
        for d in result.directories
    ]
    out.table(rows, ["directory", "entries", "room", "under 10,000"], right=(1, 2, 3), indent=2)
    cut = 0
    if result.orphans:
        size = text.size(sum(b.size for b in result.orphans))
        cut += _plain(
            out, f"{text.counted(len(result.orphans), 'orphan')}, {size}: named by no variant",
            [b.path for b in result.orphans], everything,
        )  # fmt: skip
    if result.refused:
        cut += _plain(
            out, f"{text.counted(len(result.refused), 'entry', 'entries')} whose path may not be used",
            [f"{path!r} {why}" for path, why in result.refused], everything,
        )  # fmt: skip
    if result.clashes:
        cut += _plain(
            out, f"{text.counted(len(result.clashes), 'group')} of paths that differ only in case",
            [", ".join(group) for group in result.clashes], everything,
        )  # fmt: skip
    return cut


def _plain(out: Output, title: str, names: Sequence[str], everything: bool) -> int:
    out.line()
    out.line(f"  {title}")
    shown = names if everything else names[:FEW]
    for name in shown:
        out.line(f"    {text.name(name)}")
    if len(shown) < len(names):
        out.line(f"    … and {len(names) - len(shown):,} more")
    return len(names) - len(shown)


def _foot(out: Output, result: Audit, cut: int) -> None:
    out.line()
    known = [f"{n:,} {v.value}" for v in Verdict if (n := result.count(v))]
    words = f"{text.counted(len(result.images), 'image')}: {', '.join(known)}"
    if result.remembered:
        words += f"; {result.remembered:,} known from attestations"
    if result.hashed:
        words += f"; {text.size(result.hashed)} hashed"
    out.line(words)
    if result.passed:
        out.line(out.styled("passed", "green") + f": {_listed(v.name for v in result.variants)}")
    else:
        failed = [v for v in result.variants if not v.passed]
        for variant in failed:
            why = ", ".join(g.name if g.verdict is GateVerdict.FAILED else f"{g.name} not checked"
                            for g in variant.gates if not g.holds)  # fmt: skip
            out.line(out.styled("failed", "red") + f": {text.name(variant.name)} ({why})")
        passed = [v.name for v in result.variants if v.passed]
        if passed:
            out.line(out.styled("passed", "green") + f": {_listed(passed)}")
    if cut:
        out.hint(f"{text.counted(cut, 'name')} left out above; --list shows every one, --json too")


def _listed(names: Iterable[str]) -> str:
    return text.name(", ".join(names))
