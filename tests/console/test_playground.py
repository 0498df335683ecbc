"""The playground: rank, see what moved, go back in time, compare, share."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from tests.console.conftest import find_violations

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(serve):
    return serve(max_document_chars=2_000_000)


def ranked(page: Any) -> list[str]:
    """Wait until the page shows a ranking and return the visible texts in order."""
    page.locator(".results[aria-busy=false] .column.right .slot").first.wait_for()
    return page.locator(".column.right .slot .text").all_inner_texts()


def wait_until(page: Any, expression: str) -> None:
    """Wait from outside the page, whose content security policy forbids to evaluate text."""
    end = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(100)


def paste(page: Any, content: str) -> None:
    page.get_by_role("button", name="Paste").click()
    page.get_by_role("textbox", name=re.compile("JSON Lines")).fill(content)
    page.get_by_role("button", name="Use these memories").click()
    page.get_by_role("dialog").wait_for(state="hidden")


def lines(memories: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(memory) for memory in memories)


def ask(page: Any, query: str) -> None:
    page.get_by_role("searchbox", name="Query").fill(query)
    page.get_by_role("searchbox", name="Query").press("Enter")


def test_ranks_the_sample_and_explains_it(server, open_page, screenshot):
    page = open_page(f"{server.url}/console")
    assert "Aurora Labs" in ranked(page)[0]
    detail = page.get_by_role("complementary", name="Selected memory")
    assert "Aurora Labs" in detail.inner_text()
    assert detail.locator(".waterfall tr").filter(has_text="Model").count() >= 1
    page.get_by_role("listbox", name="mnemorank").focus()
    page.keyboard.press("ArrowDown")
    assert detail.locator(".big").inner_text() == "#2"
    page.keyboard.press("ArrowUp")
    screenshot(page, "playground")


def test_is_readable_in_the_dark_and_without_serious_accessibility_problems(server, open_page, screenshot):
    page = open_page(f"{server.url}/console", dark=True)
    ranked(page)
    screenshot(page, "playground-dark")
    assert find_violations(page) == []
    page.get_by_role("button", name=re.compile("^Theme")).click()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    assert find_violations(page) == []


def test_the_as_of_slider_changes_the_order(server, open_page, screenshot):
    page = open_page(f"{server.url}/console")
    ranked(page)
    page.locator(".column.right .slot").first.filter(has_text="Aurora Labs").wait_for()
    slider = page.get_by_role("slider", name="As of")
    slider.focus()
    day = page.evaluate("Math.floor(Date.UTC(2023, 5, 1) / 86400000)")
    page.evaluate(
        """([slider, day]) => {
          Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(slider, day);
          slider.dispatchEvent(new Event('input', {bubbles: true}));
        }""",
        [slider.element_handle(), day],
    )
    page.locator(".column.right .slot").first.filter(has_text="Zenith").wait_for()
    assert slider.get_attribute("aria-valuetext") == "2023-06-01"
    page.locator(".column.right .slot").first.click()
    screenshot(page, "as-of")
    slider.press("End")
    page.locator(".column.right .slot").first.filter(has_text="Aurora Labs").wait_for()


def test_a_link_reproduces_the_state(server, open_page):
    page = open_page(f"{server.url}/console")
    ranked(page)
    paste(page, lines([{"id": "a", "text": "The key is under the mat."}, {"id": "b", "text": "Ruby likes tea."}]))
    ask(page, "Where is the key?")
    page.locator(".column.right .slot").first.filter(has_text="under the mat").wait_for()
    wait_until(page, "location.hash.length > 40")
    page.wait_for_timeout(300)
    copy = open_page(page.url)
    copy.locator(".column.right .slot").first.filter(has_text="under the mat").wait_for()
    assert copy.get_by_role("searchbox", name="Query").input_value() == "Where is the key?"
    damaged = open_page(page.url[:-20])
    damaged.get_by_text("The link is damaged").wait_for()


def test_compares_two_models_and_two_sets_of_options(server, open_page, screenshot):
    page = open_page(f"{server.url}/console")
    ranked(page)
    page.get_by_label("With another model or other options").check()
    compare = page.locator(".card").filter(has=page.get_by_role("heading", name="Compare"))
    compare.get_by_label("First stage").select_option("none")
    compare.get_by_label("Results").fill("5")
    compare.get_by_label("Results").blur()
    page.get_by_role("heading", name="Comparison").wait_for()
    wait_until(page, "document.querySelectorAll('.column.right .slot').length === 5")
    compare.get_by_label("Model", exact=True).select_option("mini")
    wait_until(page, "document.querySelectorAll('.column.right .slot').length === 5")
    ranked(page)
    screenshot(page, "compare")


def test_copies_the_request(server, open_page):
    page = open_page(f"{server.url}/console")
    ranked(page)
    page.get_by_role("button", name="Copy as").click()
    code = page.get_by_label("Request", exact=True)
    assert f"curl {server.url}/v1/memories/rerank" in code.inner_text()
    page.get_by_role("button", name="JSON", exact=True).click()
    body = json.loads(code.inner_text())
    response = server.client.post("/v1/memories/rerank", json=body)
    assert response.status_code == 200, response.text
    page.get_by_role("button", name="Python").click()
    compile(code.inner_text(), "snippet", "exec")
    assert find_violations(page) == []


def test_reads_files_as_the_command_line_does(server, open_page):
    page = open_page(f"{server.url}/console")
    ranked(page)
    page.get_by_label("Open file").first.set_input_files(
        {
            "name": "m.csv",
            "mimeType": "text/csv",
            "buffer": b"text,date\nRuby moved to Porto.,2025-01-02\nThe cat sleeps.,\n",
        }
    )
    page.locator(".column.right .slot").first.filter(has_text="Porto").wait_for()
    assert "2 memories" in page.get_by_role("complementary", name="Settings").inner_text()
    page.get_by_label("Open file").first.set_input_files(
        {"name": "m.jsonl", "mimeType": "application/json", "buffer": b'{"text": "fine"}\n{broken\n'}
    )
    page.get_by_role("alert").filter(has_text="m.jsonl:2").wait_for()


def test_searches_the_index(serve, split_onnx, open_page, tmp_path):
    server = serve(model=str(split_onnx), index=tmp_path / "memories.db")
    memories = [{"id": "k", "text": "The spare key is in the blue vase."}, {"id": "t", "text": "Ruby likes tea."}]
    assert server.client.post("/v1/index/add", json={"memories": memories}).status_code == 200
    page = open_page(f"{server.url}/console")
    ranked(page)
    page.get_by_role("button", name="Index").click()
    ask(page, "Where is the spare key?")
    page.locator(".column.right .slot").filter(has_text="blue vase").wait_for()
    assert page.locator(".column.right .slot").count() == 2


def test_hostile_texts_are_inert(server, open_page):
    markup = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><b>bold</b>"
    right_to_left = "\u202e\u2067abc Ruby \u05d0\u05d1\u05d2"
    page = open_page(f"{server.url}/console")
    ranked(page)
    memories = [
        {"id": markup, "text": f"Ruby works at {markup}", "context": markup, "entities": [markup]},
        {"text": f"Ruby works at {right_to_left}", "occurred_start": "2024-01-01"},
        {"text": "Ruby works at Aurora. " + "x" * 1_000_000},
    ]
    paste(page, lines(memories))
    ask(page, f"Where does Ruby work? {markup}")
    page.locator(".column.right .slot").nth(2).wait_for()
    texts = ranked(page)
    assert any("<script>" in text for text in texts), "markup is shown as text"
    for place in range(3):
        page.locator(".column.right .slot").nth(place).click()
        page.wait_for_timeout(100)
    assert page.evaluate("document.querySelectorAll('main script, main img, main b').length") == 0
    assert "owned" not in page.title()
    page.locator(".column.right .slot").filter(has_text="xxxx").click()
    page.get_by_role("button", name=re.compile("Show all 1,000,0")).click()
    assert page.evaluate("document.querySelector('.passage p').textContent.length") > 1_000_000
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], "nothing sticks out"


def test_ten_thousand_memories(server, open_page):
    page = open_page(f"{server.url}/console")
    ranked(page)
    memories = [
        {"id": str(i), "text": f"Note {i} about the garden", "occurred_start": "2024-01-01"} for i in range(9999)
    ]
    memories.append({"id": "x", "text": "The spare key is in the blue vase."})
    page.get_by_label("Open file").first.set_input_files(
        {"name": "many.jsonl", "mimeType": "application/json", "buffer": lines(memories).encode()}
    )
    page.get_by_text("10,000 memories").wait_for()
    ask(page, "Where is the spare key?")
    page.locator(".column.right .slot").first.filter(has_text="blue vase").wait_for()
    assert page.locator(".slot").count() < 100, "only visible rows are in the document"
    assert page.locator(".column.right .slot").first.get_attribute("aria-setsize") == "10000"
    page.get_by_role("listbox", name="mnemorank").focus()
    page.keyboard.press("End")
    page.locator(".column.right .slot[aria-posinset='10000'][aria-selected=true]").wait_for()
    assert page.locator(".slot").count() < 100


def test_fits_a_phone(server, open_page, screenshot):
    page = open_page(f"{server.url}/console", width=360, height=740, device_scale_factor=2)
    ranked(page)
    screenshot(page, "phone")
    for view in ("playground", "judge", "learning", "health"):
        page.get_by_role("navigation").get_by_role("link", name=view.capitalize()).click()
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") == 360, view
    assert find_violations(page) == []
