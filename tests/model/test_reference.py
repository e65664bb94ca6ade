"""Image references: what is one, what they mean, and what hostile text comes to."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from poolmgr.errors import ReferenceInvalidError
from poolmgr.model.reference import MAX_REFERENCE, canonical, parse_reference

HEX64 = "ab" * 32


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("docker://ubuntu:22.04", "docker.io/library/ubuntu:22.04"),
        ("docker.io/ubuntu", "docker.io/library/ubuntu:latest"),
        ("index.docker.io/library/ubuntu:latest", "docker.io/library/ubuntu:latest"),
        ("acme/env-v3:17c682d5c609", "docker.io/acme/env-v3:17c682d5c609"),
        ("mirror.local:5000/team/env", "mirror.local:5000/team/env:latest"),
        ("localhost/env", "localhost/env:latest"),
        ("localhost:5000/env:v1", "localhost:5000/env:v1"),
        ("[::1]:5000/env", "[::1]:5000/env:latest"),
        (f"acme/env@sha256:{HEX64}", f"docker.io/acme/env@sha256:{HEX64}"),
        (f"acme/env:v1@sha256:{HEX64}", f"docker.io/acme/env:v1@sha256:{HEX64}"),
        ("MIRROR/env", "MIRROR/env:latest"),
        ("acme/a__b/c--d.e", "docker.io/acme/a__b/c--d.e:latest"),
    ],
)
def test_one_image_has_one_canonical_spelling(text: str, full: str) -> None:
    assert canonical(text) == full
    assert canonical(full) == full


def test_a_tag_beside_a_digest_is_left_out_for_clients_that_refuse_it() -> None:
    assert parse_reference(f"acme/e:v1@sha256:{HEX64}").pullable == f"docker.io/acme/e@sha256:{HEX64}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("docker://", "empty"),
        ("acme/env:" + "a" * 129, "129 characters, more than 128"),
        ("acme/env:", "tag ''"),
        ("acme/env:v 1", "tag"),
        ("acme/t:a+b", "tag"),
        ("acme/Env", "'Env'"),
        ("acme//env", "empty part"),
        ("acme/env@sha256:abc", "digest"),
        ("acme/env@sha256:" + "A" * 64, "lower-case"),
        ("acme/../env", "'..'"),
        ("x" * 2000, "2000 characters"),
        ("a" * 255 + ":t", "more than 255"),
        ("acme/env@", "digest ''"),
        ("acme/env@sha256:" + "0" * 63, "64 lower-case"),
        ("acme/env@sha256:" + "0" * 64 + "@x", "digest"),
        ("host:0/env", "no port"),
        ("host:65536/env", "no port"),
        ("host:" + "9" * 900 + "/env", "no port"),
        ("[::1]:70000/env", "no port"),
        ("host:1000080/env", "no port"),
        ("ho st.x/env", "host"),
        ("-bad.example/env", "host"),
        ("user:secret@host.example/env", "digest"),
        ("acme/env\n:v1", "no part"),
        ("acme/env:v1\x00", "tag"),
        ("acme/caf\u00e9", "no part"),
        ("acme/\uff45nv", "no part"),
        ("acme/$(id)", "no part"),
        ("acme/env;rm", "no part"),
        ("--help", "no part"),
        ("library://../../etc/passwd", "host"),
        ("ACME/ENV:v1", "'ENV'"),
        ("a/" + "b" * 250, "255"),
        ("host_x:5000/env", "host"),
    ],
)
def test_what_is_no_reference_says_which_part(text: str, why: str) -> None:
    with pytest.raises(ReferenceInvalidError) as e:
        parse_reference(text)
    assert why in e.value.message
    assert len(e.value.message) < 600


def test_the_longest_tag_is_taken() -> None:
    assert parse_reference("acme/env:" + "a" * 128).tag == "a" * 128


PARTS = st.from_regex(re.compile(r"[a-z0-9]{1,6}((__|[._]|-{1,2})[a-z0-9]{1,4})?"), fullmatch=True)


@given(
    st.sampled_from(["", "docker.io/", "mirror.local:5000/", "localhost/"]),
    st.lists(PARTS, min_size=1, max_size=3),
    st.one_of(st.none(), st.from_regex(re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}"), fullmatch=True)),
    st.booleans(),
)
def test_every_spelling_means_the_same_image(
    host: str, parts: list[str], tag: str | None, digest: bool
) -> None:
    text = host + "/".join(parts) + (f":{tag}" if tag else "") + (f"@sha256:{HEX64}" if digest else "")
    reference = parse_reference(text)
    assert parse_reference(reference.canonical) == reference
    for spelling in reference.spellings():
        again = parse_reference(spelling)
        assert (again.name, again.digest) == (reference.name, reference.digest)
        assert digest or again.tag == reference.tag


@given(st.text(max_size=400))
@example("a" * (MAX_REFERENCE + 1))
@example("[" * 300 + "]:1/x")
@example(("a-" * 400) + "!")
@example(("a.a__" * 200) + "/")
def test_any_text_is_a_reference_that_reads_back_or_is_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except ReferenceInvalidError:
        return
    assert parse_reference(reference.canonical) == reference
    # what goes to a program or into a URL holds nothing that either could take otherwise
    assert re.fullmatch(r"[A-Za-z0-9._:/@+\[\]-]+", reference.canonical)
    assert ".." not in reference.repository.split("/")
    assert not reference.canonical.startswith("-")
    assert len(reference.name) <= 255


@given(st.text("aA0.-_:/@[]+ %", max_size=40))
def test_text_near_the_grammar_reads_back_or_is_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except ReferenceInvalidError:
        return
    assert parse_reference(reference.canonical) == reference
    assert parse_reference(reference.pullable).name == reference.name
