"""What a loopback hub keeps: repositories, commits, branches, LFS objects. No HTTP in here."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REGULAR = (".json", ".jsonl", ".md", ".txt", ".toml", ".yaml", ".yml", ".gitattributes", ".gitignore")
MAX_REGULAR = 10 * 1024 * 1024
MAX_ENTRIES = 10_000
PAGE = 1_000

Content = bytes | Path


class RefusalError(Exception):
    """An error answer: status, words, and the Hub's error code."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


@dataclass(slots=True)
class Entry:
    size: int
    oid: str
    """git's blob sha1; of the pointer for an LFS file."""
    content: Content
    sha256: str | None = None
    """Set for LFS files."""
    xet: str | None = None


@dataclass(slots=True)
class Commit:
    oid: str
    parent: str | None
    files: dict[str, Entry]
    title: str = ""
    pages: dict[tuple[str, bool], list[dict[str, object]]] = field(default_factory=dict)

    def tree(self, folder: str, recursive: bool) -> list[dict[str, object]]:
        """The rows of the tree API below ``folder``, folders included, in order."""
        key = (folder, recursive)
        if key not in self.pages:
            prefix = folder + "/" if folder else ""
            rows: dict[str, dict[str, object]] = {}
            for path, entry in self.files.items():
                if not path.startswith(prefix):
                    continue
                parts = path[len(prefix) :].split("/")
                for depth in range(1, len(parts) if recursive else min(2, len(parts))):
                    name = prefix + "/".join(parts[:depth])
                    if name not in rows:
                        oid = hashlib.sha1(name.encode()).hexdigest()
                        rows[name] = {"type": "directory", "path": name, "oid": oid, "size": 0}
                if recursive or len(parts) == 1:
                    rows[path] = row(path, entry)
            if folder and not rows:
                raise RefusalError(404, "Entry not found", "EntryNotFound")
            self.pages[key] = [rows[name] for name in sorted(rows)]
        return self.pages[key]


def row(path: str, entry: Entry) -> dict[str, object]:
    out: dict[str, object] = {"type": "file", "path": path, "size": entry.size, "oid": entry.oid}
    if entry.sha256 is not None:
        out["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": 134}
    if entry.xet is not None:
        out["xetHash"] = entry.xet
    return out


def is_regular(path: str, size: int) -> bool:
    return size <= MAX_REGULAR and path.endswith(REGULAR)


def sha256_of(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def size_of(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def make_entry(path: str, content: Content, sha256: str | None = None) -> Entry:
    size = size_of(content)
    if is_regular(path, size):
        data = content if isinstance(content, bytes) else content.read_bytes()
        return Entry(size, git_sha1(data), data)
    sha256 = sha256 or sha256_of(content)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
    return Entry(size, git_sha1(pointer), content, sha256)


@dataclass
class Repo:
    kind: str
    """``models``, ``datasets`` or ``spaces``."""
    name: str
    private: bool = False
    gated: bool = False
    max_entries: int = MAX_ENTRIES
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    """Branch or ``refs/pr/N`` -> commit."""
    tags: dict[str, str] = field(default_factory=dict)
    lfs: dict[str, Content] = field(default_factory=dict)
    """sha256 -> bytes, whether committed or only uploaded."""
    promised: dict[str, bytes] = field(default_factory=dict)
    """sha256 -> bytes that a Xet upload will have put into the storage."""
    xet: dict[str, str] = field(default_factory=dict)
    """sha256 -> Xet hash, for files that the Xet store holds."""
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Number -> a pull request as the API tells of it."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        if not self.refs:
            self.refs["main"] = self.record({}, None, "initial commit").oid

    def open_pull(self, title: str, author: str) -> int:
        """A draft of a pull request on the head of main; its number."""
        with self.lock:
            number = 1 + len(self.pulls)
            self.refs[f"refs/pr/{number}"] = self.refs["main"]
            self.pulls[number] = {
                "num": number, "title": title, "status": "draft", "isPullRequest": True,
                "author": {"name": author}, "createdAt": "2026-01-01T00:00:00.000Z", "events": [],
                "repo": {"name": self.name, "type": self.kind.rstrip("s")}, "filesWithConflicts": [],
                "changes": {"base": "refs/heads/main"}, "diff": "",
            }  # fmt: skip
            return number

    def record(self, files: dict[str, Entry], parent: str | None, title: str) -> Commit:
        seed = f"{self.kind}/{self.name} {parent} {title} {len(self.commits)}"
        commit = Commit(hashlib.sha1(seed.encode()).hexdigest(), parent, files, title)
        self.commits[commit.oid] = commit
        return commit

    def resolve(self, revision: str) -> Commit:
        oid = (
            self.refs.get(revision)
            or self.tags.get(revision)
            or self.refs.get(revision.removeprefix("refs/heads/"))
        )
        commit = self.commits.get(oid or revision)
        if commit is None:
            raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def add(self, files: Mapping[str, Content], *, revision: str = "main", title: str = "add files") -> str:
        """Commit ``files`` as they are, without any of the checks; the new head."""
        with self.lock:
            base = self.refs[revision]
            table = dict(self.commits[base].files)
            for path, content in files.items():
                entry = table[path] = make_entry(path, content)
                if entry.sha256 is not None:
                    self.lfs[entry.sha256] = content
                    entry.xet = self.xet.get(entry.sha256)
            self.refs[revision] = self.record(table, base, title).oid
            return self.refs[revision]

    def remove(self, *paths: str, revision: str = "main") -> str:
        with self.lock:
            base = self.refs[revision]
            table = {p: e for p, e in self.commits[base].files.items() if p not in paths}
            self.refs[revision] = self.record(table, base, "remove files").oid
            return self.refs[revision]

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Path -> bytes of a revision, for looking at what a push did."""
        return {
            path: e.content if isinstance(e.content, bytes) else e.content.read_bytes()
            for path, e in self.resolve(revision).files.items()
        }

    def ignored(self, path: str) -> bool:
        entry = self.commits[self.refs["main"]].files.get(".gitignore")
        if entry is None or not isinstance(entry.content, bytes):
            return False
        name = path.rsplit("/", 1)[-1]
        lines = [line.strip() for line in entry.content.decode().splitlines()]
        return any(fnmatch.fnmatchcase(path, p) or fnmatch.fnmatchcase(name, p) for p in lines if p)

    def preupload(self, files: list[dict[str, object]], revision: str) -> list[dict[str, object]]:
        here = self.resolve(revision).files
        out: list[dict[str, object]] = []
        for asked in files:
            path, size = str(asked["path"]), int(str(asked["size"]))
            answer: dict[str, object] = {
                "path": path,
                "uploadMode": "regular" if is_regular(path, size) else "lfs",
                "shouldIgnore": self.ignored(path),
            }
            if path in here:
                answer["oid"] = here[path].sha256 or here[path].oid
            out.append(answer)
        return out

    def commit(self, ndjson: bytes, revision: str, create_pr: bool) -> tuple[Commit, int | None]:
        """Carry out a commit as the Hub does; the commit and the pull request's number if one was made."""
        lines = [json.loads(line) for line in ndjson.splitlines() if line.strip()]
        header = next(x["value"] for x in lines if x["key"] == "header")
        with self.lock:
            base = self.resolve(revision)
            parent = header.get("parentCommit")
            if parent is not None and parent != base.oid:
                raise RefusalError(412, "A commit has happened since. Please refresh and try again.")
            table = dict(base.files)
            for line in lines:
                self._apply(table, line["key"], line["value"])
            self._check_entries(table)
            number = None
            if create_pr:
                number = 1 + sum(ref.startswith("refs/pr/") for ref in self.refs)
                revision = f"refs/pr/{number}"
            elif revision not in self.refs:
                raise RefusalError(400, f"{revision} is not a branch")
            commit = self.record(table, base.oid, str(header.get("summary", "")))
            self.refs[revision] = commit.oid
            return commit, number

    def _apply(self, table: dict[str, Entry], key: str, value: dict[str, str]) -> None:
        if key == "file":
            data = base64.b64decode(value["content"])
            table[value["path"]] = Entry(len(data), git_sha1(data), data)
        elif key == "lfsFile":
            oid = value["oid"]
            if oid in self.promised:
                self.lfs[oid] = self.promised[oid]
            content = self.lfs.get(oid)
            if content is None:
                raise RefusalError(400, f"LFS pointer pointed to a file that does not exist: {value['oid']}")
            entry = table[value["path"]] = make_entry(value["path"] + ".bin", content, value["oid"])
            entry.xet = self.xet.get(value["oid"])
        elif key == "deletedFile":
            if value["path"] not in table:
                raise RefusalError(404, f"Entry not found: {value['path']}", "EntryNotFound")
            del table[value["path"]]
        elif key == "deletedFolder":
            prefix = value["path"].rstrip("/") + "/"
            gone = [p for p in table if p.startswith(prefix)]
            if not gone:
                raise RefusalError(404, f"Entry not found: {prefix}", "EntryNotFound")
            for path in gone:
                del table[path]
        elif key != "header":
            raise RefusalError(400, f"unknown operation {key}")

    def _check_entries(self, table: dict[str, Entry]) -> None:
        folders: set[str] = set()
        count: Counter[str] = Counter()
        for path in table:
            folder = path.rpartition("/")[0]
            count[folder] += 1
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
                count[folder] += 1
        full = sorted(folder for folder, n in count.items() if n > self.max_entries)
        if full:
            raise RefusalError(
                400,
                "Your push was rejected because it contains too many files per directory. Each directory"
                f" in your git repo can only contain up to {self.max_entries} files."
                " Offending reference: refs/heads/main"
                f" Offending directories: {' '.join('/' + f + '/' for f in full)}",
            )
