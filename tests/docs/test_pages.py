"""Links of the Markdown files lead somewhere, file names are right, and every page is in the navigation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "research/log.md",
    ROOT / "src/mnemorank/assets/models/mini/README.md",
    *SITE,
]
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?)(?: *\{ *#([\w-]+) *\})?$", re.MULTILINE)
_PATH = re.compile(r"`((?:[\w.-]+/)*[\w-]+(?:/|\.py|\.md|\.toml))`")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    anchors = set()
    for title, name in _HEADING.findall(page.read_text(encoding="utf-8")):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title).lower()).strip().replace(" ", "-")
        anchors.add(name or slug)
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_files_and_headings(page: Path):
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{_name(page)}: {target}"
        if anchor and _name(linked) != "docs/api.md":
            assert anchor in _anchors(linked), f"{_name(page)}: {target}"


@pytest.mark.parametrize("page", [ROOT / "docs/architecture.md", ROOT / "CONTRIBUTING.md"], ids=_name)
def test_files_that_are_named_exist(page: Path):
    for path in _PATH.findall(page.read_text(encoding="utf-8")):
        if path.endswith("NAME.py") or path == "site/":
            continue
        folders = (ROOT, ROOT / "src/mnemorank", ROOT / "src/mnemorank/training", ROOT / "src/mnemorank/data")
        plugins = (ROOT / "src/mnemorank/training/losses", ROOT / "src/mnemorank/data/benchmarks")
        assert any((folder / path).exists() for folder in (*folders, *plugins)), f"{_name(page)}: {path}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [_name(page) for page in SITE if f": {page.relative_to(ROOT / 'docs').as_posix()}\n" not in navigation]

    assert not missing


def test_the_site_loads_nothing_from_other_hosts():
    configuration = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")

    assert "font: false" in configuration
    assert "repo_url" not in re.sub(r"#.*", "", configuration)  # the theme would ask GitHub's API


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_other_hosts(tmp_path: Path):
    pytest.importorskip("mkdocstrings_handlers.python")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr

    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"?https?:|<link[^>]+rel=\"?(?:stylesheet|preload)[^>]+https?:"
    )
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert tmp_path / "site" / "guides" / "rerank.html" in pages  # no directory URLs, so that it can be read from disk
    assert not [page.name for page in pages if loaded.search(page.read_text(encoding="utf-8"))]
