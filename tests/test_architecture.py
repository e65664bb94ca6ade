"""The house keeps its layers, and its rooms stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "poolmgr"
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {
    "daytona", "dockerfile", "duckdb", "fsspec", "huggingface_hub", "isal", "matplotlib", "numpy", "pyarrow",
    "s3fs", "tqdm",
}  # fmt: skip


def name_of(module: Path) -> str:
    return str(module.relative_to(ROOT))


def test_layers() -> None:
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_says_in_its_first_line_what_it_is_for(module: Path) -> None:
    doc = ast.get_docstring(ast.parse(module.read_text()))
    assert doc, f"{name_of(module)} has no docstring"
    assert doc.splitlines()[0].rstrip().endswith((".", ":", ";", ",")) or len(doc.splitlines()) > 1


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_heavy_libraries_are_imported_where_they_are_used(module: Path) -> None:
    for node in ast.parse(module.read_text()).body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        heavy = {name.partition(".")[0] for name in names} & HEAVY
        assert not heavy, f"{name_of(module)} imports {', '.join(heavy)} for everybody"


PASS_ON = {
    "poolmgr/store/hub_xet.py",
    "poolmgr/sif/child.py",
    "poolmgr/sif/apptainer.py",
    "poolmgr/cli/demo.py",
    "poolmgr/ops/pip_lock.py",
    "poolmgr/catalogue/query.py",
}
"""These choose which variables a child gets, and decide nothing by them."""


def test_only_settings_reads_the_environment() -> None:
    for module in MODULES:
        if module.name == "settings.py" or name_of(module) in PASS_ON:
            continue
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"}:
                raise AssertionError(f"{name_of(module)}:{node.lineno} reads the environment by itself")


def test_only_the_command_line_prints_and_exits() -> None:
    for module in MODULES:
        if "cli" in module.parts:
            continue
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"print", "sys.exit", "exit", "input"}, (
                    f"{name_of(module)}:{node.lineno}"
                )


def test_children_are_started_in_few_places_and_never_through_a_shell() -> None:
    for module in MODULES:
        source = module.read_text()
        assert "shell=True" not in source, name_of(module)
        assert "os.system(" not in source, name_of(module)
