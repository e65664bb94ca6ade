"""What a recipe comes to: shared images, names, digests, methods."""

from __future__ import annotations

import pytest

from poolmgr.errors import RecipeInvalidError, UnknownTaskError
from poolmgr.model.recipe import Recipe
from poolmgr.model.recipe_lock import LockedWheel
from poolmgr.plan.derive import (
    described,
    file_name,
    method_of,
    provenance,
    recipe_digest,
    reproducible,
    works,
)

RECIPE = Recipe.parse(
    """schema = 1
name = "hard"
base = { variant = "v" }
[[step]]
pip = ["a==1"]
[[step]]
files = [{ from = "f", to = "/f" }]
[tasks."t2"]
pip = ["a==2"]
""",
    "r.toml",
)
NO_WHEELS: list[list[LockedWheel]] = [[], []]


def test_tasks_that_need_the_same_image_share_one() -> None:
    found = works(RECIPE, {"t1": "x.sif", "t2": "x.sif", "t3": "x.sif", "t4": "y.sif"})
    assert [(w.base, w.tasks) for w in found] == [
        ("x.sif", ("t1", "t3")),
        ("x.sif", ("t2",)),
        ("y.sif", ("t4",)),
    ]
    assert found == works(RECIPE, {"t4": "y.sif", "t3": "x.sif", "t2": "x.sif", "t1": "x.sif"})


def test_a_table_for_a_task_that_is_not_derived_is_an_error() -> None:
    with pytest.raises(UnknownTaskError, match="1 tasks"):
        works(RECIPE, {"t1": "x.sif"})


def test_the_digest_covers_all_that_decides_the_bytes_and_nothing_else() -> None:
    one, two = RECIPE.steps_of("t1"), RECIPE.steps_of("t2")
    wheel = LockedWheel("a", "1", "a-1-py3-none-any.whl", "1" * 64)
    base = recipe_digest(described(one, {"f": "0"}, NO_WHEELS), "overlay")
    assert base == recipe_digest(described(one, {"f": "0"}, NO_WHEELS), "overlay")
    others = {
        recipe_digest(described(one, {"f": "1"}, NO_WHEELS), "overlay"),
        recipe_digest(described(two, {"f": "0"}, NO_WHEELS), "overlay"),
        recipe_digest(described(one, {"f": "0"}, [[wheel], []]), "overlay"),
        recipe_digest(described(one, {"f": "0"}, NO_WHEELS), "rebuild"),
    }
    assert len(others | {base}) == 5


def test_the_name_carries_base_and_recipe_and_follows_the_bases_bytes() -> None:
    name = file_name("images_b00/acme__env__17c682d5c609.sif", "hard", "a" * 64, "b" * 64)
    assert name.startswith("acme__env__17c682d5c609--hard-")
    assert name.endswith(".sif")
    assert name != file_name("images_b00/acme__env__17c682d5c609.sif", "hard", "c" * 64, "b" * 64)
    assert name == file_name("elsewhere/acme__env__17c682d5c609.sif", "hard", "a" * 64, "b" * 64)
    assert len(file_name("x" * 250 + ".sif", "n" * 40, "a", "b")) <= 255


def test_what_removes_is_rebuilt_and_what_runs_cannot_be_an_overlay() -> None:
    def steps(text: str) -> Recipe:
        return Recipe.parse(f'schema = 1\nname = "n"\nbase = {{ blob = "a" }}\n{text}', "r.toml")

    remove = steps('[[step]]\nremove = ["/x"]\n').steps
    run = steps('[[step]]\nrun = "x"\n').steps
    assert method_of("auto", RECIPE.steps) == "overlay"
    assert method_of("auto", remove) == "rebuild"
    assert method_of("overlay", remove) == "overlay"
    assert method_of("auto", run) == "rebuild"
    with pytest.raises(RecipeInvalidError, match="overlay"):
        method_of("overlay", run)
    assert not reproducible(run)
    assert reproducible(steps('[[step]]\nrun = "x"\nreproducible = true\n').steps)
    assert reproducible(remove)


def test_provenance_is_the_same_text_each_time() -> None:
    rows = described(RECIPE.steps_of(None), {"f": "0"}, NO_WHEELS)
    texts = {
        provenance("hard", "a", "b", "overlay", rows, {"poolmgr": "1"}, is_reproducible=True)
        for _ in range(2)
    }
    assert len(texts) == 1
