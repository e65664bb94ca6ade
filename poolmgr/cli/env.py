"""``poolmgr env``: the environments of task datasets."""

from __future__ import annotations

import click

from poolmgr.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "count": Lazy(
        "poolmgr.cli.env_count:command",
        "Count the distinct environments of datasets, and the Daytona snapshots they need.",
    ),
    "explain": Lazy(
        "poolmgr.cli.env_explain:command",
        "Tell why datasets need as many environments as they do, and what would bring the number down.",
    ),
    "ls": Lazy(
        "poolmgr.cli.env_show:ls", "List the environments of datasets, those that most tasks share first."
    ),
    "show": Lazy(
        "poolmgr.cli.env_show:show",
        "Show one environment: its hashes by every scheme, its files, and the tasks that share it.",
    ),
    "diff": Lazy("poolmgr.cli.env_show:diff", "Show what differs between the environments of two tasks."),
    "pack": Lazy("poolmgr.cli.env_pack:pack", "Pack a folder of tasks into a Parquet archive."),
    "unpack": Lazy(
        "poolmgr.cli.env_pack:unpack", "Unpack a Parquet archive into task folders under a new folder."
    ),
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
