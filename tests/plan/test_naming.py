"""Image references and the names that rules make of them (facts: users C1, C2, E2)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.errors import ManifestInvalidError, ReferenceInvalidError
from poolmgr.model.blob import path_trouble
from poolmgr.model.manifest import NAMING_RULES
from poolmgr.plan.naming import RULES, Aliases, canonical, file_name, parse_reference, plan_names

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


@pytest.mark.parametrize(
    ("text", "rule", "name"),
    [
        ("acme/swerl-tmax-v3:17c682d5c609", "tmax", "acme__swerl-tmax-v3__17c682d5c609.sif"),
        ("docker://registry.example/team/image:latest", "tmax", "registry.example__team__image__latest.sif"),
        ("docker.io/acme/x", "tmax", "docker.io__acme__x.sif"),
        ("acme/t:v-", "tmax", "acme__t__v.sif"),
        (" /acme/t:a+/b/ ", "tmax", "acme__t__a__b.sif"),
        ("docker://acme/tool:v1", "apptainer", "tool_v1.sif"),
        ("ubuntu", "apptainer", "ubuntu_latest.sif"),
        ("mirror.local:5000/team/tool", "apptainer", "tool_latest.sif"),
        ("acme/tool:v1", "harbor", "acme_tool_v1.sif"),
        ("acme/tool", "harbor", "acme_tool_latest.sif"),
        ("mirror.local:5000/tool", "harbor", "mirror.local_5000_tool.sif"),
        ("x", "sha256", "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881.sif"),
    ],
)
def test_rules(text: str, rule: str, name: str) -> None:
    assert file_name(text, rule) == name


def test_every_rule_of_the_manifest_is_there() -> None:
    assert set(RULES) == set(NAMING_RULES)


@given(st.text(max_size=300), st.sampled_from(NAMING_RULES))
def test_a_name_is_always_safe_or_refused(text: str, rule: str) -> None:
    try:
        name = file_name(text, rule)
    except ReferenceInvalidError:
        return
    assert path_trouble(name) is None
    assert "/" not in name
    assert name.endswith(".sif")


@given(st.from_regex(re.compile(r"[A-Za-z0-9._:/@+-]{1,60}"), fullmatch=True))
def test_tmax_is_the_reference_formula(text: str) -> None:
    bare = re.sub(r"^[a-zA-Z][a-zA-Z0-9+.-]*://", "", text).strip().strip("/")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "__", bare).strip("._-")
    if not stem:
        with pytest.raises(ReferenceInvalidError):
            file_name(text, "tmax")
    else:
        assert file_name(text, "tmax") == stem + ".sif"


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


def test_an_alias_rewrites_every_spelling() -> None:
    aliases = Aliases({"mirror.local:5000/team-env-v3/{tag}:latest": "acme/env-v3:{tag}"})
    for text in (
        "mirror.local:5000/team-env-v3/17c682d5c609:latest",
        "mirror.local:5000/team-env-v3/17c682d5c609",
        "docker://mirror.local:5000/team-env-v3/17c682d5c609",
    ):
        assert aliases.rewrite(text) == "acme/env-v3:17c682d5c609"
    assert aliases.rewrite("mirror.local:5000/other/17c682d5c609:latest") is None
    assert aliases.rewrite("mirror.local:5000/team-env-v3/a/b:latest") is None
    assert aliases.rewrite("mirror.local:5000/team-env-v3/x:v2") is None


def test_the_first_alias_that_fits_is_applied_once() -> None:
    aliases = Aliases({"a/{x}:{y}": "b/{x}:{y}", "b/{x}:{y}": "c/{x}:{y}", "a/k:{y}": "never/k:{y}"})
    assert aliases.rewrite("a/k:1") == "b/k:1"
    assert Aliases({"a/{x}/{x}:1": "b/{x}:1"}).rewrite("a/p/q:1") is None
    assert Aliases({"a/{x}/{x}:1": "b/{x}:1"}).rewrite("a/p/p:1") == "b/p:1"


@pytest.mark.parametrize(
    "table", [{"a/{x}": "b/{y}"}, {"a/{X-1}": "b"}, {"a/{x}{y}": "b/{x}"}, {"{a}.{b}.{c}.{d}.{e}": "x"}]
)
def test_an_alias_that_cannot_work_is_refused(table: dict[str, str]) -> None:
    with pytest.raises(ManifestInvalidError):
        Aliases(table)


@pytest.mark.parametrize(
    ("references", "rule"),
    [
        (("acme/tool:v1", "acme__tool:v1"), "tmax"),
        (("acme/t:v-", "acme/t:v"), "tmax"),
        (("acme/t:V1", "acme/t:v1"), "tmax"),
        (("one/img:v1", "two/img:v1"), "apptainer"),
        (("org/r:a_b", "org/r_a:b"), "harbor"),
    ],
)
def test_different_images_with_one_name_get_none(references: tuple[str, str], rule: str) -> None:
    plan = plan_names((*references, "acme/other:1"), rule)
    (collision,) = plan.collisions
    assert set(collision.references) == set(references)
    assert set(plan.names) == {"acme/other:1"}


def test_one_image_spelt_differently_has_one_name_and_is_no_collision() -> None:
    plan = plan_names(["ubuntu", "docker.io/library/ubuntu:latest", "docker://ubuntu:latest"], "tmax")
    assert plan.collisions == ()
    assert set(plan.names.values()) == {"ubuntu.sif"}


def test_what_the_pool_has_already_counts_as_taken() -> None:
    plan = plan_names(["acme__tool:v1"], "tmax", taken=["acme/tool:v1"])
    assert plan.names == {}
    assert plan.collisions[0].names == ("acme__tool__v1.sif",)


def test_texts_that_are_no_reference_are_listed() -> None:
    plan = plan_names(["acme/t:a+b", "acme/t:ok"], "tmax")
    assert [text for text, _ in plan.invalid] == ["acme/t:a+b"]
    assert set(plan.names) == {"acme/t:ok"}
