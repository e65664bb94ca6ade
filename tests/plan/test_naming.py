"""Image references and the names that rules make of them (facts: users C1, C2, E2)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.errors import ManifestInvalidError, ReferenceInvalidError
from poolmgr.model.blob import path_trouble
from poolmgr.model.manifest import NAMING_RULES
from poolmgr.plan.naming import RULES, Aliases, file_name, plan_names


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
