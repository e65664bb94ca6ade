"""Logins to image registries, as ``apptainer registry login`` and ``docker login`` leave them.

The files are read and never written; secrets appear in no message. Credential helpers
(``credsStore``, ``credHelpers``) are programs, and none is run.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from poolmgr.model.reference import DOCKER_HUB, Reference

MAX_FILE = 1 << 20
_HUB_KEYS = ("docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com")


@dataclass(frozen=True, slots=True)
class Login:
    user: str = field(repr=False)
    password: str = field(repr=False)
    file: Path
    """Where it was found; given to Apptainer as it is."""

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True)
class Logins:
    """The login files, the first that knows a registry wins."""

    files: tuple[Path, ...] = ()

    @cached_property
    def _tables(self) -> tuple[tuple[Path, dict[str, Login], bool], ...]:
        return tuple((file, *_read(file)) for file in self.files)

    def find(self, reference: Reference) -> Login | None:
        """The login for the repository: of the longest path prefix that has one, else of the host."""
        hosts = _HUB_KEYS if reference.host == DOCKER_HUB else (reference.host,)
        for _, table, _ in self._tables:
            path = reference.repository
            while path:
                for host in hosts:
                    if (login := table.get(f"{host}/{path}")) is not None:
                        return login
                path = path.rpartition("/")[0]
            for host in hosts:
                if (login := table.get(host)) is not None:
                    return login
        return None

    def helpers(self) -> tuple[Path, ...]:
        """Files that leave logins to a program, which is not run."""
        return tuple(file for file, _, helped in self._tables if helped)


def _read(file: Path) -> tuple[dict[str, Login], bool]:
    """Registry (or registry/path) -> login, without what is malformed; whether it names a helper."""
    if not file.is_file():  # a pipe would never end
        return {}, False
    try:
        with file.open("rb") as opened:
            data: Any = json.loads(opened.read(MAX_FILE))
    except (OSError, ValueError, RecursionError):
        return {}, False
    if not isinstance(data, dict):
        return {}, False
    table = {}
    auths = data.get("auths")
    for key, entry in auths.items() if isinstance(auths, dict) else ():
        if isinstance(entry, dict) and (login := _login(entry, file)) is not None:
            table[_place(key)] = login
    return table, bool(data.get("credsStore") or data.get("credHelpers"))


def _place(key: str) -> str:
    """``https://index.docker.io/v1/`` -> ``index.docker.io``; ``quay.io/org`` stays."""
    bare = key.partition("://")[2] if "://" in key else key
    host, _, path = bare.strip("/").partition("/")
    return host if path in ("", "v1", "v2") else f"{host}/{path}"


def _login(entry: dict[str, Any], file: Path) -> Login | None:
    auth, user, password = entry.get("auth"), entry.get("username"), entry.get("password")
    if isinstance(auth, str) and auth:
        try:
            user, colon, password = base64.b64decode(auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return None
        if not colon:
            return None
    if not isinstance(user, str) or not isinstance(password, str) or not user:
        return None
    return Login(user, password.rstrip("\0"), file)


def logins(files: Iterable[Path]) -> Logins:
    """The logins in ``files``, in order of preference; nothing is read before it is needed."""
    return Logins(tuple(files))
