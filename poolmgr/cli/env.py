"""``poolmgr env``: the environments of task datasets."""

from __future__ import annotations

import click

from poolmgr.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "count": Lazy("poolmgr.cli.env_count:command", "How many distinct environments a dataset needs."),
    "explain": Lazy(
        "poolmgr.cli.env_explain:command", "Why a dataset needs as many environments as it does."
    ),
    "ls": Lazy("poolmgr.cli.env_show:ls", "List the environments of datasets."),
    "show": Lazy("poolmgr.cli.env_show:show", "Show one environment: its files, hashes and tasks."),
    "diff": Lazy("poolmgr.cli.env_show:diff", "Show what differs between two tasks' environments."),
    "pack": Lazy("poolmgr.cli.env_pack:pack", "Pack a folder of tasks into a Parquet archive."),
    "unpack": Lazy("poolmgr.cli.env_pack:unpack", "Unpack a Parquet archive into task folders."),
}


@click.group(
    "env",
    cls=LazyGroup,
    lazy=COMMANDS,
    epilog="A DATASET is a folder of Harbor tasks, one task, a Parquet archive or a folder of them, "
    "dataset.toml, registry.json, or hf://datasets/ORG/NAME[@REVISION][/PATH].",
)
def command() -> None:
    """Count, explain and pack the environments of task datasets."""
