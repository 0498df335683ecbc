"""The console in a real headless Chromium, against real servers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mnemorank.server import ServerSettings
from tests.server.conftest import Running

Image = pytest.importorskip("PIL.Image", reason="needs the package pillow")
playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
IMAGES = ROOT / "docs" / "images"
AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium; see CONTRIBUTING.md")
    if not os.environ.get("MNEMORANK_BROWSER_TESTS"):
        pytest.skip("run by `make test-console`, on an idle machine")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars"],
        )
        yield running
        running.close()


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., Any]]:
    """Open a page. The test fails if the page logged an error, or asked another host for anything."""
    contexts, problems = [], []

    def open_one(url: str, *, width: int = 1400, height: int = 900, dark: bool = False, **options: Any) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            accept_downloads=True,
            reduced_motion="reduce",
            **options,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        host = urlsplit(url).netloc
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on("console", lambda message: _check_message(message, problems))
        page.on("request", lambda request: _check_host(request.url, host, problems))
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not problems


def _check_message(message: Any, problems: list[str]) -> None:
    # Chromium reports every response with an error status; tests that cause one look at the page instead.
    if message.type == "error" and "Failed to load resource" not in message.text:
        problems.append(f"console: {message.text}")


def _check_host(url: str, host: str, problems: list[str]) -> None:
    if urlsplit(url).scheme not in ("blob", "data") and urlsplit(url).netloc != host:
        problems.append(f"request to another host: {url}")


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Running]]:
    """Start servers with the bundled model that end with the module: `serve(store=…)`."""
    running: list[Running] = []

    def serve_one(**changes: Any) -> Running:
        running.append(Running(ServerSettings(**{"shutdown_timeout": 5.0, **changes})))
        return running[-1]

    yield serve_one
    for server in running:
        server.stop()


@pytest.fixture
def screenshot() -> Callable[[Any, str], None]:
    """Take a picture for the docs if MNEMORANK_UPDATE_DOCS is set, as for their other outputs."""

    def take(page: Any, name: str) -> None:
        if os.environ.get("MNEMORANK_UPDATE_DOCS"):
            path = IMAGES / f"console-{name}.png"
            page.evaluate(
                "scrollTo(0, 0); document.activeElement?.matches('dialog *') || document.activeElement?.blur()"
            )
            page.screenshot(path=path, animations="disabled")
            Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)

    return take


def find_violations(page: Any) -> list[str]:
    """Return the serious accessibility problems that axe-core finds, as `rule: first element`."""
    if not AXE.is_file():
        pytest.skip("needs axe-core: run `npm ci` in console/")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(result => result.violations)")
    serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    return [f"{violation['id']}: {violation['nodes'][0]['html'][:200]}" for violation in serious]
