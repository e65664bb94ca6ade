"""A Dockerfile as BuildKit's parser reads it (harbor/dockerfile.py parses)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heredoc:
    name: str
    content: str


@dataclass(frozen=True, slots=True)
class Instruction:
    command: str
    """In capitals."""
    words: tuple[str, ...]
    """Its values: the whole command line for a shell-form RUN; name and value in turn for ENV."""
    flags: tuple[str, ...] = ()
    heredocs: tuple[Heredoc, ...] = ()
    line: int = 0
    """Its first line, from 1."""
    end_line: int = 0
    inner: str = ""
    """The instruction behind ONBUILD."""
    is_json: bool = False

    @property
    def text(self) -> str:
        """The instruction on one line, without comments and line continuations."""
        parts = [self.command, *([self.inner] if self.inner else []), *self.flags, *self.words]
        return " ".join(parts) + "".join(f" {h.content!r}" for h in self.heredocs)

    def flag(self, name: str) -> str | None:
        start = f"--{name}="
        return next((f[len(start) :] for f in self.flags if f.startswith(start)), None)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    instructions: tuple[Instruction, ...]
    directives: tuple[tuple[str, str], ...] = ()
    """``syntax``, ``escape`` and ``check`` lines at the head, which change how it is built."""
