"""Manifests: every key read, every mistake named with its place and the nearest right word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.errors import ManifestInvalidError
from poolmgr.model.finding import Level
from poolmgr.model.manifest import Gates, Layout, Manifest, Naming, VariantRules

POOL = 'schema = 1\n[pool]\nurl = "hf://datasets/acme/pool"\n'


def parse(more: str = "", head: str = POOL) -> Manifest:
    return Manifest.parse(head + more, "m.toml")


def test_all_but_the_url_is_optional() -> None:
    manifest = parse()
    assert manifest.url == "hf://datasets/acme/pool"
    assert (manifest.layout, manifest.gates, manifest.naming) == (Layout(), Gates(), Naming())
    assert manifest.rules("anything") == VariantRules()
    assert manifest.text == POOL


def test_every_key() -> None:
    manifest = parse(
        f"""name = "acme"
index = "tasks.json"
[layout]
plain = "sifs"
derived = "made"
max_entries = 100
[variants.easy]
dataset = "hf://datasets/acme/tasks"
tasks = 7
require = ["/app"]
forbid = ["/app/oracle", "sha256:{"AB" * 32}"]
modules = ["pytest"]
[gates]
level = "data"
inspect = "required"
min_bytes = 10_000_000
arch = "arm64"
generic_images = ["ubuntu:22.04"]
[aliases]
"mirror:5000/{{tag}}" = "acme/env:{{tag}}"
[naming]
rule = "harbor"
trailing_hash = true
[environments]
limit = 9
"""
    )
    assert (manifest.name, manifest.index) == ("acme", "tasks.json")
    assert manifest.layout == Layout("sifs", "made", 100)
    assert manifest.rules("easy").tasks == 7
    assert manifest.rules("easy").forbid[0] == "/app/oracle"
    assert manifest.gates == Gates(Level.DATA, "required", 10_000_000, "arm64", ("ubuntu:22.04",))
    assert dict(manifest.aliases) == {"mirror:5000/{tag}": "acme/env:{tag}"}
    assert manifest.naming == Naming("harbor", True)
    assert manifest.environments_limit == 9


@pytest.mark.parametrize(
    ("more", "where", "hint"),
    [
        ("[gate]\n", "gate", "did you mean 'gates'"),
        ("[gates]\nmin_byte = 1\n", "gates.min_byte", "did you mean 'min_bytes'"),
        ("[layout]\nplane = 'x'\n", "layout.plane", "did you mean 'plain'"),
        ("[variants.easy]\ntask = 3\n", "variants.easy.task", "did you mean 'tasks'"),
        ("[naming]\nrules = 'tmax'\n", "naming.rules", "did you mean 'rule'"),
        ("[environments]\nlimits = 3\n", "environments.limits", "did you mean 'limit'"),
        ("zzz = 1\n", "pool.zzz", "known keys: name, url, index"),
    ],
)
def test_an_unknown_key_names_the_nearest(more: str, where: str, hint: str) -> None:
    with pytest.raises(ManifestInvalidError, match=f"m.toml: {where}: unknown key") as caught:
        parse(more)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("[gates]\nlevel = 'mont'\n", "gates.level: expected one of listed"),
        ("[gates]\nlevel = 3\n", "gates.level: expected text"),
        ("[gates]\nmin_bytes = -1\n", "gates.min_bytes: expected a whole number"),
        ("[gates]\nmin_bytes = true\n", "gates.min_bytes"),
        ("[gates]\nmin_bytes = 1.5\n", "gates.min_bytes"),
        ("[gates]\narch = 'x86_64'\n", "gates.arch: expected one of"),
        ("[gates]\ngeneric_images = 'ubuntu'\n", "gates.generic_images: expected a list"),
        ("[gates]\ngeneric_images = [1]\n", "gates.generic_images: expected a list"),
        ("[gates]\ninspect = 'no'\n", "gates.inspect"),
        ("[layout]\nplain = '../x'\n", "layout.plain"),
        ("[layout]\nderived = '.poolmgr'\n", "layout.derived"),
        ("[layout]\nmax_entries = 10000\n", "layout.max_entries"),
        ("[layout]\nmax_entries = 0\n", "layout.max_entries"),
        ("index = '../x.json'\n", "pool.index"),
        ("index = '/x.json'\n", "pool.index"),
        ("name = ''\n", "pool.name"),
        ("[variants]\neasy = 3\n", "variants.easy: expected a table"),
        ("[variants.easy]\ntasks = 0\n", "variants.easy.tasks"),
        ("[variants.easy]\nforbid = ['sha256:abc']\n", "variants.easy.forbid"),
        ("[variants.easy]\nrequire = ['']\n", "variants.easy.require"),
        (
            f"[variants.easy]\nforbid = ['SHA256:{'ab' * 32}']\n",
            "easy.forbid: a path expected, found the dig",
        ),
        (f"[variants.easy]\nforbid = ['{'ab' * 32}']\n", "variants.easy.forbid: a path expected"),
        (f"[variants.easy]\nrequire = ['sha256:{'ab' * 32}']\n", "variants.easy.require: a path expected"),
        ("[variants.easy]\nforbid = ['md5:abc']\n", "variants.easy.forbid: a path expected"),
        ("[variants.easy]\nforbid = ['/app/../oracle']\n", "no path in an image leads over"),
        ("[variants.easy]\nforbid = ['/app/{a,b}']\n", "braces are no wildcard"),
        ("[variants.easy]\nmodules = ['..']\n", "variants.easy.modules: '..' is no name"),
        (
            "[variants.easy]\nmodules = ['yaml', 'scikit-learn']\n",
            "'scikit-learn' is no name of a Python module",
        ),
        ("[aliases]\na = 3\n", "aliases.a: expected text"),
        ("[naming]\nrule = 'tmux'\n", "naming.rule: expected one of"),
        ("[naming]\ntrailing_hash = 1\n", "naming.trailing_hash: expected true or false"),
        ("[environments]\nlimit = -1\n", "environments.limit"),
        ("[variants.'']\ntasks = 1\n", "variants"),
        ('[variants."a\\nb"]\ntasks = 1\n', "variants"),
    ],
)
def test_a_wrong_value_names_its_key(more: str, words: str) -> None:
    with pytest.raises(ManifestInvalidError) as caught:
        parse(more)
    assert words in caught.value.message
    assert caught.value.message.startswith("m.toml: ")
    assert caught.value.message.isprintable()
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "schema"),
        ("schema = 2\n", "schema"),
        ("schema = '1'\n", "schema"),
        ("schema = true\n[pool]\nurl = 'x'\n", "schema"),
        ("schema = 1.0\n[pool]\nurl = 'x'\n", "schema"),
        ("schema = 1\n", "pool.url"),
        ("schema = 1\npool = 3\n", "pool: expected a table"),
        ("schema = 1\n[pool]\nurl = ''\n", "pool.url"),
        ("schema = 1\n[pool]\nurl = 'a'\nurl = 'b'\n", "not TOML"),
        ("a = " + "[" * 5000, "not TOML"),
        ("schema = 1\nx = " + "9" * 5000, "not TOML"),
        ("\x00", "not TOML"),
    ],
)
def test_what_is_no_manifest(text: str, words: str) -> None:
    with pytest.raises(ManifestInvalidError) as caught:
        Manifest.parse(text, "m.toml")
    assert words in caught.value.message


@pytest.mark.parametrize(
    "url", ["s3://key:hunter2@host/b", "https://host/p?token=hunter2", "simplecache::s3://hunter2@h/b"]
)
def test_a_manifest_holds_no_credentials(url: str) -> None:
    for text in (
        f'schema = 1\n[pool]\nurl = "{url}"\n',
        f'{POOL}[variants.easy]\ndataset = "{url}"\n',
    ):
        with pytest.raises(ManifestInvalidError, match="may be secret") as caught:
            Manifest.parse(text, "m.toml")
        assert "hunter2" not in caught.value.message
    assert Manifest.parse('schema = 1\n[pool]\nurl = "hf://datasets/a/b@v1"\n', "m").url


@given(st.text(max_size=200))
def test_any_text_is_a_manifest_or_refused(text: str) -> None:
    for source in (text, POOL + text):
        try:
            manifest = Manifest.parse(source, "m.toml")
        except ManifestInvalidError:
            continue
        assert manifest.url
