"""From an image reference to the one blob of a pool that holds it, or an error. Pure; fails closed.

The rules, in order (docs/cli/resolve.md); the first that yields a blob decides, and one that yields
two is an error:

1. the file name that the naming rule makes of the reference exactly as it was written;
2. the file name of what an alias of the manifest makes of it;
3. the file names of the reference's other spellings (``x``, ``x:latest``, ``docker.io/x`` …);
4. only where the manifest says ``naming.trailing_hash``: the file whose name ends in the
   reference's tag, or last path part, when that is 12 or more hex digits.

A name may lie in several directories: then the index decides, if exactly one of them is
assigned to a task. A file in the derived family never answers to a reference: it is not that image.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from poolmgr.errors import AmbiguousError, MissError, ReferenceInvalidError
from poolmgr.model.blob import fold
from poolmgr.model.manifest import Layout, Manifest
from poolmgr.model.reference import parse_reference
from poolmgr.plan.naming import SEPARATORS, Aliases, file_name
from poolmgr.plan.placement import batch_number

_HASH = re.compile(r"[0-9a-f]{12,64}")
_MAX_COMPARED = 500
"""Names that are compared letter by letter to find the nearest one."""


@dataclass(frozen=True, slots=True)
class Match:
    path: str
    how: str
    """``name``, ``alias``, ``spelling`` or ``trailing-hash``."""


class Names:
    """The look-up tables of one pool, made once; each look-up is a few dictionary reads."""

    def __init__(
        self,
        paths: Iterable[str],
        manifest: Manifest,
        *,
        assigned: Iterable[str] = (),
        place: str = "the pool",
    ) -> None:
        """``paths``: the pool's files; ``assigned``: those that its index names; ``place``: for messages."""
        self.rule = manifest.naming.rule
        self.place = place
        self._aliases = Aliases(manifest.aliases)
        self._trailing = manifest.naming.trailing_hash
        self._assigned = frozenset(assigned)
        self._by_name: dict[str, list[str]] = {}
        self._derived: dict[str, list[str]] = {}
        self._by_token: dict[str, list[str]] | None = None
        for path in sorted(path for path in paths if path.endswith(".sif")):
            directory, _, name = path.rpartition("/")
            table = self._derived if _is_derived(directory, manifest.layout) else self._by_name
            table.setdefault(name, []).append(path)

    def find(self, reference: str) -> Match:
        """The blob that answers to ``reference``; ``MissError`` or ``AmbiguousError`` if not exactly one."""
        exact = self._name(reference)
        if found := self._one(reference, [exact] if exact else [], "name"):
            return found
        meant = self._aliases.rewrite(reference)
        if meant is not None:
            name = self._name(meant)
            if found := self._one(reference, [name] if name else [], "alias"):
                return found
        others = list(dict.fromkeys(filter(None, map(self._name, _spellings(meant or reference)))))
        if found := self._one(reference, others, "spelling"):
            return found
        tokens = self._tokens_of(meant or reference)
        if self._trailing:
            paths = {path for token in tokens for path in self._tokens().get(token, ())}
            if found := self._decide(reference, sorted(paths), "trailing-hash"):
                return found
        raise self._miss(reference, meant, exact, tokens)

    def _name(self, reference: str) -> str | None:
        try:
            return file_name(reference, self.rule)
        except ReferenceInvalidError:
            return None

    def _one(self, reference: str, names: list[str], how: str) -> Match | None:
        return self._decide(reference, [p for n in names for p in self._by_name.get(n, ())], how)

    def _decide(self, reference: str, paths: list[str], how: str) -> Match | None:
        if len(paths) > 1:
            used = [path for path in paths if path in self._assigned]
            same_name = len({path.rpartition("/")[2] for path in paths}) == 1
            if len(used) != 1 or not same_name:
                raise AmbiguousError(
                    f"{reference!r} has {len(paths)} files in {self.place}: {', '.join(paths)}",
                    hint="resolve by task and variant, or remove all but one",
                    details=paths,
                )
            paths = used
        return Match(paths[0], how) if paths else None

    def _tokens(self) -> Mapping[str, list[str]]:
        if self._by_token is None:
            self._by_token = {}
            for name, paths in self._by_name.items():
                if token := _trailing(name, self.rule):
                    self._by_token.setdefault(token, []).extend(paths)
        return self._by_token

    def _tokens_of(self, reference: str) -> list[str]:
        try:
            parts = parse_reference(reference)
        except ReferenceInvalidError:
            return []
        words = (parts.tag or "", parts.repository.rpartition("/")[2])
        return [word.lower() for word in words if _HASH.fullmatch(word.lower())]

    def _miss(self, reference: str, meant: str | None, exact: str | None, tokens: list[str]) -> MissError:
        try:
            parse_reference(meant or reference)
            why = ""
        except ReferenceInvalidError as e:
            why = f" ({e.message})"
        shown = exact if meant is None else self._name(meant)
        expected = f"expected {shown}" if shown else f"the rule {self.rule!r} makes no file name of it"
        via = f", by an alias {meant!r}" if meant is not None else ""
        return MissError(
            f"no file in any directory of {self.place} answers to {reference!r}{via}: {expected}{why}",
            hint=lambda: self._hint(shown, tokens),
        )

    def _hint(self, name: str | None, tokens: list[str]) -> str:
        near = self._nearest(name, tokens)
        if not near:
            return "fetch the variant that has it, or correct the reference"
        hint = f"nearest: {near[0]}"
        if near[0] in self._derived.get(near[0].rpartition("/")[2], ()):
            hint += ", which is derived from the image, not the image: resolve it by task and variant"
        elif _trailing(near[0].rpartition("/")[2], self.rule) in tokens:
            hint += ", which ends in the same hash: an alias in the manifest would make it the answer"
        return hint

    def _nearest(self, name: str | None, tokens: list[str]) -> list[str]:
        same_hash = [path for token in tokens for path in self._tokens().get(token, ())]
        if same_hash or name is None:
            return same_hash[:3]
        if name in self._derived:
            return self._derived[name][:3]
        folded = fold(name)
        other_case = [p for n, paths in self._by_name.items() if fold(n) == folded for p in paths]
        if other_case:
            return other_case[:3]
        for length in (len(name) - 8, 12, 4):
            alike = [n for n in self._by_name if n[: max(length, 1)] == name[: max(length, 1)]][
                :_MAX_COMPARED
            ]
            close = difflib.get_close_matches(name, alike, n=3, cutoff=0.6)
            if close:
                return [self._by_name[n][0] for n in close]
        return []


def _is_derived(directory: str, layout: Layout) -> bool:
    return batch_number(layout.derived, directory) is not None


def _trailing(name: str, rule: str) -> str | None:
    """The hash that a file name ends in, where it ends in one."""
    separator = SEPARATORS.get(rule)
    if separator is None:
        return None
    token = name.removesuffix(".sif").rpartition(separator)[2].lower()
    return token if _HASH.fullmatch(token) else None


def _spellings(reference: str) -> tuple[str, ...]:
    try:
        return parse_reference(reference).spellings()
    except ReferenceInvalidError:
        return ()
