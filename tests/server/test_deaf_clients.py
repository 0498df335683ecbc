"""Clients that do not read their answers keep neither connection nor memory; slow ones get all of theirs."""

from __future__ import annotations

import json
import socket
import time

import pytest

from tests.server.test_hostile import HEAD

# More than the kernel takes off the server's hands; blanks cost the model nothing.
TEXTS = ["ruby" + " " * 190_000] * 22
BODY = json.dumps({"query": "ruby", "texts": TEXTS, "return_text": True}).encode()
ASK = b"POST /rerank HTTP/1.1\r\n" + HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def hasty(start):
    return start(write_timeout=1.0)


def ask(running) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
    one.connect(("127.0.0.1", running.port))
    one.settimeout(20)
    one.sendall(ASK)
    return one


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


def buffered(running) -> int:
    return sum(one.transport.get_write_buffer_size() for one in list(running.server.server_state.connections))


def test_a_client_that_never_reads_is_cut_off(hasty):
    with ask(hasty):
        wait_until(lambda: buffered(hasty) > 1_000_000)
        wait_until(lambda: not hasty.server.server_state.connections)
    assert hasty.client.get("/health").status_code == 200


def test_a_client_that_reads_slowly_gets_its_whole_answer(hasty):
    with ask(hasty) as slow:
        wait_until(lambda: buffered(hasty) > 1_000_000)
        answer, end = b"", time.monotonic() + 3 * hasty.app.state.settings.write_timeout
        while time.monotonic() < end:
            answer += slow.recv(16384)
            time.sleep(0.02)
        length = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        size = answer.index(b"\r\n\r\n") + 4 + length
        assert len(answer) < size, "it was slow for longer than the limit"
        while len(answer) < size and (part := slow.recv(1 << 20)):
            answer += part
    assert len(answer) == size
