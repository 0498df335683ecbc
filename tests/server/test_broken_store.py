"""A store that fails is an error on every route that uses it, never a partial response."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.server.test_fuzz import learning_server

BODY = {"query": "secretquery", "memories": [{"id": "m", "text": "ruby"}], "user": "ann"}


@pytest.fixture(scope="module")
def learner(start, tmp_path_factory):
    return learning_server(start, tmp_path_factory.mktemp("loop"))


@pytest.fixture
def without(learner):
    """Remove a table for the duration of a test."""
    engine = learner.app.state.learning.loop.store.database.engine
    removed: list[str] = []

    def rename(table: str, new: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {table} RENAME TO {new}"))

    def remove(table: str) -> None:
        rename(table, f"{table}_gone")
        removed.append(table)

    yield remove
    for table in removed:
        rename(f"{table}_gone", table)


def test_the_export_is_complete_or_an_error(learner, without):
    answers = [learner.client.post("/v1/memories/rerank", json=BODY) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    whole = learner.client.get("/v1/feedback/export?user=ann")
    assert whole.headers["content-type"].startswith("application/x-ndjson")
    assert whole.text.count('"record": "event"') == len(whole.text.splitlines()) == 3
    without("examples")  # the table that is read last, after the events
    broken = learner.client.get("/v1/feedback/export?user=ann")
    assert (broken.status_code, broken.json()["error"]["code"]) == (503, "store_failed")
    assert "secret" not in broken.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/learning/mine"),
        ("GET", "/v1/learning/status"),
        ("GET", "/v1/learning/reports/unused"),
        ("GET", "/v1/learning/reports/no-hits"),
        ("GET", "/v1/feedback/export?user=ann"),
        ("DELETE", "/v1/feedback?user=ann"),
    ],
)
def test_a_broken_store_is_503(learner, without, method, path):
    without("events")
    answer = learner.client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_failed")
