"""A client that reads its response slowly gets all of it."""

from __future__ import annotations

import json
import socket
import time

from tests.server.test_hostile_clients import HEAD

# More than the kernel buffers; blanks cost the model nothing.
TEXTS = ["ruby" + " " * 190_000] * 22
BODY = json.dumps({"query": "ruby", "texts": TEXTS, "return_text": True}).encode()
REQUEST = b"POST /rerank HTTP/1.1\r\n" + HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


def test_a_client_that_reads_slowly_gets_its_whole_response(server):
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
        slow.connect(("127.0.0.1", server.port))
        slow.settimeout(20)
        slow.sendall(REQUEST)
        answer, end = b"", time.monotonic() + 1
        while time.monotonic() < end:
            answer += slow.recv(16384)
            time.sleep(0.02)
        length = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        size = answer.index(b"\r\n\r\n") + 4 + length
        assert len(answer) < size, "it was read slowly"
        while len(answer) < size and (part := slow.recv(1 << 20)):
            answer += part
    assert len(answer) == size
