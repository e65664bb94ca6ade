"""Lays Dockerfiles beside each other: which instructions correspond, and which tokens in them differ.

Every Dockerfile becomes a mapping from places to texts. The places are those of one reference, the
commonest form; together with the reference the mapping gives the file back, so two Dockerfiles
have equal mappings exactly when their instructions are equal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from poolmgr.model.dockerfile import Dockerfile, Instruction

_TOKEN = re.compile(r"\s+|&&|\|\||[;|()]|[^\s;|()&]+|&")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z-]*\Z")
_IMAGE = re.compile(r"(?P<repository>.+?)(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>\w+:\w+))?\Z")
_VARIABLE = re.compile(r"\$\{?(\w+)")
MAX_TOKENS = 2000
"""A longer instruction is compared as a whole."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text stands: an instruction of the reference, and a token in it."""

    slot: int
    """Index of the instruction in the reference; for one that the reference lacks, of the one before it."""
    extra: str = ""
    """The coarse form of an instruction that the reference lacks."""
    part: str = ""
    """``repository``, ``tag``, … of FROM; the token's index of other instructions; '' for the presence."""


@dataclass(frozen=True)
class Aligned:
    """All the Dockerfiles, laid beside one reference."""

    reference: Dockerfile
    texts: tuple[Mapping[Place, str], ...]
    """For each Dockerfile its texts; a place that is not in it has none."""
    shown: Mapping[tuple[int, str], Instruction]
    """(slot, extra) -> an instruction that stands there, for display."""


def align(files: Sequence[Dockerfile]) -> Aligned:
    """Lay ``files`` (not empty) beside each other."""
    forms = [tuple(map(coarse, f.instructions)) for f in files]
    common = Counter(forms).most_common(1)[0][0]
    reference = files[forms.index(common)]
    known = [tokens(i) for i in reference.instructions]
    shown: dict[tuple[int, str], Instruction] = {(n, ""): i for n, i in enumerate(reference.instructions)}
    matched: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    texts = []
    for file, form in zip(files, forms, strict=True):
        if form not in matched:
            matched[form] = _slots(common, form)
        mapping: dict[Place, str] = {}
        for instruction, (slot, extra) in zip(file.instructions, matched[form], strict=True):
            shown.setdefault((slot, extra), instruction)
            mapping[Place(slot, extra)] = "there"
            if extra:
                mapping[Place(slot, extra, "0")] = instruction.text
            else:
                _compare(mapping, slot, known[slot], tokens(instruction))
        for name, value in file.directives:
            mapping[Place(-1, f"# {name}")] = value
        texts.append(mapping)
    return Aligned(reference, tuple(texts), shown)


def coarse(instruction: Instruction) -> str:
    """What makes an instruction the same one in two files although its details differ."""
    words = instruction.words
    match instruction.command:
        case "ENV" | "LABEL":
            detail = " ".join(words[::2])
        case "ARG":
            detail = words[0].partition("=")[0] if words else ""
        case "COPY" | "ADD":
            detail = words[-1] if words else ""
        case "RUN":
            text = " ".join(words)
            detail = " ".join(w for w in re.split(r"[\s;&|]+", text)[:6] if _PLAIN.match(w))
        case _:
            detail = ""
    return f"{instruction.command} {detail}".rstrip()


def base_arguments(aligned: Aligned, files: Iterable[Dockerfile]) -> frozenset[tuple[int, str]]:
    """(slot, extra) of every ARG before the first FROM that a FROM names: it chooses the base image."""
    froms = [i for file in files for i in file.instructions if i.command == "FROM"]
    named = {f"ARG {name}" for i in froms for name in _VARIABLE.findall(i.text)}
    commands = [i.command for i in aligned.reference.instructions]
    first = commands.index("FROM") if "FROM" in commands else 0
    return frozenset(place for place, i in aligned.shown.items() if place[0] < first and coarse(i) in named)


def _slots(reference: tuple[str, ...], form: tuple[str, ...]) -> list[tuple[int, str]]:
    """(slot, extra) for every instruction of ``form``."""
    if form == reference:
        return [(n, "") for n in range(len(form))]
    found: list[tuple[int, str]] = [(-1, "")] * len(form)
    taken: Counter[tuple[int, str]] = Counter()
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, reference, form, autojunk=False).get_opcodes():
        free = list(range(i1, i2)) if tag != "equal" else []
        for n, j in enumerate(range(j1, j2)):
            if tag == "equal":
                found[j] = (i1 + n, "")
                continue
            command = form[j].partition(" ")[0]
            slot = next((i for i in free if reference[i].partition(" ")[0] == command), None)
            if slot is not None:
                del free[: free.index(slot) + 1]  # later ones only: the order of the file is kept
                found[j] = (slot, "")
                continue
            key = (max([i1 - 1, *(s for s, e in found[:j] if not e)]), form[j])
            taken[key] += 1
            found[j] = (key[0], f"{key[1]} #{taken[key]}" if taken[key] > 1 else key[1])
    return found


def tokens(instruction: Instruction) -> list[tuple[str, str]]:
    """(part, text) of an instruction, in order; joined they tell it from every other."""
    head = [("form", f"{instruction.command} {instruction.inner} {'json' if instruction.is_json else ''}")]
    flags = [(f"flag{n}", flag) for n, flag in enumerate(instruction.flags)]
    rest: list[tuple[str, str]] = []
    if instruction.command == "FROM":
        match = _IMAGE.match(instruction.words[0])
        assert match is not None
        rest = [(name, text or "") for name, text in match.groupdict().items()]
        rest.append(("stage", " ".join(instruction.words[1:])))
    elif instruction.is_json or instruction.command in ("ENV", "ARG", "LABEL", "COPY", "ADD"):
        rest = [(str(n), word) for n, word in enumerate(instruction.words)]
    else:
        text = " ".join(instruction.words)
        found = _TOKEN.findall(text)
        rest = [(str(n), t) for n, t in enumerate(found if len(found) <= MAX_TOKENS else [text])]
    heredocs = [(f"heredoc{n}", f"{h.name}\n{h.content}") for n, h in enumerate(instruction.heredocs)]
    return head + flags + rest + heredocs


def _compare(
    mapping: dict[Place, str], slot: int, known: list[tuple[str, str]], own: list[tuple[str, str]]
) -> None:
    """Put every token of ``own`` at the place of the reference's token that it corresponds to."""
    if [part for part, _ in known] == [part for part, _ in own]:
        for part, text in own:
            mapping[Place(slot, "", part)] = text
        return
    left = [text for _, text in known]
    right = [text for _, text in own]
    for _, i1, i2, j1, j2 in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if i2 - i1 == j2 - j1:
            for n in range(i2 - i1):
                mapping[Place(slot, "", known[i1 + n][0])] = right[j1 + n]
        else:
            # More or fewer tokens than the reference has: they stand together at the first one's place.
            part = known[i1][0] if i1 < len(known) else "end"
            if i1 == i2:
                part = f"before {part}"
            mapping[Place(slot, "", part)] = "".join(right[j1:j2])
