"""Measure the overhead of the probe, of failover and of HTTP: `python benchmarks/model_overhead.py [MODEL]`."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from mnemorank import Failover, Memory, Model
from mnemorank.artifact.manifest import Manifest
from mnemorank.model.model import Scored, Scoring
from mnemorank.model.probe import probe

MEMORIES = [Memory(f"Memory number {number} is about bread.") for number in range(32)]


class ConstantScores(BaseHTTPRequestHandler):
    """A TEI server that gives every text the same score, so that only the overhead of HTTP remains."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["texts"]
        content = json.dumps([{"index": i, "score": 0.5} for i in range(len(texts))]).encode()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


class InstantModel:
    """A model that takes no time, so that only the overhead of the chain remains."""

    manifest = Manifest(name="instant")

    def score(self, query: str, memories: Sequence[Memory], **options: object) -> Scored:
        return Scored(np.zeros(len(memories)), [None] * len(memories), self.manifest)

    def count_tokens(self, memories: Sequence[Memory]) -> list[int]:
        return [1 for _ in memories]

    def close(self) -> None:
        """Release nothing."""


def milliseconds(call: Callable[[], object], repeats: int = 100) -> float:
    """Return the shortest of many runs, since other processes can only add time."""
    call()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds) * 1000


def scoring(model: Scoring) -> Callable[[], object]:
    return lambda: model.score("How do I bake bread?", MEMORIES)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "mini"
    model = Model.load(name, probe=False)
    print(f"probe of {name}: {milliseconds(lambda: probe(model), 10):.1f} ms: {probe(model)}")
    baseline = milliseconds(scoring(InstantModel()))
    for title, chain in {
        "failover chain": Failover([InstantModel()]),
        "failover chain with a timeout": Failover([InstantModel()], timeouts=[10]),
    }.items():
        print(f"{title}: {milliseconds(scoring(chain)) - baseline:+.3f} ms per call")
    server = ThreadingHTTPServer(("127.0.0.1", 0), ConstantScores)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    remote = Model.load(f"tei:http://127.0.0.1:{server.server_address[1]}")
    print(f"32 memories over HTTP on this machine: {milliseconds(scoring(remote)):.2f} ms")
    remote.close()
    server.shutdown()


if __name__ == "__main__":
    main()
