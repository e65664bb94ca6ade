"""The front door for scripts: ``Pool.open("sifs/").resolve(task="…", variant="…")``."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from poolmgr.errors import PoolNotFoundError, UsageError
from poolmgr.ops.resolve import resolve_task
from poolmgr.ops.view import PoolView, open_folder, open_pool

if TYPE_CHECKING:
    from poolmgr.model.index import Index
    from poolmgr.ops.push import Pushed


class Pool:
    """A pool, opened. Thin: every method calls the verb of the same name in ``poolmgr.ops``."""

    def __init__(self, view: PoolView) -> None:
        self.view = view

    @classmethod
    def open(cls, address: str | PathLike[str], *, manifest: str | None = None) -> Pool:
        """The pool at ``address``: a folder, manifest, ``hf://datasets/ORG/NAME[@REVISION]`` or fsspec URL.

        A folder is opened without reading the environment or touching the network. Raises
        ``PoolNotFoundError``, ``ManifestInvalidError``, ``MirrorInvalidError``.
        """
        folder = Path(address)
        if manifest is None and folder.is_dir():
            return cls(open_folder(folder))
        if isinstance(address, PathLike):
            raise PoolNotFoundError(
                f"{folder} is not a folder", hint="run 'poolmgr fetch VARIANT --to FOLDER' first"
            )
        from poolmgr.settings import Settings

        return cls(open_pool(address, Settings.read(), manifest=manifest))

    def push(
        self,
        *paths: str | PathLike[str],
        variant: str,
        tasks: str | PathLike[str] | None = None,
        remap: bool = False,
        same_tree: bool = False,
    ) -> Pushed:
        """Put images and a variant's tasks into the pool (docs/cli/push.md); what was done.

        ``tasks`` is the map's file; ``remap`` also answers the question that the command line asks.
        Raises ``PushRefusedError``, ``MapInvalidError`` and what the store raises, with every reason in
        ``details``. Open the pool anew to see what it holds then.
        """
        from poolmgr.ops.push import Push, Request

        named = tuple(str(path) for path in paths)
        request = Request(
            variant, named, str(tasks) if tasks is not None else None, same_tree=same_tree, remap=remap
        )
        run = Push(self.view, request)
        run.ready()
        return run.carry_out(run.plan())

    @property
    def index(self) -> Index:
        """Variants and their assignments."""
        return self.view.index

    def resolve(self, ref: str | None = None, *, task: str | None = None, variant: str | None = None) -> str:
        """The absolute path of the image that ``task`` of ``variant`` needs, or that answers to ``ref``.

        Fails closed: raises ``MissError`` and its kin (codes ``miss``, ``ambiguous``, ``zero-byte``,
        ``invalid-image``, ``changed-since-proven``, ``unknown-task``, ``unknown-variant``).
        """
        if (ref is None) == (task is None):
            raise UsageError(
                "resolve takes either a reference or task=", hint="pool.resolve(task='…', variant='…')"
            )
        if task is not None:
            return str(resolve_task(self.view, task, variant))
        from poolmgr.ops.resolve import resolve_reference

        assert ref is not None
        return str(resolve_reference(self.view, ref))
