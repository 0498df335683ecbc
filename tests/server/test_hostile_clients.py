"""What clients and operators can do wrong beyond invalid bodies: methods, sockets, options, models, folders."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time

import pytest

from mnemorank.cli import main
from mnemorank.server.api.admin import ModelCatalog
from mnemorank.server.auth import add_key
from tests.server.test_invalid_requests import ERROR_KEYS, PATHS, check_error_format, connect
from tests.server.test_lifecycle import launch  # noqa: F401
from tests.server.test_model_slot import make_model

HEAD = b"Host: 127.0.0.1\r\ncontent-type: application/json\r\n"
BODY = b'{"query": "ruby", "texts": ["ruby"]}'
REQUEST = b"POST /rerank HTTP/1.1\r\n" + HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
FIELDS = {"/v2/rerank": "documents", "/v1/rerank": "documents", "/rerank": "texts", "/v1/memories/rerank": "memories"}


@pytest.fixture(scope="module")
def impatient(start):
    return start(read_timeout=0.5, max_query_chars=1000)


def exchange(running, *parts: bytes) -> bytes:
    """Send the parts, and read until the server closes the connection or sends nothing for a while."""
    answer = b""
    with connect(running) as one:
        for part in parts:
            one.sendall(part)
        one.settimeout(2)
        try:
            while read := one.recv(65536):
                answer += read
        except (TimeoutError, ConnectionResetError):
            pass
    return answer


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", answer)]


@pytest.mark.slow
def test_pipelined_requests_are_answered_in_order(impatient):
    other = REQUEST.replace(b'["ruby"]', b'["crab"]')
    answer = exchange(impatient, REQUEST + other + REQUEST)
    assert statuses(answer)[:3] == [200, 200, 200]
    scores = [json.loads(found)[0]["score"] for found in re.findall(rb"\[\{.*?\}\]", answer)]
    assert scores[0] == scores[2] > scores[1]


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: other\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /rerank HTTP/1.1\r\n" + HEAD + b"content-length: -5\r\n\r\n",
        b"POST /rerank HTTP/1.1\r\n" + HEAD + b"content-length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /rerank HTTP/1.1\r\n" + HEAD + b"transfer-encoding: gzip\r\n\r\n",
        b"POST /rerank HTTP/1.1\r\n" + HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http_is_400(impatient, sent):
    assert statuses(exchange(impatient, sent)) == [400]


@pytest.mark.parametrize("length", [b"content-length: 40000000\r\n", b"transfer-encoding: chunked\r\n"])
def test_a_get_with_a_body_is_refused_and_its_connection_closed(impatient, length):
    with connect(impatient) as one:
        one.sendall(b"GET /health HTTP/1.1\r\n" + HEAD + length + b"\r\n1")
        one.settimeout(5)
        answer = b""
        while read := one.recv(65536):
            answer += read
    assert statuses(answer) == [400]
    assert b"a GET request has no body" in answer


def test_two_statements_of_the_length_are_refused_and_the_connection_closed(impatient):
    """A proxy that believes the other one would take the rest of the body for a request."""
    body = b'{"query": "ruby", "memories": ["ruby"]}'
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    lengths = b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n" % len(body)
    smuggled = b"GET /health HTTP/1.1\r\n" + HEAD + b"\r\n"
    answer = exchange(impatient, b"POST /v1/memories/rerank HTTP/1.1\r\n" + HEAD + lengths + chunked + smuggled)
    assert statuses(answer) == [400]
    assert b"connection: close" in answer.lower()


def test_a_client_that_disconnects_while_sending_its_body_leaves_nothing_behind(impatient):
    for _ in range(5):
        with connect(impatient) as one:
            one.sendall(b"POST /rerank HTTP/1.1\r\n" + HEAD + b"content-length: 100\r\n\r\n{")
    end = time.monotonic() + 5
    while impatient.app.state.metrics.active_requests._value.get() > 0:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_client_that_stops_reading_does_not_block_others(impatient):
    body = json.dumps({"query": "ruby", "texts": ["ruby " * 2000] * 400, "return_text": True}).encode()
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", impatient.port))
        deaf.sendall(b"POST /rerank HTTP/1.1\r\n" + HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        answer = impatient.client.post("/rerank", json={"query": "ruby", "texts": ["ruby"]})
    assert answer.status_code == 200


def test_connections_beyond_the_limit_get_503(start):
    full = start(max_connections=2)
    ask = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

    def check_health(one: socket.socket) -> None:
        one.sendall(ask)
        answer = b""
        while not answer.endswith(b"}"):
            answer += one.recv(65536)
        assert statuses(answer) == [200]

    with connect(full) as first, connect(full) as second:
        check_health(first)
        check_health(second)
        refused = exchange(full, ask)
    assert statuses(refused) == [503]
    with connect(full) as later:
        check_health(later)


@pytest.mark.parametrize("path", PATHS)
def test_other_methods_and_a_trailing_slash_are_errors(client, path):
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "BREW"):
        answer = client.request(method, path)
        assert answer.status_code == 405, method
        check_error_format(path, answer)
    assert client.head(path).status_code == 405
    answer = client.post(f"{path}/", json={})
    assert answer.status_code == 404
    assert set(answer.json()) >= ERROR_KEYS[path]


def test_health_checks_may_use_head(client):
    for path in ("/health", "/ready"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize("value", [-1, 10**30, 1.5, "2", True, [1], {}])
def test_an_invalid_number_of_results_is_an_error_that_names_the_field(client, path, value):
    """TEI has no such field and ignores it like all unknown ones."""
    name = "top_k" if "memories" in path else "top_n"
    answer = client.post(path, json={"query": "ruby", FIELDS[path]: ["ruby", "cat"], name: value})
    if path == "/rerank":
        assert len(answer.json()) == 2
        return
    check_error_format(path, answer)
    assert name in answer.text


@pytest.mark.parametrize("path", ["/v2/rerank", "/v1/rerank", "/rerank"])
def test_top_n_of_zero_means_all_on_the_paths_of_vllm(client, path):
    answer = client.post(path, json={"query": "ruby", "documents": ["ruby", "cat"], "top_n": 0})
    assert answer.status_code == 200, answer.text
    assert [result["index"] for result in answer.json()["results"]] == [0, 1]


@pytest.mark.parametrize(("path", "field"), [("/v1/rerank", "documents"), ("/v1/memories/rerank", "memories")])
def test_top_k_of_zero_is_an_error(client, path, field):
    answer = client.post(path, json={"query": "ruby", field: ["ruby", "cat"], "top_k": 0})
    assert answer.status_code == 422
    assert "top_k" in answer.text


@pytest.mark.parametrize("path", FIELDS)
def test_more_results_than_documents_gives_all(client, path):
    name = "top_k" if "memories" in path else "top_n"
    answer = client.post(path, json={"query": "ruby", FIELDS[path]: ["ruby", "cat"], name: 5}).json()
    assert len(answer if isinstance(answer, list) else answer["results"]) == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rerank", {"query": "ruby", "documents": ["ruby"]}),
        ("/score", {"text_1": "ruby", "text_2": "ruby"}),
        ("/v1/memories/rerank", {"query": "ruby", "memories": ["ruby"]}),
    ],
)
def test_an_instruction_has_the_limit_of_a_query(impatient, path, body):
    answer = impatient.client.post(path, json={**body, "instruction": "x" * 1001})
    assert answer.status_code == 422
    check_error_format(path, answer, is_vllm=path == "/rerank")
    assert "instruction: has 1001 characters, more than max_query_chars = 1000" in answer.text


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"options": {"recency": "exponential", "half_life_days": 0}}, "options.half_life_days"),
        ({"options": {"diversity": 2}}, "options.diversity"),
        ({"time_range": ["2025", "2024"]}, "time_range"),
        ({"now": "0000"}, "now"),
        ({"memories": [{"text": "ruby", "occurred_start": 10**25}]}, "memories.0.occurred_start"),
        ({"memories": ["ruby", {"text": {"text": "ruby"}}]}, "memories.1.text"),
        ({"memories": [{"text": "ruby", "trust": 1e300}]}, "memories.0.trust"),
    ],
)
def test_errors_of_options_name_the_full_path(client, options, field):
    answer = client.post("/v1/memories/rerank", json={"query": "ruby", "memories": ["ruby"], **options})
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == field


def test_memories_with_the_same_id_are_ranked_and_reported(client):
    memories = [{"id": "a", "text": "ruby"}, {"id": "a", "text": "cat"}]
    answer = client.post("/v1/memories/rerank", json={"query": "ruby", "memories": memories}).json()
    assert [result["index"] for result in answer["results"]] == [0, 1]
    assert "occur more than once" in answer["warnings"][0]


@pytest.fixture(scope="module")
def guarded(start, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    add_key(keys, "agent")
    return start(keys=keys)


@pytest.mark.parametrize("key", [b"", b"Bearer", b"Basic abc", b"Bearer \xc3\xa9\xff", b"Bearer " + b"x" * 9000])
def test_malformed_keys_are_401(guarded, key):
    for path in PATHS:
        answer = guarded.client.post(path, json={}, headers=[(b"authorization", key)])
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        check_error_format(path, answer)


@pytest.mark.parametrize("setting", ["registry", "models_dir"])
def test_a_missing_folder_is_an_error(setting, tiny_onnx, capsys):
    flag = "--" + setting.replace("_", "-")
    assert main(["serve", "--model", str(tiny_onnx), "--port", "0", flag, "/no/such/folder"]) == 2
    assert f"{setting}: " in (shown := capsys.readouterr().err)
    assert "/no/such/folder" in shown


@pytest.mark.parametrize("url", ["sqlite:////no/such/folder/x.db", "mysql://host/x", "sqlite:////proc/x.db"])
def test_a_store_that_cannot_be_opened_exits_2(url, tiny_onnx, capsys):
    assert main(["serve", "--model", str(tiny_onnx), "--port", "0", "--store", url]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "store: " in line


def test_a_configuration_that_is_not_a_table_exits_2(tmp_path, capsys):
    (tmp_path / "serve.toml").write_text("serve = 3\n")
    assert main(["serve", "--config", str(tmp_path / "serve.toml")]) == 2
    assert "serve.toml: serve: " in capsys.readouterr().err


def test_a_store_that_fails_later_does_not_fail_requests(start, tmp_path):
    running = start(store=f"sqlite:///{tmp_path / 'feedback.db'}")
    running.app.state.event_log.store.close()
    for entry in tmp_path.iterdir():
        entry.unlink()
    tmp_path.rmdir()
    answer = running.client.post("/v1/memories/rerank", json={"query": "ruby", "memories": ["ruby"]})
    assert answer.status_code == 200
    assert "mnemorank_events_lost_total 1.0" in running.client.get("/metrics").text


def test_a_model_that_cannot_be_loaded_is_refused_and_the_old_one_stays(start, tiny_onnx, tmp_path):
    broken = make_model(tiny_onnx, tmp_path / "broken", 1.0)
    (broken / "model.onnx").write_bytes(os.urandom(500))
    (tmp_path / "empty").mkdir()
    unhashed = make_model(tiny_onnx, tmp_path / "unhashed", 1.0)
    manifest = json.loads((unhashed / "mnemorank.json").read_text())
    (unhashed / "mnemorank.json").write_text(json.dumps({**manifest, "files": {}}))
    (unhashed / "model.onnx").write_bytes(b"")
    running = start(models_dir=tmp_path)
    before = running.client.get("/ready").json()
    for name in ("broken", "empty", "unhashed"):
        answer = running.client.post("/v1/models/swap", json={"model": name})
        assert answer.status_code == 409, answer.text
    assert running.client.get("/ready").json() == before


def test_an_unexpected_error_of_the_loader_is_a_refusal(start, monkeypatch):
    running = start()

    def fail(name):
        raise OSError("the disk is gone")

    monkeypatch.setattr(running.app.state.slot, "_load", fail)
    answer = running.client.post("/v1/models/swap", json={})
    assert answer.status_code == 409
    assert "the disk is gone" in answer.text
    assert running.client.get("/ready").status_code == 200


@pytest.mark.slow
def test_sighup_with_a_bad_model_keeps_the_old_one(launch, tiny_onnx, tmp_path):  # noqa: F811
    folder = make_model(tiny_onnx, tmp_path / "model", 1.0)
    process = launch("--model", str(folder))
    before = process.client.get("/ready").json()
    (folder / "model.onnx").write_bytes(b"broken")
    process.popen.send_signal(signal.SIGHUP)
    end = time.monotonic() + 20
    while not any("model refused" in line for line in process.lines):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert process.client.get("/ready").json() == before
    assert process.client.post("/rerank", json={"query": "ruby", "texts": ["ruby"]}).status_code == 200


def test_two_servers_follow_one_registry(start, tiny_onnx, tmp_path):
    for name, bias in (("1", 1.0), ("2", 4.0)):
        make_model(tiny_onnx, tmp_path / "versions" / name, bias)
    (tmp_path / "current").write_text("1")
    pair = [start(registry=tmp_path) for _ in range(2)]
    first = {running.client.get("/ready").json()["model"] for running in pair}
    (tmp_path / "next").write_text("2")
    os.replace(tmp_path / "next", tmp_path / "current")
    assert ModelCatalog(pair[0].app.state.settings).registered() == tmp_path / "versions" / "2"
    end = time.monotonic() + 10
    while (now := {running.client.get("/ready").json()["model"] for running in pair}) & first or len(now) > 1:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert len(first) == 1
