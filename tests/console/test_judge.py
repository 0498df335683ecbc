"""Judging: with the keyboard, into the event store, and out as lists."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from mnemorank.data.formats import read_lists
from tests.console.conftest import find_violations

pytestmark = pytest.mark.slow
QUERIES = "Where does Ruby work now?\nWhich medication does Dad take?\nWhat is the tax rate in Portugal?"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "feedback.db"


@pytest.fixture(scope="module")
def server(serve, store):
    return serve(store=f"sqlite:///{store}")


def test_feedback_reaches_the_store_by_keyboard_alone(server, store, open_page, tmp_path, screenshot):
    page = open_page(f"{server.url}/console#judge")
    page.get_by_role("textbox").fill(QUERIES)
    page.get_by_role("button", name="Start").click()
    results = page.get_by_role("list", name="Results").get_by_role("listitem")
    page.locator(".judge-query").filter(has_text="Where does Ruby work now?").wait_for()
    results.nth(2).wait_for()
    for key in ("ArrowDown", "f", "3", "d"):
        page.keyboard.press(key)
    screenshot(page, "judge")
    assert find_violations(page) == []
    page.keyboard.press("Enter")
    page.locator(".judge-query").filter(has_text="Which medication").wait_for()
    results.nth(2).wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()  # nothing is marked yet
    page.keyboard.press("s")
    page.locator(".judge-query").filter(has_text="What is the tax rate").wait_for()
    results.nth(2).wait_for()
    page.keyboard.press("x")
    page.keyboard.press("Enter")
    page.get_by_text("Done: 2 of 3 queries labeled").wait_for()

    with sqlite3.connect(store) as connection:
        rows = connection.execute(
            "SELECT events.query, signals.rank, signals.kind, signals.note FROM signals JOIN events "
            "ON events.id = signals.event_id WHERE NOT events.test ORDER BY signals.id"
        ).fetchall()
    assert sorted(rows, key=str) == sorted(
        [
            ("Where does Ruby work now?", 2, "thumbs_up", None),
            ("Where does Ruby work now?", 3, "thumbs_down", None),
            ("Where does Ruby work now?", 2, "note", "should be first"),
            ("What is the tax rate in Portugal?", 0, "thumbs_down", None),
        ],
        key=str,
    )

    with page.expect_download() as download:
        page.get_by_role("button", name="Export lists").first.click()
    path = tmp_path / "judgments.jsonl"
    download.value.save_as(path)
    answered, unanswerable = read_lists(path)
    labels = [candidate.label for candidate in answered.candidates]
    assert (labels[1], sum(labels), len(labels)) == (1.0, 1.0, 10)
    assert (answered.answerable, unanswerable.answerable) == (True, False)

    page.reload()
    page.get_by_text("Done: 2 of 3 queries labeled").wait_for()


def test_candidates_of_a_file_are_ranked_without_their_labels(server, open_page):
    record = {"query": "Where is the key?", "candidates": [
        {"text": "The key is under the mat.", "label": 0}, {"text": "Ruby likes tea.", "label": 1}]}  # fmt: skip
    page = open_page(f"{server.url}/console#judge")
    page.get_by_role("textbox").fill(json.dumps(record))
    page.get_by_role("button", name="Start").click()
    page.get_by_role("listitem").nth(1).wait_for()
    assert "under the mat" in page.get_by_role("list", name="Results").get_by_role("listitem").first.inner_text()
    page.get_by_role("button", name="New session").click()
    page.get_by_role("textbox").fill('{"query": ""}')
    page.get_by_role("button", name="Start").click()
    page.get_by_role("alert").filter(has_text="Line 1").wait_for()
