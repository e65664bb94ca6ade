"""What can stop a command: one class a kind, each with a stable code and an exit status.

An error says what was expected, what was found and where (``message``), what to do next
(``hint``), and lists every case where there are several (``details``, never cut).
The codes are part of the interface: scripts match on them, so a code is never reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import ClassVar


class Exit(IntEnum):
    """Exit statuses (docs/exit-status.md). ``BAD`` wins over ``AGAIN``."""

    GOOD = 0
    ERROR = 1
    USAGE = 2
    BAD = 3
    CREDENTIALS = 4
    AGAIN = 5
    INTERRUPTED = 130


class PoolError(Exception):
    """Base of every error that poolmgr raises on purpose."""

    code: ClassVar[str] = "error"
    exit: ClassVar[Exit] = Exit.ERROR

    def __init__(
        self, message: str, *, hint: str | Callable[[], str] = "", details: Iterable[str] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self._hint = hint
        self.details = tuple(details)

    @property
    def hint(self) -> str:
        """What to do next. One that costs something to find is found when it is first asked for."""
        if not isinstance(self._hint, str):
            self._hint = self._hint()
        return self._hint


class UsageError(PoolError):
    """The command's words do not fit together."""

    code = "usage"
    exit = Exit.USAGE


class DeclinedError(PoolError):
    """The user was asked whether to go on, and did not say yes; nothing was changed."""

    code = "declined"


class OutputRefusedError(PoolError):
    """stdout cannot be written, for instance because its disk is full: the answer is not whole."""

    code = "output-refused"


class SystemRefusedError(PoolError):
    """The operating system refused something (a file, a folder, a process) in an unforeseen place."""

    code = "os-error"


class InternalError(PoolError):
    """A fault of poolmgr itself; ``--debug`` shows where."""

    code = "internal"


class CancelledError(PoolError):
    """Ctrl-C: the run was ended by its user; running it again goes on."""

    code = "interrupted"
    exit = Exit.INTERRUPTED


# --- what the pool says of itself -------------------------------------------------------------


class PoolNotFoundError(PoolError):
    """No pool at the address: no such folder, repository, bucket or manifest."""

    code = "no-pool"


class IndexInvalidError(PoolError):
    """``task_to_blob.json`` is missing, is not JSON, has another shape, or names unsafe paths."""

    code = "bad-index"


class UnsafePathError(PoolError):
    """A path that would leave the pool, hide in it, or clash with another by case."""

    code = "unsafe-path"


class ManifestInvalidError(PoolError):
    """A manifest that is not TOML, has an unknown key, or a value of the wrong kind."""

    code = "bad-manifest"


class DatasetInvalidError(PoolError):
    """A dataset that cannot be read as rows or task folders."""

    code = "bad-dataset"


class ReferenceInvalidError(PoolError):
    """Text that is no image reference, or that gives no usable file name under a naming rule."""

    code = "bad-reference"
    exit = Exit.BAD


class NameCollisionError(PoolError):
    """Different images would have one file name (or names that differ only in case)."""

    code = "name-collision"
    exit = Exit.BAD


class PoolChangedError(PoolError):
    """The pool changed while it was being read or written."""

    code = "pool-changed"
    exit = Exit.AGAIN


class PoolBusyError(PoolError):
    """Another process is writing the pool's index, and did not end in time."""

    code = "pool-busy"
    exit = Exit.AGAIN


class MirrorInvalidError(PoolError):
    """The ``.poolmgr`` folder of a mirror holds something this version cannot read."""

    code = "bad-mirror"


class NotAMirrorError(PoolError):
    """The destination is a pool that ``fetch`` did not fill, and adopting it was not asked for."""

    code = "not-a-mirror"


class DestinationError(PoolError):
    """The place to write to is a file, cannot be written, or lies on an unusable filesystem."""

    code = "bad-destination"


class NoSpaceError(PoolError):
    """There is not enough room for what is to be written."""

    code = "no-space"


class AlreadyExistsError(PoolError):
    """The name to be written is taken; nothing is ever overwritten."""

    code = "already-exists"


class RecipeInvalidError(PoolError):
    """A recipe that is not TOML, has an unknown key, an unpinned requirement, or an unsafe path."""

    code = "bad-recipe"


class MapInvalidError(PoolError):
    """The map of tasks to files cannot be read, names a task twice, or names what is not there."""

    code = "bad-map"


class DeriveFailedError(PoolError):
    """One derivation could not be made as its recipe says."""

    code = "derive-failed"


class BadFileError(PoolError):
    """A file that was needed cannot be read, or is not what it should be."""

    code = "bad-file"


class FileMissingError(BadFileError):
    """The store has no file at the path."""

    code = "no-such-file"


class QueryInvalidError(PoolError):
    """SQL that DuckDB cannot parse or run."""

    code = "bad-query"


class QueryRefusedError(PoolError):
    """SQL that would do more than read the catalogue, or that exceeds a limit."""

    code = "query-refused"


# --- what a finished run found ----------------------------------------------------------------


class UnknownVariantError(PoolError):
    """The index has no variant of that name."""

    code = "unknown-variant"
    exit = Exit.BAD


class UnknownTaskError(PoolError):
    """The variant has no task of that name."""

    code = "unknown-task"
    exit = Exit.BAD


class PoolLacksBlobsError(PoolError):
    """The index names blobs that the pool itself does not hold."""

    code = "pool-lacks-blobs"
    exit = Exit.BAD


class MissError(PoolError):
    """``resolve``: no file in the pool answers to the reference."""

    code = "miss"
    exit = Exit.BAD


class AmbiguousError(PoolError):
    """``resolve``: more than one file answers to the reference."""

    code = "ambiguous"
    exit = Exit.BAD


class EmptyFileError(PoolError):
    """``resolve``: the file is there and has no bytes."""

    code = "zero-byte"
    exit = Exit.BAD


class InvalidImageError(PoolError):
    """``resolve``: the file is there and is no image that can be mounted."""

    code = "invalid-image"
    exit = Exit.BAD


class ChangedSinceProvenError(PoolError):
    """``resolve``: the file is not (any more) the one that was proven."""

    code = "changed-since-proven"
    exit = Exit.BAD


class UnboundTasksError(PoolError):
    """``bind``: tasks of the dataset have no image in the pool, more of them than may be dropped."""

    code = "unbound-tasks"
    exit = Exit.BAD


class PushRefusedError(PoolError):
    """``push``: files that are not valid, names that are taken, tasks that have another blob already."""

    code = "push-refused"
    exit = Exit.BAD


class NothingComparedError(PoolError):
    """A check that was asked for had nothing to look at; that is a failure, never a pass."""

    code = "nothing-compared"
    exit = Exit.BAD


# --- the other side -----------------------------------------------------------------------------


class CredentialsError(PoolError):
    """401 or 403: no token, a token without the right, or a gated repository."""

    code = "credentials"
    exit = Exit.CREDENTIALS


class RemoteRefusedError(PoolError):
    """The server's answer is final (402, 404, 413 …); trying again cannot help."""

    code = "remote-refused"


class DirectoryFullError(RemoteRefusedError):
    """The Hub refuses a push that leaves more than 10,000 entries in one directory."""

    code = "hub-directory-full"


class RemoteTroubleError(PoolError):
    """Passing trouble (429, 5xx, a broken or stalled connection) outlasted the retries."""

    code = "remote-trouble"
    exit = Exit.AGAIN
    wait: float | None = None
    """Seconds that the server asked to wait, where it did."""


class RateLimitedError(RemoteTroubleError):
    """The registry's limit on pulls (429, TOOMANYREQUESTS) outlasted the retries."""

    code = "rate-limited"


class ImageNotFoundError(PoolError):
    """The registry has no such repository, tag or digest."""

    code = "no-such-image"
    exit = Exit.BAD


class RegistryDeniedError(CredentialsError):
    """The registry gives this image to nobody without a login, or not to the login that it was sent."""

    code = "registry-denied"


class WrongArchitectureError(PoolError):
    """The image is for another architecture than the one asked for."""

    code = "wrong-architecture"
    exit = Exit.BAD


class DamagedImageError(BadFileError):
    """What the registry sent, what was built of it, or the file that was built, is not what it should be."""

    code = "damaged-image"
    exit = Exit.BAD


class TreeDiffersError(PoolError):
    """The stored file does not hold what its image reference holds now."""

    code = "tree-differs"
    exit = Exit.BAD


class NoSourceError(PoolError):
    """Nothing on record says which image reference the file was made of."""

    code = "no-source"
    exit = Exit.BAD


class MachineCannotError(PoolError):
    """This machine cannot build images (no user namespaces, no memory …); the image is not to blame."""

    code = "machine-cannot"


class OfflineError(PoolError):
    """A request would be needed, and HF_HUB_OFFLINE forbids every request."""

    code = "offline"


class BadTransferError(PoolError):
    """The bytes that arrived are not the bytes that the pool lists."""

    code = "bad-transfer"
    exit = Exit.BAD


class IncompleteError(PoolError):
    """The run was stopped (SIGTERM) before it was done; running it again goes on."""

    code = "incomplete"
    exit = Exit.AGAIN


class MissingToolError(PoolError):
    """A program or library that the request needs is not installed."""

    code = "missing-tool"


class DemoFailedError(PoolError):
    """A command of the demo did not end as announced."""

    code = "demo-failed"


class ToolFailedError(PoolError):
    """A program that was run (Apptainer, say) failed; the message holds its own last word."""

    code = "tool-failed"
