"""The one sink: everything that poolmgr prints goes through ``Output``, and nothing else prints.

stdout has the answer only; progress, warnings, hints and errors go to stderr. Three forms:

- text, for people (``line``, ``table``, ``section``), with names on request (``answer``);
- ``--json``: one document (``document``), or JSON Lines (``row``);
- ``-q``: only what ``answer`` gives, ids or paths, one a line.

Each call prints in the forms it belongs to and does nothing in the others, so a command says all
it has to say once, without asking which form is wanted.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from poolmgr.cli import text as words
from poolmgr.errors import DeclinedError, OutputRefusedError, PoolError, UsageError
from poolmgr.ops.progress import Progress, Silent

SCHEMA = 1
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class OutputClosedError(Exception):
    """Nobody reads stdout any more (``poolmgr ls | head``): not an error, and nothing to say."""


class Output:
    """Where a command's answer, warnings and progress go. Safe to call from several threads."""

    def __init__(
        self,
        *,
        json: bool = False,
        quiet: bool = False,
        no_color: bool = False,
        secrets: Iterable[str] = (),
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.json = json
        self.quiet = quiet
        self._stdout = stdout or _open(sys.stdout)
        self._stderr = stderr or _open(sys.stderr)
        self._secrets = tuple(secrets)
        self._color = {s: not no_color and not json and _is_terminal(s) for s in (self._stdout, self._stderr)}
        self._lock = threading.RLock()
        self._bar: Callable[[], None] | None = None

    # --- the answer, in text ----------------------------------------------------------------------

    @property
    def is_text(self) -> bool:
        """Whether people read the answer: neither ``--json`` nor ``-q``."""
        return not self.json and not self.quiet

    def line(self, text: str = "") -> None:
        """One line (or several) of the text form."""
        if self.is_text:
            self._write(self._stdout, text)

    def table(
        self, rows: Sequence[Sequence[str]], header: Sequence[str] = (), *, right: Iterable[int] = (),
        indent: int = 0,
    ) -> None:  # fmt: skip
        """Aligned columns of the text form; nothing at all for no rows."""
        if self.is_text and rows:
            fit = shutil.get_terminal_size().columns - indent if _is_terminal(self._stdout) else None
            lines = words.table(rows, header, right=right, fit=fit)
            for i, line in enumerate(lines):
                styled = self.styled(line, "dim") if header and i == 0 else line
                self._write(self._stdout, " " * indent + styled)

    def folded(self, text: str, indent: int = 0) -> list[str]:
        """Unstyled ``text`` in lines that begin at column ``indent``; one in a pipe, which has no width."""
        if not _is_terminal(self._stdout):
            return [text]
        width = max(20, shutil.get_terminal_size().columns - indent)
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [text]

    def styled(self, text: str, style: str) -> str:
        """``text`` in a style of ``STYLES`` where stdout is a terminal that takes it."""
        return self._styled(self._stdout, text, style)

    def answer(self, *values: str) -> None:
        """Ids or paths that are the answer itself: printed in the text form and under ``-q``."""
        if not self.json and values:
            # A pipe gets the name as it is (xargs must find the file); a terminal gets it escaped.
            shown = map(words.name, values) if _is_terminal(self._stdout) else values
            self._write(self._stdout, "\n".join(shown), raw=True)

    def only_quiet(self, value: str) -> None:
        """An id or path that only ``-q`` prints: the text form shows it in a richer way."""
        if self.quiet:
            self.answer(value)

    # --- the answer, as JSON ----------------------------------------------------------------------

    def document(self, document: Mapping[str, Any]) -> None:
        """The one document of the JSON form; ``schema`` is added in front."""
        if self.json:
            self._write(self._stdout, _dumps({"schema": SCHEMA, **document}, indent=1), raw=True)

    def row(self, kind: str, /, **fields: Any) -> None:
        """One line of the JSON Lines form: ``{"schema":1,"kind":…}`` and the fields."""
        if self.json:
            self._write(self._stdout, _dumps({"schema": SCHEMA, "kind": kind, **fields}), raw=True)

    # --- beside the answer ------------------------------------------------------------------------

    def warn(self, text: str) -> None:
        """Something that the user must know although the command goes on; shown even under ``-q``."""
        if self.json:
            self._error_row({"kind": "warning", "message": text})
        else:
            self._write(self._stderr, self._styled(self._stderr, "warning:", "yellow") + " " + text)

    def hint(self, text: str) -> None:
        """What to do next."""
        if self.is_text:
            self._write(self._stderr, self._styled(self._stderr, "hint:", "cyan") + " " + text)

    def note(self, text: str) -> None:
        """One line about the work while it goes on."""
        if self.is_text:
            self._write(self._stderr, text)

    def progress(self) -> Progress:
        """The progress of a verb: a bar on a terminal, else a line a minute; silent under ``-q``."""
        if self.quiet:
            return Silent()
        from poolmgr.cli.progress import Bar, Lines

        if _is_terminal(self._stderr) and not self.json:
            return Bar(self._stderr, self._lock, self._attach)
        return Lines(self._progress_line)

    def error(self, error: PoolError) -> None:
        """The last words of a command that failed (docs/errors.md)."""
        if self.json:
            row: dict[str, Any] = {
                "kind": "error",
                "code": error.code,
                "message": error.message,
                "hint": error.hint,
                "exit": int(error.exit),
            }
            if error.details:
                row["details"] = list(error.details)
            self._error_row(row)
            return
        self._write(
            self._stderr, self._styled(self._stderr, f"error[{error.code}]:", "red") + " " + error.message
        )
        for detail in () if _told(error) else error.details:
            self._write(self._stderr, "  " + words.name(detail))
        if error.hint:
            self._write(self._stderr, self._styled(self._stderr, "hint:", "cyan") + " " + error.hint)

    def usage(self, text: str) -> None:
        """The help of a command that was called without any word."""
        if not self.json:
            self._write(self._stderr, text)

    def debug(self, text: str) -> None:
        """A traceback that was asked for."""
        self._write(self._stderr, text)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Go on only with ``-y`` or the user's own yes; ``UsageError`` when neither can be had."""
        if yes:
            return
        if self.json or not (_is_terminal(sys.stdin) and _is_terminal(self._stderr)):
            raise UsageError(
                f"this needs a yes: {question}", hint="give -y/--yes to go on without being asked"
            )
        with self._lock:
            self._stderr.write(words.render(f"{question} [y/N] "))
            self._stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise DeclinedError("stopped: the answer was not yes; nothing was changed")

    def flush(self) -> None:
        """Hand on everything that was printed; the same errors as printing."""
        with self._guarded(self._stdout):
            self._stdout.flush()

    # --- inside -----------------------------------------------------------------------------------

    def _progress_line(self, text: str) -> None:
        if self.json:
            self._error_row({"kind": "progress", "message": text})
        else:
            self._write(self._stderr, text)

    def _error_row(self, row: Mapping[str, Any]) -> None:
        self._write(self._stderr, _dumps({"schema": SCHEMA, **row}), raw=True)

    def _styled(self, stream: TextIO, text: str, style: str) -> str:
        return words.marked(text, STYLES[style]) if self._color[stream] else text

    def _write(self, stream: TextIO, text: str, *, raw: bool = False) -> None:
        text = words.scrub(text, self._secrets)
        if not raw:
            text = words.render(text)
        with self._lock, self._guarded(stream):
            if self._bar:
                self._bar()
            stream.write(text + "\n")
            if stream is self._stderr:
                stream.flush()

    def _attach(self, clear: Callable[[], None] | None) -> None:
        """``clear`` is called before any other line is printed; None when the bar is gone."""
        self._bar = clear

    @contextmanager
    def _guarded(self, stream: TextIO) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            _silence(stream)
            if stream is self._stdout:
                raise OutputClosedError from None
        except OSError as e:
            _silence(stream)
            if stream is self._stdout:
                raise OutputRefusedError(f"stdout does not take the answer: {e.strerror or e}") from None


def _dumps(value: Mapping[str, Any], indent: int | None = None) -> str:
    import json

    # ASCII: a name that is not UTF-8 then still makes a valid document.
    return json.dumps(value, indent=indent, separators=None if indent else (",", ":"))


def _open(stream: TextIO | None) -> TextIO:
    """The stream, or nowhere when the caller closed it (``>&-``)."""
    if stream is None:
        return open(os.devnull, "w")
    if isinstance(stream, io.TextIOWrapper):
        # Names that are not UTF-8 leave as the bytes they came as.
        stream.reconfigure(errors="surrogateescape")
    return stream


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _told(error: PoolError) -> bool:
    """Whether the only case of an error stands in its message already: as its end, or quoted."""
    if len(error.details) != 1:
        return False
    (case,) = error.details
    return f": {error.message}".endswith(f": {case}") or f"'{case}'" in error.message


def _silence(stream: TextIO) -> None:
    """Send what the stream still holds nowhere, so that the interpreter's own last flush is quiet."""
    try:
        fd = os.open(os.devnull, os.O_WRONLY)
        os.dup2(fd, stream.fileno())
        os.close(fd)
    except (OSError, ValueError):
        pass
