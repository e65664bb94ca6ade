"""What a refusal of the Hub means: status, headers and words become one of poolmgr's errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from poolmgr.errors import (
    CredentialsError,
    DirectoryFullError,
    FileMissingError,
    PoolChangedError,
    PoolError,
    PoolNotFoundError,
    RemoteRefusedError,
    RemoteTroubleError,
)

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
"""Statuses after which another try may succeed; every other error status is final."""
MAX_WORDS = 500

_DIRECTORIES = re.compile(r"/[^\s/][^\s]*/")
_USER_INFO = re.compile(r"(\w+://)[^\s/@\"'<>]+@")
_QUERY = re.compile(r"(\w+://[^\s?\"'<>]*)\?[^\s\"'<>]*")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9_-]{3,}|\bapi_org_\w+|(?i:\bbearer\s+)[^\s\"',]+|\beyJ[\w-]+\.[\w.-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def redact(text: str) -> str:
    """``text`` without tokens, user info and query strings of URLs, and control characters."""
    text = _QUERY.sub(r"\1", _USER_INFO.sub(r"\1", _CONTROL.sub(" ", text)))
    return _TOKEN.sub("[token]", text).strip()


@dataclass(frozen=True, slots=True)
class Answer:
    """The part of an error answer that decides what it means."""

    status: int
    code: str = ""
    """``X-Error-Code``: RepoNotFound, RevisionNotFound, EntryNotFound, GatedRepo."""
    words: str = ""
    """The server's own words, redacted, on one line."""

    @staticmethod
    def of(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
        words = headers.get("X-Error-Message") or _words(body)
        return Answer(status, headers.get("X-Error-Code", ""), redact(words)[:MAX_WORDS])

    def __str__(self) -> str:
        return f"{self.status} {self.words}".rstrip()


def _words(body: bytes) -> str:
    try:
        said = json.loads(body)
    except ValueError:
        text = body[: 4 * MAX_WORDS].decode("utf-8", "replace")
        return "" if text.lstrip().startswith("<") else text
    if isinstance(said, dict):
        error = said.get("error") or said.get("message") or ""
        return "; ".join(map(str, error)) if isinstance(error, list) else str(error)
    return ""


def meaning(answer: Answer, what: str, pool: str, *, signed_in: bool) -> PoolError:
    """The error for an answer to ``what`` (such as ``reading a.sif``) on ``pool`` (its address)."""
    told = f"{pool}: the server refused {what}: {answer}"
    if answer.status in PASSING:
        return RemoteTroubleError(f"{pool}: {what} failed: {answer}", hint="run the same command again later")
    if answer.status == 412:
        return PoolChangedError(
            f"{pool}: the pool changed while it was being written: {answer}",
            hint="run the command again; it starts from the new head",
        )
    if answer.code == "GatedRepo":
        web = pool.partition("@")[0].replace("hf://", "https://huggingface.co/")
        return CredentialsError(
            told, hint=f"the repository is gated: ask for access at {web}, and use a token of that account"
        )
    if answer.status in (401, 403):
        return CredentialsError(told, hint=_token_hint(answer, signed_in))
    if answer.status in (404, 410):
        if answer.code == "EntryNotFound":
            return FileMissingError(
                f"{pool}: no such file: {what}", hint="'poolmgr ls' shows what the pool holds"
            )
        if answer.code == "RevisionNotFound":
            return PoolNotFoundError(
                f"{pool}: no such branch, tag or commit: {answer}", hint="check what follows the '@'"
            )
        if answer.code == "RepoNotFound":
            return PoolNotFoundError(
                f"{pool}: no such repository: {answer}",
                hint="check the name, and that the token's account may see it" if signed_in else _SIGN_IN,
            )
    if "too many files per directory" in answer.words:
        where = ", ".join(_DIRECTORIES.findall(answer.words)) or "a directory"
        return DirectoryFullError(
            f"{pool}: the Hub refused {what}, as {where} would hold too many entries: {answer}",
            hint="lower layout.max_entries in the manifest, so that push opens the next batch sooner;"
            " what was uploaded stays there and is not sent again",
        )
    if answer.status == 402:
        return RemoteRefusedError(
            told, hint="the account's plan or storage does not cover this; see its billing page"
        )
    if answer.status == 413:
        return RemoteRefusedError(
            told, hint="the request was too large; send fewer or smaller files at a time"
        )
    return RemoteRefusedError(told, hint="the answer is final; trying again cannot help")


_SIGN_IN = (
    "no token was sent: if the repository is private or gated, run 'hf auth login' or set HF_TOKEN;"
    " else check the name"
)


def _token_hint(answer: Answer, signed_in: bool) -> str:
    if not signed_in:
        return _SIGN_IN
    if answer.status == 401 and answer.code != "RepoNotFound":
        return "the token is not valid (any more): run 'hf auth login', or set HF_TOKEN to a new one"
    return "the token's account or scope has no right to this; use a token that has"
