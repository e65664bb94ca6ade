"""What a gate asks of an image beside its validity: Apptainer's own word, and a variant's content rules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from poolmgr.errors import PoolError
from poolmgr.model.finding import Finding, Verdict, verdict_of
from poolmgr.model.manifest import VariantRules
from poolmgr.sif.apptainer import Apptainer
from poolmgr.sif.image import open_image
from poolmgr.sif.rules import Rules, check_content
from poolmgr.sif.source import FileSource
from poolmgr.sif.squashfs import DamageError

CONTENT = ("require", "forbid", "modules")
"""The content rules of a variant, each a gate."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What one check says of one image."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    """Why the verdict is not a word on the image, when it is none."""


class ImageCheck(Protocol):
    """One or more checks that are carried out together on an image that is known to be valid."""

    @property
    def names(self) -> tuple[str, ...]:
        """What its verdicts are called in looks and attestations."""
        ...

    def __call__(self, file: Path) -> Mapping[str, Checked]:
        """A word for every one of ``names``; called from several threads."""
        ...


class Inspect:
    """``apptainer inspect``, where Apptainer is installed."""

    names = ("inspect",)

    def __init__(self) -> None:
        self._apptainer = Apptainer.find()

    def __call__(self, file: Path) -> Mapping[str, Checked]:
        if self._apptainer is None:
            return {"inspect": Checked(Verdict.UNCHECKED, reason="Apptainer is not installed")}
        said = self._apptainer.inspect(file)
        reason = said.message if said.verdict is not Verdict.BAD and not said.verdict.passes else ""
        return {"inspect": Checked(said.verdict, said.findings, reason)}


@dataclass(frozen=True)
class Content:
    """The content rules of a variant, all in one reading of the image's tree."""

    rules: Rules

    @staticmethod
    def of(rules: VariantRules) -> Content | None:
        """None for a variant without such rules."""
        own = Rules(rules.require, rules.forbid, rules.modules)
        return Content(own) if own != Rules() else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.name(gate) for gate in CONTENT if getattr(self.rules, gate))

    def name(self, gate: str) -> str:
        """``forbid:`` and a digest of its rule, so that a rule that changed is looked at anew."""
        rule = json.dumps(sorted(getattr(self.rules, gate)))
        return f"{gate}:{hashlib.sha256(rule.encode()).hexdigest()[:16]}"

    def __call__(self, file: Path) -> Mapping[str, Checked]:
        try:
            with FileSource(file) as source:
                found = check_content(open_image(source, str(file)), self.rules, threads=1)
        except (PoolError, DamageError, OSError) as e:
            reason = f"its tree cannot be read: {e}"
            return {name: Checked(Verdict.UNCHECKED, reason=reason) for name in self.names}
        return {self.name(gate): Checked(verdict_of(fs), fs) for gate, fs in found.items()}
