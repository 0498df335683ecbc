"""Invalid, oversized and slow requests get a 4xx in the format of their dialect, and the server keeps working."""

from __future__ import annotations

import json
import socket
import time

import pytest

PATHS = (
    "/v2/rerank",
    "/v1/rerank",
    "/rerank",
    "/infinity/rerank",
    "/score",
    "/v1/score",
    "/v1/memories/rerank",
    "/v1/models/swap",
)
ERROR_KEYS = {
    "/v1/index/add": {"error"},
    "/v1/index/update": {"error"},
    "/v1/index/delete": {"error"},
    "/v1/feedback": {"error"},
    "/v2/rerank": {"message"},
    "/v1/rerank": {"detail"},
    "/rerank": {"error", "error_type"},
    "/infinity/rerank": {"error"},
    "/score": {"error"},
    "/v1/score": {"error"},
    "/v1/memories/rerank": {"error"},
    "/v1/models/swap": {"error"},
}
INNER_KEYS = {
    "/v1/index/add": {"code", "message", "field"},
    "/v1/index/update": {"code", "message", "field"},
    "/v1/index/delete": {"code", "message", "field"},
    "/v1/feedback": {"code", "message", "field"},
    "/infinity/rerank": {"message", "type", "param", "code"},
    "/score": {"message", "type", "param", "code"},
    "/v1/score": {"message", "type", "param", "code"},
    "/v1/memories/rerank": {"code", "message", "field"},
    "/v1/models/swap": {"code", "message", "field"},
}
INVALID_BODIES = {
    "not JSON": b"ruby",
    "truncated": b'{"query": "ru',
    "empty": b"",
    "not UTF-8": b'{"query": "\xff\xfe", "documents": ["a"]}',
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


def check_error_format(path, answer, is_vllm=False):
    assert 400 <= answer.status_code < 500, answer.text
    body = answer.json()
    if is_vllm:
        path = "/score"
    assert set(body) == ERROR_KEYS[path], body
    if path in INNER_KEYS:
        assert set(body["error"]) == INNER_KEYS[path]


@pytest.mark.parametrize("name", INVALID_BODIES)
@pytest.mark.parametrize("path", PATHS)
def test_invalid_bodies(client, path, name):
    check_error_format(
        path, client.post(path, content=INVALID_BODIES[name], headers={"content-type": "application/json"})
    )


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_is_not_sent_as_json_is_refused(client, path):
    """A web page can send text/plain to any server without a preflight request, so it must not be read as JSON."""
    answer = client.post(path, content=b'{"query": "a", "documents": ["a"]}', headers={"content-type": "text/plain"})
    check_error_format(path, answer)


@pytest.mark.parametrize("path", PATHS)
def test_get_is_not_allowed(client, path):
    answer = client.get(path)
    assert answer.status_code == 405
    check_error_format(path, answer)


LISTS = {
    "/v2/rerank": {"query": "q", "documents": []},
    "/v1/rerank": {"query": "q", "documents": []},
    "/rerank": {"query": "q", "texts": []},
    "/infinity/rerank": {"query": "q", "documents": []},
    "/score": {"text_1": "q", "text_2": []},
    "/v1/score": {"queries": "q", "documents": []},
    "/v1/memories/rerank": {"query": "q", "memories": []},
    "/v1/feedback": {"event_id": "e", "signals": []},
    "/v1/index/add": {"memories": []},
    "/v1/index/update": {"memories": []},
    "/v1/index/delete": {"ids": []},
}


@pytest.mark.parametrize("path", LISTS)
def test_a_list_of_many_invalid_elements_is_one_error(client, path):
    """An error for each element took seconds and gigabytes."""
    field = list(LISTS[path])[-1]
    body = json.dumps({**LISTS[path], field: [1] * 500_000})
    started = time.process_time()  # the server is a thread; other processes do not count
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert time.process_time() - started < 4
    check_error_format(path, answer)
    assert f"{field}.0" in answer.text
    assert len(answer.text) < 500


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query": "q", "memories": ["a"], **{f"unknown{number}": 1 for number in range(100_000)}}, None),
        ({"query": "q", "memories": ["a"], "options": {f"unknown{number}": 1 for number in range(100_000)}}, "options"),
        (
            {"query": "q", "memories": ["a"], "options": {"weights": dict.fromkeys(map(str, range(100_000)), "x")}},
            "options.weights",
        ),
        ({"query": "q", "memories": ["a"], "time_range": [1] * 100_000}, "time_range.0"),
    ],
)
def test_an_object_of_many_invalid_keys_is_one_error(client, body, field):
    started = time.process_time()  # the server is a thread; other processes do not count
    answer = client.post("/v1/memories/rerank", json=body)
    assert time.process_time() - started < 4
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)
    assert len(answer.text) < 500


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", [b"{}", b"1", b'{"a": 1}'])
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(client, path, value):
    """Parsing holds up all threads: 9 million empty objects in 27 MB took 1.3 s and 600 MB."""
    content = b'{"query": "ruby", "memories": [{"text": "ruby", "extra": [' + (value + b",") * 2_000_000 + b"1]}]}"
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    check_error_format(path, answer)
    assert "values" in answer.text


def test_a_body_of_many_values_is_accepted(client):
    memories = [{"text": "ruby", "embedding": [0.5] * 384}] * 1000
    answer = client.post("/v1/memories/rerank", json={"query": "ruby", "memories": memories, "return_texts": False})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.jsonl", '{"text": "a"}\n' * 10_001 + "not JSON"),
        ("m.csv", "text\n" + "a\n" * 10_001 + '"'),
        ("m", "[1" + ",1" * 10_001 + "]"),
    ],
)
def test_a_file_of_too_many_memories_is_not_read_to_its_end(client, name, content):
    """Millions of lines took minutes and gigabytes, with a warning for each."""
    answer = client.post("/v1/console/memories", json={"name": name, "content": content})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "limit")


@pytest.fixture(scope="module")
def small(start):
    return start(max_body_bytes=2000, max_documents=3, max_document_chars=50, max_query_chars=20, read_timeout=0.5)


@pytest.mark.parametrize("path", PATHS)
def test_an_oversized_body_is_413_and_names_the_limit(small, path):
    answer = small.client.post(path, content=b"x" * 5000, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    check_error_format(path, answer)
    assert "max_body_bytes = 2000" in answer.text


def test_an_oversized_chunked_body_is_413(small):
    answer = small.client.post("/v2/rerank", content=(b"x" * 500 for _ in range(10)))
    assert answer.status_code == 413


def expect_continue(running, *parts: bytes) -> bytes:
    """Send a request with `Expect: 100-continue`, and the parts whatever the server says; return what it sent."""
    with connect(running) as one:
        one.settimeout(5)
        one.sendall(b"POST /rerank HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\n")
        one.sendall(b"expect: 100-continue\r\n" + parts[0])
        for part in parts[1:]:
            time.sleep(0.05)
            one.sendall(part)
        return b"".join(iter(lambda: one.recv(65536), b""))


def test_an_oversized_body_gets_no_100_continue(small):
    answer = expect_continue(small, b"content-length: 40000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"max_body_bytes = 2000" in answer


def test_a_body_that_grows_too_large_after_100_continue_is_read_before_it_is_refused(small):
    part = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    answer = expect_continue(small, b"transfer-encoding: chunked\r\n\r\n", part, part, part, part + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 100 ")
    assert b"HTTP/1.1 413 " in answer


@pytest.mark.slow
def test_the_memory_of_all_bodies_together_is_bounded(start):
    """32 clients send a part of a body each and wait: those beyond the limit get 429, and the server keeps working."""
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
        (
            "/v1/memories/rerank",
            {"query": "a", "memories": [{"text": "a", "metadata": {"supersedes": ["1", "2", "3", "4"]}}]},
            "memories.0.metadata.supersedes: has 4 entries, more than max_documents = 3",
        ),
    ],
)
def test_exceeded_limits_are_422_and_name_the_setting(small, path, body, limit):
    answer = small.client.post(path, json=body)
    assert answer.status_code == 422
    check_error_format(path, answer, is_vllm=path == "/rerank" and "documents" in body)
    assert limit in answer.text


def test_a_query_that_is_too_long_for_the_model_is_an_error(client):
    answer = client.post("/v2/rerank", json={"query": "ruby " * 80, "documents": ["a"]})
    assert answer.status_code == 422
    assert "query: " in answer.json()["message"]
    native = client.post("/v1/memories/rerank", json={"query": "ruby " * 80, "memories": ["a"]})
    assert native.status_code == 200, "the native API reads the end of the query and warns"
    assert "query: " in native.json()["warnings"][0]


def connect(running):
    return socket.create_connection(("127.0.0.1", running.port), timeout=5)


def test_slow_bodies_are_408(small):
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


def test_what_is_not_http_is_400(small):
    with connect(small) as broken:
        broken.sendall(b"\x00\x01\x02 garbage\r\n\r\n")
        assert b" 400 " in broken.recv(1000).split(b"\r\n")[0]


def test_the_server_keeps_working(small):
    assert small.client.post("/v2/rerank", json={"query": "ruby", "documents": ["ruby"]}).status_code == 200


def test_a_server_on_loopback_without_keys_refuses_other_host_names(client, start):
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000"):
        assert client.get("/health", headers={"host": host}).status_code == 400
        assert client.post("/rerank", json={"query": "a", "texts": ["a"]}, headers={"host": host}).status_code == 400
    assert client.get("/health", headers={"host": "localhost:1234"}).status_code == 200
    assert client.get("/health", headers={"host": "[::1]:1234"}).status_code == 200
    named = start(allowed_hosts=("Rank.example",))
    for host in ("rank.example", "RANK.example:80"):
        assert named.client.get("/health", headers={"host": host}).status_code == 200


def test_cors_is_off_by_default(client, start):
    asking = {"origin": "https://app.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in client.options("/v2/rerank", headers=asking).headers
    open_server = start(cors_origins=("https://app.example",))
    allowed = open_server.client.options("/v2/rerank", headers=asking)
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    other = open_server.client.options("/v2/rerank", headers={**asking, "origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers
