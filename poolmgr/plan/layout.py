"""What of a Dockerfile's bytes no build reads: line ends, comments, blank lines, spacing."""

from __future__ import annotations

import re
from itertools import groupby

from poolmgr.model.dockerfile import Dockerfile

LINE_ENDS = "line ends"
COMMENTS = "comments"
BLANK_LINES = "blank lines"
SPACING = "spacing"
KINDS = (LINE_ENDS, COMMENTS, BLANK_LINES, SPACING)

_WORDS = re.compile(r"[^\s\\]+(?: [^\s\\]+)*")
_DIRECTIVE = re.compile(r"#\s*(syntax|escape|check)\s*=", re.IGNORECASE)


def layout(raw: bytes, parsed: Dockerfile) -> dict[str, str]:
    """Each kind of ``KINDS`` -> its text in this file; two equal files have equal ones.

    Different files may agree in all of them and in all their instructions (a tab for a space): the
    caller tells such apart by their bytes.
    """
    text = raw.decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    ends = ["\\r\\n" if line.endswith("\r") else "\\n" for line in lines[:-1]] + [f"end {lines[-1] == ''}"]
    inside: set[int] = set()
    for i in parsed.instructions:
        inside.update(range(i.line - 1, i.end_line))
    comments: list[str] = []
    blanks: list[str] = []
    shapes: list[str] = []
    run = 0
    for n, line in enumerate(line.rstrip("\r") for line in lines):
        bare = line.strip()
        if not bare and n not in inside:
            run += 1
            continue
        if bare.startswith("#") and not (n in inside and _is_heredoc(parsed, n)):
            if not _DIRECTIVE.match(bare) or n in inside:
                comments.append(line)
            continue
        blanks.append(str(run))
        run = 0
        shapes.append(_WORDS.sub("x", line))
    return {
        LINE_ENDS: ",".join(end for end, _ in groupby(ends)),
        COMMENTS: "\n".join(comments),
        BLANK_LINES: ",".join(k for k, _ in groupby([*blanks, str(run)])),
        SPACING: "\n".join(shape for shape, _ in groupby(shapes)),
    }


def _is_heredoc(parsed: Dockerfile, line: int) -> bool:
    """Whether the 0-based ``line`` belongs to an instruction with a heredoc, where # is content."""
    return any(i.heredocs and i.line - 1 <= line < i.end_line for i in parsed.instructions)
