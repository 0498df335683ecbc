"""Health: the requests of the last hour."""

from __future__ import annotations

import time

import pytest

from mnemorank.server.metrics_history import MetricsHistory
from tests.console.conftest import find_violations

pytestmark = pytest.mark.slow


def test_shows_the_requests_of_the_last_hour(serve, open_page, screenshot):
    server = serve(score_cache=10_000)
    now = time.time()
    times = iter([*(now - 3600 + 150 * number for number in range(24)), *[now] * 1000])
    history = server.app.state.history = MetricsHistory(server.app.state.metrics, 150, clock=lambda: next(times))
    body = {"query": "Where does Ruby work?", "memories": ["Ruby works at Aurora.", "The cat sleeps.", "Tea is hot."]}
    # An hour of real requests, with a clock that runs ahead.
    history.sample()
    for number in range(23):
        for copy in range(1 + number % 5):
            response = server.client.post(
                "/v1/memories/rerank", json={**body, "query": f"{body['query']} {number - copy}"}
            )
            assert response.status_code == 200
        history.sample()
    requests = sum(1 + number % 5 for number in range(23))
    page = open_page(f"{server.url}/console#health")
    tile = page.locator(".tile").first
    tile.wait_for()
    assert str(requests) in tile.inner_text()
    assert "%" in page.locator(".tile").filter(has_text="Cache hits").inner_text()
    page.locator(".u-over").nth(3).wait_for()
    screenshot(page, "health")
    assert find_violations(page) == []
