"""The only reader of the environment: addresses, folders, token, endpoint, terminal wishes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

SECRET_NAMES = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "DAYTONA_API_KEY",
    "APPTAINER_DOCKER_PASSWORD",
    "SINGULARITY_DOCKER_PASSWORD",
)
_ON = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class Settings:
    """One reading of the environment; made once a run, passed down where it is needed."""

    pool: str | None
    """``POOLMGR_POOL``: the pool's address when ``-p`` is not given."""
    config_dir: Path
    """Where the user keeps manifests: ``POOLMGR_CONFIG``, else ``$XDG_CONFIG_HOME/poolmgr``."""
    offline: bool
    """``HF_HUB_OFFLINE``: no request leaves this machine."""
    hf_endpoint: str | None
    """``HF_ENDPOINT``: another Hub than the public one."""
    no_color: bool
    """``NO_COLOR`` is set and not empty (no-color.org)."""
    debug: bool = False
    """``POOLMGR_DEBUG``: show a traceback when poolmgr itself fails."""
    daytona_target: str | None = None
    """``DAYTONA_TARGET``: the region that Harbor puts into a snapshot's name."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Values of the environment that no output may show (``SECRET_NAMES``)."""

    @staticmethod
    def read() -> Settings:
        env = os.environ
        config = env.get("POOLMGR_CONFIG")
        if config:
            config_dir = Path(config)
        else:
            config_dir = Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "poolmgr"
        return Settings(
            pool=env.get("POOLMGR_POOL") or None,
            config_dir=config_dir,
            offline=env.get("HF_HUB_OFFLINE", "").strip().upper() in _ON,
            hf_endpoint=env.get("HF_ENDPOINT") or None,
            no_color=bool(env.get("NO_COLOR")),
            debug=env.get("POOLMGR_DEBUG", "").strip().upper() in _ON,
            daytona_target=env.get("DAYTONA_TARGET") or None,
            # A shorter value would be a placeholder, and would blot out ordinary words.
            secrets=tuple({v for name in SECRET_NAMES if len(v := env.get(name, "").strip()) >= 8}),
        )


def registry_login_files() -> tuple[Path, ...]:
    """Where logins to registries are kept, the first that has one wins: Apptainer's, Docker's, Podman's."""
    env = os.environ
    places = [Path.home() / ".apptainer", Path.home() / ".singularity"]
    files = [folder / "docker-config.json" for folder in places]
    docker = env.get("DOCKER_CONFIG")
    files.append((Path(docker) if docker else Path.home() / ".docker") / "config.json")
    if runtime := env.get("XDG_RUNTIME_DIR"):
        files.append(Path(runtime) / "containers" / "auth.json")
    return tuple(files)


def machine_name() -> str:
    """This machine's name, for messages to those who look from another one."""
    return os.uname().nodename


def slurm_array() -> dict[str, int] | None:
    """What Slurm says of the array task that this process is: task, least, most, count, step; else None."""
    names = {"task": "ID", "least": "MIN", "most": "MAX", "count": "COUNT", "step": "STEP"}
    found = {key: os.environ.get(f"SLURM_ARRAY_TASK_{name}", "") for key, name in names.items()}
    found["step"] = found["step"] or "1"
    if not all(value.isascii() and value.isdigit() and len(value) < 10 for value in found.values()):
        return None
    return {key: int(value) for key, value in found.items()}
