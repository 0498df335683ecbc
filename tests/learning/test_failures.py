"""Broken disks and stores, concurrent processes, and tenants that must not see each other."""

import os
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy

from mnemorank import InputError
from mnemorank.learning.loop import Loop
from mnemorank.learning.mining.miner import TRAIN, MinedExample
from mnemorank.learning.store import examples
from mnemorank.learning.store.database import EVENT_TIMEOUT
from mnemorank.learning.store.events import EventStore
from mnemorank.server.auth import add_key
from tests.learning import simulation
from tests.learning.conftest import fresh_database
from tests.learning.server import serving, write_settings

MEMORIES = ["the cat", "ruby work now", "a dog"]


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as error:
        Loop(tmp_path / "file" / "loop")
    assert error.value.code == "not_writable"
    assert error.value.location.startswith(str(tmp_path / "file"))


def test_a_file_that_is_not_a_database_is_an_error(tmp_path):
    (tmp_path / "events.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(InputError, match=r"events.db") as error:
        EventStore(tmp_path / "events.db")
    assert (error.value.field, error.value.code) == ("store", "unavailable")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_store_on_a_read_only_disk_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError) as error:
        EventStore(tmp_path / "events.db")
    assert (error.value.field, error.value.code) == ("store", "unavailable")


TRAIN_SCRIPT = """
import sys
from pathlib import Path
from mnemorank.errors import ConflictError
from mnemorank.learning.loop import Loop
with Loop(Path(sys.argv[1])) as loop:
    loop.runs.start = lambda *_: None
    try:
        loop.train()
        print("started")
    except ConflictError as error:
        print(error.code)
"""


@pytest.mark.slow
def test_two_processes_do_not_start_two_runs(tmp_path, tiny_onnx):
    root = write_settings(tmp_path / "loop", f'[training]\nmodel = "{tiny_onnx}"\n')
    with Loop(root) as loop:
        mined = [
            MinedExample(example, "default", TRAIN, {}, frozenset({("event", example.id)}))
            for example in simulation.preference_examples(1, 30)
        ]
        examples.replace_examples(loop.store.database, mined, "wish")
        loop.current()
    processes = [
        subprocess.Popen([sys.executable, "-c", TRAIN_SCRIPT, str(root)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outcomes = sorted(process.communicate(timeout=200)[0].strip() for process in processes)
    assert outcomes == ["run_in_progress", "started"]
    with Loop(root) as loop:
        assert len(loop.runs.all()) == 1


def test_reranking_continues_when_the_store_fails(tmp_path, tiny_onnx):
    with serving(model=str(tiny_onnx), store=str(tmp_path / "events.db")) as client:
        body = {"query": "ruby work", "memories": MEMORIES}
        event_id = client.post("/v1/memories/rerank", json=body).json()["event_id"]
        with sqlite3.connect(tmp_path / "events.db") as connection:
            connection.execute("ALTER TABLE signals RENAME TO gone")
        feedback = {"event_id": event_id, "signals": [{"kind": "click", "rank": 1}]}
        response = client.post("/v1/feedback", json=feedback)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "store_failed")
        with sqlite3.connect(tmp_path / "events.db") as connection:
            connection.execute("ALTER TABLE gone RENAME TO signals")
            connection.execute("ALTER TABLE events RENAME TO elsewhere")
        assert client.post("/v1/memories/rerank", json=body).status_code == 200
        assert "mnemorank_events_lost_total 1.0" in client.get("/metrics").text
        with sqlite3.connect(tmp_path / "events.db") as connection:
            connection.execute("ALTER TABLE elsewhere RENAME TO events")
        assert client.post("/v1/feedback", json=feedback).json() == {"stored": 1, "new": 1}


@pytest.mark.slow
def test_a_locked_postgres_does_not_delay_responses(postgres, tiny_onnx):
    url = fresh_database(postgres)
    with serving(model=str(tiny_onnx), store=url) as client, EventStore(url) as other:
        body = {"query": "ruby work", "memories": MEMORIES}
        assert client.post("/v1/memories/rerank", json=body).status_code == 200
        with other.database.writing() as connection, ThreadPoolExecutor(8) as pool:
            connection.execute(sqlalchemy.text("LOCK TABLE events IN ACCESS EXCLUSIVE MODE"))
            started = time.monotonic()
            responses = list(pool.map(lambda _: client.post("/v1/memories/rerank", json=body), range(8)))
            seconds = time.monotonic() - started
        assert {response.status_code for response in responses} == {200}
        assert seconds < 5 * EVENT_TIMEOUT, "without timeouts, they would wait for the lock"
        assert "mnemorank_events_lost_total 8.0" in client.get("/metrics").text
        assert client.get("/health").status_code == 200
        response = client.post("/v1/memories/rerank", json=body)
        assert other.event(response.json()["event_id"]) is not None


def test_a_tenants_admin_neither_sees_other_tenants_nor_controls_the_loop(tmp_path, tiny_onnx):
    keys = tmp_path / "keys.toml"
    owner, acme, other = (
        {"x-api-key": add_key(keys, name, ("read", "feedback", "admin"), tenant)}
        for name, tenant in (("owner", None), ("acme", "acme"), ("other", "other"))
    )
    root = write_settings(tmp_path / "loop")
    with serving(model=str(tiny_onnx), learning=root, keys=keys) as client:
        body = {"query": "acme's secret plan", "memories": ["the secret plan", "a dog"], "user": "ann"}
        for _ in range(2):
            assert client.post("/v1/memories/rerank", json=body, headers=acme).is_success

        def unused(headers) -> list[str]:
            report = client.get("/v1/learning/reports/unused", params={"min_count": 2}, headers=headers).json()
            return [memory["text"] for memory in report["memories"]]

        assert sorted(unused(acme)) == sorted(unused(owner)) == ["a dog", "the secret plan"]
        assert unused(other) == []
        assert client.get("/v1/feedback/export", params={"user": "ann"}, headers=other).text == ""
        for method, path in (
            ("GET", "status"), ("GET", "history"), ("GET", "runs"), ("GET", "shadow/0001"), ("POST", "mine"),
            ("POST", "run"),
        ):  # fmt: skip
            response = client.request(method, f"/v1/learning/{path}", headers=other)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden"), path
        assert client.get("/v1/learning/status", headers=owner).json()["events"] == 2
