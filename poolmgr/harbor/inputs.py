"""Judges the links among a task's inputs as Harbor does (``validate_input_tree``), with bounds.

Harbor drops a task in silence when a link under tests/, solution/ or a step leaves the task or
goes round in a ring of folders, unless ``.harborignore`` leaves that link out.
"""

from __future__ import annotations

from collections.abc import Sequence

from poolmgr.harbor import ignore
from poolmgr.harbor.tree import Kind, OutwardLinkError, Tree

MAX_LINKED = 10_000
"""Paths that lead through a link, in one task; links that multiply them without end are refused."""
MAX_DEPTH = 200
"""Folders in each other; Harbor gives up at some 900 (Python's recursion limit) and drops the task."""


def link_trouble(tree: Tree, steps: Sequence[str]) -> str | None:
    """The first link, or file of rules, for which Harbor drops the task; ``UnreadableError``."""
    tops = [top for top in (*(f"steps/{step}" for step in steps), "tests", "solution") if _is_odd(tree, top)]
    if not tops:
        return None
    visit = _Visit(tree)
    try:
        for top in tops:
            visit(top, top, frozenset())
    except (OutwardLinkError, ignore.IgnoreError) as e:
        return str(e)
    return None


def _is_odd(tree: Tree, top: str) -> bool:
    """Whether anything but plain files and folders is there: a link, or rules that could be bad."""
    kind = tree.kind(top)
    if kind is not Kind.FOLDER:
        return kind is not None
    entries = tree.entries(top)
    return Kind.LINK in entries.values() or any(p.rpartition("/")[2] == ignore.NAME for p in entries)


class _Visit:
    """Every path below a folder, links to folders followed."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        has_rules = any(_has_rules(tree, top) for top in ("tests", "solution", "steps"))
        self._is_ignored = ignore.Ignored(tree) if has_rules else None
        self._left = MAX_LINKED

    def __call__(self, path: str, at: str, above: frozenset[str]) -> None:
        """``path`` as it is written, ``at`` the same with all links but its own last one followed."""
        if self._is_ignored is not None and self._is_ignored(path):
            return
        real = self._tree.resolve(at)
        self._left -= real != path
        if self._left < 0:
            raise OutwardLinkError(f"its links make more than {MAX_LINKED:,} paths of its inputs")
        if self._tree.kind(real) is not Kind.FOLDER:
            return
        if real in above:
            raise OutwardLinkError(f"the link {path!r} leads round in a loop")
        if len(above) == MAX_DEPTH:
            raise OutwardLinkError(f"its inputs are more than {MAX_DEPTH} folders deep")
        for name in sorted(self._tree.names(real)):
            self(f"{path}/{name}", f"{real}/{name}", above | {real})


def _has_rules(tree: Tree, top: str) -> bool:
    return tree.final_kind(top) is Kind.FOLDER and any(
        p.rpartition("/")[2] == ignore.NAME for p in tree.entries(top)
    )
