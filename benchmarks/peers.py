"""What people run today in place of poolmgr; each is started as a process of its own by bench_fetch.py."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

THREADS = 8


def snapshot(repo: str, wanted: list[str], to: str) -> None:
    """The pool card's advice: ``snapshot_download`` with the exact names as patterns."""
    from huggingface_hub import snapshot_download

    snapshot_download(repo, repo_type="dataset", local_dir=to, allow_patterns=wanted)


def loop(repo: str, wanted: list[str], to: str) -> None:
    """A thread pool of ``hf_hub_download`` at a pinned commit."""
    from huggingface_hub import HfApi, hf_hub_download

    commit = HfApi().repo_info(repo, repo_type="dataset").sha

    def get(path: str) -> None:
        hf_hub_download(repo, path, repo_type="dataset", revision=commit, local_dir=to)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(get, wanted))


if __name__ == "__main__":
    name, repo, names, to = sys.argv[1:]
    {"snapshot": snapshot, "loop": loop}[name](repo, json.loads(Path(names).read_text()), to)
