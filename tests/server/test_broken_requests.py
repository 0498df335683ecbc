"""Broken, giant and slow requests get 4xx in their dialect's shape, and the server lives on."""

from __future__ import annotations

import json
import socket
import time

import pytest

PATHS = ("/v2/rerank", "/v1/rerank", "/rerank", "/score", "/v1/score", "/v1/memories/rerank", "/v1/models/swap")
SHAPES = {
    "/v2/rerank": {"message"},
    "/v1/rerank": {"detail"},
    "/rerank": {"error", "error_type"},
    "/score": {"error"},
    "/v1/score": {"error"},
    "/v1/memories/rerank": {"error"},
    "/v1/models/swap": {"error"},
}
INNER = {
    "/score": {"message", "type", "param", "code"},
    "/v1/score": {"message", "type", "param", "code"},
    "/v1/memories/rerank": {"code", "message", "field"},
    "/v1/models/swap": {"code", "message", "field"},
}
BROKEN = {
    "not json": b"ruby",
    "cut off": b'{"query": "ru',
    "empty": b"",
    "not utf-8": b'{"query": "\xff\xfe", "documents": ["a"]}',
    "null": b"null",
    "a list": b"[1, 2]",
    "a number": b"12",
    "lone surrogate": b'{"query": "\\ud800", "documents": ["a"], "texts": ["a"], "text_1": "\\ud800", "text_2": "a"}',
    "surrogate in a memory": b'{"query": "a", "memories": [{"text": "a", "x": "\\udfff"}], "documents": ["\\uDC00"]}',
    "NaN": b'{"query": "a", "documents": ["a"], "top_n": NaN}',
    "infinity": b'{"query": "a", "documents": ["a"], "top_n": -Infinity}',
    "huge float": b'{"query": "a", "documents": ["a"], "top_n": 1e999}',
    "huge integer": b'{"query": "a", "documents": ["a"], "top_n": ' + b"9" * 5000 + b"}",
    "large integer": b'{"query": "a", "documents": ["a"], "texts": 3, "top_n": ' + b"9" * 400 + b"}",
    "deep": b'{"query":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "wrong types": b'{"query": {"a": 1}, "documents": "x", "texts": {"a": 1}, "text_1": 1, "text_2": 2, "memories": 5}',
    "nulls": b'{"query": null, "documents": null, "texts": null, "text_1": null, "text_2": null, "memories": null}',
    "numbers for texts": b'{"query": 1, "documents": [1], "texts": [1], "text_1": 1, "text_2": [1], "memories": [1]}',
}


def check_shape(path, answer, is_vllm=False):
    assert 400 <= answer.status_code < 500, answer.text
    body = answer.json()
    if is_vllm:
        path = "/score"
    assert set(body) == SHAPES[path], body
    if path in INNER:
        assert set(body["error"]) == INNER[path]


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("path", PATHS)
def test_broken_bodies(client, path, name):
    check_shape(path, client.post(path, content=BROKEN[name], headers={"content-type": "application/json"}))


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_is_not_sent_as_json_is_refused(client, path):
    """A web page can send text/plain to any server without asking it; so it must not count as JSON."""
    answer = client.post(path, content=b'{"query": "a", "documents": ["a"]}', headers={"content-type": "text/plain"})
    check_shape(path, answer)


@pytest.mark.parametrize("path", PATHS)
def test_get_is_not_allowed_and_says_so_in_shape(client, path):
    answer = client.get(path)
    assert answer.status_code == 405
    check_shape(path, answer)


@pytest.fixture(scope="module")
def small(start):
    return start(max_body_bytes=2000, max_documents=3, max_document_chars=50, max_query_chars=20, read_timeout=0.5)


@pytest.mark.parametrize("path", PATHS)
def test_a_giant_body_is_413_and_names_the_limit(small, path):
    answer = small.client.post(path, content=b"x" * 5000, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    check_shape(path, answer)
    assert "max_body_bytes = 2000" in answer.text


def test_a_giant_body_of_unstated_length_is_413(small):
    answer = small.client.post("/v2/rerank", content=(b"x" * 500 for _ in range(10)))
    assert answer.status_code == 413


def expecting(running, *parts: bytes) -> bytes:
    """What comes of a request that asks first whether to send its body; the parts are sent whatever it is told."""
    with connect(running) as one:
        one.settimeout(5)
        one.sendall(b"POST /rerank HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\n")
        one.sendall(b"expect: 100-continue\r\n" + parts[0])
        for part in parts[1:]:
            time.sleep(0.05)
            one.sendall(part)
        return b"".join(iter(lambda: one.recv(65536), b""))


def test_a_client_that_asks_first_is_not_invited_to_send_a_giant_body(small):
    answer = expecting(small, b"content-length: 40000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"max_body_bytes = 2000" in answer


def test_an_invited_body_that_grows_too_large_is_let_in_before_it_is_refused(small):
    part = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    answer = expecting(small, b"transfer-encoding: chunked\r\n\r\n", part, part, part, part + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 100 ")
    assert b"HTTP/1.1 413 " in answer


def test_bodies_of_all_requests_together_are_bounded(start):
    """32 clients send half of a body each and wait: those beyond the bound are told so, and the server lives on."""
    running = start(max_body_bytes=1000, read_timeout=3.0)
    head = b"POST /rerank HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    held = [connect(running) for _ in range(32)]
    try:
        for one in held:
            one.sendall(head + b"x" * 900)
        answers = [one.recv(200).split(b"\r\n")[0] for one in held]
    finally:
        for one in held:
            one.close()
    assert {answer.split()[1] for answer in answers} == {b"429", b"408"}
    assert running.client.post("/rerank", json={"query": "ruby", "texts": ["ruby"]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/v2/rerank", {"query": "a", "documents": ["a"] * 4}, "documents: has 4 entries, more than max_documents = 3"),
        ("/v1/rerank", {"query": "a", "documents": ["a" * 51]}, "documents.0: has 51 characters"),
        ("/rerank", {"query": "a", "texts": ["a"] * 4}, "texts: has 4 entries, more than max_documents = 3"),
        ("/rerank", {"query": "a" * 21, "documents": ["a"]}, "more than max_query_chars = 20"),
        ("/score", {"text_1": "a", "text_2": ["a"] * 4}, "text_2: has 4 entries, more than max_documents = 3"),
        ("/score", {"text_1": "a" * 21, "text_2": ["a"]}, "text_1: has 21 characters, more than max_query_chars = 20"),
        ("/v1/memories/rerank", {"query": "a", "memories": ["a"] * 4}, "memories: has 4 entries"),
        (
            "/v1/memories/rerank",
            {"query": "a", "memories": ["b", {"content": "a" * 51}]},
            "memories.1.content: has 51 characters, more than max_document_chars = 50",
        ),
        (
            "/v1/memories/rerank",
            {"query": "a", "memories": [{"payload": {"text": "a" * 51}}]},
            "memories.0.payload.text: has 51 characters",
        ),
    ],
)
def test_limits_are_422_and_named(small, path, body, limit):
    answer = small.client.post(path, json=body)
    assert answer.status_code == 422
    check_shape(path, answer, is_vllm=path == "/rerank" and "documents" in body)
    assert limit in answer.text


def test_a_query_too_long_for_the_model_says_so(client):
    answer = client.post("/v2/rerank", json={"query": "ruby " * 80, "documents": ["a"]})
    assert answer.status_code == 422
    assert "leave no room for a memory in the model's input of 64" in answer.json()["message"]


def connect(running):
    return socket.create_connection(("127.0.0.1", running.port), timeout=5)


def test_slow_loris_headers_are_cut_off(small):
    with connect(small) as slow:
        slow.sendall(b"POST /v2/rerank HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        started = time.monotonic()
        answer = slow.recv(1000)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - started < 3


def test_slow_loris_that_drips_headers_is_cut_off_too(small):
    with connect(small) as slow:
        slow.sendall(b"POST /v2/rerank HTTP/1.1\r\n")
        answer = b""
        for number in range(40):
            try:
                slow.sendall(b"X-%d: 1\r\n" % number)
                slow.settimeout(0.1)
                answer += slow.recv(1000)
                break
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_says_nothing_is_closed(small):
    with connect(small) as silent:
        assert silent.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_slow_bodies_are_cut_off_in_shape(small):
    with connect(small) as slow:
        slow.sendall(
            b"POST /v2/rerank HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: 100\r\n\r\n{"
        )
        answer = slow.recv(4000)
        while b"}" not in answer:
            answer += slow.recv(4000)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body) == {"message": "the body took longer than 0.5 s"}


def test_garbage_instead_of_http_is_400(small):
    with connect(small) as broken:
        broken.sendall(b"\x00\x01\x02 garbage\r\n\r\n")
        assert b" 400 " in broken.recv(1000).split(b"\r\n")[0]


def test_the_server_lives_on(small):
    assert small.client.post("/v2/rerank", json={"query": "ruby", "documents": ["ruby"]}).status_code == 200


def test_on_loopback_without_keys_only_loopbacks_names_are_answered(client, start):
    assert client.get("/health", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/health", headers={"host": "localhost:1234"}).status_code == 200
    named = start(allowed_hosts=("Rank.example",))
    for host in ("rank.example", "RANK.example:80"):
        assert named.client.get("/health", headers={"host": host}).status_code == 200


def test_cors_is_off_unless_asked_for(client, start):
    asking = {"origin": "https://app.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in client.options("/v2/rerank", headers=asking).headers
    open_server = start(cors_origins=("https://app.example",))
    allowed = open_server.client.options("/v2/rerank", headers=asking)
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    other = open_server.client.options("/v2/rerank", headers={**asking, "origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers
