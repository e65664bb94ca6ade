"""The process in which the real client's Xet downloads run, so that a stalled one can be killed.

Not imported by poolmgr: hub_xet.py starts this file. It reads one JSON job a line on stdin, answers
with JSON lines on stdout, and ends when stdin does. It decides nothing about what arrived.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

WORKERS = 32
TELL_EVERY = 0.5
"""Seconds between two lines on the bytes of one job."""


class _Bar:
    """Stands in for the client's progress bar and tells the parent that bytes move."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self._last = 0.0
        self.n = 0
        self.total = 0
        self.moved = 0

    def update(self, count: float | None = 1) -> None:
        self.n += int(count or 0)
        self._news(count)

    def update_transfer(self, count: float | None = 1) -> None:
        self._news(count)

    def _news(self, count: float | None) -> None:
        self.moved += int(count or 0)
        now = time.monotonic()
        if now - self._last > TELL_EVERY:
            self._last = now
            self._tell({"moved": self.moved})

    def set_postfix_str(self, *_: Any, **__: Any) -> None:
        pass

    def set_transfer_postfix_str(self, *_: Any, **__: Any) -> None:
        pass

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        pass


def _run(job: dict[str, Any], tell: Any) -> None:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import xet_get
    from huggingface_hub.utils._xet import XetFileData

    try:
        xet_get(
            incomplete_path=Path(job["to"]),
            xet_file_data=XetFileData(file_hash=job["hash"], refresh_route=job["route"]),
            headers=job["headers"],
            expected_size=job["size"],
            _tqdm_bar=_Bar(tell),
        )
        tell({"done": True})
    except HfHubHTTPError as e:
        answer = e.response
        code = answer.headers.get("X-Error-Code", "")
        tell({"error": "http", "status": answer.status_code, "code": code, "words": e.server_message or ""})
    except BaseException as e:  # noqa: BLE001 - whatever it is, the parent has to hear of it
        tell({"error": type(e).__name__, "words": str(e)})


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a stray print of a library does not break the protocol
    lock = threading.Lock()

    def tell(line: dict[str, Any]) -> None:
        with lock:
            out.write(json.dumps(line) + "\n")
            out.flush()

    with ThreadPoolExecutor(WORKERS) as pool:
        for line in sys.stdin:
            job = json.loads(line)
            pool.submit(_run, job, lambda said, number=job["id"]: tell({"id": number, **said}))
        os._exit(0)  # the parent is gone or has no more wishes; nothing here is worth finishing


if __name__ == "__main__":
    main()
