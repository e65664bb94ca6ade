"""From an address to a store: a folder, a manifest, ``hf://…`` or any fsspec URL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from poolmgr.errors import ManifestInvalidError, PoolNotFoundError
from poolmgr.model.index import nearest
from poolmgr.model.manifest import Manifest
from poolmgr.settings import Settings
from poolmgr.store.address import file_url_path, is_url, printable
from poolmgr.store.base import OnRetry, Store
from poolmgr.store.local import LocalStore

MAX_MANIFEST = 4 << 20
_NAME = re.compile(r"[\w-][\w.-]*")
_HUB = re.compile(
    r"hf://(?:(datasets|spaces|models)/)?(?!(?:datasets|spaces|models|buckets)/)([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([^@\s?#]+))?/?"
)
_HUB_KINDS = {"datasets": "dataset", "spaces": "space", "models": "model", None: "model"}


@dataclass(frozen=True)
class Located:
    """Where an address leads."""

    store: Store
    manifest: Manifest | None = None
    """Where the address named one."""
    root: Path | None = None
    """The folder, for pools that are one."""


def locate(address: str, settings: Settings, *, on_retry: OnRetry | None = None) -> Located:
    """The store at ``address``; nothing is asked of a network yet.

    An existing folder goes before a manifest of the same name. Raises ``PoolNotFoundError``, and
    ``ManifestInvalidError`` for a manifest that cannot be used.
    """
    if is_url(address):
        return _from_url(address, settings, on_retry)
    folder = Path(address).expanduser()
    if folder.is_dir():
        return Located(LocalStore(folder), root=folder)
    file = _manifest_file(address, settings)
    if file is None:
        raise _nothing_there(address, folder, settings)
    manifest = _read_manifest(file)
    url = manifest.url or ""
    if is_url(url):
        there = _from_url(url, settings, on_retry)
    else:
        folder = file.parent / Path(url).expanduser()
        if not folder.is_dir():
            raise PoolNotFoundError(
                f"{file}: pool.url names the folder {folder}, and there is none",
                hint="a relative pool.url is relative to the manifest's own folder",
            )
        there = Located(LocalStore(folder), root=folder)
    return Located(there.store, manifest, there.root)


def find_manifest(name: str, settings: Settings) -> Manifest:
    """The manifest in the file ``name``, else the one of that name in the usual places.

    Raises ``ManifestInvalidError``; for a name that nobody has, with the nearest names that exist.
    """
    file = _manifest_file(name, settings)
    if file is None:
        what = "no such file" if _looks_like_path(name) else "there is no manifest of that name"
        raise ManifestInvalidError(f"{name}: {what}", hint=_others(name, settings))
    return _read_manifest(file)


def manifest_names(settings: Settings) -> list[str]:
    """Every name under which a manifest can be found, sorted."""
    return sorted({f.stem for place in _places(settings) for f in place.glob("*.toml") if f.is_file()})


def _places(settings: Settings) -> Iterator[Path]:
    """Where manifests lie, the nearest first; the last is the wheel's own, or a checkout's."""
    yield Path("manifests")
    yield settings.config_dir
    package = Path(__file__).parent.parent
    yield package / "manifests"
    if (package.parent / "pyproject.toml").is_file():
        yield package.parent / "manifests"


def _looks_like_path(name: str) -> bool:
    return "/" in name or name.endswith(".toml") or _NAME.fullmatch(name) is None


def _manifest_file(name: str, settings: Settings) -> Path | None:
    if name.endswith(".toml") and (file := Path(name).expanduser()).is_file():
        return file
    if _looks_like_path(name):
        return None
    return next((f for p in _places(settings) if (f := p / f"{name}.toml").is_file()), None)


def _read_manifest(file: Path) -> Manifest:
    try:
        with file.open("rb") as reader:
            data = reader.read(MAX_MANIFEST + 1)
    except OSError as e:
        raise ManifestInvalidError(f"{file}: cannot be read: {e.strerror}") from None
    if len(data) > MAX_MANIFEST:
        raise ManifestInvalidError(f"{file}: larger than the {MAX_MANIFEST:,} bytes that a manifest may have")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ManifestInvalidError(f"{file}: not UTF-8 text (byte {e.start})") from None
    return Manifest.parse(text, str(file))


def _nothing_there(address: str, place: Path, settings: Settings) -> PoolNotFoundError:
    if place.exists():
        return PoolNotFoundError(
            f"{address} is a file; a pool is a folder, a manifest (NAME.toml) or a URL",
            hint="name the folder that holds the blobs",
        )
    if _looks_like_path(address):
        return PoolNotFoundError(
            f"{address}: no such {'manifest' if address.endswith('.toml') else 'folder'}",
            hint="a pool on the Hub is named hf://datasets/ORG/NAME",
        )
    return PoolNotFoundError(
        f"{address} is neither a folder here nor the name of a manifest", hint=_others(address, settings)
    )


def _others(name: str, settings: Settings) -> str:
    names = manifest_names(settings)
    close = nearest(Path(name).stem, names)
    looked = f"looked in {', '.join(str(place) for place in _places(settings))}"
    if close:
        return f"did you mean {' or '.join(map(repr, close))}? {looked}"
    return f"manifests there are: {', '.join(names) or 'none'}; {looked}"


def _from_url(url: str, settings: Settings, on_retry: OnRetry | None) -> Located:
    path = file_url_path(url)
    if path is not None:
        if not Path(path).is_dir():
            raise PoolNotFoundError(f"{printable(url)}: no such folder")
        return Located(LocalStore(path), root=Path(path))
    if url.startswith("hf://"):
        return Located(_hub(url, settings, on_retry))
    from poolmgr.store.remote import RemoteStore

    return Located(RemoteStore(url))


def _hub(url: str, settings: Settings, on_retry: OnRetry | None) -> Store:
    match = _HUB.fullmatch(url)
    if match is None:
        raise PoolNotFoundError(
            f"{printable(url)}: not the address of a repository on the Hub",
            hint="hf://datasets/ORG/NAME, with @REVISION where it is not the newest",
        )
    from poolmgr.store.hub import HubStore

    kind, name, revision = match.groups()
    return HubStore(
        name,
        repo_type=_HUB_KINDS[kind],
        revision=unquote(revision) if revision else None,
        endpoint=settings.hf_endpoint,
        offline=settings.offline,
        on_retry=on_retry,
    )
