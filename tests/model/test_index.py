"""The index: what is refused and how it is named, and that nothing hostile gets through."""

from __future__ import annotations

import contextlib
import difflib
import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.errors import IndexInvalidError, UnknownTaskError, UnknownVariantError
from poolmgr.model.blob import path_trouble
from poolmgr.model.index import Index, nearest, tasks_by_blob

GOOD = {
    "solvable": {"task_1": "images/a.sif", "task_2": "images_b00/b.sif"},
    "original": {"task_1": "images/a.sif"},
}


def parse(value: Any) -> Index:
    return Index.parse(json.dumps(value).encode(), "pool/task_to_blob.json")


def refused(data: bytes) -> IndexInvalidError:
    with pytest.raises(IndexInvalidError) as caught:
        Index.parse(data, "pool/task_to_blob.json")
    assert "pool/task_to_blob.json" in caught.value.message
    assert caught.value.message.isprintable()
    assert all(detail.isprintable() for detail in caught.value.details)
    return caught.value


def test_a_good_index() -> None:
    index = parse(GOOD)
    assert list(index.variants) == ["solvable", "original"]
    assert index.blob("solvable", "task_2") == "images_b00/b.sif"
    assert index.blobs() == {"images/a.sif", "images_b00/b.sif"}
    assert index.blobs(["original"]) == {"images/a.sif"}
    assert tasks_by_blob({"x": "a", "y": "b", "z": "a"}) == {"a": ["x", "z"], "b": ["y"]}
    assert Index.parse(index.to_bytes(), "again").variants == index.variants


def test_a_byte_order_mark_is_no_fault() -> None:
    assert Index.parse(b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), "x").variants == parse(GOOD).variants


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"{", "is not JSON"),
        (b"{}", "names no variant"),
        (b"[]", "JSON list"),
        (b"null", "JSON null"),
        (b"3", "JSON number"),
        (b'"x"', "JSON string"),
        (b"NaN", "NaN"),
        (b'{"v": {"t": NaN}}', "NaN"),
        (b'{"v": {"t": -Infinity}}', "Infinity"),
        (b"<!DOCTYPE html><html>", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git-lfs pointer"),
        (b"\xff\xfe{\x00", "not UTF-8"),
        (json.dumps(GOOD).encode("utf-16"), "not UTF-8"),
        (b"[" * 100_000, "nested far too deeply"),
        (b'{"a":' * 100_000, "nested far too deeply"),
        (b'{"v": {"t": ' + b"9" * 10_000 + b"}}", "digits"),
        (b'{"v": []}', "'v' holds a JSON list"),
        (b'{"v": null}', "'v' holds a JSON null"),
        (b'{"v": {}}', "'v' has 0 tasks"),
        (b'{"v": {"t": {"x": "y"}}}', "variant 'v', task 't': a JSON object"),
        (b'{"v": {"t": null}}', "variant 'v', task 't': a JSON null"),
        (b'{"v": {"t": true}}', "variant 'v', task 't': a JSON boolean"),
        (b'{"v": {"t": 1}}', "variant 'v', task 't': a JSON number"),
        (b'{"v": {"t": ["a.sif"]}}', "variant 'v', task 't': a JSON list"),
        (b'{"": {"t": "a.sif"}}', "variant '' is empty"),
        (b'{"v": {"": "a.sif"}}', "variant 'v': task '' is empty"),
        (b'{"v": {"t\\n": "a.sif"}}', "control character"),
        (b'{"v\\u0000": {"t": "a.sif"}}', "control character"),
        (b'{"v": {"t\\ud800": "a.sif"}}', "control character"),
    ],
)
def test_what_is_no_index(data: bytes, words: str) -> None:
    assert words in refused(data).message


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "is empty"),
        ("/etc/passwd", "is absolute"),
        ("../x.sif", "'..' component"),
        ("images/../../x.sif", "'..' component"),
        ("images//x.sif", "empty component"),
        ("images/", "names a directory"),
        (".", "begins with a dot"),
        ("./x.sif", "begins with a dot"),
        (".poolmgr/lock/v.json", "begins with a dot"),
        ("images/.x.sif", "begins with a dot"),
        ("images\\x.sif", "backslash"),
        ("C:\\x.sif", "backslash"),
        ("images/\x00.sif", "U+0000"),
        ("images/\n.sif", "U+000A"),
        ("images/\x7f.sif", "U+007F"),
        ("images/\x85.sif", "U+0085"),
        ("images/\u2028.sif", "U+2028"),
        ("images/\u202e.sif", "U+202E"),
        ("images/\ud800.sif", "not valid Unicode"),
        ("task_to_blob.json", "index's own name"),
        ("Task_To_Blob.JSON", "index's own name"),
        ("x" * 256, "longer than 255"),
        ("ü" * 128, "longer than 255"),
        ("a/" * 600 + "x", "more than 1024"),
    ],
)
def test_an_unsafe_path_is_named_with_its_task(path: str, words: str) -> None:
    error = refused(json.dumps({"solvable": {"task_7": path, "task_8": "images/a.sif"}}).encode())
    assert "variant 'solvable', task 'task_7'" in error.message
    assert words in error.message


def test_every_problem_is_listed() -> None:
    error = refused(json.dumps({"v": {f"t{n}": f"../{n}" for n in range(300)}, "w": {}, "x": []}).encode())
    assert len(error.details) == 302
    assert "(and 301 more)" in error.message
    assert "'t299'" in error.details[299]


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (b'{"v": {"t": "a.sif"}, "v": {"t": "b.sif"}}', "'v'"),
        (b'{"v": {"t": "a.sif", "t": "a.sif"}}', "'t'"),
        (b'{"v": {"t": "a.sif", "\\u0074": "b.sif"}}', "'t'"),
    ],
)
def test_a_key_given_twice_is_refused_by_name(data: bytes, key: str) -> None:
    error = refused(data)
    assert "twice" in error.message
    assert key in " ".join(error.details)


def test_a_repeated_task_is_named_with_its_variant() -> None:
    error = refused(b'{"original": {"t": "a.sif"}, "solvable": {"t": "a.sif", "t": "b.sif"}}')
    assert "'solvable'" in error.details[0]
    assert "'original'" not in error.details[0]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("images/A.sif", "images/a.sif"),
        ("Images/a.sif", "images/a.sif"),
        ("images/\u00e9.sif", "images/e\u0301.sif"),  # NFC, NFD
        ("images/stra\u00dfe.sif", "images/STRASSE.sif"),
        ("images/\u212a.sif", "images/k.sif"),  # the Kelvin sign
    ],
)
def test_paths_that_clash_are_refused_with_their_tasks(a: str, b: str) -> None:
    error = refused(json.dumps({"v": {"t1": a}, "w": {"t2": b}}).encode())
    text = " ".join(error.details)
    assert repr(a) in text
    assert repr(b) in text
    assert "'v'" in text
    assert "'t1'" in text
    assert "'w'" in text
    assert "'t2'" in text


def test_an_unknown_variant_lists_those_that_exist_nearest_first() -> None:
    index = parse({v: {"t": "a.sif"} for v in ("original", "hardened_prefilter", "solvable")})
    with pytest.raises(UnknownVariantError) as caught:
        index.variant("solveable")
    assert caught.value.message.endswith("it has: solvable, original, hardened_prefilter")
    assert "did you mean 'solvable'" in caught.value.hint


def test_an_unknown_task_is_told_the_nearest_or_where_it_is() -> None:
    index = parse(GOOD)
    with pytest.raises(UnknownTaskError) as caught:
        index.blob("original", "task_2")
    assert "'solvable'" in caught.value.hint
    with pytest.raises(UnknownTaskError) as caught:
        index.blob("original", "task_11")
    assert "task_1" in caught.value.hint


def test_nearest_never_takes_long_over_long_names() -> None:
    words = [f"task_{n:06}_{n * 7919:08x}" for n in range(15_000)]
    assert nearest("task_000868_006912d4", words, 1)
    nearest("x" * 100_000, words)


def test_nearest_of_a_whole_variant_compares_few(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = difflib.get_close_matches
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda w, words, **how: compared.append(words) or real(w, words, **how)
    )
    words = [f"task_{i:06}_{i * 2654435761 % 2**32:08x}" for i in range(14_601)]
    wanted = words[7_000]
    for wrong in (wanted[:-1], wanted[:-2] + "zz", "tsak" + wanted[4:], wanted.upper(), "x" + wanted):
        assert nearest(wrong, words)[0] == wanted
    assert max(map(len, compared)) <= 32


def test_a_whole_pool_is_parsed_and_written_back() -> None:
    """The real pool's size: three variants, 35,181 assignments."""
    sizes = {"original": 14_601, "hardened_prefilter": 13_565, "solvable": 7_015}
    raw = {
        v: {
            f"task_{n:06}_{n * 7919:08x}": f"images_b{n % 3:02}/acme__env-v3__{n % 14_490:012x}.sif"
            for n in range(k)
        }
        for v, k in sizes.items()
    }
    index = parse(raw)
    assert {v: len(t) for v, t in index.variants.items()} == sizes
    assert Index.parse(index.to_bytes(), "x").variants == index.variants
    plain = {v: dict(t) for v, t in index.variants.items()}
    assert json.loads(index.to_bytes()) == plain
    indented = json.dumps(plain, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    assert index.to_bytes() == indented.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NAME = st.text(string.ascii_letters + string.digits + "_-.é画[ ]", min_size=1, max_size=12)


@given(JSON)
def test_any_json_is_an_index_or_refused(value: Any) -> None:
    try:
        index = Index.parse(json.dumps(value).encode(), "x")
    except IndexInvalidError:
        return
    assert index.variants
    for tasks in index.variants.values():
        assert tasks
        assert all(path_trouble(path) is None for path in tasks.values())


@given(st.dictionaries(NAME, st.dictionaries(NAME, st.text(max_size=20), max_size=4), max_size=4))
def test_any_index_shape_is_safe_or_refused(value: dict[str, dict[str, str]]) -> None:
    test_any_json_is_an_index_or_refused.hypothesis.inner_test(value)  # type: ignore[attr-defined]


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(IndexInvalidError) as caught:
        Index.parse(data + b"\xff", "x")
    assert caught.value.message.isprintable()
    with contextlib.suppress(IndexInvalidError):
        Index.parse(data, "x")


@given(
    st.dictionaries(
        NAME, st.dictionaries(NAME, st.sampled_from(["a.sif", "b/c.sif"]), min_size=1), min_size=1
    )
)
def test_written_and_read_again_it_is_the_same(value: dict[str, dict[str, str]]) -> None:
    index = parse(value)
    again = Index.parse(index.to_bytes(), "again")
    assert again.variants == index.variants
    assert again.to_bytes() == index.to_bytes()
