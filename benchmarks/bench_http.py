"""Which HTTP library brings a pool's files with the least CPU: the client's httpx2, urllib3, http.client.

Each of N small files costs two requests, as on the real Hub: one to /resolve/, one to the address
that it redirects to. Then one large body. All against one loopback hub, in one run.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import urllib3
from huggingface_hub.utils import httpx

from benchmarks.loopback import REPO, serving

THREADS = 8
CHUNK = 1 << 20


def through_httpx(url: str, token: str) -> Callable[[str], int]:
    client = httpx.Client(timeout=30, limits=httpx.Limits(max_keepalive_connections=THREADS * 2))

    def get(path: str) -> int:
        first = client.get(url + path, headers={"authorization": f"Bearer {token}"})
        with client.stream("GET", first.headers["location"]) as answer:
            return sum(len(chunk) for chunk in answer.iter_raw())

    return get


def through_urllib3(url: str, token: str) -> Callable[[str], int]:
    pools = urllib3.PoolManager(maxsize=THREADS * 2, retries=False)

    def get(path: str) -> int:
        first = pools.request("GET", url + path, headers={"authorization": f"Bearer {token}"}, redirect=False)
        answer = pools.request("GET", first.headers["location"], preload_content=False)
        got = 0
        while chunk := answer.read1(CHUNK):
            got += len(chunk)
        answer.release_conn()
        return got

    return get


def through_http_client(url: str, token: str) -> Callable[[str], int]:
    kept = threading.local()

    def connection(host: str) -> http.client.HTTPConnection:
        mine: dict[str, http.client.HTTPConnection] = kept.__dict__.setdefault("mine", {})
        if host not in mine:
            mine[host] = http.client.HTTPConnection(host, timeout=30)
        return mine[host]

    def get(path: str) -> int:
        hub = connection(urlsplit(url).netloc)
        hub.request("GET", path, headers={"authorization": f"Bearer {token}"})
        first = hub.getresponse()
        location = urlsplit(first.getheader("location") or "")
        first.read()
        storage = connection(location.netloc)
        storage.request("GET", f"{location.path}?{location.query}")
        answer = storage.getresponse()
        got = 0
        while chunk := answer.read(CHUNK):
            got += len(chunk)
        return got

    return get


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--large", type=int, default=256, help="MB of the large file")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        folder = root / "datasets" / REPO
        folder.mkdir(parents=True)
        for number in range(options.files):
            (folder / f"{number}.sif").write_bytes(b"%d" % number * 4000)
        (folder / "large.sif").write_bytes(os.urandom(CHUNK) * options.large)
        with serving(root) as env:
            clients = {
                "httpx2": through_httpx(env["HF_ENDPOINT"], env["HF_TOKEN"]),
                "urllib3": through_urllib3(env["HF_ENDPOINT"], env["HF_TOKEN"]),
                "http.client": through_http_client(env["HF_ENDPOINT"], env["HF_TOKEN"]),
            }
            small = [f"/datasets/{REPO}/resolve/main/{n}.sif" for n in range(options.files)]
            table: dict[str, list[tuple[float, float, float]]] = {name: [] for name in clients}
            for run in range(options.runs + 1):
                for name, get in clients.items():
                    began, cpu = time.perf_counter(), time.process_time()
                    with ThreadPoolExecutor(THREADS) as pool:
                        assert all(pool.map(get, small))
                    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
                    before = time.process_time()
                    get(f"/datasets/{REPO}/resolve/main/large.sif")
                    if run:  # the first is a warm-up
                        table[name].append((wall, cpu, time.process_time() - before))
    print(
        f"{'':12}  {'wall a file':>12}  {'CPU a file':>12}  {'CPU a GB':>10}   medians of {options.runs} runs"
    )
    for name, rows in table.items():
        wall, cpu, large = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{name:12}  {wall / options.files * 1e3:9.3f} ms  {cpu / options.files * 1e3:9.3f} ms"
            f"  {large / options.large * 1024:8.2f} s"
        )


if __name__ == "__main__":
    main()
