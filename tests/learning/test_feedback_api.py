import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from mnemorank.learning.loop import Loop
from mnemorank.learning.store import examples
from mnemorank.learning.store.events import EventStore
from mnemorank.server.auth import add_key
from tests.learning.server import serving, wait_until, write_settings

MEMORIES = [{"id": f"m{i}", "text": text} for i, text in enumerate(("the cat", "ruby work now", "a dog", "ruby"))]


@pytest.fixture(scope="module")
def client(tmp_path_factory, tiny_onnx):
    root = write_settings(tmp_path_factory.mktemp("loop"))
    with serving(model=str(tiny_onnx), learning=root) as client:
        client.root = root
        yield client


def rerank(client, query="Where does ruby work now?", **fields) -> dict:
    response = client.post("/v1/memories/rerank", json={"query": query, "memories": MEMORIES, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def give_feedback(client, event_id, *signals, **fields) -> httpx.Response:
    return client.post("/v1/feedback", json={"event_id": event_id, "signals": list(signals), **fields})


def test_feedback_is_stored_and_becomes_an_example(client):
    response = rerank(client, user="ann", now="2024-05-01")
    event_id = response["event_id"]
    first, second = (result["id"] for result in response["results"][:2])
    stored = give_feedback(client, event_id, {"kind": "cited", "memory_id": second}, {"kind": "ignored", "rank": 1})
    assert stored.json() == {"stored": 2, "new": 2}
    assert give_feedback(client, event_id, {"kind": "cited", "memory_id": second}).json() == {"stored": 1, "new": 0}
    assert client.post("/v1/learning/mine").json()["examples"] == 1
    with Loop(client.root) as loop:
        event, signals = loop.store.event(event_id)
        (mined,) = examples.load_examples(loop.store.database)
    assert (event.user, event.query_time, len(signals)) == ("ann", "2024-05-01", 2)
    assert {candidate.memory.id: candidate.label for candidate in mined.example.candidates} == {second: 1.0, first: 0.0}
    status = client.get("/v1/learning/status").json()
    assert status["current"] == "0001"
    assert sum(status["examples"].values()) == 1


def test_deleting_a_user_reaches_the_examples(client):
    event_id = rerank(client, "Who keeps the spare keys?", user="bob", tenant="acme")["event_id"]
    give_feedback(client, event_id, {"kind": "click", "rank": 3}, user="bob")
    client.post("/v1/learning/mine")
    bob = {"user": "bob", "tenant": "acme"}
    records = [json.loads(line) for line in client.get("/v1/feedback/export", params=bob).text.splitlines()]
    assert [record["record"] for record in records] == ["event", "example"]
    deleted = client.delete("/v1/feedback", params=bob).json()
    assert deleted == {"events": 1, "signals": 1, "examples": 1, "models": {}}
    assert client.get("/v1/feedback/export", params=bob).text == ""
    assert give_feedback(client, event_id, {"kind": "click", "rank": 1}).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"event_id": "unknown", "signals": [{"kind": "click", "rank": 1}]}, 404, "event_id"),
        ({"event_id": "EVENT", "signals": [{"kind": "click", "rank": 99}]}, 422, "signals.0.rank"),
        ({"event_id": "EVENT", "signals": [{"kind": "click", "memory_id": "m99"}]}, 422, "signals.0.memory_id"),
        ({"event_id": "EVENT", "signals": [{"kind": "like"}]}, 422, "signals.0.kind"),
        ({"event_id": "EVENT", "signals": [{"kind": "stars", "rank": 1, "value": 9}]}, 422, "signals.0.value"),
        ({"event_id": "EVENT", "signals": [{"kind": "note"}]}, 422, "signals.0.note"),
        ({"event_id": "EVENT", "signals": []}, 422, "signals"),
        ({"event_id": "EVENT", "signals": [{"kind": "click", "rank": 0}]}, 422, "signals.0.rank"),
        ({"event_id": "EVENT", "signals": [{"kind": "click", "place": 1}]}, 422, "signals.0.place"),
    ],
)
def test_invalid_feedback_names_the_field(client, body, status, field):
    event_id = rerank(client)["event_id"]
    response = client.post("/v1/feedback", json={**body, "event_id": body["event_id"].replace("EVENT", event_id)})
    assert (response.status_code, response.json()["error"]["field"]) == (status, field)


@pytest.mark.parametrize("params", [{}, {"event": "a", "user": "b"}])
def test_a_deletion_names_exactly_one_thing(client, params):
    assert client.delete("/v1/feedback", params=params).status_code == 422


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("train", {}, 409, "too_few_examples"),
        ("evaluate", {"version": "0009"}, 404, "not_found"),
        ("evaluate", {"version": "0001"}, 409, "current_version"),
        ("promote", {"version": "0009"}, 404, "not_found"),
        ("rollback", {}, 409, "no_previous"),
        ("promote", {"version": "../x"}, 422, "invalid"),
    ],
)
def test_errors_of_the_loop_have_a_status_and_a_code(client, path, body, status, code):
    response = client.post(f"/v1/learning/{path}", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text


def test_runs_and_history(client):
    assert client.get("/v1/learning/runs/123").status_code == 404
    assert client.get("/v1/learning/runs").json() == {"runs": []}
    assert [entry["action"] for entry in client.get("/v1/learning/history").json()["entries"]] == ["add", "promote"]


def test_reports(client):
    for _ in range(3):
        rerank(client, "Where is the zebra?", tenant="zoo")
    memories = client.get("/v1/learning/reports/unused", params={"min_count": 3}).json()["memories"]
    assert "zoo" in {memory["tenant"] for memory in memories}
    assert client.get("/v1/learning/reports/no-hits").status_code == 200
    (today,) = client.get("/v1/learning/reports/daily", params={"days": 1}).json()["days"]
    assert today["events"] >= 3
    assert client.get("/v1/learning/reports/daily", params={"days": 0}).status_code == 422
    examples = client.get("/v1/learning/examples", params={"limit": 1}).json()
    assert len(examples["examples"]) <= 1
    response = client.get("/v1/learning/shadow/0001")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "no_feedback")


@pytest.mark.slow
def test_the_server_follows_promotions_and_rollbacks(client, tiny_onnx):
    with Loop(client.root) as loop:
        loop.versions.add(tiny_onnx)
    before = client.get("/ready").json()["model"]
    response = client.post("/v1/learning/promote", json={"version": "0002"})
    assert (response.status_code, response.json()["error"]["code"]) == (409, "not_evaluated")
    assert client.post("/v1/learning/promote", json={"version": "0002", "force": True}).json() == {"current": "0002"}
    wait_until(lambda: "versions/0002" in client.app.state.slot.current.source)
    assert client.post("/v1/learning/rollback", json={"why": "test"}).json() == {"current": "0001"}
    wait_until(lambda: "versions/0001" in client.app.state.slot.current.source)
    assert client.get("/ready").json()["model"] == before


def test_a_server_without_a_store_or_a_loop(tiny_onnx):
    with serving(model=str(tiny_onnx)) as client:
        response = give_feedback(client, "x", {"kind": "click", "rank": 1})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "no_store")
        response = client.get("/v1/learning/status")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "no_learning")


def test_api_keys_separate_tenants_and_scopes(tmp_path, tiny_onnx):
    keys = tmp_path / "keys.toml"
    headers = {
        name: {"x-api-key": add_key(keys, name, scopes, tenant)}
        for name, scopes, tenant in (
            ("reader", ("read",), None),
            ("acme", ("read", "feedback"), "acme"),
            ("other", ("read", "feedback", "admin"), "other"),
        )
    }
    with serving(model=str(tiny_onnx), store=str(tmp_path / "events.db"), keys=keys) as client:
        body = {"query": "ruby work", "memories": MEMORIES}
        event_id = client.post("/v1/memories/rerank", json=body, headers=headers["acme"]).json()["event_id"]
        feedback = {"event_id": event_id, "signals": [{"kind": "click", "rank": 1}]}
        statuses = {
            name: client.post("/v1/feedback", json=feedback, headers=headers[name]).status_code for name in headers
        }
        assert statuses == {"reader": 403, "acme": 200, "other": 404}
        for params, name, status in (
            ({"event": event_id}, "acme", 403),
            ({"event": event_id}, "other", 404),
            ({"tenant": "acme"}, "other", 403),
            ({"user": "x"}, "other", 200),
        ):
            assert client.delete("/v1/feedback", params=params, headers=headers[name]).status_code == status
    with EventStore(tmp_path / "events.db") as store:
        assert store.event(event_id)[0].tenant == "acme"


@pytest.mark.slow
def test_no_event_is_lost_after_its_response_when_the_server_is_killed(tmp_path, tiny_onnx):
    """A real `mnemorank serve` is killed while several clients send requests."""
    url = str(tmp_path / "events.db")
    server = subprocess.Popen(
        [sys.executable, "-m", "mnemorank", "serve", "--port", "0", "--model", str(tiny_onnx), "--store", url],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    address = next(match[0] for line in server.stdout if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
    reader = threading.Thread(target=server.stdout.read, daemon=True)
    reader.start()
    acknowledged: list[str] = []

    def send_requests() -> None:
        with httpx.Client(base_url=address, timeout=10) as client:
            while True:
                try:
                    response = client.post("/v1/memories/rerank", json={"query": "ruby work", "memories": MEMORIES})
                except httpx.HTTPError:
                    if acknowledged:
                        return  # the server was killed
                    time.sleep(0.05)
                    continue
                if response.status_code == 200:
                    acknowledged.append(response.json()["event_id"])

    threads = [threading.Thread(target=send_requests) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(acknowledged) > 150, 60)
    server.send_signal(signal.SIGKILL)
    for thread in threads:
        thread.join()
    server.wait()
    reader.join()
    server.stdout.close()
    with EventStore(url) as store:
        stored = {event.id for event, _ in store.events()}
    assert set(acknowledged) <= stored
    assert Path(url).stat().st_size > 0
