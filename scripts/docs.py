"""Writes the generated parts of the docs (between ``[[[cog`` marks), or checks that they are current.

    python scripts/docs.py [--check]

What is generated: each command's reference from its ``--help``, the list of commands in the
README, the tables of error and finding codes.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from cogapp import Cog

import poolmgr
from poolmgr import errors
from poolmgr.cli.lazy import Lazy, LazyGroup
from poolmgr.cli.main import main
from poolmgr.model import finding

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 88


def pages() -> list[Path]:
    """Every file with generated parts."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [file for file in files if "[[[cog" in file.read_text()]


def commands() -> Iterator[tuple[tuple[str, ...], Lazy]]:
    """The words and the table's line of every command of the top level."""
    group = main
    assert isinstance(group, LazyGroup)
    for name, entry in group.lazy.items():
        yield (name,), entry


def page_of(name: str) -> Path:
    return ROOT / "docs" / "cli" / f"{name}.md"


def reference(name: str) -> str:
    """The help of a command, and of its own commands, as fenced blocks."""
    blocks = []
    parent = click.Context(main, info_name="poolmgr", terminal_width=WIDTH, max_content_width=WIDTH)
    command = main.get_command(parent, name)
    assert command is not None, name
    for words, each, context in _tree(command, (name,), parent):
        blocks.append(f"```console\n$ poolmgr {' '.join(words)} --help\n{each.get_help(context)}\n```")
    return "\n" + "\n\n".join(blocks) + "\n"


def _tree(
    command: click.Command, words: tuple[str, ...], parent: click.Context
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    settings = command.context_settings | {"terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, parent=parent, info_name=words[-1], **settings)
    context.help_option_names = ["-h", "--help"]
    yield words, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _tree(child, (*words, name), context)


def command_list() -> str:
    """The commands as a table that links to their pages, for the README."""
    rows = ["| command | what it does |", "|---|---|"]
    for (name,), entry in commands():
        rows.append(f"| [`poolmgr {name}`](docs/cli/{name}.md) | {entry.help} |")
    return "\n" + "\n".join(rows) + "\n"


def every_error() -> list[type[errors.PoolError]]:
    """All error classes of the package, in order of exit status and code."""
    for module in pkgutil.walk_packages(poolmgr.__path__, "poolmgr."):
        if module.name != "poolmgr.__main__":
            importlib.import_module(module.name)

    def below(kind: type[errors.PoolError]) -> Iterator[type[errors.PoolError]]:
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    return sorted(below(errors.PoolError), key=lambda kind: (kind.exit, kind.code))


def error_table() -> str:
    rows = ["| code | exit | what it means |", "|---|---:|---|"]
    for kind in every_error():
        rows.append(f"| `{kind.code}` | {int(kind.exit)} | {_inline(kind.__doc__ or '')} |")
    return "\n" + "\n".join(rows) + "\n"


def finding_tables() -> str:
    """One table a section, the sections being the comments of model/finding.py."""
    every_error()  # imports every module, so that codes defined elsewhere are there too
    source = Path(finding.__file__).read_text()
    parts = re.split(r"^# --- (.+?) -+$", source, flags=re.MULTILINE)
    told: set[str] = set()
    blocks = []
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        codes = re.findall(r"_define\(\s*\"([a-z0-9-]+)\"", body)
        told.update(codes)
        rows = [f"### {title[0].upper()}{title[1:]}", "", "| code | severity | what it means | what to do |"]
        rows.append("|---|---|---|---|")
        for code in codes:
            info = finding.CODES[code]
            rows.append(
                f"| `{code}` | {info.severity.value} | {_inline(info.meaning)} | {_inline(info.remedy)} |"
            )
        blocks.append("\n".join(rows))
    untold = set(finding.CODES) - told
    assert not untold, f"codes outside every section: {untold}"
    return "\n" + "\n\n".join(blocks) + "\n"


def _inline(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def run(check: bool) -> int:
    """0 when the docs are current (or have been written), 1 when ``check`` found one that is not."""
    files = [str(page) for page in pages()]
    how = ["--check", "--diff"] if check else ["-r"]
    return Cog().main(["cog", *how, "-P", "-p", "from scripts import docs", "--verbosity=1", *files])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(run("--check" in sys.argv[1:]))
