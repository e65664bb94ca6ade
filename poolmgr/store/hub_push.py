"""Writing to the Hub: bytes first, then one commit on a known parent, then a look at what it made."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolmgr.errors import (
    AlreadyExistsError,
    BadFileError,
    PoolChangedError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.model.blob import INDEX_NAME, check_path
from poolmgr.model.stamp import Stamp
from poolmgr.store.hub_pace import TRIES, backoff

if TYPE_CHECKING:
    from poolmgr.store.hub import HubStore

UPLOAD_THREADS = 5


def probe(store: HubStore, *, pull_request: bool = False) -> None:
    """``CredentialsError`` where this token may not write (or open a pull request); no byte is sent.

    The Hub's first question of an upload is asked of a small text, for which that is all there is.
    """
    from huggingface_hub import CommitOperationAdd

    branch = _branch(store, None)
    _ = store.commit  # a hub that is away is told in seconds: the question below is repeated for minutes
    addition = CommitOperationAdd("README.md", b"may I write?")
    store.client.call(
        "asking for the right to write",
        lambda: store.client.api.preupload_lfs_files(
            store.repo_id, [addition], repo_type=store.repo_type, revision=branch, create_pr=pull_request
        ),
    )


def push(
    store: HubStore, files: Mapping[str, Path | bytes], *, message: str, parent: str,
    replace: Collection[str], sha256: Mapping[str, str] | None = None,
    uploaded: Callable[[], None] | None = None, sent: Callable[[str], None] | None = None,
    jobs: int = UPLOAD_THREADS,
) -> str:  # fmt: skip
    """Upload ``files`` and commit them on ``parent``; the new commit's id.

    Where nothing differs from the parent, that is ``parent``. ``sha256``: path -> what the file must
    be; ``sent`` is told of each whose bytes are there; ``uploaded`` is called before the commit is
    made, and may refuse by raising.
    """
    from huggingface_hub import CommitOperationAdd

    for path in files:
        if path != INDEX_NAME:
            check_path(path, store.address)
    branch = _branch(store, parent)
    taken = sorted(store.infos([p for p in files if p not in replace], parent))
    if taken:
        raise AlreadyExistsError(
            f"{store.address} holds {len(taken):,} of the names already: {taken[0]}; nothing was written",
            details=taken,
            hint="a new version is a new name",
        )
    stamps = {path: _stamp(source) for path, source in files.items()}
    with ThreadPoolExecutor(jobs, thread_name_prefix="hash") as pool:
        additions = list(
            pool.map(
                lambda item: CommitOperationAdd(
                    item[0], item[1] if isinstance(item[1], bytes) else str(item[1])
                ),
                files.items(),
            )
        )
    expected = {a.path_in_repo: (a.upload_info.size, a.upload_info.sha256.hex()) for a in additions}
    for path, wanted in (sha256 or {}).items():
        if expected[path][1] != wanted:
            raise BadFileError(f"{files[path]!s}: changed since it was checked; nothing was sent")
    try:
        for start in range(0, len(additions), jobs):  # in groups, so that a long upload shows its progress
            group = additions[start : start + jobs]
            store.client.call(
                f"uploading {group[0].path_in_repo}" + (f" and {len(group) - 1} more" if group[1:] else ""),
                partial(
                    store.client.api.preupload_lfs_files, store.repo_id, group, repo_type=store.repo_type,
                    revision=branch, num_threads=jobs, free_memory=False,
                ),
            )  # fmt: skip
            if sent is not None:
                for addition in group:
                    sent(addition.path_in_repo)
    finally:  # that a file changed explains whatever else went wrong
        _refuse_changed(files, stamps)
    if uploaded is not None:
        uploaded()
    ignored = [a.path_in_repo for a in additions if getattr(a, "_should_ignore", False)]
    if ignored:  # the commit would "succeed" without them (facts: hub section 1, Commits)
        raise RemoteRefusedError(
            f"{store.address}: the repository's .gitignore makes the Hub drop {len(ignored):,} of the files:"
            f" {ignored[0]}; nothing was committed",
            details=ignored,
            hint="take the lines that match out of the repository's .gitignore",
        )
    return _commit(store, additions, files, message, parent, branch, expected)


def _commit(
    store: HubStore,
    additions: list[Any],
    files: Mapping[str, Path | bytes],
    message: str,
    parent: str,
    branch: str,
    expected: Mapping[str, tuple[int, str]],
) -> str:
    """The commit itself. An answer that was lost is settled by looking at the head, never by guessing."""

    def once() -> str:
        info = store.client.api.create_commit(
            store.repo_id, additions, commit_message=message, repo_type=store.repo_type, revision=branch,
            parent_commit=parent, num_threads=UPLOAD_THREADS,
        )  # fmt: skip
        return str(info.oid)

    unsure = False
    for tried in range(1, TRIES + 1):
        try:
            commit = store.client.once("committing", once)
        except (RemoteTroubleError, PoolChangedError) as e:
            if isinstance(e, PoolChangedError) and not unsure:
                raise
            unsure = True
            head = _head(store, branch)
            if head != parent and not _differences(store, files, expected, head):
                return head  # it was applied, only the answer was lost
            if isinstance(e, PoolChangedError) or tried == TRIES:
                raise
            store.client.pause(e, backoff(tried))
            continue
        wrong = _differences(store, files, expected, commit)
        if wrong:
            raise RemoteRefusedError(
                f"{store.address}: commit {commit} was made, and {len(wrong):,} files are not in it as"
                f" they were sent: {wrong[0]}",
                details=wrong,
                hint="a .gitignore in the repository drops files without a word; else tell the Hub's support",
            )
        return commit
    raise AssertionError("unreachable")


def _branch(store: HubStore, parent: str | None) -> str:
    """The branch to write to; a commit is none."""
    branch = store.revision or "main"
    if branch == parent or (parent is None and is_commit(branch)):
        raise RemoteRefusedError(
            f"{store.address}: a commit cannot be written to", hint="name a branch, or nothing"
        )
    return branch


def is_commit(revision: str) -> bool:
    return len(revision) == 40 and not set(revision) - set("0123456789abcdef")


def head(store: HubStore) -> str:
    """The newest commit of the store's branch, as the server says now; it may lag behind one's own."""
    return _head(store, _branch(store, None))


def _head(store: HubStore, branch: str) -> str:
    info = store.client.call(
        "looking at the head",
        lambda: store.client.api.repo_info(store.repo_id, revision=branch, repo_type=store.repo_type),
    )
    return str(info.sha)


def _differences(
    store: HubStore, files: Mapping[str, Path | bytes], expected: Mapping[str, tuple[int, str]], commit: str
) -> list[str]:
    """What of ``files`` is missing, or has another size or hash, at ``commit``."""
    from poolmgr.store.hub import git_id

    found = store.infos(list(files), commit)
    out = []
    for path, source in files.items():
        size, sha256 = expected[path]
        if path not in found:
            out.append(f"{path}: missing")
            continue
        there_size, oid, there_sha256 = found[path]
        if there_size != size:
            out.append(f"{path}: {size:,} bytes sent, {there_size:,} listed")
        elif there_sha256 is not None:
            if there_sha256 != sha256:
                out.append(f"{path}: sha256 {sha256} sent, {there_sha256} listed")
        elif git_id(source if isinstance(source, bytes) else source.read_bytes()) != oid:
            out.append(f"{path}: other bytes than were sent")
    return out


def _refuse_changed(files: Mapping[str, Path | bytes], stamps: Mapping[str, Stamp | None]) -> None:
    for path, source in files.items():
        if _stamp(source) != stamps[path]:
            raise BadFileError(
                f"{path}: {source!s} changed while it was uploaded; nothing was committed"
            ) from None


def _stamp(source: Path | bytes) -> Stamp | None:
    if isinstance(source, bytes):
        return None
    try:
        return Stamp.of(os.stat(source))
    except OSError as e:
        raise BadFileError(f"{source}: {e.strerror}") from None
