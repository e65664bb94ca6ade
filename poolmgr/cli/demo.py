"""``poolmgr demo``: the four daily jobs on a small pool of real images, each command shown and run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from poolmgr.cli import options
from poolmgr.cli.output import Output
from poolmgr.errors import AlreadyExistsError, DemoFailedError, Exit
from poolmgr.ops.demo import DemoPool, Scene, build_pool, scenes, truncate

TIMEOUT = 120
"""Seconds that one command of the demo may take."""


@click.command()
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path),
              help="Work in the new folder DIR and leave it there. Default: a temporary folder.")  # fmt: skip
@options.output()
def demo(keep: Path | None, out: Output) -> Exit:
    """Show what poolmgr does, on a small pool that is made for it.

    Builds a pool of small real images, fetches one variant, audits it, resolves a task, damages an
    image and shows that nothing passes it any more. Needs no root, no Apptainer and no network.
    """
    rows = []
    with _folder(keep) as folder:
        pool = build_pool(folder / "pool")
        out.line(_introduction(pool))
        for number, scene in enumerate(scenes(pool), 1):
            out.line()
            out.line(out.styled(f"{number}. {scene.why}", "bold"))
            out.line(out.styled("$ " + shlex.join(scene.command), "cyan"))
            status, said = _run(scene, folder)
            for line in said.splitlines():
                out.line("  " + line)
            missing = [name for name in scene.names if name not in said]
            rows.append({"why": scene.why, "command": list(scene.command), "exit": status,
                         "expected": int(scene.exit), "output": said})  # fmt: skip
            if status != scene.exit or missing:
                raise DemoFailedError(
                    f"'{shlex.join(scene.command)}' ended with status {status}, not {int(scene.exit)}"
                    + (f", and its output does not name {', '.join(missing)}" if missing else ""),
                    hint="run it again with --keep DIR and look at what is there",
                    details=said.splitlines(),
                )
            if scene.exit:
                out.line(out.styled(f"(exit status {status}, as it must be)", "dim"))
        out.line()
        out.line(
            f"All {len(rows)} commands ended as announced." + (f" The pool is in {folder}." if keep else "")
        )
    out.document({"kind": "demo", "folder": str(keep) if keep else None, "scenes": rows, "verdict": "ok"})
    return Exit.GOOD


def _introduction(pool: DemoPool) -> str:
    folders = ", ".join(f"{name}/ ({count})" for name, count in pool.files.items())
    variants = ", ".join(f"{name} ({len(tasks)} tasks)" for name, tasks in pool.tasks.items())
    return (
        f"A pool of {sum(pool.files.values())} images, {pool.size:,} bytes, in {pool.folder}\n"
        f"  folders:  {folders}\n  variants: {variants}"
    )


def _run(scene: Scene, folder: Path) -> tuple[int, str]:
    if scene.command[0] == "truncate":
        truncate(folder, scene.command)
        return 0, ""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("POOLMGR_", "HF_"))}
    # The child runs elsewhere, so what this process found by its own folder must be found by name.
    paths = [str(Path(__file__).resolve().parents[2]), env.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", *scene.command],
        cwd=folder,
        env={**env, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="poolmgr-demo-") as name:
            yield Path(name)
        return
    try:
        keep.mkdir(parents=True)
    except FileExistsError:
        raise AlreadyExistsError(
            f"{keep} exists already", hint="name a folder that does not exist yet"
        ) from None
    yield keep.resolve()
