"""``poolmgr doctor``: what is installed, what is missing, and what that would add."""

from __future__ import annotations

from dataclasses import asdict

import click

from poolmgr.cli import options
from poolmgr.cli.output import Output
from poolmgr.errors import Exit
from poolmgr.ops.doctor import State, examine
from poolmgr.settings import Settings

_STYLE = {State.FOUND: "green", State.ABSENT: "yellow", State.BROKEN: "red"}


@click.command()
@options.output()
def doctor(out: Output) -> Exit:
    """Show what is installed here, and what each missing tool would add.

    Nothing is sent anywhere. Ends with 3 when something that poolmgr needs is missing or does not
    work; under -q only the names of what is missing are printed.
    """
    parts = examine()
    settings = Settings.read()
    about = {
        "POOLMGR_POOL": settings.pool,
        "config folder": str(settings.config_dir),
        "HF_ENDPOINT": settings.hf_endpoint,
        "HF_HUB_OFFLINE": "on" if settings.offline else None,
    }
    broken = [part for part in parts if part.state is State.BROKEN]
    out.document(
        {
            "kind": "doctor",
            "parts": [asdict(part) for part in parts],
            "settings": about,
            "verdict": "bad" if broken else "ok",
        }
    )
    if out.is_text:
        found = [part for part in parts if part.state is State.FOUND]
        rows = [[p.name, p.version, p.adds] for p in found if p.kind != "codec"]
        readable = ", ".join(p.name.removeprefix("codec ") for p in found if p.kind == "codec")
        out.table([*rows, ["codecs", "", readable]], ["installed", "version", "for"])
        absent = [part for part in parts if part.state is State.ABSENT]
        out.line()
        if absent:
            out.table(
                [[out.styled(p.name, _STYLE[p.state]), p.adds, p.install] for p in absent],
                ["not here", "would add", "how to get it"],
            )
        else:
            out.line("nothing is missing")
        for part in broken:
            out.line(out.styled(f"broken: {part.name}", _STYLE[part.state]) + f": {part.trouble}")
        out.line()
        out.table([[name, value or "-"] for name, value in about.items()], ["setting", "value"])
    for part in parts:
        if part.state is not State.FOUND:
            out.only_quiet(part.name)
    for part in broken:
        if part.install:
            out.hint(f"{part.name}: {part.install}")
    return Exit.BAD if broken else Exit.GOOD
