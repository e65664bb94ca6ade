"""Failures of a long run, told by cause: the code, how many, and the first few by name."""

from __future__ import annotations

from poolmgr.cli import text
from poolmgr.cli.output import Output
from poolmgr.errors import PoolError

SHOWN = 5
"""Names that the short form shows of each cause."""


def more(out: Output, count: int, *, everything: bool, option: str = "--list") -> None:
    """Says how many of ``count`` names the short form left out."""
    if count > SHOWN and not everything:
        out.line(f"… and {count - SHOWN:,} more ({option} names them)")


def causes(
    out: Output, failures: list[tuple[str, PoolError]], *, everything: bool, option: str = "--list"
) -> None:
    """Failures by cause: the code, how many, and the first few by name ('' where the message has it).

    ``option`` is the command's own that names them all.
    """
    for code in sorted({error.code for _, error in failures}):
        group = [(base, error) for base, error in failures if error.code == code]
        out.line(f"failed ({code}): {len(group):,}")
        for base, error in group if everything else group[:SHOWN]:
            said = error.message.removeprefix(f"{base}: ")
            out.line(f"  {text.name(base)}: {said}" if base else f"  {said}")
            for detail in error.details[: None if everything else SHOWN]:
                out.line(f"    {text.name(detail)}")
        more(out, len(group), everything=everything, option=option)
        if group[0][1].hint:
            out.hint(group[0][1].hint)


def error_fields(error: PoolError | None) -> dict[str, object]:
    """The fields of an error in a row of the JSON form."""
    if error is None:
        return {}
    return {"code": error.code, "message": error.message, "hint": error.hint, "details": list(error.details)}
