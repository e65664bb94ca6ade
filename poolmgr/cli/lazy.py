"""A command group that knows its commands by name and one line each, and imports one when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

import click


class Lazy(NamedTuple):
    target: str
    """``module:attribute`` of the click command."""
    help: str
    """The first line of the command's help; a test keeps the two equal."""
    section: str = "Commands"


class LazyGroup(click.Group):
    """``lazy`` commands beside the ordinary ones, shown in the order and sections of the table."""

    def __init__(self, *, lazy: Mapping[str, Lazy], **attrs: object) -> None:
        super().__init__(**attrs)  # type: ignore[arg-type]
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.lazy.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.lazy and not name.startswith("-"):
            raise click.NoSuchCommand(name, possibilities=self.lazy, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self.lazy.items():
            sections.setdefault(entry.section, []).append((name, entry.help))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
