"""Reads ``task.toml`` by Harbor's rules (0.26, ``harbor.models.task.config``), without pydantic.

What Harbor refuses is refused here with the key and the reason; unknown keys pass, as there.
Harbor reads leniently: a number may be written as text, ``memory = "2G"`` stands for memory_mb.
The one rule that is not checked is that MCP headers hold no literal credential.
"""

from __future__ import annotations

import math
import re
import tomllib
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network

from poolmgr.harbor import values
from poolmgr.harbor.values import ConfigError, Table
from poolmgr.model.environment import Resources

SMALL = 8192
"""Bytes of a file that is remembered: the tasks of a dataset often have one and the same."""
_PACKAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*\n?\Z")
_SERVICE = re.compile(r"^[a-zA-Z0-9][a-zA-Z0-9_.-]*$")
_HOST_LABEL = re.compile(r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")
_STEP_BAD = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICE = re.compile(r"^(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[1-9¹²³])$", re.IGNORECASE)
_TOPOLOGY = re.compile(r"^[1-9]\d*(x[1-9]\d*)+$")
_HEADER = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")


@dataclass(frozen=True, slots=True)
class EnvironmentConfig:
    docker_image: str | None
    resources: Resources
    os: str = "linux"


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    mode: str | None = None
    """``shared``, ``separate``, or None: as the environment below implies."""
    environment: EnvironmentConfig | None = None

    @property
    def effective(self) -> str | None:
        return self.mode or ("separate" if self.environment is not None else None)


@dataclass(frozen=True, slots=True)
class StepConfig:
    name: str
    verifier: VerifierConfig


@dataclass(frozen=True, slots=True)
class TaskConfig:
    environment: EnvironmentConfig
    verifier: VerifierConfig
    steps: tuple[StepConfig, ...]


def parse(data: bytes) -> TaskConfig:
    """The settings in ``data``; ``ConfigError`` with the reason, as Harbor would refuse them."""
    return _parse_once(data) if len(data) <= SMALL else _parse(data)


@lru_cache(maxsize=1024)
def _parse_once(data: bytes) -> TaskConfig:
    return _parse(data)


def _parse(data: bytes) -> TaskConfig:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise ConfigError(f"not UTF-8 text (byte {e.start})") from None
    try:
        raw = tomllib.loads(text.replace("\r\n", "\n").replace("\r", "\n"))
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"not TOML: {e}") from None
    except RecursionError:
        raise ConfigError("not TOML: nested far too deeply") from None
    return _task(raw)


def _task(raw: Table) -> TaskConfig:
    if "version" in raw:
        raw.setdefault("schema_version", raw.pop("version"))
    values.text(raw, "", "schema_version")
    _package(values.table(raw, "", "task", optional=True))
    values.table(raw, "", "metadata")
    values.texts_by_name(values.table(raw, "", "solution"), "solution", "env")
    values.text(raw, "", "source")
    values.choice(raw, "", "multi_step_reward_strategy", ("mean", "final"))
    _agent(values.table(raw, "", "agent"), "agent")
    environment = _environment(values.table(raw, "", "environment"), "environment")
    verifier = _verifier(values.table(raw, "", "verifier"), "verifier")
    _artifacts(raw, "artifacts")
    steps: list[StepConfig] = []
    names: set[str] = set()
    for i, step in enumerate(values.list_of(raw, "", "steps")):
        where = f"steps[{i}]"
        if not isinstance(step, dict):
            raise values.expected(where, "a table", step)
        steps.append(_step(step, where))
        key = unicodedata.normalize("NFC", steps[-1].name).casefold()
        if key in names:
            raise ConfigError(
                f"{where}.name: {steps[-1].name!r} stands twice (case and Unicode form ignored)"
            )
        names.add(key)
    return TaskConfig(environment, verifier, tuple(steps))


def _step(step: Table, where: str) -> StepConfig:
    if "name" not in step:
        raise ConfigError(f"{where}.name: missing")
    name = values.text(step, where, "name") or ""
    if step_name_trouble(name):
        raise ConfigError(f"{where}.name: {name!r} {step_name_trouble(name)}")
    _agent(values.table(step, where, "agent"), f"{where}.agent")
    verifier = _verifier(values.table(step, where, "verifier"), f"{where}.verifier")
    reward = step.get("min_reward")
    if isinstance(reward, dict):
        for key in reward:
            values.number(reward, f"{where}.min_reward", key)
    else:
        values.number(step, where, "min_reward")
    _healthcheck(values.table(step, where, "healthcheck", optional=True), f"{where}.healthcheck")
    _artifacts(step, f"{where}.artifacts")
    return StepConfig(name, verifier)


def step_name_trouble(name: str) -> str | None:
    """Why ``name`` may not name a step's folder, or None."""
    if (
        not name.strip()
        or name in {".", ".."}
        or name.endswith((".", " "))
        or _STEP_BAD.search(name)
        or _DEVICE.fullmatch(name.partition(".")[0].rstrip(" "))
        or len(name.encode("utf-8", "surrogateescape")) > 255
    ):
        return "is no portable folder name"
    return None


def _package(table: Table | None) -> None:
    if table is None:
        return
    if "name" not in table:
        raise ConfigError("task.name: missing")
    name = values.text(table, "task", "name") or ""
    if not _PACKAGE.match(name) or ".." in name:
        raise ConfigError(f"task.name: expected 'org/name', found {name!r}")
    version = values.text(table, "task", "version")
    if version == "":
        raise ConfigError("task.version: is empty")
    values.text(table, "task", "description")
    for i, author in enumerate(values.list_of(table, "task", "authors")):
        where = f"task.authors[{i}]"
        if not isinstance(author, dict) or "name" not in author:
            raise values.expected(where, "a table with a name", author)
        values.text(author, where, "name")
        values.text(author, where, "email")
    values.texts(table, "task", "keywords")


def _agent(table: Table, where: str) -> None:
    _network(table, where, baseline=False)
    values.number(table, where, "timeout_sec")
    _user(table, where)


def _verifier(table: Table, where: str) -> VerifierConfig:
    _network(table, where, baseline=False)
    values.number(table, where, "timeout_sec")
    values.texts_by_name(table, where, "env")
    _user(table, where)
    mode = values.choice(table, where, "environment_mode", ("shared", "separate"))
    inner = values.table(table, where, "environment", optional=True)
    environment = None if inner is None else _environment(inner, f"{where}.environment")
    if mode == "shared" and environment is not None:
        raise ConfigError(
            f'{where}: environment_mode = "shared" and an environment of its own exclude each other'
        )
    for i, hook in enumerate(values.list_of(table, where, "collect")):
        at = f"{where}.collect[{i}]"
        if not isinstance(hook, dict) or "command" not in hook:
            raise values.expected(at, "a table with a command", hook)
        values.text(hook, at, "command")
        _service(hook, at)
        values.number(hook, at, "timeout_sec")
        _user(hook, at)
    return VerifierConfig(mode, environment)


def _environment(table: Table, where: str) -> EnvironmentConfig:
    memory = _size(table, where, "memory", "memory_mb")
    storage = _size(table, where, "storage", "storage_mb")
    _network(table, where, baseline=True)
    values.number(table, where, "build_timeout_sec")
    os = table.get("os", "linux")
    if not isinstance(os, str) or os.lower() not in ("linux", "windows"):
        raise values.expected(f"{where}.os", '"linux" or "windows"', os)
    cpus = values.number(table, where, "cpus")
    if cpus is not None and not math.isfinite(cpus):
        raise ConfigError(f"{where}.cpus: {cpus} is not a finite number")
    if "gpu_types" in table:
        values.texts(table, where, "gpu_types")
    tpu = values.table(table, where, "tpu", optional=True)
    if tpu is not None:
        if not values.text(tpu, f"{where}.tpu", "type") or "topology" not in tpu:
            raise ConfigError(f"{where}.tpu: needs a type and a topology")
        if not _TOPOLOGY.match((values.text(tpu, f"{where}.tpu", "topology") or "").strip()):
            raise ConfigError(
                f"{where}.tpu.topology: expected a form such as '2x4', found {tpu['topology']!r}"
            )
    for i, server in enumerate(values.list_of(table, where, "mcp_servers")):
        _mcp(server, f"{where}.mcp_servers[{i}]")
    values.texts_by_name(table, where, "env")
    values.text(table, where, "skills_dir")
    _healthcheck(values.table(table, where, "healthcheck", optional=True), f"{where}.healthcheck")
    values.text(table, where, "workdir")
    values.boolean(table, where, "allow_internet")
    return EnvironmentConfig(
        docker_image=values.text(table, where, "docker_image"),
        resources=Resources(cpus, memory, storage, values.integer(table, where, "gpus")),
        os=os.lower(),
    )


def _size(table: Table, where: str, old: str, new: str) -> int | None:
    """``memory_mb``, from the older ``memory = "2G"`` where only that is given."""
    text = table.get(old)
    if not isinstance(text, str):
        return values.integer(table, where, new)
    word = text.strip().upper()
    scale = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}.get(word[-1:])
    if scale is None:
        raise values.expected(f"{where}.{old}", "a size such as '2G'", text)
    try:
        number = float(word[:-1])
        size = int(number / 1024) if word[-1] == "K" else int(number * scale)
    except (ValueError, OverflowError):
        raise values.expected(f"{where}.{old}", "a size such as '2G'", text) from None
    if new in table and table[new] != size:
        raise ConfigError(f"{where}: {old} = {text!r} and {new} = {table[new]!r} contradict each other")
    return size


def _healthcheck(table: Table | None, where: str) -> None:
    if table is None:
        return
    if "command" not in table:
        raise ConfigError(f"{where}.command: missing")
    values.text(table, where, "command")
    for key in ("interval_sec", "timeout_sec", "start_period_sec", "start_interval_sec"):
        values.number(table, where, key)
    values.integer(table, where, "retries")


def _mcp(server: object, where: str) -> None:
    if not isinstance(server, dict) or "name" not in server:
        raise values.expected(where, "a table with a name", server)
    values.text(server, where, "name")
    if server.get("transport") == "http":
        server["transport"] = "streamable-http"
    transport = values.choice(server, where, "transport", ("stdio", "sse", "streamable-http")) or "sse"
    url = values.text(server, where, "url")
    command = values.text(server, where, "command")
    values.texts(server, where, "args")
    headers = values.texts_by_name(server, where, "headers")
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or "\r" in value or "\n" in value:
            raise ConfigError(f"{where}.headers: {name!r} is no HTTP header")
    if transport == "stdio" and (not command or headers):
        raise ConfigError(f"{where}: transport 'stdio' needs a command, and takes no headers")
    if transport != "stdio" and not url:
        raise ConfigError(f"{where}: transport {transport!r} needs a url")


def _network(table: Table, where: str, *, baseline: bool) -> None:
    mode = values.choice(table, where, "network_mode", ("no-network", "public", "allowlist"))
    hosts = table.get("allowed_hosts")
    if hosts is not None:
        for host in values.texts(table, where, "allowed_hosts"):
            if not _host_is_valid(host):
                raise ConfigError(f"{where}.allowed_hosts: {host!r} is no host name, address or range")
    if baseline and mode is None:
        mode = "public"
    if (mode is None and hosts is not None) or (mode not in (None, "allowlist") and hosts):
        raise ConfigError(f'{where}.allowed_hosts: only valid with network_mode = "allowlist"')


def _host_is_valid(host: str) -> bool:
    host = host.strip().lower().rstrip(".")
    if not host or "[" in host or "]" in host:
        return False
    try:
        if "/" in host:
            ip_network(host, strict=True)
            return "%" not in host
        if ":" in host:
            return "%" not in host and ip_address(host).version == 6
    except ValueError:
        return False
    bare = host.removeprefix("*.")
    if bare != host:
        try:
            ip_address(bare)
            return False
        except ValueError:
            pass
    return bool(bare) and "*" not in bare and all(_HOST_LABEL.match(part) for part in bare.split("."))


def _artifacts(table: Table, where: str) -> None:
    for i, entry in enumerate(values.list_of(table, "", "artifacts")):
        at = f"{where}[{i}]"
        if isinstance(entry, str):
            if ".." in entry.split("/"):
                raise ConfigError(f"{at}: {entry!r} has a '..' component")
            continue
        if not isinstance(entry, dict) or "source" not in entry:
            raise values.expected(at, "a path or a table with a source", entry)
        source = values.text(entry, at, "source") or ""
        if ".." in source.split("/"):
            raise ConfigError(f"{at}.source: {source!r} has a '..' component")
        target = values.text(entry, at, "destination")
        if target and (
            "\\" in target
            or target.startswith("/")
            or ".." in target.split("/")
            or not [p for p in target.split("/") if p not in ("", ".")]
            or target.rstrip("/") == "manifest.json"
        ):
            raise ConfigError(f"{at}.destination: {target!r} is no relative path inside the artifacts")
        values.texts(entry, at, "exclude")
        service = _service(entry, at)
        if service not in (None, "main") and not re.match(r"^(/|[A-Za-z]:[/\\])", source):
            raise ConfigError(f"{at}.source: {source!r} of service {service!r} is not absolute")


def _service(table: Table, where: str) -> str | None:
    name = values.text(table, where, "service")
    if name is None:
        return None
    name = name.strip()
    if not _SERVICE.match(name):
        raise ConfigError(f"{where}.service: {name!r} is no Compose service name")
    return name


def _user(table: Table, where: str) -> None:
    value = table.get("user")
    if value is None or isinstance(value, str):
        return
    values.integer(table, where, "user")
