"""Maps of images to files: what other people's programs and spreadsheets write, and worse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.errors import BadFileError
from poolmgr.model.image_map import MAX_LINE, parse_image_map


def pairs(data: bytes) -> list[tuple[str, str]]:
    return [(p.reference, p.file) for p in parse_image_map(data, "m.tsv").pairs]


@pytest.mark.parametrize(
    "data",
    [
        b"acme/env:1\ta.sif\nacme/env:2\tb.sif\n",
        b"\xef\xbb\xbfacme/env:1\ta.sif\r\nacme/env:2\tb.sif\r\n",  # a BOM, CRLF
        b"acme/env:1\ta.sif\n\n   \nacme/env:2\tb.sif",  # blank lines, no newline at the end
        b'"acme/env:1"\t"a.sif"\n acme/env:2 \t b.sif \n',  # a spreadsheet's quotes; spaces
        b"ref\tfile\nacme/env:1\ta.sif\nacme/env:2\tb.sif\n",  # a header
    ],
)
def test_one_map_in_many_dresses(data: bytes) -> None:
    assert pairs(data) == [("acme/env:1", "a.sif"), ("acme/env:2", "b.sif")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"acme/env:1", "1 column,"),
        (b"acme/env:1\ta.sif\tmore", "3 columns,"),
        (b"acme/env:1 a.sif", "1 column,"),
        (b"\ta.sif", "reference is empty"),
        (b"acme/env:1\t", "file is empty"),
        (b'acme/env:1\t""', "file is empty"),
        ("acmé/env:1\ta.sif".encode("latin-1"), "not UTF-8"),
        (b"acme/env:1\ta\x00.sif", "control character"),
        (b"acme/env:1\ta.sif\racme/env:2\tb.sif", "columns"),  # old line ends
        (b"acme/env:1\t" + b"a" * MAX_LINE, "longer than"),
    ],
)
def test_a_line_that_is_no_pair_is_trouble_by_its_number(line: bytes, why: str) -> None:
    found = parse_image_map(b"acme/x:1\tx.sif\n" + line + b"\nacme/y:1\ty.sif\n", "m.tsv")
    assert [p.line for p in found.pairs] == [1, 3]
    ((number, said),) = found.bad
    assert number == 2
    assert why in said


def test_utf_16_is_named() -> None:
    with pytest.raises(BadFileError, match="UTF-16"):
        parse_image_map("acme/env:1\ta.sif\n".encode("utf-16"), "m.tsv")


def test_a_header_counts_on_the_first_line_alone() -> None:
    assert pairs(b"acme/env:1\ta.sif\nref\tfile\n") == [("acme/env:1", "a.sif"), ("ref", "file")]


@given(st.binary(max_size=300) | st.text(alphabet='\t\n\r"a \ufeff', max_size=80).map(str.encode))
def test_every_line_is_a_pair_or_trouble_or_blank(data: bytes) -> None:
    try:
        found = parse_image_map(data, "m.tsv")
    except BadFileError:
        return
    numbers = [p.line for p in found.pairs] + [number for number, _ in found.bad]
    assert len(set(numbers)) == len(numbers)
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for pair in found.pairs:
        assert pair.reference.isprintable()
        assert pair.file
        assert b"\t" in lines[pair.line - 1]
