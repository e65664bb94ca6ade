"""A hardened variant by commands alone, from push to resolve, on two kinds of pool."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from poolmgr.sif.derived import provenance_of
from poolmgr.sif.header import read_container
from poolmgr.sif.identity import file_sha256
from poolmgr.sif.image import open_image
from poolmgr.sif.source import FileSource
from poolmgr.sif.write import write_sif
from poolmgr.sif.write_node import file
from tests.conftest import RunPoolmgr
from tests.loopback.hub import Hub
from tests.ops.wheel_kit import make_wheel, python_tree
from tests.sif.tools import apptainer

ORACLE = random.Random(1).randbytes(40_000)
RECIPE = """\
schema = 1
name = "hardened"
base = { variant = "original" }
[[step]]
remove = ["/app/oracle"]
[[step]]
pip = ["tiny==1.0"]
[tasks.task_3]
files = [{ from = "fixture.txt", to = "/app/fixture.txt" }]
[expect]
forbid = ["/app/oracle"]
modules = ["tiny"]
"""
MANIFEST = """\
schema = 1
[pool]
url = "{url}"
[variants.original]
tasks = 3
[variants.hardened]
tasks = 3
forbid = ["/app/oracle*"]
modules = ["tiny"]
"""


class Story:
    """The commands of one test; each must end well unless another status is expected."""

    def __init__(self, run: RunPoolmgr, env: Mapping[str, str]) -> None:
        self._run = run
        self._env = env

    def __call__(self, *words: str, status: int = 0) -> str:
        done = self._run(*words, env=dict(self._env))
        assert done.returncode == status, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout

    def summary(self, *words: str) -> dict[str, object]:
        row: dict[str, object] = json.loads(self(*words, "--json").splitlines()[-1])
        assert row["kind"] == "summary"
        return row


@pytest.fixture(params=["folder", "hub"])
def story(request: pytest.FixtureRequest, poolmgr: RunPoolmgr, hub: Hub, tmp_path: Path) -> Story:
    """An empty pool with a manifest ``acme.toml`` beside it, and a way to run commands there."""
    if request.param == "hub":
        hub.add_repo("datasets", "acme/pool", {"README.md": b"# a pool\n"})
        url = "hf://datasets/acme/pool"
    else:
        (tmp_path / "pool").mkdir()
        url = str(tmp_path / "pool")
    (tmp_path / "acme.toml").write_text(MANIFEST.format(url=url))
    return Story(poolmgr, {**hub.env(), "HF_HUB_DISABLE_XET": "1"})


def make_originals(folder: Path) -> None:
    """Two images with a running Python and some megabytes that do not compress, for three tasks."""
    folder.mkdir()
    for name, seed in (("acme__env__aaaaaaaaaaaa.sif", 2), ("acme__env__bbbbbbbbbbbb.sif", 3)):
        luck = random.Random(seed)
        tree = dict(python_tree())
        tree |= {f"data/{n}": file(luck.randbytes(1_000_000)) for n in range(6)}
        tree |= {"app/oracle": file(ORACLE), "app/task.txt": file(name.encode())}
        out = io.BytesIO()
        write_sif(out, tree, level=1)
        (folder / name).write_bytes(out.getvalue())
    tasks = {"task_1": "acme__env__aaaaaaaaaaaa.sif", "task_2": "acme__env__aaaaaaaaaaaa.sif"}
    tasks["task_3"] = "acme__env__bbbbbbbbbbbb.sif"
    (folder / "original.tasks.json").write_text(json.dumps(tasks))


@pytest.mark.apptainer
def test_a_hardened_variant_from_end_to_end(story: Story, tmp_path: Path) -> None:
    make_originals(tmp_path / "built")
    story("push", "built", "-p", "acme.toml", "--variant", "original", "-n")
    story("push", "built", "-p", "acme.toml", "--variant", "original")
    story("fetch", "original", "-p", "acme.toml", "--to", "sifs", "--reserve", "0")
    story("audit", "original", "-p", "sifs")

    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/hardened.toml").write_text(RECIPE)
    (tmp_path / "recipe/fixture.txt").write_text("a fixture\n")
    make_wheel(tmp_path / "recipe/wheels", "tiny", "1.0")
    recipe = "recipe/hardened.toml"
    story("derive", "--lock", "--offline", recipe, "-p", "sifs")
    dry = story.summary("derive", recipe, "-p", "sifs", "--to", "new", "-n")
    assert (dry["images"], dry["tasks"]) == (2, 3)
    assert not (tmp_path / "new").exists()
    made = story.summary("derive", recipe, "-p", "sifs", "--to", "new")
    assert (made["made"], made["tasks"]) == (2, 3)

    story("push", "new", "-p", "acme.toml", "--variant", "hardened")
    story("push", "new", "-p", "acme.toml", "--variant", "hardened")  # again: nothing is left to do
    fetched = story.summary("fetch", "hardened", "-p", "acme.toml", "--to", "sifs", "--reserve", "0")
    assert (fetched["verdict"], fetched["proven"]) == ("proven", 2)
    sent, taken = fetched["transferred_bytes"], fetched["reused_bytes"]
    assert isinstance(sent, int)
    assert isinstance(taken, int)
    assert sent < 0.25 * taken

    story("audit", "original", "hardened", "-p", "sifs")
    for task in ("task_1", "task_2", "task_3"):
        path = Path(story("resolve", task, "--variant", "hardened", "-p", "sifs").strip())
        base = Path(story("resolve", task, "--variant", "original", "-p", "sifs").strip())
        check_hardened(path, base, fixture=task == "task_3")
    story("resolve", "task_4", "--variant", "hardened", "-p", "sifs", status=3)

    path.unlink()  # what is lost is missed by name, and comes back for a fraction of its bytes
    story("audit", "hardened", "-p", "sifs", status=3)
    story("resolve", "task_3", "--variant", "hardened", "-p", "sifs", status=3)
    story("fetch", "hardened", "-p", "acme.toml", "--to", "sifs", "--reserve", "0")
    story("audit", "hardened", "-p", "sifs")


def check_hardened(path: Path, base: Path, *, fixture: bool) -> None:
    with FileSource(path) as source, FileSource(base) as before:
        told = provenance_of(source, read_container(source))
        assert told is not None
        assert told["base_sha256"] == file_sha256(before)
        entries = open_image(source).merged
    assert "app/oracle" not in entries
    assert ("app/fixture.txt" in entries) == fixture
    held = path.read_bytes()
    assert not any(ORACLE[at : at + 64] in held for at in range(0, len(ORACLE) - 64, 1000))
    program = "import tiny; print(tiny.VERSION)"
    said = apptainer("exec", "--containall", "--no-home", path, "python3", "-c", program)
    assert said.strip() == "1.0"
