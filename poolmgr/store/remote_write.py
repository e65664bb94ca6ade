"""Replacing a small file at an fsspec URL, by one writer at a time: looked at before and after.

Such places have no commits and mostly no conditions, so two writers in one second cannot be kept
apart; what can be done is to notice another's change and to leave it alone.
"""

from __future__ import annotations

from contextlib import suppress

from poolmgr.errors import AlreadyExistsError, FileMissingError, PoolChangedError
from poolmgr.store.remote import RemoteStore
from poolmgr.temporary import temp_name

_HINT = "one writer at a time in this kind of store: run the command again when the other is done"


def check_writable(store: RemoteStore) -> None:
    """``CredentialsError`` and its like where this user may not write: a small file is put and removed."""
    place = str(temp_name(store._root.rstrip("/")))
    with store._mapped("writing", ""):
        store._fs.pipe_file(place, b"may I write?")
    with suppress(Exception):  # some may write and not delete; the name is one that no listing shows
        store._fs.rm_file(place)


def replace(store: RemoteStore, path: str, data: bytes, expected: bytes | None) -> None:
    """``path`` holds ``data`` if it held ``expected`` (None: nothing); ``PoolChangedError`` if not.

    A new file is created by the store's own rules, so that of two only one succeeds. What was
    written is read again: if that is another's, this is told too.
    """
    where = f"{store.address}/{path}"
    if current(store, path, max(len(data), len(expected or b"")) + 1) != expected:
        raise PoolChangedError(f"{where} was changed by somebody else; it was left as it is", hint=_HINT)
    if expected is None:
        try:
            store.put(path, data)
        except AlreadyExistsError:
            raise PoolChangedError(f"{where} was made by somebody else", hint=_HINT) from None
    else:
        with store._mapped("writing", path):
            store._fs.pipe_file(store._at(path), data)
    if current(store, path, len(data) + 1) != data:
        raise PoolChangedError(
            f"{where} was written by somebody else in the same moment: one of the two changes is lost",
            hint=_HINT,
        )


def current(store: RemoteStore, path: str, limit: int) -> bytes | None:
    """What the file holds now: the first ``limit`` bytes; None where there is none."""
    try:
        return store.read_range(path, 0, limit)
    except FileMissingError:
        return None


def discard(store: RemoteStore, path: str) -> None:
    """Remove a file that this run put there itself and that is not what it was to be."""
    with store._mapped("removing", path):
        store._fs.rm_file(store._at(path))
