"""Feedback that contradicts itself."""

from __future__ import annotations

import pytest

MEMORIES = [{"id": "cat", "text": "the cat"}, {"id": "ruby", "text": "ruby"}]


@pytest.fixture(scope="module")
def asked(start, tmp_path_factory):
    running = start(store=f"sqlite:///{tmp_path_factory.mktemp('store') / 'feedback.db'}")
    answer = running.client.post("/v1/memories/rerank", json={"query": "ruby", "memories": MEMORIES}).json()
    assert [result["id"] for result in answer["results"]] == ["ruby", "cat"]
    return running, answer["event_id"]


def test_an_id_with_the_rank_of_another_memory_is_refused_and_nothing_is_stored(asked):
    running, event_id = asked
    signals = [{"kind": "cited", "memory_id": "ruby"}, {"kind": "cited", "memory_id": "cat", "rank": 0}]
    answer = running.client.post("/v1/feedback", json={"event_id": event_id, "signals": signals})
    assert answer.status_code == 422
    assert answer.json()["error"] == {
        "code": "invalid",
        "message": "signals.1.rank: is 0, but the memory of memory_id was shown at rank 1; give one of them",
        "field": "signals.1.rank",
    }
    assert running.app.state.event_log.store.counts()["signals"] == 0


def test_an_id_with_its_own_rank_is_taken(asked):
    running, event_id = asked
    body = {"event_id": event_id, "signals": [{"kind": "cited", "memory_id": "ruby", "rank": 0}]}
    assert running.client.post("/v1/feedback", json=body).json() == {"stored": 1, "new": 1}
