"""Options that the ``env`` commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from poolmgr.harbor.archive import Limits
from poolmgr.model.environment import Scheme

F = TypeVar("F", bound=Callable[..., Any])
MIB = 1 << 20


def _schemes(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> frozenset[Scheme]:
    return frozenset(Scheme) if "all" in value else frozenset(map(Scheme, value))


def _limits(_ctx: click.Context, _param: click.Parameter, value: int) -> Limits:
    return Limits(task_bytes=value * MIB)


def schemes_option(function: F) -> F:
    """``--scheme``, as a set under the name ``schemes``."""
    return click.option(
        "--scheme",
        "schemes",
        multiple=True,
        callback=_schemes,
        type=click.Choice([*(s.value for s in Scheme), "all"]),
        help="Count by this scheme too (docs/env-hash.md); may be given more than once.",
    )(function)


def limits_option(function: F) -> F:
    """``--max-task-mib``, as ``Limits`` under the name ``limits``."""
    return click.option(
        "--max-task-mib",
        "limits",
        type=click.IntRange(1),
        default=Limits().task_bytes // MIB,
        show_default=True,
        callback=_limits,
        metavar="N",
        help="Refuse an archived task that unpacks to more than N MiB.",
    )(function)
