"""Reads task datasets by their addresses, one stream for all of them, on several cores where asked.

The stream is in the order of the datasets, holds a few tasks at a time, and is the same with one
process and with many.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from poolmgr.errors import DatasetInvalidError
from poolmgr.harbor.archive import Limits
from poolmgr.harbor.parquet import ArchiveFile
from poolmgr.harbor.source import Found, Part, Work, discover, open_all, tasks, to_do, without_doubles
from poolmgr.harbor.tasks import finding
from poolmgr.model.environment import NotTask, Scheme, Task
from poolmgr.ops.dataset import opener_of, remote
from poolmgr.ops.hub_tasks import folder_parts
from poolmgr.ops.processes import spread
from poolmgr.ops.progress import Progress, Silent
from poolmgr.settings import Settings
from poolmgr.store.address import file_url_path, is_url, printable
from poolmgr.store.base import OnRetry
from poolmgr.store.hub import HubStore

CHUNK_ITEMS = 64
CHUNK_BYTES = 8 << 20
MOST_BYTES = 64 << 20
"""Bytes of archive rows that are on their way to other processes at once, but always one row."""
FEW = 400
"""Up to so many folders one process is quicker than starting several."""


def find(
    addresses: Sequence[str], settings: Settings | None = None, *, on_retry: OnRetry | None = None
) -> list[Part]:
    """The parts of every dataset; equal names are told apart by their addresses.

    ``settings`` are needed for addresses with a scheme; None reads them. An address under which there
    can be no task is a part with a refusal, so that the others are read; ``DatasetInvalidError`` when
    all are such.
    """
    labels = [_label(address) for address in addresses]
    parts: list[Part] = []
    wrong: list[DatasetInvalidError] = []
    for address, label in zip(addresses, labels, strict=True):
        label = printable(address) if labels.count(label) > 1 else label
        try:
            if is_url(address) and file_url_path(address) is None:
                parts += _remote(address, label, settings or Settings.read(), on_retry)
            else:
                parts += discover(Path(file_url_path(address) or address).expanduser(), label)
        except DatasetInvalidError as e:
            wrong.append(e)
            where = printable(address)
            said = e.message.removeprefix(f"{where}: ")
            refused = NotTask(label, "", where, finding("bad-dataset", said))
            parts.append(Part(label, where, refused=(refused,)))
    if len(wrong) == len(addresses) and wrong:
        raise wrong[0]
    return parts


def _label(address: str) -> str:
    if is_url(address):
        return printable(address).partition("://")[2].removeprefix("datasets/").rstrip("/")
    path = Path(address).expanduser().resolve()
    return path.parent.name if path.suffix in (".parquet", ".json", ".toml") else path.name


def _remote(address: str, label: str, settings: Settings, on_retry: OnRetry | None) -> list[Part]:
    """The archives in a repository or bucket, each folder a sub-dataset; of the Hub task folders too."""
    there = remote(address, settings, on_retry=on_retry)
    store, below, inside = there.store, there.inside, sorted(there.files)
    opener = opener_of(store, there.files)
    archives = [p for p in inside if p.endswith(".parquet")]
    parts: list[Part] = []
    tasks_in: frozenset[str] = frozenset()
    if isinstance(store, HubStore):
        parts, tasks_in = folder_parts(store, below, label, archives)
    for path in archives:
        if any(path[:i] in tasks_in for i, char in enumerate(path) if char == "/") or "" in tasks_in:
            continue  # a file of a task
        archive = ArchiveFile(f"{store.address}/{path}", partial(opener, path))
        folder = path[len(below) :].strip("/").rpartition("/")[0]
        folder = "" if folder == "data" else folder.removesuffix("/data")
        parts.append(Part(f"{label}/{folder}" if folder else label, archive.name, archive=archive))
    if not parts:
        is_folders = any(p.endswith("/task.toml") for p in inside)
        raise DatasetInvalidError(
            f"{printable(address)}: no .parquet file"
            + (", only task folders, which are read one by one on the Hub alone" if is_folders else "")
            + ("" if is_folders or not isinstance(store, HubStore) else " and no task folder"),
            hint="download the folder first, and name it here" if is_folders else "",
        )
    return parts


def stream(
    parts: Sequence[Part],
    schemes: frozenset[Scheme],
    *,
    limits: Limits | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Generator[Task | NotTask, None, None]:
    """Every task of ``parts``, and everything that is none with its reason."""
    progress = progress or Silent()
    limits = limits or Limits()
    folders = sum(len(p.folders) + len(p.listed) for p in parts)
    archives = any(p.archive for p in parts)
    progress.begin("reading tasks", files=0 if archives else folders)
    try:
        if jobs <= 1 or (folders <= FEW and not archives) or any(p.listed for p in parts):
            found: Iterable[Found] = tasks(parts, schemes, limits)
        else:
            found = without_doubles(_spread(parts, schemes, limits, jobs))
        for item in found:
            progress.file_done(item.item.where)
            yield item.item
    finally:
        progress.end()


def _spread(parts: Sequence[Part], schemes: frozenset[Scheme], limits: Limits, jobs: int) -> Iterator[Found]:
    """The stream, read by ``jobs`` processes; at most a few chunks are under way at once."""
    work = partial(open_all, schemes=schemes, limits=limits)
    chunks = _chunks(item.slim(limits) for item in to_do(parts))
    for items in spread(work, chunks, jobs, size=_bytes, most=MOST_BYTES):
        yield from map(Found, items)


def _chunks(work: Iterable[Work]) -> Iterator[list[Work]]:
    chunk: list[Work] = []
    size = 0
    for item in work:
        chunk.append(item)
        size += len(item.data or b"")
        if len(chunk) == CHUNK_ITEMS or size > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _bytes(chunk: Sequence[Work]) -> int:
    return sum(len(item.data or b"") for item in chunk)
