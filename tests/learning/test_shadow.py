"""Shadow mode: a candidate scores live traffic, and later feedback compares it with what was shown."""

import random
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mnemorank import Memory
from mnemorank.learning.gate import check_shadow
from mnemorank.learning.loop import Loop
from mnemorank.learning.mining.miner import HELD_OUT, MinedExample
from mnemorank.learning.mining.propensity import estimate_propensities
from mnemorank.learning.settings import GateSettings
from mnemorank.learning.shadow import ShadowScorer, compare_shadow
from mnemorank.learning.signals import Signal
from mnemorank.learning.store import examples, schema
from mnemorank.learning.versions import VersionStore
from tests.learning import simulation
from tests.learning.factories import make_event
from tests.learning.server import serving, wait_until, write_settings


@pytest.fixture
def version(tmp_path, tiny_onnx):
    return VersionStore(tmp_path / "versions").add(tiny_onnx)


def test_a_candidate_is_compared_by_later_feedback(store, version):
    shadow = ShadowScorer(store, lambda: version)
    event_ids = []
    for number in range(12):
        texts = ("cat", "ruby", f"trip {number}")
        event_ids.append(store.record(make_event("ruby work", texts)))
        shadow.observe(event_ids[-1], "ruby work", [Memory(text) for text in texts])
    shadow.close()
    assert compare_shadow(store, "0001") is None, "no feedback yet"
    for event_id in event_ids:
        store.add_signals([Signal(event_id, "click", 2)])  # the candidate ranks it first
    result = compare_shadow(store, "0001")
    assert (result.scored, result.events, result.served_map, result.candidate_map) == (12, 12, 0.5, 1.0)
    assert result.comparison.wins == 12
    assert result.comparison.p < 0.01
    assert compare_shadow(store, "0009") is None
    assert check_shadow(result, GateSettings(shadow_events=12)).passed
    assert not check_shadow(result, GateSettings(shadow_events=13)).passed
    assert not check_shadow(None, GateSettings()).passed


def test_a_query_that_is_too_long_for_the_candidate_is_scored_by_its_end(sqlite_store, version):
    query = "where is the dog " * 400 + "ruby"
    event_id = sqlite_store.record(make_event(query, ("cat", "ruby")))
    shadow = ShadowScorer(sqlite_store, lambda: version)
    shadow.observe(event_id, query, [Memory("cat"), Memory("ruby")])
    shadow.close()
    sqlite_store.add_signals([Signal(event_id, "click", 2)])
    assert compare_shadow(sqlite_store, "0001").candidate_map == 1.0


def add_scores(store, event_id: str, scores) -> None:
    rows = [
        {"event_id": event_id, "version": "0002", "rank": rank, "score": score} for rank, score in enumerate(scores, 1)
    ]
    with store.database.writing() as connection:
        connection.execute(schema.shadow_scores.insert(), rows)


def test_a_random_candidate_does_not_win_by_being_different(sqlite_store):
    """Users click by rank alone. If only skipped memories above a click counted, any other order would win."""
    rng = random.Random(8)
    for number in range(150):
        event_id = sqlite_store.record(make_event(f"question {number}", tuple("abcdef")))
        add_scores(sqlite_store, event_id, [rng.random() for _ in range(6)])
        clicked = [rank for rank in range(1, 7) if rng.random() < 0.3 * rank**-0.7]
        sqlite_store.add_signals([Signal(event_id, "click", rank) for rank in clicked])
    result = compare_shadow(sqlite_store, "0002", estimate_propensities(sqlite_store.events()))
    assert result.events > 80
    assert result.candidate_map - result.served_map < 0.05
    assert result.comparison.p > 0.05 or result.candidate_map < result.served_map


def test_both_models_are_compared_by_their_own_scores(sqlite_store):
    """The pipeline shows a memory first that the model scores low; a candidate with equal scores is not worse."""
    scores = (-1.0, 2.0, 0.5)
    for number in range(12):
        event = make_event(f"question {number}", tuple("abc"))
        shown = tuple(replace(entry, raw_score=score) for entry, score in zip(event.shown, scores, strict=True))
        event_id = sqlite_store.record(replace(event, shown=shown))
        add_scores(sqlite_store, event_id, scores)
        sqlite_store.add_signals([Signal(event_id, "click", 1)])
    result = compare_shadow(sqlite_store, "0002")
    assert (result.events, result.comparison.ties) == (12, 12)
    assert check_shadow(result, GateSettings(shadow_events=12)).passed


def test_events_are_skipped_when_the_candidate_falls_behind(sqlite_store, version, monkeypatch):
    shadow = ShadowScorer(sqlite_store, lambda: version, max_waiting=1)
    is_blocked, release = threading.Event(), threading.Event()
    score = shadow._score

    def score_slowly(*arguments):
        is_blocked.set()
        release.wait(10)
        score(*arguments)

    monkeypatch.setattr(shadow, "_score", score_slowly)
    shadow.observe("a", "ruby", [Memory("ruby")])
    assert is_blocked.wait(10)
    for _ in range(5):
        shadow.observe("b", "ruby", [Memory("ruby")])
    assert shadow.skipped >= 4
    release.set()
    shadow.close()


def test_a_candidate_that_cannot_be_loaded_is_logged_once(sqlite_store, version, caplog):
    (version.path / "model.onnx").write_bytes(b"broken")
    shadow = ShadowScorer(sqlite_store, lambda: version, refresh=0.0)
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
max_latency_ratio = 20.0
shadow_events = 20
"""


@pytest.fixture(scope="module")
def models(simulation_base, tmp_path_factory) -> Path:
    """A folder with the served model, and a candidate that knows the preference of the users."""
    from tokenizers import Tokenizer
    from transformers import BertForSequenceClassification

    from mnemorank.artifact.manifest import Manifest, write_manifest
    from mnemorank.export.exporter import export

    folder = tmp_path_factory.mktemp("shadow")
    trained = folder / "trained"
    shutil.copytree(simulation_base, trained)
    network = BertForSequenceClassification.from_pretrained(str(simulation_base))
    simulation.teach(network, Tokenizer.from_file(str(trained / "tokenizer.json")), preferences=True)
    network.save_pretrained(str(trained))
    manifest = Manifest("tiny", family="torch", format="plain", max_length=48)
    write_manifest(trained, manifest)
    for name, source in (("served", simulation_base), ("candidate", trained)):
        export(source, folder / name, quantize="none")
    return folder


@pytest.mark.slow
def test_a_candidate_is_promoted_after_live_feedback(tmp_path, models):
    files = simulation.write_sets(tmp_path / "sets")
    root = write_settings(tmp_path / "loop", SETTINGS.format(**files))
    with serving(model=str(models / "served"), learning=root) as client:
        with Loop(root) as loop:
            held_out = [
                MinedExample(
                    replace(example, id=f"feedback-{number}"),
                    "default",
                    HELD_OUT,
                    {},
                    frozenset({("event", str(number))}),
                )
                for number, example in enumerate(simulation.preference_examples(21, 40))
            ]
            examples.replace_examples(loop.store.database, held_out, "feedback")
            assert loop.versions.add(models / "candidate").name == "0002"
            assert loop.shadow_candidate() is None, "it has not passed the gate"
        assert client.post("/v1/learning/evaluate", json={"version": "0002"}).json()["promote"]
        response = client.post("/v1/learning/promote", json={"version": "0002"})
        assert (response.status_code, response.json()["error"]["code"]) == (409, "shadow_not_passed")
        simulate_user(client, random.Random(5), 40)
        wait_until(lambda: client.get("/v1/learning/status").json()["shadow"]["scored"] >= 35)
        status = client.get("/v1/learning/status").json()
        assert status["current"] == "0001"
        assert status["shadow"]["check"]["passed"], status["shadow"]
        result = client.get("/v1/learning/shadow/0002").json()
        assert result["candidate_map"] > result["served_map"] + 0.1
        assert result["comparison"]["p"] < 0.05
        ranking = client.post("/v1/memories/rerank", json={"query": "topicaa aspectaa", "memories": ["a b"]}).json()
        assert ranking["model"]["fingerprint"] == client.app.state.slot.current.model.fingerprint
        assert client.post("/v1/learning/promote", json={"version": "0002"}).json() == {"current": "0002"}
        wait_until(lambda: "versions/0002" in client.app.state.slot.current.source)
        assert client.get("/v1/learning/status").json()["shadow"] is None
        promotion = client.get("/v1/learning/history").json()["entries"][-1]
        assert promotion["facts"]["shadow"]["passed"]
        client.post("/v1/learning/rollback", json={})
        with Loop(root) as loop:
            assert loop.shadow_candidate() is None, "a version that was rolled back is not promoted again by itself"
            assert loop.promote_shadow_candidate() is None
            loop.evaluate("0002")
            assert loop.promote_shadow_candidate(who="schedule").name == "0002"


def simulate_user(client, rng: random.Random, sessions: int) -> None:
    user = simulation.User("ann", rng)
    for query in simulation.sample_queries(rng, sessions):
        texts = [memory.text for memory in simulation.make_pool(rng, query)]
        body = {"query": query, "memories": texts, "user": "ann", "options": {"first_stage": "none"}}
        response = client.post("/v1/memories/rerank", json=body).json()
        ranks = user.clicked_ranks([result["text"] for result in response["results"]])
        if ranks:
            signals = [{"kind": "click", "rank": rank} for rank in ranks]
            assert client.post("/v1/feedback", json={"event_id": response["event_id"], "signals": signals}).is_success
