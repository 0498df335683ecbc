"""Invalid feedback, and deletions that would delete more than intended."""

from __future__ import annotations

import pytest

MEMORIES = [{"id": "cat", "text": "the cat"}, {"id": "ruby", "text": "ruby"}]


@pytest.fixture(scope="module")
def ranked(start, tmp_path_factory):
    """A server with a store, and the id of an event that shows `ruby` and then `cat`."""
    running = start(store=f"sqlite:///{tmp_path_factory.mktemp('store') / 'feedback.db'}")
    response = running.client.post("/v1/memories/rerank", json={"query": "ruby", "memories": MEMORIES}).json()
    assert [result["id"] for result in response["results"]] == ["ruby", "cat"]
    return running, response["event_id"]


def test_an_id_with_the_rank_of_another_memory_is_rejected(ranked):
    running, event_id = ranked
    signals = [{"kind": "cited", "memory_id": "ruby"}, {"kind": "cited", "memory_id": "cat", "rank": 1}]
    response = running.client.post("/v1/feedback", json={"event_id": event_id, "signals": signals})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["field"]) == (422, "invalid", "signals.1.rank")
    assert running.app.state.event_log.store.counts()["signals"] == 0


def test_an_id_with_its_own_rank_is_accepted(ranked):
    running, event_id = ranked
    body = {"event_id": event_id, "signals": [{"kind": "cited", "memory_id": "ruby", "rank": 1}]}
    assert running.client.post("/v1/feedback", json=body).json() == {"stored": 1, "new": 1}


def test_the_rank_selects_one_of_several_memories_with_the_same_id(ranked):
    running, _ = ranked
    memories = [*MEMORIES, {"id": "cat", "text": "the other cat"}]
    response = running.client.post("/v1/memories/rerank", json={"query": "ruby", "memories": memories})
    event_id = response.json()["event_id"]
    body = {"event_id": event_id, "signals": [{"kind": "cited", "memory_id": "cat", "rank": 3}]}
    assert running.client.post("/v1/feedback", json=body).json() == {"stored": 1, "new": 1}
    (stored,) = running.app.state.event_log.store.event(event_id)[1]
    assert stored.rank == 3
    for rank in ({}, {"rank": 1}):
        body["signals"] = [{"kind": "cited", "memory_id": "cat", **rank}]
        response = running.client.post("/v1/feedback", json=body)
        assert (response.status_code, response.json()["error"]["field"]) == (422, "signals.0.memory_id")


@pytest.mark.parametrize(
    ("signal", "field"),
    [
        ({"kind": "stars", "rank": 1}, "value"),
        ({"kind": "note", "rank": 1}, "note"),
        ({"kind": "cited", "rank": 8}, "rank"),
        ({"kind": "cited", "memory_id": "dog"}, "memory_id"),
    ],
)
def test_the_invalid_one_of_several_signals_is_named_and_none_is_stored(ranked, signal, field):
    running, event_id = ranked
    before = running.app.state.event_log.store.counts()["signals"]
    body = {"event_id": event_id, "signals": [{"kind": "used", "rank": 2}, signal]}
    response = running.client.post("/v1/feedback", json=body)
    assert (response.status_code, response.json()["error"]["field"]) == (422, f"signals.1.{field}")
    assert running.app.state.event_log.store.counts()["signals"] == before


@pytest.mark.parametrize("params", [{"tenant": "acme", "usr": "ann"}, {"tenant": "acme", "user": "ann", "usr": "x"}])
def test_an_unknown_parameter_deletes_nothing(ranked, params):
    running, _ = ranked
    body = {"query": "ruby", "memories": MEMORIES, "tenant": "acme", "user": "ann"}
    event_id = running.client.post("/v1/memories/rerank", json=body).json()["event_id"]
    response = running.client.delete("/v1/feedback", params=params)
    assert (response.status_code, response.json()["error"]["field"]) == (422, "usr")
    assert running.app.state.event_log.store.event(event_id) is not None


def test_an_event_of_another_tenant_is_not_deleted(ranked):
    running, _ = ranked
    body = {"query": "ruby", "memories": MEMORIES, "tenant": "beta"}
    event_id = running.client.post("/v1/memories/rerank", json=body).json()["event_id"]
    response = running.client.delete("/v1/feedback", params={"event": event_id, "tenant": "gamma"})
    assert (response.status_code, response.json()["error"]["field"]) == (404, "event")
    assert running.app.state.event_log.store.event(event_id) is not None
    response = running.client.delete("/v1/feedback", params={"event": event_id, "tenant": "beta"})
    assert (response.status_code, response.json()["events"]) == (200, 1)
