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
from mnemorank.learning.store.events import EventStore
from mnemorank.learning.store.redaction import Policy
from mnemorank.server.auth import add_key
from tests.learning.learning_server import learning_folder, serving

MEMORIES = [{"id": f"m{i}", "text": text} for i, text in enumerate(("the cat", "ruby work now", "a dog", "ruby"))]


@pytest.fixture(scope="module")
def client(tmp_path_factory, tiny_onnx):
    root = learning_folder(tmp_path_factory.mktemp("loop"))
    with serving(model=str(tiny_onnx), learning=root) as client:
        client.root = root
        yield client


def ask(client, query="Where does ruby work now?", **fields) -> dict:
    answer = client.post("/v1/memories/rerank", json={"query": query, "memories": MEMORIES, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def say(client, event_id, *signals, **fields) -> httpx.Response:
    return client.post("/v1/feedback", json={"event_id": event_id, "signals": list(signals), **fields})


def test_feedback_reaches_the_store_and_becomes_an_example(client):
    asked = ask(client, user="ann", now="2024-05-01")
    first, second = (result["id"] for result in asked["results"][:2])
    answer = say(client, asked["event_id"], {"kind": "cited", "memory_id": second}, {"kind": "ignored", "rank": 0})
    assert answer.json() == {"stored": 2, "new": 2}
    assert say(client, asked["event_id"], {"kind": "cited", "memory_id": second}).json() == {"stored": 1, "new": 0}
    mined = client.post("/v1/learning/mine").json()
    assert mined["examples"] == 1
    with Loop(client.root) as loop:
        event, signals = loop.store.event(asked["event_id"])
        from mnemorank.learning.store import examples

        (mined,) = examples.load(loop.store.database)
    assert (event.user, event.query_time, len(signals)) == ("ann", "2024-05-01", 2)
    assert {candidate.memory.id: candidate.label for candidate in mined.example.candidates} == {second: 1.0, first: 0.0}
    status = client.get("/v1/learning/status").json()
    assert status["current"] == "0001"
    assert sum(status["examples"].values()) == 1


def test_deleting_a_user_reaches_the_examples(client):
    asked = ask(client, "Who keeps the spare keys?", user="bob", tenant="acme")
    say(client, asked["event_id"], {"kind": "click", "rank": 2}, user="bob")
    client.post("/v1/learning/mine")
    exported = client.get("/v1/feedback/export", params={"user": "bob", "tenant": "acme"})
    records = [json.loads(line) for line in exported.text.splitlines()]
    assert [record["record"] for record in records] == ["event", "example"]
    gone = client.delete("/v1/feedback", params={"user": "bob", "tenant": "acme"}).json()
    assert gone == {"events": 1, "signals": 1, "examples": 1, "models": {}}
    assert client.get("/v1/feedback/export", params={"user": "bob", "tenant": "acme"}).text == ""
    assert say(client, asked["event_id"], {"kind": "click", "rank": 0}).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"event_id": "nope", "signals": [{"kind": "click", "rank": 0}]}, 404, "event_id"),
        ({"event_id": "EVENT", "signals": [{"kind": "click", "rank": 99}]}, 422, "signals.0.rank"),
        ({"event_id": "EVENT", "signals": [{"kind": "click", "memory_id": "m99"}]}, 422, "signals.0.memory_id"),
        ({"event_id": "EVENT", "signals": [{"kind": "like"}]}, 422, "signals.0.kind"),
        ({"event_id": "EVENT", "signals": [{"kind": "stars", "rank": 0, "value": 9}]}, 422, "signals.0.value"),
        ({"event_id": "EVENT", "signals": [{"kind": "note"}]}, 422, "signals.0.note"),
        ({"event_id": "EVENT", "signals": []}, 422, "signals"),
        ({"event_id": "EVENT", "signals": [{"kind": "click", "rank": -1}]}, 422, "signals.0.rank"),
        ({"event_id": "EVENT", "signals": [{"kind": "click", "place": 1}]}, 422, "signals.0.place"),
    ],
)
def test_bad_feedback_says_which_field(client, body, status, field):
    event_id = ask(client)["event_id"]
    answer = client.post("/v1/feedback", json={**body, "event_id": body["event_id"].replace("EVENT", event_id)})
    assert (answer.status_code, answer.json()["error"]["field"]) == (status, field)


@pytest.mark.parametrize("params", [{}, {"event": "a", "user": "b"}])
def test_a_deletion_names_one_thing(client, params):
    assert client.delete("/v1/feedback", params=params).status_code == 422


def test_what_the_loop_refuses_is_told(client):
    for path, body, status, words in (
        ("train", {}, 409, "at least 20 are needed"),
        ("evaluate", {"version": "0009"}, 404, "no version '0009'"),
        ("evaluate", {"version": "0001"}, 409, "is the current one"),
        ("promote", {"version": "0009"}, 404, "no version '0009'"),
        ("rollback", {}, 409, "no earlier version"),
        ("promote", {"version": "../x"}, 422, "version"),
    ):
        answer = client.post(f"/v1/learning/{path}", json=body)
        assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert client.get("/v1/learning/runs/123").status_code == 404
    assert client.get("/v1/learning/runs").json() == {"runs": []}
    assert [entry["action"] for entry in client.get("/v1/learning/history").json()["entries"]] == ["add", "promote"]


def test_reports_come_by_http(client):
    for _ in range(3):
        ask(client, "Where is the zebra?", tenant="zoo")
    shown = client.get("/v1/learning/reports/unused", params={"least": 3}).json()["memories"]
    assert {"zoo"} <= {memory["tenant"] for memory in shown}
    assert client.get("/v1/learning/reports/no-hits").status_code == 200
    assert client.get("/v1/learning/shadow/0001").status_code == 409


def test_a_promotion_and_a_rollback_are_served_at_once(client, tiny_onnx):
    with Loop(client.root) as loop:
        loop.registry.add(tiny_onnx)
    before = client.get("/ready").json()["model"]
    assert client.post("/v1/learning/promote", json={"version": "0002", "force": True}).json() == {"current": "0002"}
    _until(lambda: "versions/0002" in _source(client))
    assert client.post("/v1/learning/rollback", json={"why": "test"}).json() == {"current": "0001"}
    _until(lambda: "versions/0001" in _source(client))
    assert client.get("/ready").json()["model"] == before


def _source(client) -> str:
    return client.app.state.slot.current.source


def _until(holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def test_without_a_store_or_loop_the_routes_say_so(tiny_onnx):
    with serving(model=str(tiny_onnx)) as client:
        answer = say(client, "x", {"kind": "click", "rank": 0})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_store")
        assert client.get("/v1/learning/status").json()["error"]["code"] == "no_learning"


def test_keys_keep_tenants_and_scopes_apart(tmp_path, tiny_onnx):
    keys = tmp_path / "keys.toml"
    made = {
        name: {"x-api-key": add_key(keys, name, scopes, tenant)}
        for name, scopes, tenant in (
            ("reader", ("read",), None),
            ("acme", ("read", "feedback"), "acme"),
            ("other", ("read", "feedback", "admin"), "other"),
        )
    }
    with serving(model=str(tiny_onnx), store=str(tmp_path / "events.db"), keys=keys) as client:
        body = {"query": "ruby work", "memories": MEMORIES}
        event_id = client.post("/v1/memories/rerank", json=body, headers=made["acme"]).json()["event_id"]
        signal_body = {"event_id": event_id, "signals": [{"kind": "click", "rank": 0}]}
        statuses = {
            name: client.post("/v1/feedback", json=signal_body, headers=made[name]).status_code for name in made
        }
        assert statuses == {"reader": 403, "acme": 200, "other": 404}
        for params, name, status in (
            ({"event": event_id}, "acme", 403),
            ({"event": event_id}, "other", 404),
            ({"tenant": "acme"}, "other", 403),
            ({"user": "x"}, "other", 200),
        ):
            assert client.delete("/v1/feedback", params=params, headers=made[name]).status_code == status
    with EventStore(tmp_path / "events.db") as store:
        assert store.event(event_id)[0].tenant == "acme"


def test_no_event_is_lost_after_its_200_when_the_server_is_killed(tmp_path, tiny_onnx):
    """A real `mnemorank serve` under load from several clients, killed without warning."""
    url = str(tmp_path / "events.db")
    server = subprocess.Popen(
        [sys.executable, "-m", "mnemorank", "serve", "--port", "0", "--model", str(tiny_onnx), "--store", url],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    address = next(found[0] for line in server.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
    drain = threading.Thread(target=server.stdout.read, daemon=True)
    drain.start()
    answered: list[str] = []

    def hammer() -> None:
        with httpx.Client(base_url=address, timeout=10) as client:
            while True:
                try:
                    answer = client.post("/v1/memories/rerank", json={"query": "ruby work", "memories": MEMORIES})
                except httpx.HTTPError:
                    if answered:
                        return  # killed
                    time.sleep(0.05)
                    continue
                if answer.status_code == 200:
                    answered.append(answer.json()["event_id"])

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    _until(lambda: len(answered) > 150, 60)
    server.send_signal(signal.SIGKILL)
    for thread in threads:
        thread.join()
    server.wait()
    drain.join()
    server.stdout.close()
    with EventStore(url, Policy()) as store:
        stored = {event.id for event, _ in store.events()}
    assert set(answered) <= stored
    assert Path(url).stat().st_size > 0
