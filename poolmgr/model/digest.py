"""sha256, the identity of a blob's bytes, as the Hub stores it."""

from __future__ import annotations

import re

_HEX64 = re.compile(r"[0-9a-f]{64}")


def parse_sha256(text: str) -> str:
    """The 64 lower-case hex digits of a sha256, given bare or as ``sha256:…``.

    Raises ``ValueError`` on anything else; the text itself is quoted in the message.
    """
    bare = text.strip().lower().removeprefix("sha256:")
    if not _HEX64.fullmatch(bare):
        raise ValueError(f"expected the 64 hex digits of a sha256, found {text!r}")
    return bare
