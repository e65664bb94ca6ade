"""What Apptainer says when a pull fails, sorted by cause.

The sentences are those of Apptainer 1.4 and of the libraries that it pulls with (containers/image,
go-containerregistry), collected by making a registry fail on purpose (tests/ops/test_pull.py).
"""

from __future__ import annotations

import re
from enum import StrEnum

from poolmgr.model.reference import Reference


class PullCause(StrEnum):
    NO_SPACE = "no-space"
    LIMIT = "limit"
    DENIED = "denied"
    MISSING = "missing"
    ARCH = "arch"
    DAMAGED = "damaged"
    """Bytes came that are not those that the manifest names."""
    TROUBLE = "trouble"
    """The registry or the network failed in passing."""
    MACHINE = "machine"
    UNKNOWN = "unknown"


_NAMES = re.compile(r"[a-z]+://[^\s\"]*[^\s\":]|sha256:[0-9a-f]{64}|(?<=\s)/[^\s:]+")
"""Addresses, digests and paths."""
_CAUSES: tuple[tuple[PullCause, str], ...] = (
    (PullCause.MACHINE, r"executable file not found|mksquashfs.*not installed"),
    (PullCause.NO_SPACE, r"no space left on device|disk quota exceeded|file too large"),
    (PullCause.LIMIT, r"toomanyrequests|too many requests|\b429\b|rate limit"),
    (PullCause.ARCH, r"no child with platform|no image found in (manifest list|image index) for"),
    (
        PullCause.DAMAGED,
        r"error verifying (sha256|size)|does not match (requested )?digest|digest did not match",
    ),
    (
        PullCause.DAMAGED,
        r"while extracting|gzip: invalid|zstd: |archive/tar: |invalid tar header|invalid checksum",
    ),
    (PullCause.DAMAGED, r"invalid character .* looking for|unexpected end of JSON"),
    (
        PullCause.DENIED,
        r"authentication required|unauthorized|\bdenied\b(?!: operation)|status( code)? 40[13]\b",
    ),
    (PullCause.MISSING, r"manifest unknown|name unknown|blob unknown|not found|status( code)? 404\b"),
    (
        PullCause.TROUBLE,
        r"unexpected EOF|: EOF\b|connection (refused|reset)|broken pipe|i/o timeout|TLS handshake",
    ),
    (PullCause.TROUBLE, r"status( code)?:? 5\d\d\b|no such host|network is unreachable|deadline exceeded"),
    (PullCause.TROUBLE, r"server misbehaving|temporary failure in name resolution|http2: |stream error"),
    (PullCause.MACHINE, r"user namespace|setgroups|newuidmap|subuid|fakeroot|proot|setuid"),
    (PullCause.MACHINE, r"cannot allocate memory|resource temporarily unavailable|too many open files"),
    (PullCause.MACHINE, r"signal: killed"),
    (PullCause.MACHINE, r"operation not permitted|permission denied|read-only file system"),
)

_ROUND_ABOUT = re.compile(
    r"While making image from oci registry: error fetching image to cache: "
    r"(while building SIF from layers: |failed to get checksum for \S+: )?(conveyor failed to get: )?"
)


def last_cause(text: str) -> str:
    """``text`` without the words that every failed pull begins with."""
    return _ROUND_ABOUT.sub("", text)


def pull_cause(text: str, reference: Reference) -> PullCause:
    """The cause of a failed pull of ``reference``, from what Apptainer wrote to stderr.

    Names are taken out first: an image called ``acme/denied:429`` is no refusal.
    """
    for name in (f"{reference.host}/", reference.repository, f":{reference.tag}"):
        text = text.replace(name, "")
    text = _NAMES.sub(" ", text)
    for cause, pattern in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return cause
    return PullCause.UNKNOWN
