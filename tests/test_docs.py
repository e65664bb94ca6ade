"""The docs are current, and every page that something points to exists."""

from __future__ import annotations

import re

import pytest

from scripts import docs
from tests.conftest import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_generated_parts_are_current() -> None:
    assert docs.run(check=True) == 0, "run 'make docs'"


def test_every_command_has_a_page_with_its_reference() -> None:
    for (name,), _ in docs.commands():
        page = docs.page_of(name)
        assert page.exists(), f"write {page.relative_to(ROOT)}"
        assert f'docs.reference("{name}")' in page.read_text(), page
        assert page.read_text().startswith(f"# poolmgr {name}\n"), page


def test_no_page_is_left_of_a_command_that_is_gone() -> None:
    names = {name for (name,), _ in docs.commands()}
    assert {page.stem for page in (ROOT / "docs/cli").glob("*.md")} == names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: docs.Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_pages_that_the_code_and_the_docs_name_exist() -> None:
    sources = [
        *PAGES,
        *(ROOT / "poolmgr").rglob("*.py"),
        *(p for p in (ROOT / "scripts").iterdir() if p.is_file()),
    ]
    for source in sources:
        for name in re.findall(r"\bdocs/[a-z0-9_/-]+\.md\b", source.read_text()):
            assert (ROOT / name).exists(), f"{source.relative_to(ROOT)} names {name}"


def test_scripts_that_the_docs_name_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"\b(?:scripts|benchmarks)/[a-z0-9_]+\.(?:py|sh)\b", page.read_text()):
            assert (ROOT / name).exists(), f"{page.relative_to(ROOT)} names {name}"


def test_error_codes_are_unique_and_every_class_says_what_it_means() -> None:
    codes: dict[str, str] = {}
    for kind in docs.every_error():
        assert "code" in vars(kind), f"{kind.__name__} has no code of its own"
        assert kind.code not in codes, f"{kind.__name__} and {codes.get(kind.code)} share {kind.code!r}"
        assert re.fullmatch(r"[a-z][a-z0-9-]*", kind.code)
        assert kind.__doc__, kind.__name__
        codes[kind.code] = kind.__name__
    assert len(codes) > 20


def test_every_finding_that_the_code_makes_has_a_documented_code() -> None:
    docs.every_error()
    from poolmgr.model.finding import CODES

    made = re.compile(r"\bFinding\(\s*(?:code=)?\"([a-z0-9-]+)\"")
    seen = set()
    for source in (ROOT / "poolmgr").rglob("*.py"):
        for code in made.findall(source.read_text()):
            assert code in CODES, f"{source.relative_to(ROOT)} makes the finding {code!r}"
            seen.add(code)
    assert seen
