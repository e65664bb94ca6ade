"""What Apptainer says when a pull fails: the cause is told by its words, never by an image's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.reference import parse_reference
from poolmgr.sif.pull_words import PullCause, last_cause, pull_cause

AT = "FATAL:   While making image from oci registry: error fetching image to cache: "
GOT = AT + "while building SIF from layers: conveyor failed to get: "
SUM = AT + "failed to get checksum for docker://REF: reading manifest sha256:" + "ab" * 32 + " in REF: "

SAID = [
    (SUM + "manifest unknown", PullCause.MISSING),
    (SUM + "name unknown: repository name not known to registry", PullCause.MISSING),
    (SUM + "authentication required", PullCause.DENIED),
    (SUM + "unauthorized: incorrect username or password", PullCause.DENIED),
    (SUM + "requested access to the resource is denied", PullCause.DENIED),
    (SUM + "toomanyrequests: You have reached your pull rate limit", PullCause.LIMIT),
    (SUM + "received unexpected HTTP status: 503 Service Unavailable", PullCause.TROUBLE),
    (GOT + "GET https://REF/blobs/x: unexpected status code 500 Internal Server Error", PullCause.TROUBLE),
    (GOT + "GET https://REF/blobs/x: unexpected status code 404 Not Found: {}", PullCause.MISSING),
    (GOT + "GET https://REF/m: unexpected status code 429 Too Many Requests", PullCause.LIMIT),
    (GOT + "error writing layer: unexpected EOF", PullCause.TROUBLE),
    (GOT + "error writing layer: error verifying size; got 300, want 1084146", PullCause.DAMAGED),
    (GOT + 'error verifying sha256 checksum after reading 384 bytes; got "sha256:1"', PullCause.DAMAGED),
    (GOT + "no child with platform linux/amd64 in index REF", PullCause.ARCH),
    (GOT + "error writing layer: write /pool/denied/429: no space left on device", PullCause.NO_SPACE),
    (GOT + "unexpected end of JSON input", PullCause.DAMAGED),
    (AT + "failed to get checksum for docker://REF: pinging container registry h: Get \"https://h/v2/\": "
     "dial tcp 127.0.0.1:1: connect: connection refused", PullCause.TROUBLE),
    ("FATAL:   could not use fakeroot: no mapping entry found in /etc/subuid", PullCause.MACHINE),
    ("FATAL:   while searching for mksquashfs: exec: \"mksquashfs\": executable file not found in $PATH",
     PullCause.MACHINE),
    ("FATAL:   something new", PullCause.UNKNOWN),
]  # fmt: skip
NAMES = [
    "acme/env:1",
    "host.example:5000/denied/not-found:429",
    "acme/toomanyrequests:404",
    "rate-limit/x:500",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("said", "cause"), SAID, ids=[f"{c}-{n}" for n, (_, c) in enumerate(SAID)])
def test_causes(said: str, cause: PullCause, name: str) -> None:
    reference = parse_reference(name)
    assert pull_cause(said.replace("REF", reference.canonical), reference) is cause


@given(st.text(max_size=300))
def test_any_text_has_a_cause(text: str) -> None:
    assert pull_cause(text, parse_reference("acme/env:1")) in PullCause
    assert len(last_cause(text)) <= len(text)


def test_the_way_round_is_left_out() -> None:
    assert last_cause(GOT.removeprefix("FATAL:   ") + "unexpected EOF") == "unexpected EOF"
