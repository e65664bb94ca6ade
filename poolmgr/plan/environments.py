"""Counts the environments of task datasets: how many there are, who shares them, what they cost.

Pure, and the one place these numbers come from: ``env count`` prints them, the catalogue exports
the same rows. Environments are told apart by Harbor's hash (model/environment.py, ``Scheme``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from poolmgr.model.environment import Definition, Environment, NotTask, Resources, Scheme, Task
from poolmgr.model.finding import Finding, Severity

DEFAULT_LIMIT = 9
"""Snapshots that one launch should need at most: practice is to stay under 10."""


@dataclass(slots=True)
class Group:
    """One distinct environment and everyone who needs it."""

    hash: str
    """Harbor's, in full."""
    first: Environment
    """As the first task that has it describes it."""
    tasks: list[tuple[str, str, str]] = field(default_factory=list)
    """(dataset, task, role) in order; one task stands twice when two of its roles share it."""
    resources: Counter[Resources] = field(default_factory=Counter)
    """What the tasks ask for -> how many ask for it."""
    definitions: set[Definition] = field(default_factory=set)
    is_agent: bool = False
    is_verifier: bool = False

    @property
    def definition(self) -> Definition:
        return self.first.definition

    @property
    def task_names(self) -> list[str]:
        """The distinct tasks, with their dataset in front where there are several datasets."""
        several = len({dataset for dataset, _, _ in self.tasks}) > 1
        return list(dict.fromkeys(f"{d}:{t}" if several else t for d, t, _ in self.tasks))

    @property
    def needs_snapshot(self) -> bool:
        """Whether Daytona's auto_snapshot builds one: a Dockerfile, and no compose file beside it."""
        return Definition.DOCKERFILE in self.definitions

    @property
    def conflicting_resources(self) -> bool:
        """Whether tasks ask for different resources under one snapshot name: the first one decides."""
        return self.needs_snapshot and len(self.resources) > 1


@dataclass(frozen=True)
class Count:
    """What ``env count`` says of one dataset, or of several together."""

    name: str
    tasks: int
    groups: Mapping[str, Group]
    """Harbor's hash -> its environment, in the order of their first task."""
    not_tasks: tuple[NotTask, ...]
    unhashed: tuple[tuple[str, str, str], ...]
    """(dataset, task, role) of environments that Harbor cannot hash."""
    findings: tuple[tuple[str, str, Finding], ...]
    """(dataset, task, finding) in order, those of ``not_tasks`` among them."""
    others: Mapping[Scheme, frozenset[str]]
    """Distinct hashes by every other scheme that was computed."""
    without: Mapping[Scheme, frozenset[str]]
    """Harbor's hashes of environments that have none by that scheme: their Dockerfile does not parse."""
    by_definition: Mapping[Definition, int]
    """How many environments, distinct by hash, are defined in each way."""

    @property
    def environments(self) -> int:
        return len(self.groups)

    @property
    def agent(self) -> int:
        return sum(g.is_agent for g in self.groups.values())

    @property
    def verifier(self) -> int:
        return sum(g.is_verifier for g in self.groups.values())

    @property
    def snapshots(self) -> int:
        """Daytona snapshots that auto_snapshot builds for all the tasks."""
        return sum(g.needs_snapshot for g in self.groups.values())

    @property
    def image_only(self) -> tuple[Group, ...]:
        """Environments on which auto_snapshot fails: there is no Dockerfile to build."""
        return tuple(g for g in self.groups.values() if Definition.IMAGE in g.definitions)

    @property
    def conflicts(self) -> tuple[Group, ...]:
        return tuple(g for g in self.groups.values() if g.conflicting_resources)

    @property
    def reasons(self) -> Mapping[str, int]:
        """Finding code -> how many folders or rows are no task for that reason."""
        return Counter(n.finding.code for n in self.not_tasks)

    @property
    def sizes(self) -> list[int]:
        """Tasks per environment, the largest first."""
        return sorted((len(g.task_names) for g in self.groups.values()), reverse=True)

    @property
    def single_use(self) -> int:
        return sum(size == 1 for size in self.sizes)

    @property
    def errors(self) -> list[tuple[str, str, Finding]]:
        return [f for f in self.findings if f[2].severity is Severity.ERROR]


class Tally:
    """Adds tasks up; what it keeps of each is its name and the places it stands in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks = 0
        self._groups: dict[str, Group] = {}
        self._not_tasks: list[NotTask] = []
        self._unhashed: list[tuple[str, str, str]] = []
        self._findings: list[tuple[str, str, Finding]] = []
        self._others: dict[Scheme, set[str]] = {}
        self._without: dict[Scheme, set[str]] = {}

    def add(self, item: Task | NotTask) -> None:
        if isinstance(item, NotTask):
            self._not_tasks.append(item)
            self._findings.append((item.dataset, item.name or item.where, item.finding))
            return
        self._tasks += 1
        self._findings += [(item.dataset, item.name, f) for f in item.findings]
        for environment in item.environments:
            self._findings += [(item.dataset, item.name, f) for f in environment.findings]
            self._add(item, environment)

    def _add(self, task: Task, environment: Environment) -> None:
        place = (task.dataset, task.name, environment.role)
        digest = environment.hash
        for scheme, other in environment.hashes.items():
            if scheme is not Scheme.HARBOR and other is not None:
                self._others.setdefault(scheme, set()).add(other)
            elif digest is not None and other is None:
                self._without.setdefault(scheme, set()).add(digest)
        if digest is None:
            self._unhashed.append(place)
            return
        group = self._groups.get(digest)
        if group is None:
            group = self._groups[digest] = Group(digest, environment)
        group.tasks.append(place)
        group.resources[environment.resources] += 1
        group.definitions.add(environment.definition)
        if environment.is_verifier:
            group.is_verifier = True
        else:
            group.is_agent = True

    def count(self) -> Count:
        defined: Counter[Definition] = Counter()
        for group in self._groups.values():
            defined.update(group.definitions)
        return Count(
            name=self.name,
            tasks=self._tasks,
            groups=self._groups,
            not_tasks=tuple(self._not_tasks),
            unhashed=tuple(self._unhashed),
            findings=tuple(self._findings),
            others={scheme: frozenset(found) for scheme, found in self._others.items()},
            without={scheme: frozenset(found) for scheme, found in self._without.items()},
            by_definition=defined,
        )


def tally(items: Iterable[Task | NotTask]) -> list[Count]:
    """One count for each dataset of the stream, in its order."""
    tallies: dict[str, Tally] = {}
    for item in items:
        if item.dataset not in tallies:
            tallies[item.dataset] = Tally(item.dataset)
        tallies[item.dataset].add(item)
    return [t.count() for t in tallies.values()]


def union(counts: Sequence[Count]) -> Count:
    """All the datasets as one: what a launch of them together would need."""
    groups: dict[str, Group] = {}
    for count in counts:
        for digest, group in count.groups.items():
            into = groups.get(digest)
            if into is None:
                into = groups[digest] = Group(digest, group.first)
            into.tasks += group.tasks
            into.resources.update(group.resources)
            into.definitions |= group.definitions
            into.is_agent |= group.is_agent
            into.is_verifier |= group.is_verifier
    defined: Counter[Definition] = Counter()
    for group in groups.values():
        defined.update(group.definitions)
    return Count(
        name="together",
        tasks=sum(c.tasks for c in counts),
        groups=groups,
        not_tasks=tuple(n for c in counts for n in c.not_tasks),
        unhashed=tuple(u for c in counts for u in c.unhashed),
        findings=tuple(f for c in counts for f in c.findings),
        others=_united([c.others for c in counts]),
        without=_united([c.without for c in counts]),
        by_definition=defined,
    )


def _united(found: Sequence[Mapping[Scheme, frozenset[str]]]) -> dict[Scheme, frozenset[str]]:
    schemes = {scheme for one in found for scheme in one}
    return {s: frozenset().union(*(one.get(s, frozenset()) for one in found)) for s in schemes}


def shared(counts: Sequence[Count]) -> dict[str, list[str]]:
    """Hash -> the datasets that have it, for every environment that more than one has."""
    owners: dict[str, list[str]] = {}
    for count in counts:
        for digest in count.groups:
            owners.setdefault(digest, []).append(count.name)
    return {digest: names for digest, names in owners.items() if len(names) > 1}
