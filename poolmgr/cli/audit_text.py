"""What an audit looks like on a terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from poolmgr.cli import text
from poolmgr.cli.output import Output
from poolmgr.model.finding import CODES, Finding, Severity, Verdict
from poolmgr.ops.audit import Audit, VariantAudit
from poolmgr.plan.gates import Gate, GateVerdict

FEW = 5
"""Names shown of each difference without ``--list``."""
FEW_TASKS = 3
_Entry = tuple[str, Finding, tuple[str, ...]]
"""(blob or task, its finding, lines that say who needs it)."""
_STYLE = {GateVerdict.PASSED: "green", GateVerdict.FAILED: "red", GateVerdict.NOT_CHECKED: "yellow"}


def show(out: Output, result: Audit, *, everything: bool) -> None:
    """The whole answer in the text form."""
    if not out.is_text:
        return
    _head(out, result)
    cut = 0
    for variant in result.variants:
        _variant(out, result, variant)
        rows = [(t, f, ()) for t, fs in variant.coverage.rowwise.items() for f in fs]
        cut += _differences(out, rows, everything)
    images = [
        (image.path, finding, _needed_by(result, image.path, everything))
        for image in result.images.values()
        for finding in image.findings
    ]
    cut += _differences(out, images, everything)
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


def _variant(out: Output, result: Audit, variant: VariantAudit) -> None:
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


def _gates(out: Output, gates: Sequence[Gate]) -> None:
    names = max(len(g.name) for g in gates)
    askers = max(len(g.asked_by) for g in gates)
    indent = 2 + 11 + 2 + names + 2 + askers + 2
    for gate in gates:
        word = gate.verdict.value.upper() if gate.verdict is GateVerdict.FAILED else gate.verdict.value
        said = _wrapped(_count(gate), indent)
        asked_by = out.styled(gate.asked_by.ljust(askers), "dim")
        verdict = out.styled(word.ljust(11), _STYLE[gate.verdict])
        out.line(f"  {verdict}  {gate.name.ljust(names)}  {asked_by}  {said[0]}")
        for more in said[1:]:
            out.line(" " * indent + more)


def _wrapped(words: str, indent: int, first: int = 0) -> list[str]:
    """``words`` in lines that fit the terminal, ``indent`` from its left; the first line, ``first`` more."""
    columns = max(60, shutil.get_terminal_size((100, 24)).columns)
    shown = " " * first + text.name(words)
    lines = textwrap.wrap(shown, columns - indent, break_long_words=False, break_on_hyphens=False,
                          drop_whitespace=True)  # fmt: skip
    return [lines[0].lstrip() if first else lines[0], *lines[1:]] if lines else [""]


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


def _differences(out: Output, entries: Sequence[_Entry], everything: bool) -> int:
    """Every difference under its code; returns how many were left out."""
    cut = 0
    by_code: dict[str, list[_Entry]] = {}
    for entry in entries:
        if entry[1].severity is not Severity.NOTE:
            by_code.setdefault(entry[1].code, []).append(entry)
    for code in sorted(by_code, key=list(CODES).index):
        found = by_code[code]
        style = "red" if found[0][1].severity is Severity.ERROR else "yellow"
        out.line()
        title = f"{len(found):,}: {CODES[code].meaning}"
        first, *rest = _wrapped(title, 4, first=len(code))
        out.line(f"  {out.styled(code, style)}  {first}")
        for line in rest:
            out.line(f"    {line}")
        shown = found if everything else found[:FEW]
        for name, finding, needed_by in shown:
            out.line(f"    {text.name(name)}")
            if _tells_more(finding):
                for line in _wrapped(str(finding), 6):
                    out.line(f"      {line}")
            for who in needed_by:
                for line in _wrapped(who, 6):
                    out.line(f"      {out.styled(line, 'dim')}")
        if len(shown) < len(found):
            cut += len(found) - len(shown)
            out.line(f"    … and {len(found) - len(shown):,} more")
    return cut


def _tells_more(finding: Finding) -> bool:
    """Whether the message says more than the code's own meaning, which stands above it."""
    same = finding.message.lower() == CODES[finding.code].meaning.lower().rstrip(".")
    return finding.code != "missing" and not same


def _needed_by(result: Audit, path: str, everything: bool) -> tuple[str, ...]:
    lines = []
    for variant in result.variants:
        tasks = variant.coverage.needed.get(path, ())
        if tasks:
            shown = tasks if everything else tasks[:FEW_TASKS]
            rest = f" and {len(tasks) - len(shown):,} more" if len(shown) < len(tasks) else ""
            lines.append(text.name(f"{variant.name}: {', '.join(shown)}{rest}"))
    return tuple(lines)


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
    passed = [v.name for v in result.variants if v.passed]
    for variant in result.variants:
        if not variant.passed:
            gates = [
                g.name if g.verdict is GateVerdict.FAILED else f"{g.name} not checked"
                for g in variant.gates
                if not g.holds
            ]
            first, *rest = _wrapped(f"{variant.name}: {', '.join(gates)}", 2, first=6)
            out.line(f"{out.styled('failed', 'red')}  {first}")
            for line in rest:
                out.line(f"  {line}")
    if passed:
        out.line(f"{out.styled('passed', 'green')}  {text.name(', '.join(passed))}")
    if cut:
        out.hint(f"{text.counted(cut, 'name')} left out above; --list shows every one, --json too")
