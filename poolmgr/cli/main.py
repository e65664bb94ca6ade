"""``poolmgr``: the table of commands, and the one place where errors become words and an exit status.

A command returns an ``Exit`` (None: good) or raises. What it raises ends here:

- ``PoolError``: its message, details and hint, and its exit status;
- Ctrl-C, and SIGTERM or SIGHUP (``Stop``), arrive as ``KeyboardInterrupt`` in the main thread: a
  verb cleans up in ``finally``, tells its threads to stop, and lets it pass; 130 and 5;
- anything else is a fault of ours: one line with the code ``internal``; ``--debug`` shows where.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

import poolmgr
from poolmgr.cli.lazy import Lazy, LazyGroup
from poolmgr.errors import (
    CancelledError,
    Exit,
    IncompleteError,
    InternalError,
    NoSpaceError,
    PoolError,
    SystemRefusedError,
    UsageError,
)

if TYPE_CHECKING:
    from poolmgr.cli.output import Output
    from poolmgr.settings import Settings

DAILY, LOOK, GROW, MORE = "Every day", "Look", "Grow a pool", "More"

# Name: where it is, the first line of its help, the section it is shown in.
COMMANDS: dict[str, Lazy] = {
    "fetch": Lazy(
        "poolmgr.cli.fetch:fetch",
        "Bring variants of a pool into a local folder, and prove that they are whole.",
        DAILY,
    ),
    "audit": Lazy(
        "poolmgr.cli.audit:command",
        "Check that every task of a variant has an image, and that each image is valid.",
        DAILY,
    ),
    "resolve": Lazy("poolmgr.cli.resolve:resolve", "Print the one image file of a task or reference.", DAILY),
    "bind": Lazy(
        "poolmgr.cli.bind:bind", "Copy a dataset so that its rows name the local image of each task.", DAILY
    ),
    "status": Lazy(
        "poolmgr.cli.status:status",
        "Show what a pool holds: variants, tasks, blobs, bytes, and room in its directories.",
        LOOK,
    ),
    "ls": Lazy("poolmgr.cli.ls:ls", "List the blobs or the tasks of variants, one a line.", LOOK),
    "verify": Lazy(
        "poolmgr.cli.verify:verify",
        "Say whether images are valid: the bytes themselves are read, Apptainer is not needed.",
        LOOK,
    ),
    "env": Lazy(
        "poolmgr.cli.env:command", "Count, explain and pack the environments of task datasets.", LOOK
    ),
    "query": Lazy(
        "poolmgr.cli.query:query",
        "Run SQL over the blobs, tasks, checks and environments of pools and datasets.",
        LOOK,
    ),
    "push": Lazy(
        "poolmgr.cli.push:push", "Put images and a variant's tasks into a pool, never breaking it.", GROW
    ),
    "pull": Lazy("poolmgr.cli.pull:pull", "Build verified images from the references of registries.", GROW),
    "derive": Lazy("poolmgr.cli.derive:derive", "Make images of others by a recipe, reproducibly.", GROW),
    "adopt": Lazy(
        "poolmgr.cli.adopt:adopt",
        "Make a pool of an existing folder of images, where it lies; nothing is moved or renamed.",
        GROW,
    ),
    "gc": Lazy(
        "poolmgr.cli.gc:gc",
        "Free what a mirror no longer needs, once the pool is proven to hold it.",
        MORE,
    ),
    "diff": Lazy(
        "poolmgr.cli.diff:diff", "Show what changed from pool A to pool B: tasks and blobs, by name.", LOOK
    ),
    "doctor": Lazy(
        "poolmgr.cli.doctor:doctor",
        "Show what is installed here, and what each missing tool would add.",
        MORE,
    ),
    "demo": Lazy(
        "poolmgr.cli.demo:demo", "Show what poolmgr does, on a small pool that is made for it.", MORE
    ),
}


class Stop(KeyboardInterrupt):
    """SIGTERM or SIGHUP: end in good order. Verbs treat it as they treat Ctrl-C."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _LeakedError(Exception):
    """Carries an exception past click's own handling of it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Root(LazyGroup):
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, EOFError, OSError) as e:
            # click would print, or exit, on these by itself.
            raise _LeakedError(e) from e


class Session:
    """What one run of the command line shares: settings, and the sink once its form is known.

    Both are made on first need, so that ``--help`` pays for neither.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self.words = list(args[: args.index("--")] if "--" in args else args)
        self.debug = False

    @cached_property
    def settings(self) -> Settings:
        from poolmgr.settings import Settings

        return Settings.read()

    @cached_property
    def out(self) -> Output:
        """The sink; before parsing the words alone must do: a usage error under --json is JSON too."""
        return self.output(json="--json" in self.words, quiet=False)

    @property
    def began(self) -> bool:
        """Whether anything can have been printed."""
        return "out" in vars(self)

    def output(self, *, json: bool, quiet: bool) -> Output:
        from poolmgr.cli.output import Output

        self.out = Output(
            json=json, quiet=quiet, no_color=self.settings.no_color, secrets=self.settings.secrets
        )
        return self.out


def _debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and isinstance(ctx.obj, Session):
        ctx.obj.debug = True


@click.group(
    cls=Root,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A pool is a folder, a manifest, hf://datasets/ORG/NAME[@REVISION] or any fsspec URL; name it "
    "with -p or POOLMGR_POOL. 'poolmgr COMMAND --help' tells more.",
)
@click.version_option(poolmgr.__version__, message="%(prog)s %(version)s")
@click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_debug,
    help="Show a traceback when poolmgr itself fails.",
)
def main() -> None:
    """Fetch, audit, resolve and grow pools of environment images."""


def run(args: Sequence[str] | None = None) -> NoReturn:
    """The ``poolmgr`` program: runs ``args`` (default: the process's own) and exits."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)
    sys.exit(call(sys.argv[1:] if args is None else args))


def call(args: Sequence[str]) -> int:
    """Runs one command line, prints whatever it has to say, and returns its exit status."""
    session = Session(args)
    try:
        try:
            result = main.main(list(args), prog_name="poolmgr", standalone_mode=False, obj=session)
            status = int(result) if isinstance(result, int) else int(Exit.GOOD)
            if session.began:
                session.out.flush()
            return status
        except _LeakedError as e:
            raise e.error from None
    except BaseException as e:
        if isinstance(e, SystemExit):
            raise
        return _report(session, e)


def _report(session: Session, error: BaseException) -> int:
    from poolmgr.cli.output import OutputClosedError

    if isinstance(error, OutputClosedError):
        return int(Exit.ERROR)
    if (session.debug or session.settings.debug) and not isinstance(
        error, KeyboardInterrupt | click.ClickException
    ):
        import traceback

        session.out.debug("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        session.out.usage(error.ctx.get_help() if error.ctx else error.format_message())
        if not session.out.json:
            return int(Exit.USAGE)
    known = as_pool_error(error)
    session.out.error(known)
    return int(known.exit)


def as_pool_error(error: BaseException) -> PoolError:
    """The error in poolmgr's own words, whatever was raised."""
    match error:
        case PoolError():
            return error
        case Stop():
            return IncompleteError(
                f"stopped by {error.name} before it was done", hint="run the same command again to go on"
            )
        case KeyboardInterrupt() | click.Abort() | EOFError():
            return CancelledError("stopped by Ctrl-C before it was done")
        case click.exceptions.NoArgsIsHelpError():
            return UsageError("no command given", hint="see 'poolmgr --help'")
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else "poolmgr"
            return UsageError(error.format_message(), hint=f"see '{path} --help'")
        case click.ClickException():
            return UsageError(error.format_message())
        case OSError():
            return _os_error(error)
        case _:
            return InternalError(
                f"{type(error).__name__}: {error}{_place(error)}",
                hint="this is a fault in poolmgr, not in your input; 'poolmgr --debug …' shows where",
            )


def _os_error(error: OSError) -> PoolError:
    import errno

    where = f": {error.filename}" if error.filename is not None else ""
    what = f"{error.strerror or error}{where}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(what, hint="free some space, or choose another folder")
    return SystemRefusedError(what)


def _place(error: BaseException) -> str:
    """`` (poolmgr/ops/fetch.py:12)``: the innermost line of ours that the error passed."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/poolmgr/" in file:
            place = f" (poolmgr/{file.rpartition('/poolmgr/')[2]}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _stop(number: int, _frame: FrameType | None) -> None:
    # A second signal ends the process at once.
    signal.signal(number, signal.SIG_DFL)
    raise Stop(signal.Signals(number).name)
