"""The index routes."""

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from mnemorank import MemoryIndex
from mnemorank.server.auth import add_key

MEMORIES = [
    {"id": "work", "text": "ruby works at aurora labs", "occurred_start": "2024-03", "type": "world", "user": "ann"},
    {"id": "cat", "text": "the cat lives in berlin", "session": "s1"},
    {"id": "dog", "text": "a dog in lisbon", "session": "s2", "n": 3},
]


@pytest.fixture(scope="module")
def indexed(start, split_onnx, tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "memories.db"
    running = start(model=str(split_onnx), index=path, max_documents=100, max_document_chars=2000)
    running.path = path
    return running


@pytest.fixture
def client(indexed):
    indexed.app.state.index.delete([memory["id"] for memory in MEMORIES])
    assert indexed.client.post("/v1/index/add", json={"memories": MEMORIES}).json() == {
        "ids": ["work", "cat", "dog"],
        "warnings": [],
    }
    return indexed.client


def error(response):
    body = response.json()["error"]
    return response.status_code, body["code"], body["field"]


def test_search_returns_what_python_does(indexed, client):
    body = {"query": "where does ruby work", "now": "2025-01-01", "explain": True, "options": {"first_stage": "bm25"}}
    response = client.post("/v1/index/search", json=body)
    assert response.status_code == 200, response.text
    found = response.json()
    assert [result["rank"] for result in found["results"]] == [1, 2, 3]
    assert found["model"]["name"] == "tiny-split"
    assert {result["id"]: result["memory"] for result in found["results"]}["work"] == {
        "id": "work",
        "text": "ruby works at aurora labs",
        "occurred_start": "2024-03",
        "type": "world",
        "metadata": {"user": "ann"},
    }
    expected = indexed.app.state.index.search("where does ruby work", now="2025-01-01")
    assert [result["id"] for result in found["results"]] == [result.id for result in expected]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"filter": {"session": "s1"}}, ["cat"]),
        ({"filter": {"n": 3, "session": "s2"}}, ["dog"]),
        ({"filter": {"type": "event"}}, []),
        ({"filter": {"type": "world"}, "top_k": 1}, ["work"]),
    ],
)
def test_filters(client, changes, expected):
    found = client.post("/v1/index/search", json={"query": "ruby", **changes}).json()
    assert [result["id"] for result in found["results"]] == expected


def test_texts_can_be_left_out(client):
    found = client.post("/v1/index/search", json={"query": "ruby", "return_texts": False}).json()
    assert len(found["results"]) == 3
    assert not any("text" in result or "memory" in result for result in found["results"])


def test_memories_are_updated_and_deleted(client):
    changed = [{"id": "cat", "text": "the cat lives in lisbon"}]
    assert client.post("/v1/index/update", json={"memories": changed}).json()["ids"] == ["cat"]
    assert client.get("/v1/index/get", params={"id": "cat"}).json() == {"memory": changed[0]}
    unknown = [*changed, {"id": "nobody", "text": "x"}]
    assert error(client.post("/v1/index/update", json={"memories": unknown})) == (404, "not_found", "memories.1.id")
    assert client.post("/v1/index/delete", json={"ids": ["cat", "nobody"]}).json() == {"deleted": 1}
    assert error(client.get("/v1/index/get", params={"id": "cat"})) == (404, "unknown_memory", "id")
    stats = client.get("/v1/index/stats").json()
    assert (stats["memories"], stats["model"]) == (2, "tiny-split")


def test_another_process_may_write(indexed, client, split_onnx):
    with MemoryIndex.open(indexed.path, split_onnx) as other:
        other.add([{"id": "new", "text": "a plan"}])
    assert len(client.post("/v1/index/search", json={"query": "plan"}).json()["results"]) == 4
    client.post("/v1/index/delete", json={"ids": ["new"]})


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("add", {"memories": []}, (400, "empty", "memories")),
        ("add", {"memories": ["a"] * 101}, (422, "limit", "memories")),
        ("add", {"memories": ["a", "a" * 2001]}, (422, "limit", "memories.1")),
        ("add", {"memories": [{"text": "a", "occurred_start": "soon"}]}, (422, "invalid", "memories.0.occurred_start")),
        ("add", {"memories": [{"id": "x" * 300, "text": "a"}]}, (422, "limit", "memories.0.id")),
        ("add", {"memories": ["a"], "tenant": "acme"}, (422, "invalid", "tenant")),
        ("delete", {"ids": []}, (422, "invalid", "ids")),
        ("delete", {"ids": "a"}, (422, "invalid", "ids")),
        ("search", {"query": " "}, (422, "empty_query", "query")),
        ("search", {"query": "a", "top_k": 5000}, (422, "invalid", "top_k")),
        ("search", {"query": "a", "candidates": 5000}, (422, "invalid", "candidates")),
        ("search", {"query": "a", "filter": {"a": [1]}}, (422, "invalid", None)),
        ("search", {"query": "a", "options": {"floor": 3}}, (422, "invalid", "options.floor")),
    ],
)
def test_bad_requests_name_the_field(client, path, body, expected):
    status, code, field = error(client.post(f"/v1/index/{path}", json=body))
    assert (status, code) == expected[:2]
    assert expected[2] is None or field == expected[2]


def test_a_deadline_degrades_a_search_and_stops_an_addition(client, indexed):
    found = client.post("/v1/index/search", json={"query": "ruby", "deadline_ms": 0.001}).json()
    assert found["degraded"]["kind"] == "deadline"
    assert len(found["results"]) == 3
    late = client.post("/v1/index/add", json={"memories": ["too late"]}, headers={"x-deadline-ms": "0.001"})
    assert error(late)[:2] == (504, "timeout")


def test_a_writer_elsewhere_is_waited_for_until_the_deadline(client, indexed):
    with closing(sqlite3.connect(indexed.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        late = client.post("/v1/index/delete", json={"ids": ["cat"]}, headers={"x-deadline-ms": "200"})
        assert error(late)[:2] == (504, "timeout")
        assert client.post("/v1/index/search", json={"query": "ruby"}).status_code == 200


def test_searches_are_events_that_feedback_refers_to(start, split_onnx, tmp_path):
    running = start(model=str(split_onnx), index=tmp_path / "i.db", store=f"sqlite:///{tmp_path}/events.db")
    running.client.post("/v1/index/add", json={"memories": MEMORIES})
    event_id = running.client.post("/v1/index/search", json={"query": "ruby"}).json()["event_id"]
    signals = {"event_id": event_id, "signals": [{"kind": "cited", "memory_id": "work"}]}
    assert running.client.post("/v1/feedback", json=signals).json() == {"stored": 1, "new": 1}


def test_scopes_and_tenants(start, split_onnx, tmp_path):
    keys = {
        name: add_key(tmp_path / "keys.toml", name, scopes, tenant)
        for name, scopes, tenant in (
            ("reader", ["read"], None),
            ("writer", ["write"], None),
            ("tenant", ["read", "write"], "acme"),
        )
    }
    client = start(model=str(split_onnx), index=tmp_path / "i.db", keys=tmp_path / "keys.toml").client

    def status(method, path, key, **arguments):
        headers = {"x-api-key": keys[key]} if key else {}
        return client.request(method, f"/v1/index/{path}", headers=headers, **arguments).status_code

    requests = {
        "add": ("POST", {"json": {"memories": ["a cat"]}}, "writer"),
        "update": ("POST", {"json": {"memories": [{"id": "a", "text": "a cat"}]}}, "writer"),
        "delete": ("POST", {"json": {"ids": ["a"]}}, "writer"),
        "search": ("POST", {"json": {"query": "cat"}}, "reader"),
        "get": ("GET", {"params": {"id": "a"}}, "reader"),
        "stats": ("GET", {}, "reader"),
    }
    for path, (method, arguments, allowed) in requests.items():
        other = "reader" if allowed == "writer" else "writer"
        assert status(method, path, allowed, **arguments) in (200, 404)
        assert status(method, path, other, **arguments) == 403
        assert status(method, path, "tenant", **arguments) == 403
        assert status(method, path, None, **arguments) == 401


def test_without_an_index_there_are_no_routes(server):
    assert error(server.client.post("/v1/index/search", json={"query": "ruby"})) == (404, "no_index", None)


def test_a_swapped_model_does_not_change_the_index(indexed, client, tiny_onnx):
    before = client.post("/v1/index/search", json={"query": "ruby"}).json()["results"]
    indexed.app.state.slot.swap(str(tiny_onnx))
    after = client.post("/v1/index/search", json={"query": "ruby"}).json()
    assert after["results"] == before
    assert after["model"]["name"] == "tiny-split"


def test_a_model_that_is_not_split_cannot_serve_an_index(tiny_onnx, tmp_path):
    command = [sys.executable, "-m", "mnemorank", "serve", "--port", "0", "--model", str(tiny_onnx)]
    served = subprocess.run([*command, "--index", str(tmp_path / "i.db")], capture_output=True, text=True, timeout=60)
    assert served.returncode == 2
    assert served.stderr.splitlines()[-1].startswith("error: model: ")
    assert not (tmp_path / "i.db").exists()
