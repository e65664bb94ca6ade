"""The sink, in every form, on a terminal and off it."""

from __future__ import annotations

import io
import json
import os
import pty
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.cli import text as words
from poolmgr.cli.output import Output, OutputClosedError
from poolmgr.errors import DeclinedError, MissError, UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass
class Sink:
    out: Output
    stdout: io.StringIO
    stderr: io.StringIO

    @property
    def said(self) -> str:
        return self.stdout.getvalue()

    @property
    def beside(self) -> str:
        return self.stderr.getvalue()


def sink(kind: type[io.StringIO] = io.StringIO, **options: bool) -> Sink:
    stdout, stderr = kind(), kind()
    return Sink(Output(stdout=stdout, stderr=stderr, **options), stdout, stderr)  # type: ignore[arg-type]


def say_everything(out: Output) -> None:
    out.line("two tasks")
    out.table([["a", "1"], ["bb", "22"]], ["name", "count"], right=[1])
    out.answer("images/a.sif")
    out.only_quiet("images/b.sif")
    out.document({"tasks": 2})
    out.row("image", path="images/a.sif", verdict="ok")
    out.note("looking")
    out.warn("one is odd")
    out.hint("look again")
    out.error(MissError("no such thing", hint="try another", details=["x"]))


def test_text() -> None:
    s = sink()
    say_everything(s.out)
    assert s.said == "two tasks\nname  count\na         1\nbb       22\nimages/a.sif\n"
    assert s.beside == (
        "looking\nwarning: one is odd\nhint: look again\nerror[miss]: no such thing\n  x\nhint: try another\n"
    )


def test_the_only_case_is_not_said_twice() -> None:
    s = sink()
    s.out.error(MissError("index: task 't' is bad", details=["task 't' is bad"]))
    s.out.error(MissError("a.sif: no such file", details=["a.sif: no such file"]))
    s.out.error(MissError("1 of 1 tasks are unknown: 't'", details=["t"]))
    s.out.error(MissError("one is bad: at the task t", details=["t"]))
    s.out.error(MissError("one of many tasks", details=["s", "t"]))
    assert s.beside == (
        "error[miss]: index: task 't' is bad\nerror[miss]: a.sif: no such file\n"
        "error[miss]: 1 of 1 tasks are unknown: 't'\nerror[miss]: one is bad: at the task t\n  t\n"
        "error[miss]: one of many tasks\n  s\n  t\n"
    )


def test_quiet_prints_ids_only_and_still_warns() -> None:
    s = sink(quiet=True)
    say_everything(s.out)
    assert s.said == "images/a.sif\nimages/b.sif\n"
    assert s.beside == "warning: one is odd\nerror[miss]: no such thing\n  x\nhint: try another\n"


def test_json_is_json_on_both_streams() -> None:
    s = sink(json=True)
    s.out.row("image", path="images/a.sif")
    s.out.line("not shown")
    s.out.answer("not shown")
    s.out.note("not shown")
    s.out.warn("odd")
    s.out.error(MissError("m", hint="h"))
    assert s.said == '{"schema":1,"kind":"image","path":"images/a.sif"}\n'
    rows = [json.loads(line) for line in s.beside.splitlines()]
    assert rows[0] == {"schema": 1, "kind": "warning", "message": "odd"}
    assert rows[-1] == {"schema": 1, "kind": "error", "code": "miss", "message": "m", "hint": "h", "exit": 3}


def test_a_json_document_stands_alone_and_is_ascii() -> None:
    s = sink(json=True)
    s.out.document({"name": "ü\udcff\x1b"})
    assert json.loads(s.said) == {"schema": 1, "name": "ü\udcff\x1b"}
    assert s.said.isascii()
    assert "\x1b" not in s.said


def test_colour_only_on_a_terminal_that_wants_it() -> None:
    for kind, no_color, coloured in [
        (Terminal, False, True),
        (Terminal, True, False),
        (io.StringIO, False, False),
    ]:
        s = sink(kind, no_color=no_color)
        s.out.line(s.out.styled("fine", "green"))
        s.out.warn("odd")
        assert ("\x1b[32mfine\x1b[0m" in s.said) == coloured
        assert ("\x1b[33mwarning:\x1b[0m" in s.beside) == coloured
        assert coloured or "\x1b" not in s.said + s.beside


def test_columns_line_up_under_colour_and_wide_characters() -> None:
    s = sink(Terminal)
    s.out.table([[s.out.styled("ok", "green"), "x"], ["partial", "y"], ["日本", "z"]])
    plain = s.said.replace("\x1b[32m", "").replace("\x1b[0m", "").splitlines()
    assert plain == ["ok       x", "partial  y", "日本     z"]


def test_a_table_fits_the_terminal_by_its_last_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    row = ["name", "words that do not fit beside"]
    s = sink(Terminal)
    s.out.table([row])
    assert s.said.splitlines() == ["name  words that do not fit", "      beside"]
    s = sink(io.StringIO)
    s.out.table([row])
    assert s.said.splitlines() == ["  ".join(row)]


HOSTILE = "a\x1b[31mb\nerror: forged\x07\u202e\x9b2J"


def test_a_hostile_name_steers_no_terminal() -> None:
    s = sink(Terminal)
    s.out.table([[HOSTILE, "x"]])
    s.out.answer(HOSTILE)
    s.out.line(words.name(HOSTILE))
    s.out.warn(words.name(HOSTILE))
    s.out.error(MissError("m", details=[HOSTILE]))
    for written in (s.said, s.beside):
        assert "\x1b[31mb" not in written
        assert not {"\x07", "\u202e", "\x9b"} & set(written)
        assert not any(line.startswith("error: forged") for line in written.splitlines())


def test_a_pipe_gets_the_name_as_it_is() -> None:
    s = sink()
    s.out.answer("odd\x1bname")
    assert s.said == "odd\x1bname\n"


@given(st.text())
def test_what_is_rendered_prints(text: str) -> None:
    assert words.name(text).isprintable()
    assert words.render(text).replace("\n", "").isprintable()
    assert words.render("é" + text.replace("\n", "")).isprintable()


SECRETS = [
    ("GET https://cdn.example/x?X-Amz-Signature=abc&y=1 failed", "GET https://cdn.example/x?*** failed"),
    ("s3://key:secret@bucket/x", "s3://***@bucket/x"),
    ("Authorization: Bearer abcdefgh12345", "Authorization: ***"),
    ("{'authorization': 'Bearer abc.def-ghi'}", "{'authorization': '***'}"),
    ("token hf_AbCdEfGhIjKlMnOpQrStUvWxYz is wrong", "token hf_*** is wrong"),
    ('{"url":"https://h/x?sig=1","n":2}', '{"url":"https://h/x?***","n":2}'),
]


@pytest.mark.parametrize(("text", "shown"), SECRETS)
def test_secrets_are_never_printed(text: str, shown: str) -> None:
    assert words.scrub(text) == shown
    for options in ({}, {"quiet": True}, {"json": True}):
        s = sink(**options)
        s.out.line(text)
        s.out.answer(text)
        s.out.row("x", text=text)
        s.out.warn(text)
        s.out.error(MissError(text, hint=text, details=[text]))
        for secret in ("Signature", "secret@", "abcdefgh12345", "abc.def", "AbCdEf", "sig=1"):
            assert secret not in s.said + s.beside


@pytest.mark.parametrize(
    "text",
    [
        "images_b00/hamishi740__swerl-tmax-v3__17c682d5c609.sif",
        "hf://datasets/wAI-org/tmax-image-pool@main",
        "what is this? nothing",
        "docker://registry.local:5000/env-v3/a:latest",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert words.scrub(text) == text


def test_a_closed_reader_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stdout = os.fdopen(writing, "w", buffering=1)
    out = Output(stdout=stdout, stderr=io.StringIO())
    with pytest.raises(OutputClosedError):
        out.answer("x")
    stdout.close()


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield lambda answer: os.write(master, answer.encode()) and None
    os.close(master)


def test_a_deleting_command_asks(answering: Callable[[str], None]) -> None:
    s = sink(Terminal)
    answering("y\n")
    s.out.confirm("delete 3 files?", yes=False)
    assert "delete 3 files? [y/N]" in s.beside
    answering("\n")
    with pytest.raises(DeclinedError):
        s.out.confirm("delete 3 files?", yes=False)


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    s = sink()
    with pytest.raises(UsageError):
        s.out.confirm("delete 3 files?", yes=False)
    s.out.confirm("delete 3 files?", yes=True)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (999_999, "1.00 MB"), (34_000, "34.0 kB"),
     (123_456_789, "123 MB"), (2_040_000_000_000, "2.04 TB"), (-5000, "-5.00 kB")],
)  # fmt: skip
def test_sizes(count: int, shown: str) -> None:
    assert words.size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.44, "0.4 s"), (12, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_spans(seconds: float, shown: str) -> None:
    assert words.span(seconds) == shown


def test_counts() -> None:
    assert words.counted(1, "task") == "1 task"
    assert words.counted(7015, "task") == "7,015 tasks"
    assert words.counted(2, "entry", "entries") == "2 entries"


def test_only_the_sink_prints() -> None:
    root = Path(__file__).resolve().parents[2] / "poolmgr"
    for file in root.rglob("*.py"):
        if file.name == "output.py":
            continue
        source = file.read_text()
        for word in ("print(", "click.echo", "sys.stdout.write", "sys.stderr.write", "click.secho"):
            assert f" {word}" not in source, f"{file} prints by itself: {word}"


def test_a_text_is_folded_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Output(stdout=Terminal(), stderr=Terminal())
    assert terminal.folded("one line of twenty.") == ["one line of twenty."]
    assert terminal.folded("more than one line of twenty") == ["more than one line", "of twenty"]
    assert terminal.folded("/a/path/longer/than/the/line") == ["/a/path/longer/than/the/line"]
    assert Output(stdout=io.StringIO(), stderr=io.StringIO()).folded("x " * 99) == ["x " * 99]
