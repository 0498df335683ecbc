"""Feedback that is wrong, and deletions that would delete more than was meant."""

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


def test_the_rank_tells_which_of_two_memories_of_one_id_is_meant(asked):
    running, _ = asked
    twice = [*MEMORIES, {"id": "cat", "text": "the other cat"}]
    event_id = running.client.post("/v1/memories/rerank", json={"query": "ruby", "memories": twice}).json()["event_id"]
    body = {"event_id": event_id, "signals": [{"kind": "cited", "memory_id": "cat", "rank": 2}]}
    assert running.client.post("/v1/feedback", json=body).json() == {"stored": 1, "new": 1}
    (stored,) = running.app.state.event_log.store.event(event_id)[1]
    assert stored.position == 2
    for rank in ({}, {"rank": 0}):
        body["signals"] = [{"kind": "cited", "memory_id": "cat", **rank}]
        answer = running.client.post("/v1/feedback", json=body)
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, "signals.0.memory_id")
        assert answer.json()["error"]["message"].endswith("; give its rank as well")


@pytest.mark.parametrize(
    ("signal", "field", "words"),
    [
        ({"kind": "stars", "rank": 0}, "value", "expected 1 to 5 stars, got None"),
        ({"kind": "note", "rank": 0}, "note", "is empty"),
        ({"kind": "cited", "rank": 7}, "rank", "showed no memory at rank 7"),
        ({"kind": "cited", "memory_id": "dog"}, "memory_id", "did not show the memory 'dog'"),
    ],
)
def test_of_many_signals_the_wrong_one_is_named(asked, signal, field, words):
    running, event_id = asked
    before = running.app.state.event_log.store.counts()["signals"]
    body = {"event_id": event_id, "signals": [{"kind": "used", "rank": 1}, signal]}
    answer = running.client.post("/v1/feedback", json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, f"signals.1.{field}")
    assert answer.json()["error"]["message"].startswith(f"signals.1.{field}: ")
    assert words in answer.json()["error"]["message"]
    assert running.app.state.event_log.store.counts()["signals"] == before


@pytest.mark.parametrize("params", [{"tenant": "acme", "usr": "ann"}, {"tenant": "acme", "user": "ann", "usr": "x"}])
def test_a_misspelt_deletion_deletes_nothing(asked, params):
    running, _ = asked
    body = {"query": "ruby", "memories": MEMORIES, "tenant": "acme", "user": "ann"}
    event_id = running.client.post("/v1/memories/rerank", json=body).json()["event_id"]
    answer = running.client.delete("/v1/feedback", params=params)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "usr")
    assert running.app.state.event_log.store.event(event_id) is not None


def test_an_event_is_not_deleted_as_another_tenants(asked):
    running, _ = asked
    body = {"query": "ruby", "memories": MEMORIES, "tenant": "beta"}
    event_id = running.client.post("/v1/memories/rerank", json=body).json()["event_id"]
    answer = running.client.delete("/v1/feedback", params={"event": event_id, "tenant": "gamma"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (404, "event")
    assert running.app.state.event_log.store.event(event_id) is not None
    gone = running.client.delete("/v1/feedback", params={"event": event_id, "tenant": "beta"})
    assert (gone.status_code, gone.json()["events"]) == (200, 1)
