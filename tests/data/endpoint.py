"""An HTTP server with OpenAI's chat completions API that fails on demand."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = tuple[int, dict[str, str], bytes]


class Endpoint:
    """A fake API.

    :param script: what the n-th request gets instead of grades: a status, a body, or `stall`.
    """

    def __init__(self, script: dict[int, object] | None = None, grade: Callable[[str], float] | None = None) -> None:
        self.script = script or {}
        self.grade = grade or (lambda text: 1.0 if "right" in text else 0.2)
        self.requests: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.active = self.max_active = 0
        self.delay = 0.0
        self.lock = threading.Lock()

    def respond(self, body: dict) -> Reply:
        with self.lock:
            number = len(self.requests)
            self.requests.append(body)
        time.sleep(self.delay)
        planned = self.script.get(number, 200)
        if planned == "stall":
            time.sleep(1.5)
        elif isinstance(planned, int) and planned != 200:
            return planned, {"Retry-After": "0"}, b'{"error": {"message": "not now"}}'
        elif isinstance(planned, bytes):
            return 200, {}, planned
        elif isinstance(planned, str) and planned != "stall":
            return 200, {}, completion(planned)
        memories = re.findall(r"^(\d+)\. (.*)$", body["messages"][1]["content"], flags=re.M)
        grades = [{"memory": int(number), "grade": self.grade(text)} for number, text in memories]
        return 200, {}, completion(json.dumps({"grades": grades}))


def completion(content: str) -> bytes:
    message = {"choices": [{"message": {"role": "assistant", "content": content}}]}
    return json.dumps({**message, "usage": {"prompt_tokens": 100, "completion_tokens": 10}}).encode()


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with endpoint.lock:
                endpoint.headers.append({**dict(self.headers), "path": self.path})
                endpoint.active += 1
                endpoint.max_active = max(endpoint.max_active, endpoint.active)
            status, headers, content = endpoint.respond(body)
            with endpoint.lock:
                endpoint.active -= 1
            try:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                self.close_connection = True  # the client gave up waiting

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
