"""``poolmgr push``: put images and a variant's tasks into a pool."""

from __future__ import annotations

import click

from poolmgr.cli import options, text
from poolmgr.cli.output import Output
from poolmgr.cli.push_edit import regroup_variant, retract_tasks
from poolmgr.cli.push_text import show_plan, show_pushed
from poolmgr.errors import Exit, PushRefusedError, UsageError
from poolmgr.ops.push import Push, Request
from poolmgr.ops.push_edit import Edit
from poolmgr.ops.view import open_pool
from poolmgr.settings import Settings


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--variant", metavar="V", help="The variant that the tasks belong to; made if it is new.")
@click.option(
    "--tasks", metavar="MAP",
    help="Task -> file, file name or blob path, as JSON, JSON Lines, CSV or TSV ('-': stdin). "
    "Default: the map that 'derive' left in a folder given.",
)  # fmt: skip
@click.option("--same-tree", is_flag=True, help="Map to a blob with the same tree instead of adding a file.")
@click.option("--remap", is_flag=True, help="Give tasks that have another blob the new one.")
@click.option(
    "--retract", metavar="FILE",
    help="Take the tasks named in FILE, one a line, out of the variant ('-': stdin). No blob is deleted.",
)  # fmt: skip
@click.option(
    "--regroup", metavar="V", help="Put the tasks of V on the fewest blobs, where blobs have equal trees."
)
@click.option("--pr", "pull_request", is_flag=True, help="Propose it in one pull request on the Hub.")
@click.option("--no-identity", is_flag=True, help="Do not compute the tree identity of the files.")
@click.option("--list", "everything", is_flag=True, help="Name every file and task, not the first few.")
@options.pool
@options.manifest
@options.arch
@options.jobs(4)
@options.dry_run
@options.yes
@options.output(lines=True)
def push(
    paths: tuple[str, ...], variant: str | None, tasks: str | None, same_tree: bool, remap: bool,
    retract: str | None, regroup: str | None, pull_request: bool, no_identity: bool, everything: bool,
    pool: str | None, manifest: str | None, arch: str | None, jobs: int, dry_run: bool, yes: bool,
    out: Output,
) -> Exit:  # fmt: skip
    """Put images and a variant's tasks into a pool, never breaking it.

    PATH is a file, or a folder whose images are meant. Every file is checked as an image, by the
    pool's own rules, and what the pool has already is not sent again. Blobs go first, the index
    last; nothing is ever replaced or deleted. Run again after any interruption.
    """
    if retract is not None or regroup is not None:
        if paths or tasks or same_tree or remap or (retract is not None and regroup is not None):
            raise UsageError("--retract and --regroup go with nothing else that changes the pool")
        if regroup is not None and variant not in (None, regroup):
            raise UsageError("--regroup names the variant itself")
    variant = regroup or variant
    if variant is None:
        raise UsageError("no variant was named", hint="give --variant V")
    progress = out.progress()
    view = open_pool(pool, Settings.read(), manifest=manifest, on_retry=progress.note)
    if retract is not None or regroup is not None:
        edit = Edit(view, variant, progress, jobs, pull_request=pull_request)
        if not dry_run:
            edit.ready()
        if retract is not None:
            named = options.read_tasks(retract, "--retract")
            return retract_tasks(out, edit, named, dry_run=dry_run, yes=yes, everything=everything)
        return regroup_variant(out, edit, dry_run=dry_run, yes=yes, everything=everything)
    request = Request(
        variant,
        paths,
        tasks,
        same_tree=same_tree,
        remap=remap,
        identity=not no_identity,
        arch=arch,
        jobs=jobs,
        pull_request=pull_request,
    )
    run = Push(view, request, progress)
    if not dry_run:
        run.ready()
    plan = run.plan()
    show_plan(out, run, plan, dry_run=dry_run, everything=everything)
    if dry_run:
        try:
            run.check(plan)
        except PushRefusedError as e:
            out.error(e)
            return Exit.BAD
        return Exit.GOOD
    run.check(plan)
    if plan.replaced:
        out.confirm(
            f"give {text.counted(len(plan.replaced), 'task')} of {variant} another blob than now?", yes=yes
        )
    pushed = run.carry_out(plan)
    show_pushed(out, run, pushed)
    return Exit.GOOD
