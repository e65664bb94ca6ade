"""What the Hub store does when the Hub, or something before it, misbehaves; and what it never says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from poolmgr.errors import (
    BadTransferError,
    CredentialsError,
    Exit,
    FileMissingError,
    PoolError,
    PoolNotFoundError,
    RemoteRefusedError,
    RemoteTroubleError,
)
from poolmgr.store import hub_http, hub_pace
from poolmgr.store.hub import HubStore
from tests.loopback.hub import SIGNATURE, TOKEN, Hub
from tests.store.hub_kit import FILES, A, fill, hurry, store_of

PATH = "images/a.sif"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def whole(store: HubStore) -> bytes:
    with store.stream(PATH) as body:
        return b"".join(body)


def pour(store: HubStore, into: bytearray) -> None:
    with store.stream(PATH) as body:
        for chunk in body:
            into += chunk


def read_index(store: HubStore) -> bytes:
    return store.read("task_to_blob.json", limit=1 << 20)


USES: dict[str, Callable[[HubStore], Any]] = {
    "commit": lambda store: store.commit,
    "list": lambda store: store.list(),
    "read": read_index,
    "read_range": lambda store: store.read_range(PATH, 0, 10),
    "stream": whole,
}


# --- passing trouble ----------------------------------------------------------------------------------


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"status": 503}, {"status": 429}, {"drop": True}], ids=str
)
def test_passing_trouble_passes(hub: Hub, use: str, fault: dict[str, Any]) -> None:
    fill(hub)
    store, told = store_of(hub)
    where = {"commit": "/api/datasets/acme/pool", "list": "/tree/"}.get(use, "/resolve/")
    hub.fault(where, headers={"Retry-After": "0"}, times=2, **fault)
    USES[use](store)
    assert told, "the user is told what is tried again, and why"


@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"drop": True}, {"truncate": 5}, {"status": 429}], ids=str
)
def test_trouble_at_the_other_origin_passes(hub: Hub, fault: dict[str, Any]) -> None:
    fill(hub)
    store, told = store_of(hub)
    hub.fault(PATH, origin="cdn", times=2, headers={"Retry-After": "0"}, **fault)
    assert store.read_range(PATH, 0, 10) == A[:10]
    assert told


@pytest.mark.parametrize("use", ["commit", "read_range", "stream"])
def test_tries_are_bounded(hub: Hub, use: str) -> None:
    fill(hub)
    store, _ = store_of(hub)
    fault = hub.fault("/api/datasets/" if use == "commit" else "/resolve/", status=503, times=None)
    with pytest.raises(RemoteTroubleError, match="503") as e:
        USES[use](store)
    assert e.value.exit == Exit.AGAIN
    assert fault.hit == hub_pace.TRIES


def test_the_wait_that_a_429_asks_for_is_kept_and_told(hub: Hub) -> None:
    fill(hub)
    store, told = store_of(hub)
    store.list()
    hub.fault("/resolve/", status=429, headers={"RateLimit": '"resolvers";r=0;t=0'})
    began = time.monotonic()
    whole(store)
    assert time.monotonic() - began >= 0.9, (
        "a second is added to what the server says, as its clock is rounded"
    )
    assert any("429" in t and "all requests wait" in t for t in told)


def test_a_429_holds_back_every_thread(hub: Hub) -> None:
    fill(hub)
    store, told = store_of(hub)
    store.list()
    hub.fault("/resolve/", status=429, headers={"Retry-After": "1"})
    started = threading.Event()

    def first() -> None:
        started.set()
        whole(store)

    thread = threading.Thread(target=first)
    thread.start()
    started.wait()
    while not told:
        time.sleep(0.01)
    before = len(hub.log)
    began = time.monotonic()
    whole(store)
    assert time.monotonic() - began > 0.5
    thread.join()
    assert len(hub.log) == before + 4
    assert sum("all requests wait" in t for t in told) == 1


def test_a_wait_of_hours_is_not_waited(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    hub.fault("/resolve/", status=429, headers={"Retry-After": "7200"})
    with pytest.raises(RemoteTroubleError, match="7,200 s"):
        whole(store)


def test_closing_the_store_ends_a_wait(hub: Hub) -> None:
    fill(hub)
    store, told = store_of(hub)
    hub.fault("/resolve/", status=429, headers={"Retry-After": "300"})
    errors: list[Exception] = []

    def use() -> None:
        try:
            whole(store)
        except RemoteTroubleError as e:
            errors.append(e)

    thread = threading.Thread(target=use)
    thread.start()
    while not any("all requests wait" in t for t in told):
        time.sleep(0.01)
    store.close()
    thread.join(5)
    assert errors


def test_when_little_is_left_of_the_quota_requests_are_spread(hub: Hub) -> None:
    fill(hub)
    left = iter(range(9, -1, -1))
    hub.ratelimit = lambda request: {
        "RateLimit": f'"resolvers";r={next(left, 0) + 1};t=1',
        "RateLimit-Policy": '"fixed window";"resolvers";q=1000;w=300',
    }
    store, _ = store_of(hub)
    store.read_range(PATH, 0, 1)
    began = time.monotonic()
    for n in range(3):
        with store.stream(PATH, n) as body:
            b"".join(body)
    assert time.monotonic() - began > 0.1
    assert store.quota is not None
    assert store.quota.limit == 1000


# --- final answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, CredentialsError), (402, RemoteRefusedError), (403, CredentialsError), (404, RemoteRefusedError),
     (413, RemoteRefusedError), (451, RemoteRefusedError)],
)  # fmt: skip
@pytest.mark.parametrize("use", USES)
def test_final_answers_are_final_and_in_the_servers_words(
    hub: Hub, use: str, status: int, error: type[PoolError]
) -> None:
    fill(hub)
    store, told = store_of(hub)
    where = {"commit": "/api/datasets/acme/pool", "list": "/tree/"}.get(use, "/resolve/")
    fault = hub.fault(
        where, status=status, times=None, headers={"X-Error-Message": "Your storage patterns tripped"}
    )
    with pytest.raises(error, match="Your storage patterns tripped") as e:
        USES[use](store)
    assert type(e.value) is error
    assert e.value.hint
    assert fault.hit == 1
    assert not told


def test_a_wrong_token(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub, token="hf_thisTokenIsWrong")
    with pytest.raises(CredentialsError, match="Invalid credentials") as e:
        store.list()
    assert "hf auth login" in e.value.hint
    assert "thisTokenIsWrong" not in e.value.message + e.value.hint


def test_a_gated_pool_says_where_to_ask(hub: Hub) -> None:
    fill(hub, gated=True)
    hub.outsiders.add("hf_outsider")
    for token in ("hf_outsider", False):
        store, _ = store_of(hub, token=token)
        with pytest.raises(CredentialsError, match="restricted") as e:
            read_index(store)
        assert "https://huggingface.co/datasets/acme/pool" in e.value.hint


def test_a_private_pool_with_and_without_a_token(hub: Hub) -> None:
    fill(hub, private=True)
    hub.outsiders.add("hf_outsider")
    with pytest.raises(PoolNotFoundError, match="no such repository"):
        store_of(hub, token="hf_outsider")[0].list()
    with pytest.raises(CredentialsError) as e:
        store_of(hub, token=False)[0].list()
    assert "HF_TOKEN" in e.value.hint


def test_a_pool_that_does_not_exist(hub: Hub) -> None:
    with pytest.raises(PoolNotFoundError, match="no such repository"):
        HubStore("acme/none", endpoint=hub.url, token=TOKEN).list()
    with pytest.raises(PoolNotFoundError):
        HubStore("a/b/c", endpoint=hub.url, token=TOKEN).list()
    with pytest.raises(PoolNotFoundError):
        HubStore("acme/pool", repo_type="bucket", endpoint=hub.url)


def test_a_file_that_vanished_between_listing_and_reading(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    store.list()
    hub.fault(PATH, origin="api", status=404, headers={"X-Error-Code": "EntryNotFound"})
    with pytest.raises(FileMissingError, match="no such file"):
        whole(store)


# --- bodies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 70_000])
def test_a_cut_body_is_trouble_and_what_came_is_kept(hub: Hub, cut: int) -> None:
    fill(hub)
    store, _ = store_of(hub)
    hub.fault(PATH, origin="cdn", truncate=cut)
    got = bytearray()
    with pytest.raises(RemoteTroubleError, match=r"broke|ended"):
        pour(store, got)
    assert got == A[:cut]
    with store.stream(PATH, cut) as body:
        assert body.start == cut
        assert bytes(got) + b"".join(body) == A


def test_a_stalled_body_is_trouble_within_the_time_out(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    hub.fault(PATH, origin="cdn", stall=1000)
    got = bytearray()
    with pytest.raises(RemoteTroubleError, match="in time"):
        pour(store, got)
    assert got == A[:1000]


@pytest.mark.parametrize("use", ["commit", "list", "read"])
def test_a_server_that_never_answers_is_not_waited_for(hub: Hub, use: str) -> None:
    fill(hub)
    where = {"commit": "/api/datasets/acme/pool", "list": "/tree/", "read": "/paths-info/"}[use]
    hub.fault(where, stall=0)
    USES[use](store_of(hub)[0])


def test_a_body_that_drips_has_stalled(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_http, "DRIP_WINDOW", 0.3)
    fill(hub)
    store, _ = store_of(hub)
    hub.fault(PATH, origin="cdn", drip=0.02)
    with pytest.raises(RemoteTroubleError, match="stalled"):
        whole(store)


def test_a_server_that_ignores_ranges_is_seen(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    hub.fault(PATH, origin="cdn", ignore_range=True, times=None)
    with store.stream(PATH, 500) as body:
        assert (body.start, body.total) == (0, len(A))
        assert b"".join(body) == A
    assert store.read_range(PATH, 500, 10) == A[500:510]


def test_a_range_far_into_a_file_is_not_reached_by_reading_all_of_it(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_http, "MAX_SKIPPED", 1000)
    fill(hub)
    store, _ = store_of(hub)
    hub.fault(PATH, origin="cdn", ignore_range=True, times=None)
    with pytest.raises(RemoteRefusedError, match="was sent bytes from 0"):
        store.read_range(PATH, 5000, 10)


def test_the_wrong_part_is_never_taken_for_the_right_one(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    hub.fault(PATH, origin="cdn", headers={"Content-Range": f"bytes 7-{len(A) - 494}/{len(A)}"})
    with store.stream(PATH, 500) as body:
        assert body.start == 7
    hub.faults.clear()
    hub.fault(PATH, origin="cdn", headers={"Content-Range": ""}, times=None)
    with pytest.raises(RemoteRefusedError, match="does not say which"):
        store.read_range(PATH, 500, 10)
    hub.faults.clear()
    hub.fault(PATH, origin="cdn", headers={"Content-Range": f"bytes 500-509/{len(A) + 1}"}, times=None)
    store.list()
    with pytest.raises(BadTransferError, match="listed"):
        store.read_range(PATH, 500, 10)


def test_bytes_without_an_announced_length(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    hub.fault(PATH, origin="cdn", chunked=True, times=None)
    assert whole(store) == A
    assert store.read_range(PATH, 7, 9) == A[7:16]
    hub.faults.clear()
    hub.fault(PATH, origin="cdn", chunked=True, truncate=500)
    with pytest.raises(RemoteTroubleError):
        whole(store)


@pytest.mark.parametrize("fault", [{"flip": 3}, {"html": True}, {"short": 9}, {"repeat": 5}], ids=str)
def test_an_index_whose_bytes_are_not_the_commits_is_read_again_and_then_refused(
    hub: Hub, fault: dict[str, Any]
) -> None:
    fill(hub)
    store, told = store_of(hub)
    once = hub.fault("/resolve/", **fault)
    assert read_index(store) == FILES["task_to_blob.json"]
    assert once.hit
    assert told
    hub.fault("/resolve/", times=None, **fault)
    with pytest.raises(BadTransferError, match="expected 60 bytes with git id"):
        read_index(store)


def test_a_web_page_in_place_of_a_range(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    store.list()
    hub.fault(PATH, origin="cdn", html=True, times=None)
    with pytest.raises(BadTransferError, match="bytes listed"):
        store.read_range(PATH, 0, 64)


def test_a_web_page_in_place_of_the_api(hub: Hub) -> None:
    fill(hub)
    hub.fault("/api/", html=True, times=None)
    with pytest.raises(RemoteRefusedError, match="not JSON") as e:
        store_of(hub)[0].list()
    assert "login page" in e.value.hint


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"sha": 7}', b'{"sha": null}', b"null", b'"x"'])
def test_an_api_that_answers_with_other_json(hub: Hub, body: bytes) -> None:
    fill(hub)
    hub.fault("/api/datasets/acme/pool", status=200, body=body, times=None)
    with pytest.raises(RemoteRefusedError):
        store_of(hub)[0].list()


@pytest.mark.parametrize(
    "row",
    [
        b'{"type":"file","path":"x.sif","size":-1,"oid":"00"}',
        b'{"type":"file","path":"x.sif","size":"9","oid":"00"}',
        b'{"type":"file","path":"x.sif","size":9,"oid":"00","lfs":{"oid":"zz","size":9,"pointerSize":1}}',
        b'{"type":"file","path":7,"size":9,"oid":"00"}',
    ],
)
def test_hostile_rows_are_refused_by_name(hub: Hub, row: bytes) -> None:
    fill(hub)
    hub.fault("/tree/", status=200, body=b"[" + row + b"]")
    listing = store_of(hub)[0].list()
    assert not listing.blobs
    assert len(listing.refused) == 1


def test_a_row_without_its_fields_is_refused(hub: Hub) -> None:
    fill(hub)
    hub.fault("/tree/", status=200, body=b'[{"type":"file","path":"x.sif"}]')
    with pytest.raises(RemoteRefusedError, match="fields"):
        store_of(hub)[0].list()


# --- redirects and secrets ----------------------------------------------------------------------------


def test_a_signed_address_that_expired_is_asked_for_again(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    store.read_range(PATH, 0, 10)
    hub.fault(PATH, origin="cdn", status=403, body=b"<Error><Code>Expired</Code></Error>")
    assert store.read_range(PATH, 10, 10) == A[10:20]
    assert len(hub.requests("/resolve/")) == 2


def test_redirects_end(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    hub.fault("/resolve/", status=302, headers={"Location": "/datasets/acme/pool/resolve/x/y"}, times=None)
    with pytest.raises(RemoteRefusedError, match="redirects"):
        whole(store)


def test_a_redirect_to_another_origin_never_carries_the_token(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    thief = Hub()
    try:
        hub.fault(
            "/resolve/", status=302, headers={"Location": f"{thief.url}/datasets/acme/pool/resolve/x/y"}
        )
        with pytest.raises(PoolError):
            whole(store)
        assert thief.log
        assert not any(r.auth for r in thief.log)
    finally:
        thief.close()


def test_a_redirect_out_of_https_is_refused() -> None:
    http = hub_http.HubHttp("hf://x/y", "https://hub.example", dict, hub_pace.Pace(print), print)
    with pytest.raises(RemoteRefusedError, match="https"):
        http._next("https://hub.example/a", "http://hub.example/b", "reading a")
    assert http._next("https://hub.example/a", "/b", "") == "https://hub.example/b"


@pytest.mark.parametrize(
    "fault",
    [{"status": 500}, {"status": 403}, {"status": 404}, {"drop": True}, {"truncate": 3}, {"html": True},
     {"stall": 3, "times": 2}, {"headers": {"Content-Range": "x"}}],
    ids=str,
)  # fmt: skip
def test_no_message_holds_a_secret(hub: Hub, fault: dict[str, Any]) -> None:
    fill(hub)
    store, told = store_of(hub)
    words = f"no right: https://user:pw@x.y/z?{SIGNATURE} Bearer {TOKEN} {TOKEN}"
    for origin in ("api", "cdn"):
        hub.faults.clear()
        headers = {"X-Error-Message": words, **fault.get("headers", {})}
        hub.fault("", origin=origin, **{"times": None, **fault, "headers": headers})
        for use in USES.values():
            try:
                use(store)
            except PoolError as e:
                told += [e.message, e.hint, *e.details, str(e), repr(e)]
    assert told
    for text in told:
        for secret in (TOKEN, "secretsignature", "X-Amz", "user:pw"):
            assert secret not in text


def test_no_connection_at_all(hub: Hub) -> None:
    fill(hub)
    store, _ = store_of(hub)
    store.list()
    hub.close()
    with pytest.raises(RemoteTroubleError, match="connect"):
        whole(store)
    with pytest.raises(RemoteTroubleError):
        store_of(hub)[0].list()
