"""The native route: the full pipeline over HTTP, and the event that it records."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, fields

import pytest

from mnemorank import Options, Reranker
from mnemorank.errors import ScorerError
from mnemorank.learning.events import RerankEvent
from mnemorank.server.api.schemas import OptionsModel

PATH = "/v1/memories/rerank"
MEMORIES = [
    {"id": "old", "text": "ruby works at zenith", "occurred_start": "2021-05", "key": "job"},
    {"id": "new", "text": "ruby works at aurora labs", "occurred_start": "2024-03-05", "key": "job"},
    "the cat",
]


class Log:
    def __init__(self):
        self.events: list[RerankEvent] = []
        self.error: Exception | None = None

    def record(self, event):
        if self.error:
            raise self.error
        self.events.append(event)


@pytest.fixture(scope="module")
def log():
    return Log()


@pytest.fixture(scope="module")
def logged(start, log):
    return start(event_log=log)


@pytest.fixture(scope="module")
def small(start):
    return start(max_document_chars=100)


def test_the_response_is_the_ranking_of_the_library(client, tiny_onnx):
    body = {
        "query": "where does ruby work",
        "memories": MEMORIES,
        "now": "2025-01-15",
        "top_k": 2,
        "explain": True,
        "options": {"recency": "linear", "weights": {"first_stage": 0.5}},
    }
    answer = client.post(PATH, json=body)
    assert answer.status_code == 200
    with Reranker(tiny_onnx, options=Options(recency="linear", weights={"first_stage": 0.5})) as reranker:
        expected = reranker.rerank(body["query"], MEMORIES, now="2025-01-15", top_k=2, explain=True)
    assert answer.json()["results"] == [
        {
            "index": result.index,
            "id": result.memory.id,
            "rank": result.rank,
            "relevance": pytest.approx(result.relevance),
            "score": pytest.approx(result.score),
            "raw_score": result.raw_score,
            "rank_change": result.rank_change,
            "stale": result.stale,
            "superseded_by": result.superseded_by,
            "stale_because": result.stale_because,
            "text": result.text,
            "passage": result.passage,
            "factors": pytest.approx(dict(result.factors)),
        }
        for result in expected
    ]
    assert answer.json()["results"][0]["id"] == "new"
    assert [result["stale"] for result in answer.json()["results"]] == [False, True]


def test_outdated_memories_can_be_dropped(client):
    body = {"query": "where does ruby work", "memories": MEMORIES, "top_k": 2}
    flagged = client.post(PATH, json={**body, "options": {"supersession": "demote"}}).json()["results"]
    assert [result["stale_because"] for result in flagged] == [None, "key"]
    dropped = client.post(PATH, json={**body, "options": {"supersession": "drop"}}).json()["results"]
    assert len(dropped) == 2
    assert not any(result["stale"] for result in dropped)


@pytest.mark.parametrize("value", ["hide", 1, None, ["drop"]])
def test_an_unknown_supersession_mode_lists_the_known_ones(client, value):
    answer = client.post(PATH, json={"query": "ruby", "memories": ["ruby"], "options": {"supersession": value}})
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "options.supersession"
    for mode in ("demote", "drop", "off"):
        assert mode in answer.json()["error"]["message"]


def test_the_threshold_of_abstention_is_an_option(client):
    def abstained(below):
        body = {"query": "ruby", "memories": ["ruby"], "options": {"abstain_below": below}}
        return client.post(PATH, json=body).json()["abstained"]

    assert [abstained(below) for below in (None, 0, 0.4, 0.6)] == [False, False, False, True]
    answer = client.post(PATH, json={"query": "ruby", "memories": ["ruby"], "options": {"abstain_below": 2}})
    assert answer.json()["error"]["field"] == "options.abstain_below"


def test_the_response_has_exactly_these_fields(client):
    answer = client.post(PATH, json={"query": "ruby", "memories": ["ruby", "the cat"], "return_texts": False}).json()
    event_id, fingerprint = answer.pop("event_id"), answer["model"].pop("fingerprint")
    assert len(event_id) == 32
    assert len(fingerprint) == 12
    plain = {"id": None, "stale": False, "superseded_by": None, "stale_because": None, "rank_change": 0}
    assert answer == {
        "model": {"name": "overlap", "version": "0"},
        "results": [
            {"index": 0, "rank": 1, "relevance": 0.5, "score": 0.5, "raw_score": 0.0, **plain},
            {
                "index": 1,
                "rank": 2,
                "relevance": pytest.approx(0.26894142),
                "score": pytest.approx(0.26894142),
                "raw_score": -1.0,
                **plain,
            },
        ],
        "abstained": False,
        "degraded": None,
        "warnings": [],
        "usage": {"pairs": 2, "tokens": 5},
    }


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        (
            {"memories": [{"text": "a"}, {"text": "b", "occurred_start": "Tuesday"}]},
            "memories.1.occurred_start",
            "invalid",
        ),
        ({"memories": [{"title": "a"}]}, "memories.0", "missing"),
        ({"memories": [1]}, "memories.0", "invalid"),
        ({"now": "soon"}, "now", "invalid"),
        ({"time_range": ["2024"]}, "time_range", "invalid"),
        ({"time_range": ["2024", "2020"]}, "time_range", "invalid"),
        ({"query": " "}, "query", "empty_query"),
        ({"top_k": 0}, "top_k", "invalid"),
        ({"deadline_ms": -5}, "deadline_ms", "invalid"),
        ({"options": {"recency_weight": 7}}, "options.recency_weight", "invalid"),
        ({"options": {"recensy": "linear"}}, "options.recensy", "invalid"),
        ({"options": {"weights": {"query_dates": -1}}}, "options.weights.query_dates", "invalid"),
        ({"options": {"weights": {"same_day": 7}}}, "options.weights.same_day", "invalid"),
        ({"options": {"weights": {"rescoring": 7}}}, "options.weights.rescoring", "invalid"),
        ({"topk": 3}, "topk", "invalid"),
    ],
)
def test_errors_name_the_field(client, change, field, code):
    answer = client.post(PATH, json={"query": "ruby", "memories": ["a"], **change})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert (error["field"], error["code"]) == (field, code)
    assert error["message"].startswith(f"{field}: ")


@pytest.mark.parametrize("key", ["id", "memory_id", "doc_id"])
def test_an_id_that_is_too_long_for_feedback_is_an_error(client, key):
    at_most = {"query": "ruby", "memories": ["a", {"text": "b", key: "x" * 256}]}
    assert client.post(PATH, json=at_most).status_code == 200
    answer = client.post(PATH, json={"query": "ruby", "memories": ["a", {"text": "b", key: "x" * 257}]})
    assert (answer.status_code, answer.json()["error"]) == (
        422,
        {
            "code": "limit",
            "message": f"memories.1.{key}: has 257 characters, more than the 256 of an id",
            "field": f"memories.1.{key}",
        },
    )
    number = client.post(PATH, json={"query": "ruby", "memories": [{"text": "b", key: 10**300}]})
    assert (number.status_code, number.json()["error"]["field"]) == (422, f"memories.0.{key}")


def test_a_long_text_in_an_id_field_is_accepted_if_it_is_the_text(client):
    body = {"query": "ruby", "memories": [{"doc_id": "ruby " * 100}], "field": "doc_id"}
    assert client.post(PATH, json=body).status_code == 200


@pytest.mark.parametrize("field", [None, "payload.text"])
def test_an_id_in_a_payload_has_the_same_limit(client, field):
    body = {"query": "ruby", "memories": [{"payload": {"text": "a", "id": "i" * 257}}], "field": field}
    answer = client.post(PATH, json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "memories.0.payload.id")
    elsewhere = {"query": "ruby", "memories": [{"text": "a", "id": "m1", "metadata": {"id": "i" * 257}}]}
    assert client.post(PATH, json=elsewhere).json()["results"][0]["id"] == "m1"


@pytest.mark.parametrize(
    ("memory", "field"),
    [
        ({"text": "a", "context": ["x" * 101]}, "context.0"),
        ({"text": "a", "context": ["x" * 51, "x" * 51]}, "context"),
        ({"text": "a", "entities": [{"name": "x" * 51}, "x" * 51]}, "entities"),
        ({"payload": {"text": "a", "entities": ["x" * 51, "x" * 51]}}, "payload.entities"),
        ({"text": "a", "tags": [["x" * 101]]}, "tags.0.0"),
    ],
)
def test_texts_in_lists_have_the_limit_of_a_document(small, memory, field):
    answer = small.client.post(PATH, json={"query": "ruby", "memories": ["a", memory]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "limit")
    assert answer.json()["error"]["field"] == f"memories.1.{field}"
    assert "max_document_chars = 100" in answer.json()["error"]["message"]


def test_texts_that_are_not_joined_may_exceed_the_limit_together(small):
    memory = {"text": "a", "context": ["x" * 50, "x" * 49], "metadata": {"turns": [{"text": "x" * 90}] * 5}}
    assert small.client.post(PATH, json={"query": "ruby", "memories": [memory]}).status_code == 200


def test_no_memories_is_400(client):
    answer = client.post(PATH, json={"query": "ruby", "memories": []})
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": {"code": "empty", "message": "memories: is empty", "field": "memories"}},
    )


def test_diversity_is_refused_for_pools_that_are_too_large(client):
    body = {"query": "ruby", "memories": ["a"] * 2000, "options": {"diversity": 0.9}}
    answer = client.post(PATH, json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "options.diversity"
    assert client.post(PATH, json={**body, "memories": ["a"] * 50, "top_k": 3}).status_code == 200


def test_every_ranking_is_recorded_before_the_response_is_sent(logged, log):
    answer = logged.client.post(
        PATH, json={"query": "where does ruby work", "memories": MEMORIES, "user": "u1", "tenant": "t1", "test": True}
    )
    event = log.events[-1]
    assert event.id == answer.json()["event_id"]
    assert (event.tenant, event.user, event.query, event.test) == ("t1", "u1", "where does ruby work", True)
    model = answer.json()["model"]
    assert event.model_version == f"{model['name']}@{model['version']}+{model['fingerprint']}"
    results = answer.json()["results"]
    assert [shown.memory_id for shown in event.shown] == [result["id"] for result in results]
    assert [shown.rank for shown in event.shown] == [1, 2, 3]
    assert [shown.relevance for shown in event.shown] == [result["relevance"] for result in results]
    first = event.shown[0]
    assert first.memory.text == results[0]["text"]


def test_a_failing_event_log_does_not_fail_the_request(logged, log):
    log.error = OSError("disk full")
    try:
        assert logged.client.post(PATH, json={"query": "ruby", "memories": ["ruby"]}).status_code == 200
    finally:
        log.error = None
    assert "mnemorank_events_lost_total 1.0" in logged.client.get("/metrics").text


def test_exploration_swaps_neighbors_and_records_propensities(start, log):
    exploring = start(event_log=log, explore=0.5)
    memories = [f"{'ruby ' * (9 - i)}cat" for i in range(8)]
    orders = set()
    for _ in range(20):
        answer = exploring.client.post(PATH, json={"query": "ruby", "memories": memories}).json()["results"]
        orders.add(tuple(result["index"] for result in answer))
        assert [result["rank"] for result in answer] == list(range(1, 9))
        scores = [result["score"] for result in answer]
        assert scores == sorted(scores, reverse=True)
        shown = log.events[-1].shown
        assert [one.index for one in shown] == [result["index"] for result in answer]
        assert {one.propensity for one in shown} <= {0.25, 0.5, 0.75}
    assert len(orders) > 1


def block_scoring(running):
    """Block scoring until the returned event is set."""
    gate = threading.Event()
    scorer = running.app.state.slot.current.scorer.scorer
    score = scorer.score_pairs
    scorer.score_pairs = lambda pairs, **options: (gate.wait(10), score(pairs, **options))[1]
    return gate


@pytest.mark.parametrize(
    ("settings", "extra"),
    [({}, {"deadline_ms": 100}), ({"request_timeout": 0.1}, {}), ({"request_timeout": 0.1}, {"deadline_ms": 9000})],
)
def test_past_the_deadline_unscored_memories_follow_in_first_stage_order(start, settings, extra):
    running = start(**settings)
    gate = block_scoring(running)
    answer = running.client.post(PATH, json={"query": "ruby", "memories": ["cat", "ruby", "dog"], **extra})
    gate.set()
    assert answer.status_code == 200
    assert answer.json()["degraded"]["kind"] == "deadline"
    assert [(r["index"], r["relevance"]) for r in answer.json()["results"]] == [(0, None), (1, None), (2, None)]
    assert 'mnemorank_degraded_total{reason="deadline"} 1.0' in running.client.get("/metrics").text


def test_a_failing_model_degrades_the_ranking_and_is_an_error_in_dialects(start):
    running = start()
    scorer = running.app.state.slot.current.scorer.scorer

    def fail(pairs, **options):
        raise ScorerError("out of memory")

    scorer.score_pairs = fail
    native = running.client.post(PATH, json={"query": "ruby", "memories": ["cat", {"text": "ruby", "score": 3}]})
    assert native.status_code == 200
    assert native.json()["degraded"] == {"kind": "model_failed", "message": "out of memory"}
    assert [result["index"] for result in native.json()["results"]] == [1, 0]
    tei = running.client.post("/rerank", json={"query": "ruby", "texts": ["a"]})
    assert (tei.status_code, tei.json()) == (424, {"error": "out of memory", "error_type": "Backend"})
    assert running.client.post("/v2/rerank", json={"query": "ruby", "documents": ["a"]}).status_code == 503


def test_a_passed_deadline_is_an_error_in_dialects(start):
    running = start()
    gate = block_scoring(running)
    headers = {"x-deadline-ms": "80"}
    cohere = running.client.post("/v2/rerank", json={"query": "ruby", "documents": ["a"]}, headers=headers)
    tei = running.client.post("/rerank", json={"query": "ruby", "texts": ["a"]}, headers=headers)
    gate.set()
    assert cohere.status_code == 504
    assert set(cohere.json()) == {"message"}
    assert (tei.status_code, tei.json()["error_type"]) == (424, "Backend")
    wrong = running.client.post("/rerank", json={"query": "a", "texts": ["a"]}, headers={"x-deadline-ms": "soon"})
    assert wrong.status_code == 422


def test_the_api_accepts_every_option_of_the_library():
    assert set(OptionsModel.model_fields) == {field.name for field in fields(Options)}
    assert OptionsModel().model_dump() == asdict(Options())


def test_dialects_obey_the_deadline_while_tokenizing(start):
    running = start()
    scorer = running.app.state.slot.current.scorer.scorer
    prepare, read = scorer.prepare, []

    def slow(texts):
        read.extend(texts)
        time.sleep(0.05)
        return prepare(texts)

    scorer.prepare = slow
    body = {"query": "ruby", "texts": [f"ruby {number}" for number in range(1000)]}
    answer = running.client.post("/rerank", json=body, headers={"x-deadline-ms": "100"})
    assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
    assert len(read) < 500
    scorer.prepare = prepare
    assert len(running.client.post("/rerank", json=body).json()) == 1000


@pytest.mark.slow
@pytest.mark.parametrize("path", [PATH, "/rerank"])
def test_the_deadline_holds_for_a_pool_of_long_texts(start, path):
    """Tokenizing, windowing and BM25 over 3 MB take longer than the deadline."""
    running = start(model="mini", request_timeout=1.0)
    texts = [f"Session {i}. " + f"Ruby works at Aurora Labs in building {i} and likes tea. " * 480 for i in range(120)]
    assert len(texts[0]) > 26_000
    body = {"query": "Where does Ruby work now?", "memories" if path == PATH else "texts": texts}
    started = time.monotonic()
    answer = running.client.post(path, json=body)
    assert time.monotonic() - started < 3
    if path == PATH:
        assert (answer.status_code, answer.json()["degraded"]["kind"]) == (200, "deadline")
        assert len(answer.json()["results"]) == len(texts)
    else:
        assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
