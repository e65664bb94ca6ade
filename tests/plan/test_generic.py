from __future__ import annotations

import pytest

from poolmgr.plan.generic import Generic, GenericImages, split_reference


@pytest.mark.parametrize(
    ("reference", "name", "tag"),
    [
        ("ubuntu", "ubuntu", None),
        ("docker://index.docker.io/library/Ubuntu:22.04", "ubuntu", "22.04"),
        ("ubuntu:22.04@sha256:" + "0" * 64, "ubuntu", "22.04"),
        ("mirror.local:5000/library/ubuntu:22.04", "ubuntu", "22.04"),
        ("public.ecr.aws/docker/library/debian:12", "debian", "12"),
        ("mirror.local:5000/acme/ubuntu", "mirror.local:5000/acme/ubuntu", None),
        ("acme/ubuntu:1", "acme/ubuntu", "1"),
    ],
)
def test_references_are_split(reference: str, name: str, tag: str | None) -> None:
    assert split_reference(reference) == (name, tag)


def test_declared_names_cover_one_tag_or_all() -> None:
    rule = GenericImages(["acme/base:latest", "python", "!python:3.13"])
    assert rule.kind("acme/base") is Generic.DECLARED
    assert rule.kind("acme/base:v2") is None
    assert rule.kind("python:3.12-slim") is Generic.DECLARED
    assert rule.kind("python:3.13") is None
    assert rule.kind("ubuntu:24.04") is Generic.BARE
    assert rule.kind("acme/ubuntu:24.04") is None
