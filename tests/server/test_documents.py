"""Documents with dates, ids and scores on the compatible routes, the events of these routes, and unknown routes."""

from __future__ import annotations

import json

import cohere
import httpx
import pytest

from mnemorank import Reranker
from mnemorank.learning.settings import PrivacySettings
from mnemorank.learning.store.events import EventStore
from mnemorank.server.event_log import StoreLog

QUERY = "where does ruby work now"
OLD = {"id": "old", "text": "ruby works at zenith now", "occurred_start": "2021-05", "key": "job"}
NEW = {"id": "new", "text": "ruby works at aurora labs", "occurred_start": "2024-03-05", "key": "job"}
CAT = {"text": "the cat"}
DATED = [OLD, NEW, CAT]
UNDATED = [{name: value for name, value in memory.items() if name != "occurred_start"} for memory in DATED]

# Path, name of the documents, and where a response has its results and their scores.
ROUTES = {
    "cohere": ("/v2/rerank", "documents", lambda body: body["results"], "relevance_score"),
    "jina": ("/v1/rerank", "documents", lambda body: body["results"], "relevance_score"),
    "voyage": ("/v1/rerank", "documents", lambda body: body["data"], "relevance_score"),
    "tei": ("/rerank", "texts", lambda body: body, "score"),
    "vllm": ("/rerank", "documents", lambda body: body["results"], "relevance_score"),
    "infinity": ("/infinity/rerank", "documents", lambda body: body["results"], "relevance_score"),
}


def send(client, dialect, documents, pipeline=None, **fields):
    path, name, results, score = ROUTES[dialect]
    more = {"truncation": True} if dialect == "voyage" else {}
    parameters = {} if pipeline is None else {"pipeline": pipeline}
    answer = client.post(path, params=parameters, json={"query": QUERY, name: documents, **more, **fields})
    assert answer.status_code == 200, answer.text
    return answer, [(result["index"], result[score]) for result in results(answer.json())]


@pytest.mark.parametrize("dialect", ROUTES)
def test_documents_with_dates_are_ranked_by_the_whole_pipeline(client, tiny_onnx, dialect):
    expected = Reranker(tiny_onnx).rerank(QUERY, DATED)
    answer, ranked = send(client, dialect, DATED)

    assert [result.index for result in expected] == [1, 0, 2]  # although the older one has more words of the query
    assert ranked == [(result.index, pytest.approx(result.score, abs=1e-6)) for result in expected]
    assert "x-mnemorank-warnings" not in answer.headers
    assert "x-mnemorank-event" not in answer.headers  # there is no store


@pytest.mark.parametrize("dialect", ROUTES)
def test_documents_without_dates_are_ranked_by_the_model_unless_the_request_says_otherwise(client, dialect):
    answer, ranked = send(client, dialect, UNDATED)
    assert [index for index, _ in ranked] == [0, 1, 2]
    (warning,) = json.loads(answer.headers["x-mnemorank-warnings"])
    assert "key" in warning

    _, by_text = send(client, dialect, [memory["text"] for memory in UNDATED])
    assert by_text == ranked
    _, by_model = send(client, dialect, DATED, "model")
    assert by_model == ranked
    replaced = [UNDATED[0], {**UNDATED[1], "supersedes": ["old"]}, CAT]
    assert [index for index, _ in send(client, dialect, replaced)[1]] == [0, 1, 2]
    assert [index for index, _ in send(client, dialect, replaced, "full")[1]] == [1, 0, 2]


def test_first_stage_scores_count_in_the_whole_pipeline(client):
    documents = [{"text": "ruby", "score": 0.1}, {"text": "ruby", "score": 0.9}]
    assert [index for index, _ in send(client, "jina", documents)[1]] == [0, 1]
    assert [index for index, _ in send(client, "jina", documents, "full")[1]] == [1, 0]


def test_the_server_can_choose_the_pipeline(start):
    full, model = start(pipeline="full"), start(pipeline="model")
    documents = [{"text": "ruby", "score": 0.1}, {"text": "ruby", "score": 0.9}]

    assert [index for index, _ in send(full.client, "cohere", documents)[1]] == [1, 0]
    assert [index for index, _ in send(full.client, "cohere", documents, "model")[1]] == [0, 1]
    assert [index for index, _ in send(model.client, "cohere", DATED)[1]] == [0, 1, 2]
    assert [index for index, _ in send(model.client, "cohere", DATED, "auto")[1]] == [1, 0, 2]


@pytest.mark.parametrize("dialect", ROUTES)
def test_an_unknown_pipeline_is_an_error(client, dialect):
    path, name, *_ = ROUTES[dialect]
    answer = client.post(path, params={"pipeline": "fast"}, json={"query": QUERY, name: ["a"]})
    assert answer.status_code in (400, 422)
    assert "pipeline" in answer.text


@pytest.mark.parametrize("dialect", ROUTES)
def test_what_is_ignored_is_reported(client, dialect):
    answer, ranked = send(client, dialect, [{**OLD, "occurred_end": "soon"}, NEW, {"text": "a", "id": "i" * 300}])

    assert len(ranked) == 3
    warnings = json.loads(answer.headers["x-mnemorank-warnings"])
    name = ROUTES[dialect][1]
    assert [warning.partition(":")[0] for warning in warnings] == [f"{name}.0.occurred_end", f"{name}.2.id"]
    if dialect == "cohere":
        assert answer.json()["meta"]["warnings"] == warnings


def test_many_warnings_fit_into_a_header(client):
    documents = [{"text": "é", "created_at": f"€ {number}" * 100} for number in range(500)]
    answer, _ = send(client, "tei", documents)

    assert len(answer.headers["x-mnemorank-warnings"]) <= 2000
    assert len(json.loads(answer.headers["x-mnemorank-warnings"])) > 1


@pytest.mark.parametrize("dialect", ["cohere", "jina", "vllm", "infinity"])
def test_rank_fields_make_up_the_text(client, dialect):
    documents = [{"title": "the cat", "body": "ruby works"}, {"title": "dog", "body": "cat"}, {"body": "where ruby"}]
    _, ranked = send(client, dialect, documents, rank_fields=["title", "body"])
    _, joined = send(client, dialect, ["the cat\nruby works", "dog\ncat", "where ruby"])
    assert ranked == joined


@pytest.mark.parametrize("dialect", ROUTES)
def test_a_memory_may_be_sent_as_json_text(client, dialect):
    """Clients such as Cohere's version 2 only take strings."""
    _, ranked = send(client, dialect, [json.dumps(memory) for memory in DATED])
    assert ranked == send(client, dialect, DATED)[1]


@pytest.mark.parametrize("text", ['{"text": "ruby"}', '{"text": 5, "date": "2024"}', "{ruby", "{" * 2000, '["text"]'])
def test_other_json_is_plain_text(client, text):
    answer, _ = send(client, "vllm", [text])
    assert answer.json()["results"][0]["document"] == {"text": text}


def test_texts_are_returned_in_the_format_of_the_dialect(client):
    assert send(client, "jina", DATED)[0].json()["results"][0]["document"] == {"text": NEW["text"]}
    assert send(client, "voyage", DATED, return_documents=True)[0].json()["data"][0]["document"] == NEW["text"]
    assert send(client, "tei", DATED, return_text=True)[0].json()[0]["text"] == NEW["text"]
    assert send(client, "vllm", DATED)[0].json()["results"][0]["document"] == {"text": NEW["text"]}
    assert send(client, "infinity", DATED)[0].json()["results"][0]["document"] == NEW["text"]
    assert "document" not in send(client, "infinity", DATED, return_documents=False)[0].json()["results"][0]


def test_logits_keep_the_order_of_the_whole_pipeline(client):
    _, ranked = send(client, "tei", DATED, raw_scores=True)
    scores = [score for _, score in ranked]
    assert [index for index, _ in ranked] == [1, 0, 2]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) < 0


@pytest.mark.parametrize("document", [{}, {"body": "a"}, {"text": 5}, {"text": None}, {"text": {"a": 1}}])
@pytest.mark.parametrize("dialect", ROUTES)
def test_an_object_without_a_text_is_an_error_that_names_it(client, dialect, document):
    path, name, *_ = ROUTES[dialect]
    answer = client.post(path, json={"query": QUERY, name: ["a", document]})
    assert answer.status_code in (400, 422)
    assert f"{name}.1: expected a string" in answer.text


def test_limits_apply_to_all_strings_that_the_pipeline_reads(start):
    small = start(max_document_chars=50)
    documents = [{"text": "ruby", "date": "2024", "context": "x" * 51}]
    answer = small.client.post("/v1/rerank", json={"query": "ruby", "documents": documents})
    assert answer.status_code == 422
    assert "documents.0.context" in answer.json()["detail"]
    # What is not read may be longer.
    send(small.client, "jina", [{"text": "ruby", "html": "x" * 51}])


def test_the_cohere_sdk_with_dates(server):
    with httpx.Client() as transport:
        first = cohere.Client(api_key="any", base_url=server.url, httpx_client=transport)
        answer = first.rerank(model="m", query=QUERY, documents=DATED, rank_fields=["text"])
        assert [result.index for result in answer.results] == [1, 0, 2]
        second = cohere.ClientV2(api_key="any", base_url=server.url, httpx_client=transport)
        answer = second.rerank(model="m", query=QUERY, documents=[json.dumps(memory) for memory in DATED])
        assert [result.index for result in answer.results] == [1, 0, 2]


def test_a_body_without_a_count_is_answered_for_jina_and_voyage(client):
    """LiteLLM's voyage/ sends neither `top_k` nor `truncation` by default."""
    body = client.post("/v1/rerank", json={"query": QUERY, "documents": ["ruby", "cat"]}).json()
    assert [entry["index"] for entry in body["data"]] == [entry["index"] for entry in body["results"]]
    assert body["data"][0]["document"] == "ruby"
    assert "data" not in client.post("/v1/rerank", json={"query": QUERY, "documents": ["ruby"], "top_n": 1}).json()


@pytest.fixture(scope="module")
def logged(start, tmp_path_factory):
    store = EventStore(tmp_path_factory.mktemp("store") / "events.db", PrivacySettings(texts=True))
    return start(event_log=StoreLog(store)), store


@pytest.mark.parametrize("dialect", ROUTES)
@pytest.mark.parametrize("documents", [DATED, [memory["text"] for memory in DATED]], ids=["dated", "texts"])
def test_what_was_shown_is_logged_and_feedback_finds_it(logged, dialect, documents):
    server, store = logged
    count = {"voyage": {"top_k": 2}, "tei": {}}.get(dialect, {"top_n": 2})
    answer, ranked = send(server.client, dialect, documents, **count)
    event_id = answer.headers["x-mnemorank-event"]

    event, _ = store.event(event_id)
    assert event.query == QUERY
    assert [shown.rank for shown in event.shown] == list(range(1, len(ranked) + 1))
    texts = [memory["text"] for memory in DATED]
    assert [shown.memory.text for shown in event.shown] == [texts[index] for index, _ in ranked]
    if documents is DATED:
        assert [shown.memory_id for shown in event.shown][:2] == ["new", "old"]
    signal = {"event_id": event_id, "signals": [{"kind": "click", "rank": 1}]}
    assert server.client.post("/v1/feedback", json=signal).status_code in (200, 201)


def test_a_log_that_fails_does_not_fail_the_request(start):
    class Broken:
        def record(self, event):
            raise OSError("disk full")

    answer, ranked = send(start(event_log=Broken()).client, "cohere", DATED)
    assert len(ranked) == 3
    assert "x-mnemorank-event" not in answer.headers


@pytest.mark.parametrize("path", ["/v2/v2/rerank", "/v1/v1/rerank", "/v1/reranking", "/v2", "/nothing"])
def test_an_unknown_route_answers_in_the_format_of_every_dialect(client, path):
    answer = client.post(path, json={"query": "a", "documents": ["a"]})
    body = answer.json()

    assert answer.status_code == 404
    assert body["message"] == body["detail"] == body["error"]["message"]
    assert (body["error"]["code"], body["error"]["type"]) == ("not_found", "NotFoundError")
    assert path in body["message"]
    assert "/v2/rerank" in body["message"]
