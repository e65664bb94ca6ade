"""Reads one task by Harbor's rules (0.26): is it a task, and which environments does it need.

The rules are those of ``Task.is_valid_dir`` with verification disabled, as datasets are counted;
where Harbor drops a folder in silence, the reason is given here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from poolmgr.errors import MissingToolError
from poolmgr.harbor import buildhash, config, dockerfile, envhash, inputs
from poolmgr.harbor.config import EnvironmentConfig, TaskConfig, VerifierConfig
from poolmgr.harbor.tree import CHUNK, Kind, OutwardLinkError, Tree, UnreadableError
from poolmgr.harbor.values import ConfigError
from poolmgr.model.environment import AGENT, VERIFIER, Definition, Environment, NotTask, Scheme, Task
from poolmgr.model.finding import CODES, Finding

MAX_TASK_TOML = 4 << 20
ENVIRONMENT = "environment"
TESTS = "tests"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task was found."""

    dataset: str
    name: str
    where: str


def finding(code: str, message: str, where: str = "") -> Finding:
    return Finding(code, message, CODES[code].severity, where)


def read_task(tree: Tree, place: Place, schemes: frozenset[Scheme]) -> Task | NotTask:
    """The task in ``tree``, with its environments hashed by every one of ``schemes``."""
    try:
        read = _config(tree)
        if isinstance(read, Finding):
            return NotTask(place.dataset, place.name, place.where, read)
        trouble = _incomplete(tree, read) or _loose_links(tree, read)
        if trouble is not None:
            return NotTask(place.dataset, place.name, place.where, trouble)
    except UnreadableError as e:
        return NotTask(place.dataset, place.name, place.where, finding("task-unreadable", str(e)))
    known: dict[tuple[str, str | None], Environment] = {}
    environments = []
    for role, folder, settings in _environments(tree, read):
        key = (folder, settings.docker_image)
        if key not in known:
            known[key] = _Reader(tree, folder, settings, schemes).environment(role)
        elif known[key].findings:
            known[key] = replace(known[key], findings=())  # said once a task
        environments.append(replace(known[key], role=role, resources=settings.resources))
    return Task(place.dataset, place.name, place.where, tuple(environments), len(read.steps))


def _config(tree: Tree) -> TaskConfig | Finding:
    try:
        path = tree.resolve("task.toml")
    except OutwardLinkError as e:
        return finding("bad-task-toml", str(e))
    kind = tree.kind(path)
    if kind is None:
        return finding("no-task-toml", "no task.toml")
    if kind is not Kind.FILE:
        return finding("bad-task-toml", f"task.toml is a {kind.value}, not a file")
    try:
        return config.parse(tree.read(path, MAX_TASK_TOML))
    except ConfigError as e:
        return finding("bad-task-toml", str(e), "task.toml")


def _incomplete(tree: Tree, task: TaskConfig) -> Finding | None:
    """The first thing that a task must have and this one lacks."""
    if not task.environment.docker_image and tree.final_kind(ENVIRONMENT) is not Kind.FOLDER:
        if tree.kind(ENVIRONMENT) is Kind.LINK:
            return finding("task-incomplete", _link_trouble(tree))
        return finding("task-incomplete", "no environment/ folder, and no [environment].docker_image")
    if not task.steps and tree.final_kind("instruction.md") is None:
        return finding("task-incomplete", "no instruction.md")
    for step in task.steps:
        for path in (f"steps/{step.name}", f"steps/{step.name}/instruction.md"):
            if tree.final_kind(path) is None:
                return finding("task-incomplete", f"no {path}")
    return None


def _link_trouble(tree: Tree) -> str:
    """Why the link ``environment`` gives no folder. Harbor follows it wherever it leads."""
    try:
        tree.resolve(ENVIRONMENT)
    except OutwardLinkError as e:
        return f"{e}; no link is followed out of a task"
    return f"the link {ENVIRONMENT!r} to {tree.target(ENVIRONMENT)!r} leads to no folder"


def _loose_links(tree: Tree, task: TaskConfig) -> Finding | None:
    trouble = inputs.link_trouble(tree, [step.name for step in task.steps])
    return finding("task-link", trouble) if trouble else None


def _environments(tree: Tree, task: TaskConfig) -> Iterator[tuple[str, str, EnvironmentConfig]]:
    """Role, folder and settings of every environment that the task starts."""
    yield AGENT, ENVIRONMENT, task.environment
    if not task.steps:
        if task.verifier.effective == "separate":
            yield VERIFIER, *_verifier(tree, task, ((task.verifier, TESTS),))
        return
    for step in task.steps:
        if (step.verifier.effective or task.verifier.effective) == "separate":
            candidates = ((step.verifier, f"steps/{step.name}/tests"), (task.verifier, TESTS))
            yield f"{VERIFIER}:{step.name}", *_verifier(tree, task, candidates)


def _verifier(
    tree: Tree, task: TaskConfig, candidates: tuple[tuple[VerifierConfig, str], ...]
) -> tuple[str, EnvironmentConfig]:
    """Folder and settings of a separate verifier (``resolve_verifier_environment_definition``)."""
    settings = next((v.environment for v, _ in candidates if v.environment is not None), task.environment)
    for verifier, folder in candidates:
        image = verifier.environment.docker_image if verifier.environment else None
        if image:
            return folder, EnvironmentConfig(image, settings.resources, settings.os)
        if any(
            tree.final_kind(f"{folder}/{name}") is Kind.FILE for name in (envhash.DOCKERFILE, envhash.COMPOSE)
        ):
            return folder, EnvironmentConfig(None, settings.resources, settings.os)
    return ENVIRONMENT, EnvironmentConfig(task.environment.docker_image, settings.resources, settings.os)


class _Reader:
    """Reads one environment's folder: what defines it, its hashes, what is wrong with it."""

    def __init__(
        self, tree: Tree, folder: str, settings: EnvironmentConfig, schemes: frozenset[Scheme]
    ) -> None:
        self.tree = tree
        self.folder = folder
        self.settings = settings
        self.schemes = schemes
        self.findings: list[Finding] = []
        self.hashes: dict[Scheme, str | None] = {}
        self.files = self.size = 0
        self.dockerfile: bytes | None = None

    def environment(self, role: str) -> Environment:
        definition = Definition.IMAGE if self.settings.docker_image else Definition.NONE
        try:
            self.base = self.tree.resolve(self.folder)
            self.entries = self.tree.entries(self.base)
        except (UnreadableError, OutwardLinkError) as e:
            code = "env-unreadable" if isinstance(e, UnreadableError) else "env-outward-link"
            self.findings.append(finding(code, str(e)))
            self.hashes = dict.fromkeys(self.schemes)
        else:
            definition = self._definition()
            self._look_at_entries()
            self._hash(definition)
        return Environment(
            role=role,
            folder=self.folder,
            definition=definition,
            hashes=self.hashes,
            docker_image=self.settings.docker_image or None,
            resources=self.settings.resources,
            files=self.files,
            size=self.size,
            findings=tuple(self.findings),
        )

    def _definition(self) -> Definition:
        for name, definition in (
            (envhash.COMPOSE, Definition.COMPOSE), (envhash.DOCKERFILE, Definition.DOCKERFILE)
        ):  # fmt: skip
            if name in self.entries and self.tree.final_kind(f"{self.base}/{name}") is not None:
                return definition
        if self.settings.docker_image:
            return Definition.IMAGE
        self.findings.append(
            finding("env-undefined", f"{self.folder}/ has no Dockerfile and no docker-compose.yaml")
        )
        return Definition.NONE

    def _look_at_entries(self) -> None:
        kinds = self.entries.values()
        if Kind.OTHER in kinds:
            for path in sorted(p for p, kind in self.entries.items() if kind is Kind.OTHER):
                self.findings.append(finding("env-special-file", "no regular file, folder or link", path))
        if Kind.LINK in kinds:
            for path in sorted(p for p, kind in self.entries.items() if kind is Kind.LINK):
                try:
                    self.tree.resolve(f"{self.base}/{path}")
                except OutwardLinkError as e:
                    code = "env-link-loop" if "loop" in str(e) else "env-outward-link"
                    self.findings.append(finding(code, str(e), path))

    def _hash(self, definition: Definition) -> None:
        for scheme in sorted(self.schemes, key=list(Scheme).index):
            self.hashes[scheme] = None
            try:
                self.hashes[scheme] = self._by(scheme, definition)
            except UnreadableError as e:
                self._once(finding("env-unreadable", str(e)))
            except envhash.NotHashableError as e:
                self._once(finding(e.code, str(e)))
            except OutwardLinkError:
                continue  # already said by _look_at_entries
            except dockerfile.DockerfileError as e:
                self._once(finding("dockerfile-unparsed", str(e), envhash.DOCKERFILE))
            except MissingToolError as e:
                self._once(finding("not-checked", e.message, envhash.DOCKERFILE))

        if definition is Definition.DOCKERFILE and Scheme.BUILD not in self.schemes:
            try:
                trouble = dockerfile.trouble(self._read_dockerfile())
            except (UnreadableError, OutwardLinkError):
                return  # said where it was hashed
            except MissingToolError as e:
                self._once(finding("not-checked", e.message, envhash.DOCKERFILE))
                return
            if trouble:
                self._once(finding("dockerfile-unparsed", trouble, envhash.DOCKERFILE))

    def _once(self, found: Finding) -> None:
        if found not in self.findings:
            self.findings.append(found)

    def _by(self, scheme: Scheme, definition: Definition) -> str | None:
        image, base = self.settings.docker_image, self.base
        match scheme:
            case Scheme.HARBOR:
                paths = envhash.hashed_files(self.entries)
                return envhash.harbor_hash(paths, self._counted, docker_image=image, folder=self.folder)
            case Scheme.LEGACY:
                return envhash.legacy_hash(self.tree, base, self.entries)
            case Scheme.DOCKERFILE:
                known = envhash.DOCKERFILE in self.entries
                return envhash.text_hash([self._read_dockerfile()]) if known else None
            case Scheme.BUILD:
                return self._build(definition)

    def _counted(self, path: str) -> envhash.Chunks:
        size, chunks = self.tree.chunks(f"{self.base}/{path}")
        self.files += 1
        self.size += size
        if path == envhash.DOCKERFILE and size <= CHUNK:
            self.dockerfile = b"".join(chunks)
            return size, iter((self.dockerfile,))
        return size, chunks

    def _read_dockerfile(self) -> bytes:
        if self.dockerfile is None:
            path = self.tree.resolve(f"{self.base}/{envhash.DOCKERFILE}")
            self.dockerfile = self.tree.read(path, dockerfile.MAX_DOCKERFILE)
        return self.dockerfile

    def _build(self, definition: Definition) -> str | None:
        if definition is Definition.IMAGE:
            return envhash.text_hash([f"image {self.settings.docker_image}".encode()])
        parsed = None
        paths: tuple[str, ...] = tuple(sorted(self.entries))
        if definition is Definition.DOCKERFILE:
            parsed = dockerfile.parse(self._read_dockerfile())
            ignore = buildhash.read_ignore(self.tree, self.base, self.entries)
            found = buildhash.reads(parsed, self.entries, ignore)
            paths = found.paths
            for source in found.missing:
                self._once(
                    finding(
                        "copy-source-missing", f"{source.command} {source.pattern}", f"line {source.line}"
                    )
                )
            for source in found.added:
                self._once(
                    finding("add-not-uploaded", f"ADD {source.pattern or ''}".rstrip(), f"line {source.line}")
                )
        return buildhash.build_hash(self.tree, self.base, self.entries, parsed, paths)
