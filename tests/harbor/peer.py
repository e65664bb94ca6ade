"""Runs inside Harbor's own virtual environment: answers one JSON request a line with Harbor's word."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")


def _legacy() -> Any:
    path = Path(sys.prefix) / "legacy" / "harbor" / "utils" / "container_cache.py"
    spec = importlib.util.spec_from_file_location("harbor_legacy_cache", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(request: dict[str, Any], legacy: Any) -> Any:
    from harbor.environments.definition import environment_content_hash
    from harbor.models.task.config import TaskConfig
    from harbor.models.task.paths import TaskPaths
    from harbor.models.task.task import Task
    from harbor.models.task.verifier_mode import resolve_verifier_environment_definition as resolve

    path = Path(request["path"])
    if request["op"] == "hash":
        return [
            _or_error(lambda: environment_content_hash(path, docker_image=request.get("image"), truncate=64)),
            _or_error(lambda: legacy.environment_dir_hash(path)),
        ]
    if request["op"] == "dataset":
        return [p.name for p in sorted(path.iterdir()) if Task.is_valid_dir(p, disable_verification=True)]
    if request["op"] == "digest":
        from harbor.publisher.packager import Packager

        try:
            return Packager.compute_content_hash(path)[0]
        except (OSError, ValueError, RuntimeError) as e:
            return f"{type(e).__name__}: {e}"
    if request["op"] == "toml":
        try:
            TaskConfig.model_validate_toml(path.read_text())
        except Exception as e:
            return f"{type(e).__name__}: {e}"
        return None
    if not Task.is_valid_dir(path, disable_verification=True):
        return None
    config = TaskConfig.model_validate_toml((path / "task.toml").read_text())
    paths = TaskPaths(path)
    found = [("agent", paths.environment_dir, config.environment)]
    for step in config.steps or [None]:
        definition = resolve(config, paths, step)
        if definition is not None:
            role = f"verifier:{step.name}" if step else "verifier"
            found.append((role, definition.directory, definition.config))
    return [
        {
            "role": role,
            "folder": folder.relative_to(paths.task_dir).as_posix(),
            "hash": environment_content_hash(folder, docker_image=settings.docker_image, truncate=64),
            "image": settings.docker_image or None,
            "resources": [settings.cpus, settings.memory_mb, settings.storage_mb, settings.gpus],
        }
        for role, folder, settings in found
    ]


def _or_error(compute: Any) -> str | None:
    try:
        return compute()
    except (UnicodeEncodeError, OSError):
        return None


def main() -> None:
    legacy = _legacy()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), legacy)), flush=True)


if __name__ == "__main__":
    main()
