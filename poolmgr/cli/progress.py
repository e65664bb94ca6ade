"""What a verb's progress looks like: a bar on a terminal, a line a minute anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import RLock
from typing import Any, TextIO

from poolmgr.cli import text as words

MINUTE = 60.0
BETWEEN_NOTES = 10.0
"""Seconds between two notes in a log; the notes between them are counted, not printed."""


class Bar:
    """A tqdm bar: files, bytes, rate, time left and the last note, on one line of ``stream``.

    ``attach`` takes the function that clears the bar before another line is printed, or None.
    """

    def __init__(
        self, stream: TextIO, lock: RLock, attach: Callable[[Callable[[], None] | None], None]
    ) -> None:
        self._stream = stream
        self._lock = lock
        self._attach = attach
        self._bar: Any = None
        self._files = self._files_done = 0
        self._bytes = False
        self._note = ""
        self.delay = 0.3
        """Seconds of work before a bar is shown at all."""

    def begin(self, what: str, *, files: int, size: int = 0) -> None:
        from tqdm import tqdm

        with self._lock:
            self.end()
            self._files, self._files_done, self._bytes, self._note = files, 0, size > 0, ""
            counts = "{n_fmt}/{total_fmt}" + (" {rate_fmt}" if self._bytes else " files")
            self._bar = tqdm(
                total=size if self._bytes else files,
                desc=words.name(what),
                unit="B" if self._bytes else " files",
                unit_scale=self._bytes,
                unit_divisor=1000,
                file=self._stream,
                dynamic_ncols=True,
                leave=False,
                delay=self.delay,
                bar_format="{desc} {percentage:3.0f}% |{bar:20}| " + counts + ", {remaining} left{postfix}",
            )
            self._attach(self._bar.clear)
            self._show()

    def advance(self, size: int) -> None:
        with self._lock:
            if self._bar is not None and self._bytes:
                self._bar.update(size)

    def file_done(self, path: str) -> None:
        with self._lock:
            if self._bar is None:
                return
            self._files_done += 1
            if self._bytes:
                self._show()
            else:
                self._bar.update(1)

    def note(self, message: str) -> None:
        with self._lock:
            self._note = words.name(words.scrub(message))
            self._show()

    def end(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._attach(None)
                self._bar.close()
                self._bar = None

    def _show(self) -> None:
        if self._bar is None:
            return
        files = f"{self._files_done:,}/{self._files:,} files" if self._bytes else ""
        self._bar.set_postfix_str("; ".join(filter(None, [files, self._note])), refresh=bool(self._note))


class Lines:
    """For logs: a line a minute, and notes as they come, at most one in ten seconds."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._lock = RLock()
        self._what = ""
        self._files = self._size = self._files_done = self._size_done = 0
        self._start = self._last = 0.0
        self._last_note = -BETWEEN_NOTES
        self._held = 0

    def begin(self, what: str, *, files: int, size: int = 0) -> None:
        with self._lock:
            self._what, self._files, self._size = what, files, size
            self._files_done = self._size_done = 0
            self._start = self._last = self._clock()

    def advance(self, size: int) -> None:
        with self._lock:
            self._size_done += size
            self._tick()

    def file_done(self, path: str) -> None:
        with self._lock:
            self._files_done += 1
            self._tick()

    def note(self, message: str) -> None:
        with self._lock:
            now = self._clock()
            if now - self._last_note < BETWEEN_NOTES:
                self._held += 1
                return
            held = f" (and {words.counted(self._held, 'note')} since the last one)" if self._held else ""
            self._last_note, self._held = now, 0
            self._write(message + held)

    def end(self) -> None:
        with self._lock:
            self._what = ""

    def _tick(self) -> None:
        now = self._clock()
        if not self._what or now - self._last < MINUTE:
            return
        self._last = now
        parts = [f"{self._files_done:,} of {words.counted(self._files, 'file')}"]
        if self._size:
            rate = self._size_done / (now - self._start)
            parts.append(f"{words.size(self._size_done)} of {words.size(self._size)}")
            parts.append(f"{words.size(round(rate))}/s")
            if rate > 0:
                parts.append(f"{words.span((self._size - self._size_done) / rate)} left")
        self._write(f"{self._what}: {', '.join(parts)}")
