"""The program around the commands: laziness, errors as words and statuses, signals, broken pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from poolmgr.cli import main as cli
from poolmgr.cli import options
from poolmgr.cli.lazy import Lazy, LazyGroup
from poolmgr.cli.output import Output
from poolmgr.errors import Exit, MissError
from tests.conftest import ROOT, RunPoolmgr

HEAVY = ("pyarrow", "duckdb", "huggingface_hub", "fsspec", "tqdm", "daytona", "httpx", "numpy", "matplotlib")


@click.command()
@click.argument("how")
@options.output()
def trial(how: str, out: Output) -> Exit | None:
    """Fail in the way that is asked for."""
    match how:
        case "miss":
            raise MissError("no blob for 'x'", hint="look elsewhere", details=["images/a.sif", "b\x1b[31mc"])
        case "bug":
            raise KeyError("hf_abcdefghijklmnopqrstuvwxyz0123456789")
        case "os":
            (Path.cwd() / "no" / "such").read_bytes()
        case "pipe":
            raise BrokenPipeError(32, "Broken pipe")
        case "bad":
            return Exit.BAD
        case "wait":
            try:
                out.note("waiting")
                time.sleep(30)
            finally:
                out.note("cleaned up")
        case "abort":
            raise KeyboardInterrupt
        case "flood":
            for i in range(100_000):
                out.answer(f"images/{i}.sif")
        case "none":
            out.answer("fine")
            out.document({"kind": "trial"})
    return None


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Lazy("tests.cli.test_main:trial", "Fail in the way that is asked for.")
    monkeypatch.setitem(cli.COMMANDS, "trial", entry)


SCRIPT = (
    "import sys; from poolmgr.cli import main; from poolmgr.cli.lazy import Lazy;"
    "main.COMMANDS['trial'] = Lazy('tests.cli.test_main:trial', ''); main.run(sys.argv[1:])"
)


def start(*args: str, **kwargs: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs},  # type: ignore[call-overload]
    )


@pytest.mark.usefixtures("table")
class TestErrors:
    def test_a_pool_error_gives_its_message_details_hint_and_status(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.call(["trial", "miss"]) == Exit.BAD
        out, err = capsys.readouterr()
        assert out == ""
        assert err.splitlines() == [
            "error[miss]: no blob for 'x'",
            "  images/a.sif",
            r"  b\x1b[31mc",
            "hint: look elsewhere",
        ]

    def test_under_json_the_last_stderr_line_is_the_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.call(["trial", "miss", "--json"]) == Exit.BAD
        out, err = capsys.readouterr()
        assert out == ""
        row = json.loads(err.splitlines()[-1])
        assert {k: row[k] for k in ("kind", "code", "message", "hint", "exit")} == {
            "kind": "error",
            "code": "miss",
            "message": "no blob for 'x'",
            "hint": "look elsewhere",
            "exit": 3,
        }
        assert row["details"] == ["images/a.sif", "b\x1b[31mc"]

    @pytest.mark.parametrize(
        ("args", "word"),
        [
            (["--no-such-option"], "--no-such-option"),
            (["trial"], "HOW"),
            (["trial", "a", "b"], "b"),
            (["trial", "x", "--json", "-q"], "exclude"),
        ],
    )
    def test_usage_errors_are_2_in_words_and_in_json(
        self, args: list[str], word: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.call(args) == Exit.USAGE
        err = capsys.readouterr().err
        if "--json" not in args:
            assert err.startswith("error[usage]: ")
            assert word in err
            assert "--help" in err
        assert cli.call([*args, "--json"] if "--json" not in args else args) == Exit.USAGE
        row = json.loads(capsys.readouterr().err.splitlines()[-1])
        assert (row["code"], row["exit"]) == ("usage", 2)
        assert word in row["message"]

    def test_an_unknown_command_names_the_nearest(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.call(["trail"]) == Exit.USAGE
        assert "'trial'" in capsys.readouterr().err

    def test_no_command_shows_the_help_and_is_a_usage_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.call([]) == Exit.USAGE
        out, err = capsys.readouterr()
        assert out == ""
        assert "Usage: poolmgr" in err

    def test_a_fault_of_ours_is_one_line_without_secrets_or_traceback(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.call(["trial", "bug"]) == Exit.ERROR
        err = capsys.readouterr().err
        assert err.startswith("error[internal]: KeyError")
        assert "Traceback" not in err
        assert "abcdefghij" not in err

    @pytest.mark.parametrize("how", ["option", "environment"])
    def test_debug_shows_the_traceback_still_without_secrets(
        self, how: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if how == "environment":
            monkeypatch.setenv("POOLMGR_DEBUG", "1")
        assert cli.call([*(["--debug"] if how == "option" else []), "trial", "bug"]) == Exit.ERROR
        err = capsys.readouterr().err
        assert "Traceback" in err
        assert "abcdefghij" not in err

    def test_an_unforeseen_os_error_names_the_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.call(["trial", "os"]) == Exit.ERROR
        assert capsys.readouterr().err.startswith("error[os-error]: No such file or directory: ")

    def test_a_broken_pipe_that_is_not_stdout_is_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.call(["trial", "pipe"]) == Exit.ERROR
        assert capsys.readouterr().err.startswith("error[os-error]: Broken pipe")

    def test_what_a_command_returns_is_the_status(self) -> None:
        assert cli.call(["trial", "bad"]) == Exit.BAD
        assert cli.call(["trial", "none"]) == Exit.GOOD

    def test_ctrl_c_is_130(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.call(["trial", "abort"]) == Exit.INTERRUPTED
        assert capsys.readouterr().err.startswith("error[interrupted]")

    def test_the_environments_own_secrets_are_never_shown(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "plainwordsecret")
        assert cli.call(["trial", "plainwordsecret", "plainwordsecret"]) == Exit.USAGE
        assert "plainwordsecret" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "status", "code"),
    [
        (signal.SIGTERM, 5, "incomplete"),
        (signal.SIGHUP, 5, "incomplete"),
        (signal.SIGINT, 130, "interrupted"),
    ],
)
def test_a_signal_ends_the_run_in_order(number: signal.Signals, status: int, code: str) -> None:
    with start("trial", "wait") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        process.send_signal(number)
        err = process.stderr.read()
    assert process.returncode == status
    assert err.startswith("cleaned up\n")
    assert f"error[{code}]: " in err
    assert "Traceback" not in err


def test_a_reader_that_leaves_is_no_fuss() -> None:
    with start("trial", "flood") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "images/0.sif\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_answer_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("w") as full, start("trial", "none", stdout=full) as process:
        assert process.stderr is not None
        err = process.stderr.read()
    assert process.returncode == 1
    assert err.startswith("error[output-refused]: stdout does not take the answer: No space left on device\n")


def test_version(poolmgr: RunPoolmgr) -> None:
    done = poolmgr("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("poolmgr ")


@pytest.mark.parametrize("code", ["import poolmgr", "--help", "from poolmgr import Pool"])
def test_the_light_ways_in_import_nothing_heavy(code: str) -> None:
    if code == "--help":
        code = "from poolmgr.cli.main import call; assert call(['--help']) == 0"
    code += f"; import sys; heavy = [m for m in {HEAVY!r} if m in sys.modules]; assert not heavy, heavy"
    if "call" in code:
        code += "; ours = [m for m in sys.modules if m.startswith(('poolmgr.ops', 'poolmgr.model'))]"
        code += "; assert not ours, ours"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def leaves(group: LazyGroup, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Lazy, click.Command]]:
    """Every command of the tree: its words, its line in the table, the command itself."""
    found = []
    for name, entry in group.lazy.items():
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found.append(((*path, name), entry, command))
        if isinstance(command, LazyGroup):
            found += leaves(command, (*path, name))
    return found


def test_the_table_and_the_commands_are_in_step() -> None:
    for words, entry, command in leaves(cli.main):  # type: ignore[arg-type]
        assert command.name == words[-1]
        assert command.help is not None, words
        assert command.help.split("\n\n")[0].split("\f")[0].replace("\n", " ").strip() == entry.help, words


def test_every_command_has_json_and_quiet() -> None:
    for words, _, command in leaves(cli.main):  # type: ignore[arg-type]
        if isinstance(command, click.Group):
            continue
        spelt = {opt for p in command.params for opt in p.opts}
        assert {"--json", "-q", "--quiet"} <= spelt, words


def test_options_that_mean_the_same_are_spelt_the_same() -> None:
    pairs = {"-p": "--pool", "-n": "--dry-run", "-y": "--yes", "-j": "--jobs", "-q": "--quiet"}
    for words, _, command in leaves(cli.main):  # type: ignore[arg-type]
        for param in command.params:
            for short, long in pairs.items():
                assert (short in param.opts) == (long in param.opts), (words, param.opts)
