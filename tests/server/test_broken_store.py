"""A store that fails is an error on every route that uses it, never a partial response."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest
from sqlalchemy import text

from tests.server.test_fuzz import learning_server
from tests.server.test_load import wait_for

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


@pytest.fixture
def locked(learner):
    """Lock the store, as another process would, until the test ends."""
    path = learner.app.state.learning.loop.store.database.engine.url.database
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.slow
def test_a_locked_store_blocks_nothing_else(learner, locked):
    """More requests wait for the store than any pool has threads."""
    event_id = learner.client.post("/v1/memories/rerank", json=BODY).json()["event_id"]
    feedback = {"event_id": event_id, "signals": [{"kind": "click", "rank": 1}]}
    deletion = f"{learner.url}/v1/feedback?user=ann"
    with ThreadPoolExecutor(48) as threads:
        waiting = [
            threads.submit(httpx.delete, deletion, headers={"x-deadline-ms": "3000"}, timeout=30) for _ in range(40)
        ]
        wait_for(lambda: learner.app.state.store_pool._waiting > 0)
        assert learner.client.get("/v1/models", timeout=4).status_code == 200
        assert learner.client.post("/v1/models/swap", json={}, timeout=4).status_code == 200
        assert learner.client.post("/v1/memories/rerank", json=BODY, timeout=4).status_code == 200
        assert not any(call.done() for call in waiting)
        late = learner.client.post("/v1/feedback", json=feedback, headers={"x-deadline-ms": "100"})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
        assert {call.result().status_code for call in waiting} == {504}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/v1/feedback?user=ann", None),
        ("POST", "/v1/learning/mine", None),
        ("POST", "/v1/learning/run", None),
    ],
)
def test_routes_of_the_store_obey_their_deadline(learner, locked, method, path, body):
    answer = learner.client.request(method, path, json=body, headers={"x-deadline-ms": "300"}, timeout=10)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")


def test_a_store_with_too_many_waiting_requests_refuses_more(start, tmp_path):
    running = start(store=str(tmp_path / "e.db"), max_requests=2)
    pool = running.app.state.store_pool
    pool._waiting = 2
    answer = running.client.delete("/v1/feedback?user=ann")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    pool._waiting = 0
    assert running.client.delete("/v1/feedback?user=ann").status_code == 200
