"""A real HTTP server for all rerank dialects that fails on demand."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mnemorank.text.words import words


def overlap(query: str, text: str) -> float:
    """Return the share of the query's words that the text contains, which is the server's score."""
    query_words = set(words(query))
    return round(len(query_words & set(words(text))) / (len(query_words) + 1), 4)


@dataclass
class Script:
    """How the server responds.

    :param plan: the behavior for the next requests, in order.
    :param always: the behavior after that.
    """

    plan: list[str] = field(default_factory=list)
    always: str = "ok"
    stall_seconds: float = 5.0
    delay: float = 0.0
    key: str | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    connections: list[socket.socket] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> str:
        with self.lock:
            return self.plan.pop(0) if self.plan else self.always


def response_for(path: str, body: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    """Return the response body and the list of scores in it, by the path and fields of the dialect."""
    texts = body.get("texts") or body.get("documents") or body.get("text_2") or []
    query = body.get("query") or body.get("text_1") or ""
    scored = sorted(((overlap(query, text), index) for index, text in enumerate(texts)), reverse=True)
    if "texts" in body:
        entries = [{"index": index, "score": score} for score, index in scored]
        return entries, entries
    if path.endswith("/score"):
        entries = [
            {"index": index, "object": "score", "score": score} for score, index in sorted(scored, key=lambda s: s[1])
        ]
        return {"id": "x", "object": "list", "created": 1, "model": "m", "data": entries, "usage": {}}, entries
    entries = [{"index": index, "relevance_score": score} for score, index in scored]
    if "top_k" in body:
        return {"object": "list", "data": entries, "model": body["model"], "usage": {"total_tokens": 1}}, entries
    return {"id": "x", "results": entries, "meta": {"api_version": {"version": "2"}}}, entries


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script

    def setup(self) -> None:
        super().setup()
        with self.script.lock:
            self.script.connections.append(self.connection)

    def do_POST(self) -> None:
        script = self.script
        with script.lock:
            script.at_once += 1
            script.most_at_once = max(script.most_at_once, script.at_once)
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with script.lock:
                script.requests.append({"path": self.path, "headers": dict(self.headers), "body": body})
            if script.delay:
                time.sleep(script.delay)
            self.respond(script.next(), body)
        finally:
            with script.lock:
                script.at_once -= 1

    def respond(self, behavior: str, body: dict[str, Any]) -> None:
        script = self.script
        response, entries = response_for(self.path, body)
        if script.key is not None and self.headers.get("Authorization") != f"Bearer {script.key}":
            return self.send(401, {"message": f"invalid api token: {self.headers.get('Authorization')}"})
        if behavior.isdigit():
            return self.send(int(behavior), {"error": {"message": "try again later"}})
        if behavior.startswith("429:"):
            return self.send(429, {"detail": "slow down"}, {"Retry-After": behavior.partition(":")[2]})
        if behavior == "stall":
            script.released.wait(script.stall_seconds)
            self.close_connection = True
            return None
        if behavior == "cut":
            self.close_connection = True
            return self.connection.close()
        if behavior == "trickle-head":
            return self.send_head_slowly()
        if behavior in ("cut-mid", "trickle"):
            return self.send_slowly(json.dumps(response).encode(), cut=behavior == "cut-mid")
        if behavior == "malformed":
            return self.send_bytes(200, b'{"results": [{"index"')
        if behavior == "html":
            return self.send_bytes(200, b"<html>gateway</html>")
        changed = {
            "ok": entries,
            "partial": entries[:-1],
            "twice": [*entries[:-1], entries[0]],
            "beyond": [*entries[:-1], {**entries[-1], "index": len(entries)}],
            "nan": [{key: float("nan") if "score" in key else value for key, value in e.items()} for e in entries],
            "text": [{key: "high" if "score" in key else value for key, value in e.items()} for e in entries],
            "logits": [{key: 7.5 if "score" in key else value for key, value in e.items()} for e in entries],
            "nameless": [{"index": entry["index"]} for entry in entries],
        }[behavior]
        if isinstance(response, list):
            return self.send(200, changed)
        name = "data" if "data" in response else "results"
        return self.send(200, {**response, name: changed})

    def send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self.send_bytes(status, json.dumps(body).encode(), headers)

    def send_bytes(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_slowly(self, content: bytes, cut: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        for byte in content[: len(content) // 2]:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            if not cut and self.script.released.wait(0.05):
                break
        self.close_connection = True
        self.connection.close()

    def send_head_slowly(self) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX-Padding: " + b"x" * 100:
            self.wfile.write(bytes([byte]))
            if self.script.released.wait(0.05):
                break
        self.close_connection = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""

    def handle(self) -> None:
        with suppress(ConnectionError, ValueError, OSError):  # either side closed the connection
            super().handle()


@dataclass
class Server:
    url: str
    script: Script
    server: ThreadingHTTPServer

    def kill(self) -> None:
        """Stop like a killed process: connections are cut, and the port refuses new ones."""
        self.script.released.set()
        self.server.shutdown()
        self.server.server_close()
        with self.script.lock:
            for connection in self.script.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(**script: Any) -> Iterator[Server]:
    """Run a server.

    :param script: the fields of `Script`.
    """
    plan = Script(**script)
    handler = type("ScriptedHandler", (Handler,), {"script": plan})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    running = Server(f"http://127.0.0.1:{server.server_address[1]}", plan, server)
    try:
        yield running
    finally:
        running.kill()
        thread.join(5)
