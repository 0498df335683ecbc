"""Broken disks, clocks and links, and tenants who look over the fence: a clear word, and nothing lost."""

import os
import sqlite3
import subprocess
import sys
from datetime import datetime, timedelta

import pytest

from mnemorank import ArtifactError, InputError
from mnemorank.learning.events import RerankEvent
from mnemorank.learning.loop import Loop
from mnemorank.learning.schedule import Cron, Scheduler
from mnemorank.learning.settings import Schedule, Settings, Training
from mnemorank.learning.signals import Signal
from mnemorank.learning.store.events import EventStore
from mnemorank.learning.versions import Registry
from mnemorank.server.auth import add_key
from tests.learning.learning_cases import make_event
from tests.learning.learning_server import learning_folder, serving

MEMORIES = ["the cat", "ruby work now", "a dog"]


@pytest.fixture
def registry(tmp_path, tiny_onnx) -> Registry:
    registry = Registry(tmp_path / "registry")
    for _ in range(2):
        registry.add(tiny_onnx)
    registry.promote("0001")
    registry.promote("0002")
    return registry


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file.*: the loop needs a folder to write to: Not a directory"):
        Loop(tmp_path / "file" / "loop")


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "events.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(InputError, match=r"store: cannot open .*events.db: file is not a database"):
        EventStore(tmp_path / "events.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_store_on_a_read_only_disk_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="store: cannot open"):
        EventStore(tmp_path / "events.db")


def broken_links(registry: Registry):
    link = registry.current_path
    link.unlink()
    yield "missing"
    link.unlink()
    link.symlink_to("versions/0009")
    yield "points to nothing"
    link.unlink()
    link.write_text("versions/0002")
    yield "a file"


def test_a_corrupt_current_is_told_with_the_way_out_which_works(registry):
    for _ in broken_links(registry):
        with pytest.raises(ArtifactError, match=r"current: is missing or points .* rollback VERSION.*: 0001, 0002"):
            registry.current()
        assert registry.rollback("0002").name == "0002"
        assert registry.current().name == "0002"
    assert [version.name for version in registry.versions()] == ["0001", "0002"]


def test_a_lost_current_does_not_put_the_first_model_back_by_itself(tmp_path, tiny_onnx):
    settings = Settings(training=Training(model=str(tiny_onnx)))
    with Loop(tmp_path, settings) as loop:
        assert loop.current().name == "0001"
        loop.registry.current_path.unlink()
        with pytest.raises(ArtifactError, match="rollback VERSION"):
            loop.current()
        assert [version.name for version in loop.registry.versions()] == ["0001"]


def test_a_stop_after_the_first_version_was_added_is_made_good(tmp_path, tiny_onnx):
    with Loop(tmp_path, Settings(training=Training(model=str(tiny_onnx)))) as loop:
        loop.registry.add(tiny_onnx)
        assert loop.current().name == "0001"
        assert len(loop.registry.versions()) == 1


def test_a_damaged_version_file_is_named(registry):
    (registry.version("0001").path / "version.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"0001/version.json: is damaged"):
        registry.versions()
    assert registry.rollback("0002").name == "0002"


def test_versions_are_in_order_past_9999(registry, tiny_onnx):
    registry.version("0002").path.rename(registry.root / "versions" / "9999")
    registry.current_path.unlink()
    registry.current_path.symlink_to("versions/9999")
    assert registry.add(tiny_onnx).name == "10000"
    assert [version.name for version in registry.versions()] == ["0001", "9999", "10000"]


def test_a_signal_from_before_its_event_counts_as_given_with_it(store):
    event_id = store.record(make_event(time=1000.0))
    store.signal([Signal(event_id, "thumbs_up", 0, time=900.0)])
    store.signal([Signal(event_id, "thumbs_up", 0, time=-5e9)])
    (signal,) = store.event(event_id)[1]
    assert (signal.time, signal.late) == (1000.0, False)
    for time in (float("nan"), float("inf")):
        with pytest.raises(InputError, match="time: expected seconds"):
            Signal(event_id, "click", 0, time=time)
        with pytest.raises(InputError, match="time: expected seconds"):
            RerankEvent("q", (), "v1", time=time)


def test_a_clock_that_is_set_back_does_not_stop_the_schedule():
    scheduler = Scheduler(lambda: None, lambda: 0, cron=Cron.parse("0 3 * * *"))
    wrong = datetime(2099, 5, 1, 3, 0)
    assert scheduler.is_due(wrong)
    assert not scheduler.is_due(wrong - timedelta(seconds=2)), "a small step back brings no second run"
    assert not scheduler.is_due(wrong)
    right = datetime(2026, 1, 1, 12, 0)
    assert not scheduler.is_due(right)
    assert scheduler.is_due(right + timedelta(hours=15))


@pytest.mark.parametrize("cron", ["every day", "0 25 * * *", "0 0 31 2 *", "0 3 * *", "- - - - -", "0 3 * * * *"])
def test_a_cron_expression_that_makes_no_sense_is_refused_with_the_settings(cron):
    with pytest.raises(InputError, match="cron: "):
        Schedule(cron=cron)


BEGIN = """
import sys
from pathlib import Path
from mnemorank import InputError
from mnemorank.learning.loop import Loop
with Loop(Path(sys.argv[1])) as loop:
    loop.runs.start = lambda *_: None
    try:
        print("begun", loop.train()[0].id)
    except InputError as error:
        print(error)
"""


def test_two_processes_do_not_begin_two_trainings(tmp_path, tiny_onnx):
    from mnemorank.learning.mining.miner import TRAIN, MinedExample
    from mnemorank.learning.store import examples
    from tests.learning import simulated as world

    root = learning_folder(tmp_path / "loop", f'[training]\nmodel = "{tiny_onnx}"\n')
    with Loop(root) as loop:
        given = [
            MinedExample(one, "default", TRAIN, {}, frozenset({("event", one.id)}))
            for one in world.preference_examples(1, 30)
        ]
        examples.save(loop.store.database, given, "wish")
        loop.current()
    beginners = [
        subprocess.Popen([sys.executable, "-c", BEGIN, str(root)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    told = sorted(process.communicate(timeout=200)[0].split()[0] for process in beginners)
    assert told == ["begun", "run:"]
    with Loop(root) as loop:
        assert len(loop.runs.all()) == 1


def test_a_store_that_fails_under_the_server_is_told_and_reranking_goes_on(tmp_path, tiny_onnx):
    with serving(model=str(tiny_onnx), store=str(tmp_path / "events.db")) as client:
        body = {"query": "ruby work", "memories": MEMORIES}
        event_id = client.post("/v1/memories/rerank", json=body).json()["event_id"]
        with sqlite3.connect(tmp_path / "events.db") as connection:
            connection.execute("ALTER TABLE signals RENAME TO gone")
        feedback = {"event_id": event_id, "signals": [{"kind": "click", "rank": 0}]}
        answer = client.post("/v1/feedback", json=feedback)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_failed")
        assert "nothing was stored" in answer.json()["error"]["message"]
        with sqlite3.connect(tmp_path / "events.db") as connection:
            connection.execute("ALTER TABLE gone RENAME TO signals")
            connection.execute("ALTER TABLE events RENAME TO elsewhere")
        assert client.post("/v1/memories/rerank", json=body).status_code == 200
        assert "mnemorank_events_lost_total 1.0" in client.get("/metrics").text
        with sqlite3.connect(tmp_path / "events.db") as connection:
            connection.execute("ALTER TABLE elsewhere RENAME TO events")
        assert client.post("/v1/feedback", json=feedback).json() == {"stored": 1, "new": 1}


def test_a_tenants_admin_neither_reads_other_tenants_nor_turns_the_loop(tmp_path, tiny_onnx):
    keys = tmp_path / "keys.toml"
    owner, acme, other = (
        {"x-api-key": add_key(keys, name, ("read", "feedback", "admin"), tenant)}
        for name, tenant in (("owner", None), ("acme", "acme"), ("other", "other"))
    )
    root = learning_folder(tmp_path / "loop")
    with serving(model=str(tiny_onnx), learning=root, keys=keys) as client:
        body = {"query": "acme's secret plan", "memories": ["the secret plan", "a dog"], "user": "ann"}
        for _ in range(2):
            assert client.post("/v1/memories/rerank", json=body, headers=acme).is_success

        def unused(headers) -> list[str]:
            path = "/v1/learning/reports/unused"
            return [m["text"] for m in client.get(path, params={"least": 2}, headers=headers).json()["memories"]]

        assert sorted(unused(acme)) == sorted(unused(owner)) == ["a dog", "the secret plan"]
        assert unused(other) == []
        assert client.get("/v1/feedback/export", params={"user": "ann"}, headers=other).text == ""
        for method, path in (
            ("GET", "status"), ("GET", "history"), ("GET", "runs"), ("GET", "shadow/0001"), ("POST", "mine"),
            ("POST", "run"),
        ):  # fmt: skip
            answer = client.request(method, f"/v1/learning/{path}", headers=other)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), path
        assert client.get("/v1/learning/status", headers=owner).json()["events"] == 2
