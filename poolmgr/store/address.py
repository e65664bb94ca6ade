"""Addresses of pools as text: what kind each is, and how it is printed without its secrets."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(::|://)")


def is_url(address: str) -> bool:
    """Whether ``address`` begins with ``scheme://`` (or fsspec's ``scheme::``)."""
    return _URL.match(address) is not None


def printable(address: str) -> str:
    """``address`` without user info, query string and fragment, in every part of a chained URL.

    A folder's path comes back as it is. Text that cannot be taken apart is not shown at all.
    """
    if not is_url(address):
        return address
    return "::".join(_printable_part(part) for part in address.split("::"))


def _printable_part(part: str) -> str:
    scheme, separator, rest = part.partition("://")
    if not separator:
        return part
    # Not urlsplit: a token may hold characters that it takes for the end of the host.
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = rest.partition("/")
    port = host.rpartition(":")[2]
    if "@" in rest and ":" in host and "@" not in host and not port.isdigit():
        # user:to/ken@host/path: the token itself holds the slash
        host, slash, path = rest.rpartition("@")[2].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def file_url_path(address: str) -> str | None:
    """The path of a ``file:///…`` or ``local:///…`` URL, else None."""
    if not address.startswith(("file://", "local://")):
        return None
    return unquote(urlsplit(address).path)
