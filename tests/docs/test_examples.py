"""Every Python and console example of the README and the docs runs and prints what the page shows.

Set MNEMORANK_UPDATE_DOCS=1 to write the new outputs into the pages instead of failing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import read_blocks
from tests.docs.runner import PageRunner

ROOT = Path(__file__).parents[2]
CARD = ROOT / "src/mnemorank/assets/models/mini/README.md"
PAGES = [ROOT / "README.md", CARD, *sorted((ROOT / "docs").rglob("*.md"))]
RUNNABLE = [page for page in PAGES if any(block.language in ("python", "console") for block in read_blocks(page))]
# Pages whose examples train a model.
SLOW = {"docs/guides/training.md"}
# Blocks that need something a test cannot have: a GPU, the Hugging Face Hub, another service.
MOST_NOT_RUN = 20


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


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
