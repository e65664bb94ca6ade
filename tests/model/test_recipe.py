"""Recipes: what is read, and that every refusal names its line."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolmgr.errors import RecipeInvalidError
from poolmgr.model.pin import parse_pin
from poolmgr.model.recipe import BaseRef, FileCopy, Files, Pip, Recipe, Remove, Run

WHOLE = """schema = 1
name = "hardened"
base = { variant = "original", tasks = "tasks.txt" }
[[step]]
remove = ["/app/oracle", "/app/oracle_parser"]
[[step]]
pip = ["pytest==8.4.1", "requests==2.32.4"]
python = "/usr/local/bin/python3"
[[step]]
files = [{ from = "fixtures/a.txt", to = "/app/a.txt", mode = "0755" }]
[[step]]
run = "echo hello"
reproducible = true
[tasks."task_1"]
pip = ["numpy==1.26.4", "Requests==2.31.0"]
remove = ["/app/more"]
[expect]
forbid = ["/app/oracle*"]
modules = ["pytest", "requests"]
run = ["python3", "-c", "import pytest, requests"]
"""


def test_a_whole_recipe_is_read() -> None:
    recipe = Recipe.parse(WHOLE, "r.toml")
    assert recipe.base == BaseRef(variant="original", tasks="tasks.txt")
    remove, pip, files, run = recipe.steps
    assert remove == Remove(("/app/oracle", "/app/oracle_parser"))
    assert isinstance(pip, Pip)
    assert [p.name for p in pip.pins] == ["pytest", "requests"]
    assert files == Files((FileCopy("fixtures/a.txt", "/app/a.txt", 0o755),))
    assert run == Run("echo hello", reproducible=True)
    assert recipe.expect.run[0] == "python3"


def test_a_tasks_own_pins_replace_those_of_the_same_name() -> None:
    recipe = Recipe.parse(WHOLE, "r.toml")
    steps = recipe.steps_of("task_1")
    pip = [step for step in steps if isinstance(step, Pip)]
    assert [p.text for p in pip[0].pins] == ["pytest==8.4.1", "Requests==2.31.0"]
    assert [p.text for p in pip[1].pins] == ["numpy==1.26.4"]
    assert pip[1].python == "/usr/local/bin/python3"
    assert Remove(("/app/more",)) in steps
    assert recipe.steps_of("another") == recipe.steps


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("requests", "no version"),
        ("requests>=2", "more than one version"),
        ("requests==2.*", "more than one version"),
        ("requests==2,!=3", "more than one version"),
        ("requests===2", "more than one version"),
        ("requests~=2.0", "more than one version"),
        ("requests @ https://x.org/r.whl", "sha256"),
        ("requests @ http://x.org/r.whl#sha256=" + "0" * 64, "https"),
        ("requests @ git+https://x.org/r#sha256=1", "https"),
        ("-r other.txt", "not a requirement"),
        ("./local", "not a requirement"),
    ],
)
def test_what_is_not_pinned_is_refused_by_line(text: str, words: str) -> None:
    head = 'schema = 1\nname = "n"\nbase = { blob = "a.sif" }\n[[step]]\n'
    recipe = head + f'pip = [\n  "six==1.16.0",\n  "{text}",\n]\n'
    with pytest.raises(RecipeInvalidError, match=words) as e:
        Recipe.parse(recipe, "r.toml")
    assert e.value.message.startswith("r.toml:7: step 1.pip:")


def test_a_pin_may_have_extras_a_marker_or_a_hashed_url() -> None:
    pin = parse_pin('Requests[socks]==2.32.4 ; python_version < "3.13"')
    assert (pin.name, pin.version, pin.extras) == ("requests", "2.32.4", ("socks",))
    assert pin.marker
    pin = parse_pin("r @ https://x.org/r-1-py3-none-any.whl#sha256=" + "a" * 64)
    assert pin.sha256 == "a" * 64


HEAD = 'schema = 1\nname = "n"\nbase = { blob = "images/a.sif" }\n'
STEP = '[[step]]\nremove = ["/x"]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = [", "not TOML"),
        ('schema = 2\nname = "n"', r"r.toml:1: schema: expected 1"),
        ('schema = 1\nname = "N/x"\n', r"r.toml:2: name"),
        (HEAD, "no step"),
        (HEAD.replace("blob", "bolb") + STEP, "bolb.*unknown key"),
        ('schema = 1\nname = "n"\nbase = { blob = "a", image = "b" }\n' + STEP, "exactly one"),
        ('schema = 1\nname = "n"\nbase = { blob = "a", tasks = "b" }\n' + STEP, "belongs to a variant"),
        ('schema = 1\nname = "n"\nbase = { variant = "a", tasks = "../b" }\n' + STEP, "leaves the recipe"),
        (HEAD + '[[step]]\nremove = ["app"]\n', r"r.toml:5: step 1.remove: 'app' is not an absolute path"),
        (HEAD + '[[step]]\nremove = ["/app/../etc"]\n', "not an absolute path"),
        (HEAD + '[[step]]\nremove = ["/"]\n', "not an absolute path"),
        (HEAD + "[[step]]\nremove = []\n", "list of texts"),
        (HEAD + '[[step]]\nremove = ["/x"]\nrun = "y"\n', "exactly one of remove"),
        (HEAD + '[[step]]\nremoved = ["/x"]\n', "unknown key"),
        (HEAD + '[[step]]\nfiles = [{ from = "/etc/passwd", to = "/a" }]\n', "leaves the recipe"),
        (HEAD + '[[step]]\nfiles = [{ from = "../a", to = "/a" }]\n', "leaves the recipe"),
        (HEAD + '[[step]]\nfiles = [{ from = "a", to = "a" }]\n', "not an absolute path"),
        (HEAD + '[[step]]\nfiles = [{ from = "a", to = "/a", mode = "888" }]\n', "octal"),
        (HEAD + '[[step]]\nfiles = [{ to = "/a" }]\n', "from and to"),
        (HEAD + '[[step]]\npip = ["a==1", "A==2"]\n', "pinned twice"),
        (HEAD + STEP + '[tasks."t"]\npip = ["a==1"]\n', "only a base that is a variant"),
        (HEAD + STEP + '[expect]\nforbid = ["sha256:12"]\n', "64 hex"),
        (HEAD + STEP + '[expect]\nmodules = ["a-b"]\n', "name of a module"),
        (HEAD + STEP + '[expect]\nforbid = ["/a/{b,c}"]\n', "braces are no wildcard"),
        (HEAD + STEP + "[expect]\nrum = 1\n", "unknown key"),
        (HEAD + 'method = "fast"\n' + STEP, "expected one of"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, words: str) -> None:
    with pytest.raises(RecipeInvalidError, match=words):
        Recipe.parse(text, "r.toml")


@given(st.text(max_size=200))
def test_no_text_makes_anything_but_a_recipe_or_its_error(text: str) -> None:
    with pytest.raises(RecipeInvalidError):
        Recipe.parse(text, "r.toml")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[expect]\nmodules = ["six"]\n[[step]]\nrun = "six"\n[[step]]\npip = ["six"]\n', 9),
        ('[[step]]\npip = [\n  "six==1",  # then a\n  "a"\n]\n', 7),
        ('[[step]]\nremove = ["/a"]\n[tasks."t"]\nremove = ["/a"]\npip = ["/a"]\n', 8),
        ('step = [{ remove = ["/a"] }, { pip = ["six"] }]\n', 4),
    ],
)
def test_the_line_named_is_the_one_at_fault(text: str, line: int) -> None:
    """Also where the same word stands in another table before."""
    with pytest.raises(RecipeInvalidError, match=rf"^r\.toml:{line}: "):
        Recipe.parse('schema = 1\nname = "n"\nbase = { variant = "v" }\n' + text, "r.toml")


SCALARS = st.one_of(
    st.integers(), st.text(max_size=5), st.booleans(), st.lists(st.text(max_size=3), max_size=2)
)


@given(
    key=st.sampled_from(["base", "step", "tasks", "expect", "method", "name", "schema"]),
    inner=st.dictionaries(
        st.sampled_from(["remove", "pip", "files", "run", "variant", "blob", "forbid"]), SCALARS
    ),
    plain=SCALARS,
    nested=st.booleans(),
)
def test_values_of_any_kind_are_refused_in_words(
    key: str, inner: dict[str, object], plain: object, nested: bool
) -> None:
    import json

    def toml(value: object) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(toml, value)) + "]"
        return json.dumps(value)

    raw: dict[str, object] = {"schema": 1, "name": "n", "base": {"blob": "a"}, "step": [{"remove": ["/x"]}]}
    raw[key] = inner if nested else plain
    text = "\n".join(f"{k} = {toml(v)}" for k, v in raw.items())
    with contextlib.suppress(RecipeInvalidError):
        Recipe.parse(text, "r.toml")
