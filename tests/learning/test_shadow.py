"""A candidate that scores live traffic unseen, and what later feedback says of it."""

import random
import threading
import time
from dataclasses import replace

import pytest

from mnemorank import Memory
from mnemorank.learning.gate import GateRules, check_shadow
from mnemorank.learning.loop import Loop
from mnemorank.learning.mining.miner import HELD_OUT, MinedExample
from mnemorank.learning.shadow import Shadow, compare_shadow
from mnemorank.learning.signals import Signal
from mnemorank.learning.store import examples
from mnemorank.learning.versions import Registry
from tests.learning import simulated as world
from tests.learning.learning_cases import make_event
from tests.learning.learning_server import learning_folder, serving


@pytest.fixture
def version(tmp_path, tiny_onnx):
    return Registry(tmp_path / "registry").add(tiny_onnx)


def test_a_shadow_is_compared_by_later_feedback(store, version):
    shadow = Shadow(store, lambda: version)
    ids = []
    for number in range(12):
        texts = ("cat", "ruby", f"trip {number}")
        ids.append(store.record(make_event("ruby work", texts)))
        shadow.observe(ids[-1], "ruby work", [Memory(text) for text in texts])
    shadow.close()
    assert compare_shadow(store, "0001") is None, "no feedback yet"
    for event_id in ids:
        store.signal([Signal(event_id, "click", 1)])  # the one that the candidate puts first
    result = compare_shadow(store, "0001")
    assert (result.scored, result.events, result.shown, result.candidate) == (12, 12, 0.5, 1.0)
    assert result.comparison.wins == 12
    assert result.comparison.p < 0.01
    assert compare_shadow(store, "0009") is None
    assert check_shadow(result, GateRules(shadow_events=12)).passed
    assert "feedback on 12 events, 13 are needed" in check_shadow(result, GateRules(shadow_events=13)).reason


def test_a_question_too_long_for_the_candidate_is_scored_by_its_end(sqlite_store, version):
    query = "where is the dog " * 400 + "ruby"
    event_id = sqlite_store.record(make_event(query, ("cat", "ruby")))
    shadow = Shadow(sqlite_store, lambda: version)
    shadow.observe(event_id, query, [Memory("cat"), Memory("ruby")])
    shadow.close()
    sqlite_store.signal([Signal(event_id, "click", 1)])
    assert compare_shadow(sqlite_store, "0001").candidate == 1.0


def test_a_candidate_that_knows_nothing_does_not_win_by_being_different(sqlite_store):
    """Users click by position alone. To count only what was skipped above a click would make any other order win."""
    source = random.Random(8)
    from mnemorank.learning.mining.propensity import estimate
    from mnemorank.learning.store import schema

    for number in range(150):
        event_id = sqlite_store.record(make_event(f"question {number}", tuple("abcdef")))
        rows = [{"event_id": event_id, "version": "0002", "position": i, "score": source.random()} for i in range(6)]
        with sqlite_store.database.writing() as connection:
            connection.execute(schema.shadow_scores.insert(), rows)
        clicked = [place for place in range(6) if source.random() < 0.3 * (place + 1) ** -0.7]
        sqlite_store.signal([Signal(event_id, "click", place) for place in clicked])
    result = compare_shadow(sqlite_store, "0002", estimate(sqlite_store.events()))
    assert result.events > 80
    assert result.candidate - result.shown < 0.05
    assert result.comparison.p > 0.05 or result.candidate < result.shown


def test_both_models_are_compared_by_their_own_scores(sqlite_store):
    """The pipeline put first what the model in service scores low; a candidate with the same scores is no worse."""
    from mnemorank.learning.store import schema

    scores = (-1.0, 2.0, 0.5)
    for number in range(12):
        event = make_event(f"question {number}", tuple("abc"))
        shown = tuple(replace(one, raw_score=score) for one, score in zip(event.shown, scores, strict=True))
        event_id = sqlite_store.record(replace(event, shown=shown))
        rows = [{"event_id": event_id, "version": "0002", "position": i, "score": s} for i, s in enumerate(scores)]
        with sqlite_store.database.writing() as connection:
            connection.execute(schema.shadow_scores.insert(), rows)
        sqlite_store.signal([Signal(event_id, "click", 0)])
    result = compare_shadow(sqlite_store, "0002")
    assert (result.events, result.comparison.ties) == (12, 12)
    assert check_shadow(result, GateRules(shadow_events=12)).passed


def test_a_shadow_that_cannot_keep_up_skips_and_never_waits(sqlite_store, version, monkeypatch):
    shadow = Shadow(sqlite_store, lambda: version, waiting=1)
    blocked, release = threading.Event(), threading.Event()
    score = shadow._score

    def slow(*arguments):
        blocked.set()
        release.wait(10)
        score(*arguments)

    monkeypatch.setattr(shadow, "_score", slow)
    shadow.observe("a", "ruby", [Memory("ruby")])
    assert blocked.wait(10)
    for _ in range(5):
        shadow.observe("b", "ruby", [Memory("ruby")])
    assert shadow.skipped >= 4
    release.set()
    shadow.close()


def test_a_candidate_that_does_not_load_is_told_once_and_harms_nothing(sqlite_store, version, caplog):
    (version.path / "model.onnx").write_bytes(b"broken")
    shadow = Shadow(sqlite_store, lambda: version, refresh=0.0)
    for number in range(3):
        event_id = sqlite_store.record(make_event(f"question {number}"))
        shadow.observe(event_id, "ruby", [Memory("ruby")])
    shadow.close()
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    assert compare_shadow(sqlite_store, "0001") is None


SETTINGS = """
shadow = true
[privacy]
texts = true
[guards]
general = "{general}"
dated = "{dated}"
[gate]
latency = 20.0
shadow_events = 20
"""


@pytest.fixture(scope="module")
def models(tiny_world_base, tmp_path_factory):
    """What is served, and a candidate that knows the users' wishes; both exported."""
    import shutil

    from tokenizers import Tokenizer
    from transformers import BertForSequenceClassification

    from mnemorank.artifact.manifest import Manifest, write_manifest
    from mnemorank.export.exporter import export

    folder = tmp_path_factory.mktemp("shadow")
    wiser = folder / "wiser"
    shutil.copytree(tiny_world_base, wiser)
    network = BertForSequenceClassification.from_pretrained(str(tiny_world_base))
    world.teach(network, Tokenizer.from_file(str(wiser / "tokenizer.json")), wishes=True)
    network.save_pretrained(str(wiser))
    manifest = Manifest("tiny", family="torch", format="plain", max_length=48)
    write_manifest(wiser, manifest, ["config.json", "model.safetensors", "tokenizer.json"])
    for name, source in (("served", tiny_world_base), ("candidate", wiser)):
        export(source, folder / name, quantize="none")
    return folder


def test_a_candidate_is_scored_in_the_shadow_over_http_and_promoted_by_what_users_say(tmp_path, models):
    files = world.write_sets(tmp_path / "sets")
    root = learning_folder(tmp_path / "loop", SETTINGS.format(**files))
    settings_model = {"model": str(models / "served"), "learning": root}
    with serving(**settings_model) as client:
        with Loop(root) as loop:
            known = [
                MinedExample(replace(one, id=f"feedback-{n}"), "default", HELD_OUT, {}, frozenset({("event", str(n))}))
                for n, one in enumerate(world.preference_examples(21, 40))
            ]
            examples.save(loop.store.database, known, "feedback")
            assert loop.registry.add(models / "candidate").name == "0002"
            assert loop.shadow_candidate() is None, "before the gate"
        assert client.post("/v1/learning/evaluate", json={"version": "0002"}).json()["promote"]
        refused = client.post("/v1/learning/promote", json={"version": "0002"})
        assert (refused.status_code, "feedback on 0 events, 20 are needed" in refused.text) == (409, True)
        use(client, random.Random(5), 40)
        _until(lambda: client.get("/v1/learning/status").json()["shadow"]["scored"] >= 35)
        status = client.get("/v1/learning/status").json()
        assert status["current"] == "0001"
        assert status["shadow"]["check"]["passed"], status["shadow"]
        found = client.get("/v1/learning/shadow/0002").json()
        assert found["candidate"] > found["shown"] + 0.1
        assert found["comparison"]["p"] < 0.05
        shown = client.post("/v1/memories/rerank", json={"query": "topicaa aspectaa", "memories": ["a b"]}).json()
        assert shown["model"]["fingerprint"] == client.app.state.slot.current.model.fingerprint
        assert client.post("/v1/learning/promote", json={"version": "0002"}).json() == {"current": "0002"}
        _until(lambda: "versions/0002" in client.app.state.slot.current.source)
        assert client.get("/v1/learning/status").json()["shadow"] is None
        promoted = client.get("/v1/learning/history").json()["entries"][-1]
        assert promoted["facts"]["shadow"]["passed"]
        client.post("/v1/learning/rollback", json={})
        with Loop(root) as loop:
            assert loop.shadow_candidate() is None, "what was rolled back does not come back by itself"
            assert loop.settle_shadow() is None
            loop.evaluate("0002")
            assert loop.settle_shadow(who="schedule").name == "0002"


def use(client, source: random.Random, sessions: int) -> None:
    user = world.User("ann", source)
    for query in world.queries(source, sessions):
        texts = [memory.text for memory in world.pool(source, query)]
        body = {"query": query, "memories": texts, "user": "ann", "options": {"first_stage": "none"}}
        answer = client.post("/v1/memories/rerank", json=body).json()
        clicked = user.clicks([result["text"] for result in answer["results"]])
        if clicked:
            signals = [{"kind": "click", "rank": rank} for rank in clicked]
            assert client.post("/v1/feedback", json={"event_id": answer["event_id"], "signals": signals}).is_success


def _until(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)
