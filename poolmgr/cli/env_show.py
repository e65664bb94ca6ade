"""``poolmgr env ls``, ``show`` and ``diff``: environments one by one."""

from __future__ import annotations

import difflib
import stat
from typing import Any

import click

from poolmgr.cli import options, text
from poolmgr.cli.env_options import limits_option
from poolmgr.cli.output import Output
from poolmgr.errors import Exit
from poolmgr.harbor.archive import Limits
from poolmgr.harbor.tree import Kind
from poolmgr.model.environment import SNAPSHOT_HASH, Definition, Environment, snapshot_name
from poolmgr.ops import environments as ops
from poolmgr.ops.environments import Detail, File
from poolmgr.plan.environments import union
from poolmgr.settings import Settings

MAX_DIFF_LINES = 400
MAX_FILE_LINES = 20


@click.command("ls")
@click.argument("datasets", nargs=-1, required=True, metavar="DATASET...")
@limits_option
@options.jobs()
@options.output()
def ls(datasets: tuple[str, ...], limits: Limits, jobs: int | None, out: Output) -> Exit:
    """List the environments of datasets, those that most tasks share first."""
    together = union(ops.count(datasets, limits=limits, jobs=jobs or 1, progress=out.progress()))
    groups = sorted(together.groups.values(), key=lambda g: (-len(g.task_names), g.hash))
    rows = []
    documents: list[dict[str, Any]] = []
    for group in groups:
        names = group.task_names
        out.only_quiet(group.hash)
        asked = "; ".join(str(r) for r, _ in group.resources.most_common())
        rows.append(
            [
                group.hash[:SNAPSHOT_HASH], text.number(len(names)), group.definition.value,
                text.number(group.first.files), text.size(group.first.size), asked, names[0],
            ]
        )  # fmt: skip
        documents.append(
            {
                "hash": group.hash,
                "tasks": names,
                "definition": group.definition.value,
                "docker_image": group.first.docker_image,
                "files": group.first.files,
                "size": group.first.size,
                "resources": [r.as_json() for r in group.resources],
            }
        )
    out.table(
        rows, ["hash", "tasks", "defined by", "files", "size", "asks for", "first task"], right=(1, 3, 4)
    )
    out.document({"kind": "env-ls", "environments": documents})
    return Exit.BAD if together.errors else Exit.GOOD


@click.command("show")
@click.argument("wanted", metavar="HASH|TASK")
@click.argument("datasets", nargs=-1, required=True, metavar="DATASET...")
@click.option("--dockerfile", is_flag=True, help="Print the Dockerfile as well.")
@limits_option
@options.output()
def show(wanted: str, datasets: tuple[str, ...], dockerfile: bool, limits: Limits, out: Output) -> Exit:
    """Show one environment: its hashes by every scheme, its files, and the tasks that share it.

    Name it by the first digits of its hash, by its snapshot's name, or by a task that has it.
    """
    detail, tasks = ops.show(datasets, wanted, limits)
    environment = detail.environment
    target = Settings.read().daytona_target
    snapshot = None
    if environment.definition is Definition.DOCKERFILE and environment.hash:
        snapshot = snapshot_name(environment.hash, target)
    out.line(out.styled(environment.hash or "no hash", "bold") + f"  {text.counted(len(tasks), 'task')}")
    rows = [["defined by", environment.definition.value], ["folder", environment.folder]]
    if environment.docker_image:
        rows.append(["docker_image", environment.docker_image])
    rows.append(["snapshot", snapshot or "none: auto_snapshot builds Dockerfiles only"])
    rows.append(["asks for", str(environment.resources)])
    rows += [[f"by {scheme}", digest or "-"] for scheme, digest in sorted(environment.hashes.items())]
    out.table(rows, indent=2)
    out.line()
    out.table(
        [
            [f"{f.mode:o}", text.size(f.size) if f.kind is Kind.FILE else f.kind.value, path + _arrow(f)]
            for path, f in detail.files.items()
        ],
        ["mode", "size", "path"],
        right=(1,),
        indent=2,
    )
    left_out = sorted(p for p, f in detail.files.items() if f.kind is Kind.FILE and p not in detail.hashed)
    for path in left_out:
        out.line(f"  not in Harbor's hash: {text.name(path)}")
    for found in environment.findings:
        out.line(out.styled(found.code, "yellow") + f"  {text.name(str(found))}")
    if dockerfile and "Dockerfile" in detail.files:
        out.line()
        out.line(_safe((detail.files["Dockerfile"].content or b"").decode("utf-8", "replace")))
    out.line()
    out.line("tasks: " + text.name(", ".join(tasks)))
    for name in tasks:
        out.only_quiet(name)
    out.document(
        {
            "kind": "env-show",
            **_environment_json(environment),
            "snapshot": snapshot,
            "tasks": tasks,
            "files": {path: _file_json(f) for path, f in detail.files.items()},
        }
    )
    return Exit.GOOD


@click.command("diff")
@click.argument("first", metavar="TASK")
@click.argument("second", metavar="TASK")
@click.argument("datasets", nargs=-1, required=True, metavar="DATASET...")
@limits_option
@options.output()
def diff(first: str, second: str, datasets: tuple[str, ...], limits: Limits, out: Output) -> Exit:
    """Show what differs between the environments of two tasks."""
    a, b = ops.pair(datasets, first, second, limits)
    same = a.environment.hash is not None and a.environment.hash == b.environment.hash
    schemes = {s.value: a.environment.hashes[s] == b.environment.hashes[s] for s in a.environment.hashes}
    out.line(
        out.styled("one environment" if same else "two environments", "bold")
        + f": {_short(a.environment)} and {_short(b.environment)}"
    )
    if not same and schemes.get("build") and a.environment.hashes:
        out.line("a build of either reads the same: they differ only in what no build reads")
    if same and not schemes.get("build"):
        out.line(
            "a build of them reads different things (modes or links), although Harbor takes them for one"
        )
    if a.environment.resources != b.environment.resources:
        out.line(f"asks for: {a.environment.resources} against {b.environment.resources}")
    if a.environment.docker_image != b.environment.docker_image:
        out.line(
            text.name(f"docker_image: {a.environment.docker_image} against {b.environment.docker_image}")
        )
    changes = _changes(a, b)
    for path, what in changes.items():
        out.line(f"{text.name(path)}: {what}")
        for line in _lines(path, a, b):
            out.line("  " + _safe(line))
    for path in changes:
        out.only_quiet(path)
    out.document(
        {
            "kind": "env-diff",
            "same": same,
            "same_by_scheme": schemes,
            "first": _environment_json(a.environment),
            "second": _environment_json(b.environment),
            "changes": changes,
        }
    )
    return Exit.GOOD


def _changes(a: Detail, b: Detail) -> dict[str, str]:
    """Path -> what is different there, in words."""
    found: dict[str, str] = {}
    for path in sorted(a.files.keys() | b.files.keys()):
        one, two = a.files.get(path), b.files.get(path)
        if one is None or two is None:
            found[path] = f"only in {(a if two is None else b).task.name}"
        elif one.kind is not two.kind:
            found[path] = f"a {one.kind.value} against a {two.kind.value}"
        elif one.target != two.target:
            found[path] = f"links to {one.target} against {two.target}"
        elif one.sha256 != two.sha256:
            ends = (one.content or b"").replace(b"\r\n", b"\n") == (two.content or b"").replace(
                b"\r\n", b"\n"
            )
            only_ends = one.content is not None and two.content is not None and ends
            found[path] = "only the line ends differ" if only_ends else "the content differs"
        elif one.mode != two.mode:
            found[path] = f"mode {one.mode:o} against {two.mode:o}, which no Harbor hash sees"
    return found


def _lines(path: str, a: Detail, b: Detail) -> list[str]:
    """A unified diff of two texts; nothing for what is no text."""
    one, two = a.files.get(path), b.files.get(path)
    if one is None or two is None or one.content is None or two.content is None:
        return []
    if b"\0" in one.content + two.content or one.content == two.content:
        return []
    before, after = (c.decode("utf-8", "replace").splitlines() for c in (one.content, two.content))
    lines = list(difflib.unified_diff(before, after, a.task.name, b.task.name, lineterm="", n=2))
    most = MAX_DIFF_LINES if path in ("Dockerfile", "docker-compose.yaml") else MAX_FILE_LINES
    if len(lines) > most:
        return [*lines[:most], f"… and {len(lines) - most:,} more lines"]
    return lines


def _short(e: Environment) -> str:
    return e.hash[:SNAPSHOT_HASH] if e.hash else "no hash"


def _safe(content: str) -> str:
    return "\n".join(text.name(line) for line in content.split("\n"))


def _arrow(file: File) -> str:
    return f" -> {file.target}" if file.kind is Kind.LINK else ""


def _environment_json(e: Environment) -> dict[str, Any]:
    return {
        "hash": e.hash,
        "role": e.role,
        "folder": e.folder,
        "definition": e.definition.value,
        "docker_image": e.docker_image,
        "resources": e.resources.as_json(),
        "hashes": {scheme.value: digest for scheme, digest in e.hashes.items()},
        "findings": [f.as_json() for f in e.findings],
    }


def _file_json(file: File) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": file.kind.value, "mode": f"{stat.S_IMODE(file.mode):04o}"}
    if file.kind is Kind.FILE:
        row |= {"size": file.size, "sha256": file.sha256}
    if file.kind is Kind.LINK:
        row["target"] = file.target
    return row
