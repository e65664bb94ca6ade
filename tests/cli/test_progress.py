"""A bar on a terminal, a line a minute in a log."""

from __future__ import annotations

import io

from poolmgr.cli.output import Output
from poolmgr.cli.progress import Bar, Lines
from poolmgr.ops.progress import Silent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_which_progress_is_shown_where() -> None:
    def chosen(stderr: io.StringIO, **options: bool) -> object:
        return Output(stdout=io.StringIO(), stderr=stderr, **options).progress()  # type: ignore[arg-type]

    assert isinstance(chosen(Terminal()), Bar)
    assert isinstance(chosen(io.StringIO()), Lines)
    assert isinstance(chosen(Terminal(), json=True), Lines)
    assert isinstance(chosen(Terminal(), quiet=True), Silent)


def test_a_log_gets_a_line_a_minute_and_few_notes() -> None:
    now = 0.0
    lines: list[str] = []
    progress = Lines(lines.append, clock=lambda: now)
    progress.begin("fetching", files=6968, size=900_000_000_000)
    progress.note("a: waits 2 s after 503")
    progress.note("b: waits 2 s after 503")
    for second in range(1, 151):
        now = float(second)
        progress.advance(250_000_000)
        progress.file_done("x")
    progress.note("c")
    progress.end()
    progress.advance(1)
    assert lines == [
        "a: waits 2 s after 503",
        "fetching: 59 of 6,968 files, 15.0 GB of 900 GB, 250 MB/s, 59 min 0 s left",
        "fetching: 119 of 6,968 files, 30.0 GB of 900 GB, 250 MB/s, 58 min 0 s left",
        "c (and 1 note since the last one)",
    ]


def test_a_bar_shows_bytes_files_and_the_last_note_and_gives_way_to_lines() -> None:
    stderr = Terminal()
    out = Output(stdout=io.StringIO(), stderr=stderr, no_color=True)
    bar = out.progress()
    assert isinstance(bar, Bar)
    bar.delay = 0
    bar.begin("fetching", files=3, size=3_000_000)
    bar.advance(1_000_000)
    bar.file_done("a")
    bar.note("b: waits 2 s after 503\x1b[2J")
    out.warn("odd")
    bar.end()
    shown = stderr.getvalue()
    assert "fetching" in shown
    assert "1.00M/3.00M" in shown
    assert "1/3 files" in shown
    assert "waits 2 s after 503" in shown
    assert "\x1b[2J" not in shown
    before = shown[: shown.index("warning: odd")]
    assert before.endswith("\r"), "the bar was cleared before the line"
    assert bar.end() is None


def test_a_bar_over_files_of_unknown_size_counts_files() -> None:
    stderr = Terminal()
    bar = Output(stdout=io.StringIO(), stderr=stderr).progress()
    assert isinstance(bar, Bar)
    bar.delay = 0
    bar.begin("looking", files=4)
    bar.file_done("a")
    bar.note("x")
    bar.end()
    assert "1/4 files" in stderr.getvalue()
