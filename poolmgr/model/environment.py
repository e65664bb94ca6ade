"""What a Harbor task asks to be built: its environments, their hashes, and what is no task at all.

Two tasks whose environments have one hash share one built environment (a Daytona snapshot, an
image). The hash schemes and the rule for each are in docs/env-hash.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from poolmgr.model.finding import Finding

SNAPSHOT_HASH = 12
"""Hex digits of the hash that go into a snapshot's name (Harbor's SNAPSHOT_HASH_LEN)."""
AGENT = "agent"
VERIFIER = "verifier"


class Scheme(StrEnum):
    """A way to tell two environments apart; docs/env-hash.md has each exactly."""

    HARBOR = "harbor"
    """Harbor 0.18 to 0.26: every regular file's path and bytes. Names Daytona snapshots."""
    LEGACY = "harbor-legacy"
    """Harbor 0.9 to 0.17 and the forks."""
    DOCKERFILE = "dockerfile"
    """The bytes of the Dockerfile alone; for comparison, it misses every copied file."""
    BUILD = "build"
    """What a build really reads: instructions, the files they copy, modes and links."""


class Definition(StrEnum):
    """What an environment's folder holds to build from."""

    DOCKERFILE = "dockerfile"
    COMPOSE = "compose"
    """``docker-compose.yaml``: runs as Docker in Docker, so it never needs a snapshot of its own."""
    IMAGE = "image"
    """Only ``docker_image``: nothing to build, and auto_snapshot fails on it."""
    NONE = "none"
    """Nothing that could be built: Harbor refuses to start such a task."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What the task asks for; None where it asks for nothing. Sizes in MB."""

    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None

    def as_json(self) -> dict[str, float | int | None]:
        return {
            "cpus": self.cpus,
            "memory_mb": self.memory_mb,
            "storage_mb": self.storage_mb,
            "gpus": self.gpus,
        }

    def __str__(self) -> str:
        parts = [
            f"{name} {value:g}"
            for name, value in (
                ("cpus", self.cpus),
                ("memory_mb", self.memory_mb),
                ("storage_mb", self.storage_mb),
                ("gpus", self.gpus),
            )
            if value is not None
        ]
        return ", ".join(parts) or "nothing"


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment that one task needs."""

    role: str
    """``agent``, ``verifier``, or ``verifier:STEP`` for a step that brings its own."""
    folder: str
    """Relative to the task: ``environment``, ``tests`` or ``steps/STEP/tests``."""
    definition: Definition
    hashes: Mapping[Scheme, str | None]
    """Scheme -> full hex digest; None where the scheme cannot hash it (``findings`` say why)."""
    docker_image: str | None = None
    resources: Resources = field(default_factory=Resources)
    files: int = 0
    """Regular files that count for Harbor's hash."""
    size: int = 0
    """Their bytes."""
    findings: tuple[Finding, ...] = ()

    @property
    def is_verifier(self) -> bool:
        return self.role != AGENT

    @property
    def hash(self) -> str | None:
        """Harbor's hash, where it was computed and can be."""
        return self.hashes.get(Scheme.HARBOR)


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a dataset, read."""

    dataset: str
    """The dataset's own name, with the sub-dataset's behind a slash where there are several."""
    name: str
    where: str
    """The folder or row that it was read from."""
    environments: tuple[Environment, ...]
    """The agent's first."""
    steps: int = 0
    """0 for a single-step task."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class NotTask:
    """A folder or row that is no task, and why."""

    dataset: str
    name: str
    where: str
    finding: Finding


def snapshot_name(digest: str, target: str | None = None) -> str:
    """The name Harbor gives the Daytona snapshot of an environment; ``target``: DAYTONA_TARGET."""
    short = digest[:SNAPSHOT_HASH]
    return f"harbor__{short}__{target}__snapshot" if target else f"harbor__{short}__snapshot"
