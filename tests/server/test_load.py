"""Many clients at once: overload, disconnects, and results that do not depend on other requests."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.responses import JSONResponse

from mnemorank.errors import ScorerError
from mnemorank.server import requests

TEXTS = ["the cat", "ruby works at aurora labs", "ruby", "where does the dog live", "berlin in march 2024"]


class Gate:
    """Holds back the scoring of a running server."""

    def __init__(self, running):
        self._event = threading.Event()
        self.calls = 0
        scorer = running.app.state.slot.current.scorer.scorer
        score = scorer.score_pairs

        def gated(pairs, **options):
            self.calls += 1
            self._event.wait(20)
            return score(pairs, **options)

        scorer.score_pairs = gated

    def open(self):
        self._event.set()


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


def test_concurrent_requests_get_the_same_results_as_sequential_ones(server):
    queries = ["ruby", "where does ruby work", "the dog", "berlin", "cat and dog", "march 2024"]
    alone = {q: server.client.post("/rerank", json={"query": q, "texts": TEXTS}).json() for q in queries}

    def ask(number):
        query = queries[number % len(queries)]
        return query, server.client.post("/rerank", json={"query": query, "texts": TEXTS}).json()

    with ThreadPoolExecutor(16) as pool:
        for query, answer in pool.map(ask, range(96)):
            assert answer == alone[query]


def test_a_full_queue_is_429_with_retry_after_in_every_dialect(start):
    running = start(queue_pairs=10)
    gate = Gate(running)
    try:
        with ThreadPoolExecutor(4) as pool:
            waiting = pool.submit(running.client.post, "/rerank", json={"query": "ruby", "texts": TEXTS * 1000})
            wait_for(lambda: running.app.state.slot.current.scorer.waiting_pairs > 10)
            refused = {
                path: running.client.post(path, json=body)
                for path, body in {
                    "/v2/rerank": {"query": "ruby", "documents": TEXTS},
                    "/v1/rerank": {"query": "ruby", "documents": TEXTS},
                    "/rerank": {"query": "ruby", "texts": TEXTS},
                    "/score": {"text_1": "ruby", "text_2": TEXTS},
                    "/v1/memories/rerank": {"query": "ruby", "memories": TEXTS},
                }.items()
            }
            gate.open()
            assert waiting.result().status_code == 200
    finally:
        gate.open()
    for path, answer in refused.items():
        assert answer.status_code == 429, path
        assert int(answer.headers["retry-after"]) >= 1
        assert "queue_pairs = 10" in answer.text
    assert set(refused["/v2/rerank"].json()) == {"message"}
    assert refused["/rerank"].json()["error_type"] == "Overloaded"
    assert refused["/score"].json()["error"]["code"] == 429
    assert refused["/v1/memories/rerank"].json()["error"]["code"] == "overloaded"


def test_a_full_queue_refuses_pairs_of_many_queries_before_any_is_scored(start):
    running = start(queue_pairs=20)
    gate = Gate(running)
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(running.client.post, "/rerank", json={"query": "ruby", "texts": TEXTS * 10})
            wait_for(lambda: running.app.state.slot.current.scorer.waiting_pairs >= 20)
            body = {"queries": [f"ruby {number}" for number in range(60)], "documents": ["ruby"] * 60}
            refused = running.client.post("/score", json=body, timeout=10)
            gate.open()
            assert waiting.result().status_code == 200
    finally:
        gate.open()
    assert refused.status_code == 429
    assert "queue_pairs = 20" in refused.text


def test_a_failing_query_cancels_the_other_queries_of_the_request(start):
    """The error is returned at once, not when the others are done."""
    running = start()
    gate = Gate(running)
    scorer = running.app.state.slot.current.scorer
    score = scorer.score

    def fail_one(query, *arguments, **options):
        if query == "poison":
            wait_for(lambda: scorer.waiting_pairs > 0)
            raise ScorerError("poisoned")
        return score(query, *arguments, **options)

    scorer.score = fail_one
    try:
        queries = [*(f"ruby {number}" for number in range(10)), "poison", *(f"cat {number}" for number in range(30))]
        body = {"queries": queries, "documents": ["ruby"] * len(queries)}
        answer = running.client.post("/score", json=body, timeout=10)
        assert (answer.status_code, "poisoned" in answer.text) == (503, True)
        assert scorer.waiting_pairs == 0
    finally:
        gate.open()


def test_a_query_that_is_too_long_is_an_error_before_anything_is_scored(start):
    running = start()
    gate = Gate(running)
    try:
        queries = [*(f"ruby {number}" for number in range(40)), "ruby " * 500]
        body = {"queries": queries, "documents": ["ruby"] * len(queries)}
        answer = running.client.post("/score", json=body, timeout=10)
    finally:
        gate.open()
    assert (answer.status_code, gate.calls) == (400, 0)


def test_too_many_requests_at_once_are_429(start):
    running = start(max_requests=2)
    gate = Gate(running)
    try:
        with ThreadPoolExecutor(2) as pool:
            body = {"query": "ruby", "texts": ["ruby"]}
            waiting = [pool.submit(running.client.post, "/rerank", json=body) for _ in range(2)]
            wait_for(lambda: running.app.state.engine._active == 2)
            refused = running.client.post("/rerank", json=body)
            gate.open()
            assert [future.result().status_code for future in waiting] == [200, 200]
    finally:
        gate.open()
    assert refused.status_code == 429
    assert "max_requests = 2" in refused.json()["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rerank", {"query": "ruby", "texts": TEXTS * 400}),
        ("/v1/memories/rerank", {"query": "ruby", "memories": TEXTS * 400}),
        ("/score", {"queries": [f"ruby {i}" for i in range(400)], "documents": ["ruby"] * 400}),
    ],
)
def test_a_disconnect_cancels_the_work(start, path, body):
    running = start()
    gate = Gate(running)
    scorer = running.app.state.slot.current.scorer
    content = json.dumps(body).encode()
    try:
        client = socket.create_connection(("127.0.0.1", running.port))
        client.sendall(
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % (path.encode(), len(content)) + content
        )
        wait_for(lambda: scorer.waiting_pairs > 0)
        client.close()
        wait_for(lambda: scorer.waiting_pairs == 0)
    finally:
        gate.open()
    wait_for(lambda: running.app.state.engine._active == 0)
    assert gate.calls <= 2, "rounds were scored after the disconnect"
    metric = f'mnemorank_requests_total{{route="{path}",status="499"}} 1.0'
    wait_for(lambda: metric in running.client.get("/metrics").text)


def test_a_small_request_overtakes_a_large_one(start):
    running = start(threads=1, token_budget=256)
    order = []

    def ask(name, count):
        assert running.client.post("/rerank", json={"query": "ruby", "texts": TEXTS * count}).status_code == 200
        order.append(name)

    gate = Gate(running)
    with ThreadPoolExecutor(2) as pool:
        large = pool.submit(ask, "large", 400)
        wait_for(lambda: gate.calls == 1)
        waiting = running.app.state.slot.current.scorer.waiting_pairs
        small = pool.submit(ask, "small", 2)
        wait_for(lambda: running.app.state.slot.current.scorer.waiting_pairs == waiting + 10)
        gate.open()
        small.result(60), large.result(60)
    assert order == ["small", "large"]


@pytest.mark.parametrize("batching", [True, False])
def test_results_are_the_same_without_batching(start, tiny_tokenizer, batching):
    running = start(batching=batching)
    answer = running.client.post("/rerank", json={"query": "ruby cat", "texts": TEXTS, "raw_scores": True})
    assert {entry["index"]: entry["score"] for entry in answer.json()} == {0: 0, 1: 0, 2: 0, 3: -1, 4: -1}
    own = sum(len(tiny_tokenizer.encode(text, add_special_tokens=False).ids) for text in TEXTS)
    assert answer.headers["x-compute-tokens"] == str(2 * len(TEXTS) + own)


LONG = ["ruby works at aurora labs " * 40] * 100


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/rerank", {"query": "ruby", "documents": LONG}),
        ("/v1/rerank", {"query": "ruby", "documents": LONG}),
        ("/v1/rerank", {"query": "ruby", "documents": LONG, "top_k": 3, "return_documents": True}),
        ("/rerank", {"query": "ruby", "texts": LONG, "return_text": True}),
        ("/rerank", {"query": "ruby", "documents": LONG}),
        ("/score", {"text_1": "ruby", "text_2": LONG}),
        ("/v1/memories/rerank", {"query": "ruby", "memories": LONG}),
    ],
)
def test_the_event_loop_does_no_work_that_grows_with_the_request(server, monkeypatch, path, body):
    threads = []

    def observe(owner, name):
        function = getattr(owner, name)

        def observed(*arguments, **options):
            threads.append((name, threading.current_thread().name))
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, observed)

    observe(requests, "parse_json")
    observe(requests, "_check_length")
    observe(JSONResponse, "render")
    assert server.client.post(path, json=body).status_code == 200
    assert {name for name, _ in threads} == {"parse_json", "_check_length", "render"}
    assert {thread.rpartition("_")[0] for _, thread in threads} == {"mnemorank-request", "mnemorank-request parser"}


@pytest.mark.parametrize("documents", [["ruby", 7] * 20_000, ["ruby"] * 20_000])
def test_errors_in_large_bodies_are_those_of_small_ones(server, documents):
    answer = server.client.post("/v2/rerank", json={"query": "ruby", "documents": documents})
    assert answer.status_code == 422
    assert "documents" in answer.json()["message"]


def test_a_large_body_that_is_parsed_too_late_is_504(server, monkeypatch):
    released = threading.Event()
    parse = requests.parse_json
    monkeypatch.setattr(requests, "parse_json", lambda body: (released.wait(20), parse(body))[1])
    body = {"query": "ruby", "memories": LONG}
    try:
        answer = server.client.post("/v1/memories/rerank", json=body, headers={"x-deadline-ms": "200"})
        assert server.client.get("/health").status_code == 200
    finally:
        released.set()
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")


def test_requests_of_many_queries_share_a_few_threads(start):
    """Sixteen threads for each of many requests would exhaust the process."""
    running = start()
    gate = Gate(running)
    before = threading.active_count()
    body = {"queries": [f"ruby {number}" for number in range(100)], "documents": ["ruby"] * 100}
    try:
        with ThreadPoolExecutor(20) as pool:
            waiting = [pool.submit(running.client.post, "/score", json=body) for _ in range(20)]
            wait_for(lambda: running.app.state.engine._active == 20)
            wait_for(lambda: gate.calls > 0)
            time.sleep(0.2)
            # Of the test itself 20 threads, of the server one per request.
            assert threading.active_count() <= before + 20 + 20 + 16
            gate.open()
            answers = [future.result() for future in waiting]
    finally:
        gate.open()
    assert {answer.status_code for answer in answers} == {200}
    assert len({str(answer.json()["data"]) for answer in answers}) == 1
