"""What a file is that is no SIF: by its first bytes, or by what its path leads to."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from poolmgr.model.finding import Finding
from poolmgr.sif.header import HEADER, MAGIC, finding

OLD_LAUNCH = 31
"""Bytes of the line ``#!/usr/bin/env run-singularity`` before the filesystem in Singularity 2 images."""
_EXT_MAGIC = 1080
_TAG = re.compile(rb"<[^<>]*>?")
_SHIFT = 2048
"""Apptainer looks for the magic this far."""


def legacy_squashfs(head: bytes) -> tuple[int, str] | None:
    """(offset, code) of a squashfs that lies in no SIF; None when there is none."""
    if head[:4] == b"hsqs":
        return 0, "bare-squashfs"
    if head[:2] == b"#!" and head[OLD_LAUNCH : OLD_LAUNCH + 4] == b"hsqs":
        return OLD_LAUNCH, "singularity2-image"
    return None


def ext_offset(head: bytes) -> int | None:
    """Where an ext filesystem begins: 0, or after Singularity 2's launch line."""
    for at in (0, OLD_LAUNCH):
        if head[at + _EXT_MAGIC : at + _EXT_MAGIC + 2] == b"\x53\xef":
            return at
    return None


def sniff(head: bytes, size: int) -> Finding:
    """The finding that names what a file without a SIF header is; ``head`` is its first few KiB."""
    if size == 0:
        return finding("zero-byte", "the file has no bytes")
    legacy = legacy_squashfs(head)
    if legacy is not None:
        kind = "a bare squashfs" if legacy[1] == "bare-squashfs" else "a Singularity 2 image"
        return finding(legacy[1], f"{kind}, not a SIF")
    if ext_offset(head) is not None:
        return finding("ext-image", "a bare ext3 image, not a SIF")
    text = head[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")
    low = text.lower()
    if text.startswith(b"version https://git-lfs"):
        return finding("lfs-pointer", f"a git-lfs pointer{_pointed(head)}, not the image itself")
    if b"annex/objects/" in text and size < 32768:
        return finding("annex-pointer", "a git-annex pointer, not the image itself")
    if low.startswith((b"<!doctype html", b"<html")) or (low.startswith(b"<") and b"<html" in low):
        return finding("html-page", f"an HTML page{_quote(_words(text))}")
    readable = not any(b < 9 or b == 127 for b in text[:64])
    if text.startswith(b"<") and readable:
        return finding("xml-body", f"an XML document, such as a storage error{_quote(_words(text))}")
    if text[:1] in (b"{", b"[") and readable:
        return finding("json-body", f"a JSON document, such as an API error{_quote(text)}")
    if head[:2] == b"\x1f\x8b":
        return finding("gzip-file", "a gzip-compressed file")
    if head[257:262] == b"ustar":
        return finding("tar-file", "a tar archive, such as docker save writes")
    if not head.strip(b"\0"):
        return finding("zero-head", f"the first {len(head)} bytes of {size} are all zero")
    at = head[:_SHIFT].find(MAGIC)
    if at >= 0:
        return finding(
            "shifted-sif", f"the SIF magic stands at byte {at} and not at 32: bytes were added or lost"
        )
    if head[:2] == b"#!" and b"run-singularity" in head[:32]:
        if size < HEADER.size:
            return finding(
                "sif-truncated", f"the file has {size} bytes; a SIF header alone has {HEADER.size}"
            )
        return finding("sif-magic", f"begins like a SIF, but its magic is {head[32:42]!r}")
    return finding("not-sif", f"no SIF header and no known kind of file; it begins with {head[:12]!r}")


def sniff_path(path: str | Path) -> Finding | None:
    """The finding for a path that leads to no regular file; None where the bytes can be looked at."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if os.path.islink(path):
            target = os.readlink(path)
            if ".git/annex/objects/" in target or "/annex/objects/" in target:
                return finding("annex-pointer", "a git-annex link whose content is not here")
            return finding("dangling-link", f"a symbolic link to {target!r}, which is not there")
        return finding("missing", "no such file")
    except PermissionError as e:
        return finding("unreadable", f"{e.strerror}")
    except OSError as e:
        return finding("io-error", f"{e.strerror}")
    if stat.S_ISDIR(mode):
        if os.path.isdir(f"{path}/.singularity.d"):
            return finding("sandbox-folder", "a sandbox folder, not an image file")
        return finding("is-directory", "a folder, not an image file")
    if not stat.S_ISREG(mode):
        return finding("not-a-file", "not a regular file")
    return None


def _pointed(head: bytes) -> str:
    for line in head[:512].split(b"\n"):
        if line.startswith(b"size ") and line[5:].isdigit() and len(line) < 30:
            return f" to a file of {int(line[5:])} bytes"
    return ""


def _words(text: bytes) -> bytes:
    """What a page says, without its tags; all of it where it says nothing."""
    return _TAG.sub(b" ", text).strip() or text


def _quote(text: bytes) -> str:
    line = " ".join(text[:160].decode("utf-8", "replace").split())
    clean = "".join(c if c.isprintable() else "?" for c in line)
    return f": {clean[:60]!r}" if clean else ""
