"""From an address to a store, and what an address shows of itself."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.errors import ManifestInvalidError, MissingToolError, PoolError, PoolNotFoundError
from poolmgr.settings import Settings
from poolmgr.store.address import file_url_path, is_url, printable
from poolmgr.store.hub import HubStore
from poolmgr.store.local import LocalStore
from poolmgr.store.locate import find_manifest, locate, manifest_names
from poolmgr.store.remote import RemoteStore

MANIFEST = 'schema = 1\n[pool]\nurl = "{}"\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    config = tmp_path / "config"
    config.mkdir()
    return replace(Settings.read(), config_dir=config)


def test_a_folder(here: Path, settings: Settings) -> None:
    (here / "pool").mkdir()
    for address in ("pool", str(here / "pool"), f"file://{here}/pool", f"local://{here}/pool"):
        found = locate(address, settings)
        assert isinstance(found.store, LocalStore)
        assert found.root is not None
        assert found.root.samefile(here / "pool")
        assert found.manifest is None


def test_a_folder_goes_before_a_manifest_of_its_name(here: Path, settings: Settings) -> None:
    assert locate("tmax", settings).manifest is not None
    (here / "tmax").mkdir()
    assert locate("tmax", settings).manifest is None


def test_the_shipped_manifest(here: Path, settings: Settings) -> None:
    found = locate("tmax", settings)
    assert isinstance(found.store, HubStore)
    assert found.store.address == "hf://datasets/wAI-org/tmax-image-pool"
    assert found.root is None
    assert found.manifest == find_manifest("tmax", settings)


def test_manifests_are_found_nearest_first(here: Path, settings: Settings) -> None:
    (settings.config_dir / "tmax.toml").write_text(MANIFEST.format("memory://config"))
    assert locate("tmax", settings).store.address == "memory://config"
    (here / "manifests").mkdir()
    (here / "manifests/tmax.toml").write_text(MANIFEST.format("memory://here"))
    assert locate("tmax", settings).store.address == "memory://here"
    (here / "mine.toml").write_text(MANIFEST.format("memory://mine"))
    assert locate("mine.toml", settings).store.address == "memory://mine"
    assert locate("./mine.toml", settings).store.address == "memory://mine"
    (settings.config_dir / "other.toml").write_text(MANIFEST.format("memory://x"))
    assert manifest_names(settings) == ["other", "tmax"]


def test_a_relative_url_is_relative_to_the_manifest(here: Path, settings: Settings) -> None:
    (here / "a/manifests").mkdir(parents=True)
    (here / "a/pool").mkdir()
    (here / "a/manifests/p.toml").write_text(MANIFEST.format("../pool"))
    found = locate("a/manifests/p.toml", settings)
    assert found.root is not None
    assert found.root.samefile(here / "a/pool")
    assert found.manifest is not None
    (here / "a/manifests/q.toml").write_text(MANIFEST.format("../none"))
    with pytest.raises(PoolNotFoundError, match=r"q\.toml: pool\.url names the folder"):
        locate("a/manifests/q.toml", settings)


def test_an_unknown_name_is_told_the_nearest(here: Path, settings: Settings) -> None:
    with pytest.raises(PoolNotFoundError, match="neither a folder") as caught:
        locate("tmaxx", settings)
    assert "did you mean 'tmax'" in caught.value.hint
    with pytest.raises(PoolNotFoundError) as caught:
        locate("zzzzzzzz", settings)
    assert "tmax" in caught.value.hint
    assert str(settings.config_dir) in caught.value.hint
    with pytest.raises(ManifestInvalidError, match="no manifest of that name") as other:
        find_manifest("tmux", settings)
    assert "'tmax'" in other.value.hint


@pytest.mark.parametrize(
    ("address", "words"),
    [("nowhere/pool", "no such folder"), ("none.toml", "no such manifest"), ("file.sif", "is a file")],
)
def test_what_is_not_there(here: Path, settings: Settings, address: str, words: str) -> None:
    (here / "file.sif").write_bytes(b"")
    with pytest.raises(PoolNotFoundError, match=words):
        locate(address, settings)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"= 1", "not TOML"),
        (b"schema = 1\n[pool]\nurl = 'x'\n[gate]\n", "unknown key"),
        (b"#" * (5 << 20), "larger"),
    ],
)
def test_bad_manifests(here: Path, settings: Settings, content: bytes, words: str) -> None:
    (here / "bad.toml").write_bytes(content)
    for call in (locate, find_manifest):
        with pytest.raises(ManifestInvalidError, match=words):
            call("bad.toml", settings)


def test_a_manifest_with_a_byte_order_mark(here: Path, settings: Settings) -> None:
    (here / "bom.toml").write_bytes(b"\xef\xbb\xbf" + MANIFEST.format("memory://x").encode())
    assert locate("bom.toml", settings).store.address == "memory://x"


@pytest.mark.parametrize(
    ("address", "kind", "name", "revision"),
    [
        ("hf://datasets/acme/pool", "dataset", "acme/pool", None),
        ("hf://datasets/acme/pool/", "dataset", "acme/pool", None),
        ("hf://datasets/acme/pool@v1.0", "dataset", "acme/pool", "v1.0"),
        ("hf://datasets/acme/pool@refs/pr/3", "dataset", "acme/pool", "refs/pr/3"),
        ("hf://acme/pool", "model", "acme/pool", None),
        ("hf://models/acme/pool", "model", "acme/pool", None),
        ("hf://spaces/acme/pool", "space", "acme/pool", None),
    ],
)
def test_the_hub(settings: Settings, address: str, kind: str, name: str, revision: str | None) -> None:
    store = locate(address, settings).store
    assert isinstance(store, HubStore)
    assert (store.repo_type, store.repo_id, store.revision) == (kind, name, revision)


@pytest.mark.parametrize(
    "address",
    [
        "hf://",
        "hf://datasets/acme",
        "hf://datasets/acme/pool/images",
        "hf://user:tok@acme/pool",
        "hf://a b/c",
    ],
)
def test_no_address_on_the_hub(settings: Settings, address: str) -> None:
    with pytest.raises(PoolNotFoundError) as caught:
        locate(address, settings)
    assert "tok" not in caught.value.message


def test_other_urls(settings: Settings) -> None:
    store = locate("memory://somewhere/deep", settings).store
    assert isinstance(store, RemoteStore)
    with pytest.raises(PoolNotFoundError, match="nosuch://"):
        locate("nosuch://user:secret@host/path?token=secret", settings)


def test_a_protocol_whose_package_is_missing(settings: Settings) -> None:
    with pytest.raises(MissingToolError) as caught:
        locate("sftp://user:s3cret@host/path", settings)
    assert "s3cret" not in str(caught.value.message) + caught.value.hint


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://key:secret@host/bucket/pool?X-Amz-Signature=abc#frag", "s3://host/bucket/pool"),
        ("https://u@host:8080/p@v1", "https://host:8080/p@v1"),
        ("https://host:8080/p@v1", "https://host:8080/p@v1"),
        ("https://user:to/ken@host/p", "https://host/p"),
        ("hf://datasets/acme/pool@main", "hf://datasets/acme/pool@main"),
        ("simplecache::s3://k:s@host/b", "simplecache::s3://host/b"),
        ("zip://x.sif::https://u:p@host/a.zip?token=1", "zip://x.sif::https://host/a.zip"),
        ("/data/odd?name#x@y", "/data/odd?name#x@y"),
    ],
)
def test_an_address_shows_no_secret(address: str, shown: str) -> None:
    assert printable(address) == shown


SECRET = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, blacklist_characters="@/?#:"), min_size=8, max_size=20
)


@given(SECRET, SECRET)
def test_user_info_and_queries_never_show(secret: str, query: str) -> None:
    for url in (
        f"s3://user:{secret}@example.org/bucket?sig={query}",
        f"filecache::https://{secret}@example.org:443/x#{query}",
    ):
        assert is_url(url)
        shown = printable(url)
        assert secret not in shown.replace("example.org", "").replace("filecache::https://", "")
        assert query not in shown.replace("example.org", "").replace("filecache::https://", "")


def test_file_urls() -> None:
    assert file_url_path("file:///a%20b/c") == "/a b/c"
    assert file_url_path("s3://x") is None


def test_nothing_is_asked_of_a_network(settings: Settings) -> None:
    offline = replace(settings, offline=True)
    store = locate("tmax", offline).store
    with pytest.raises(PoolError, match="HF_HUB_OFFLINE"):
        store.list()
    assert os.environ.get("HF_TOKEN") is None
