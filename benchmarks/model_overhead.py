"""What the probe, the failover chain and HTTP cost: `python benchmarks/model_overhead.py [MODEL]`."""

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


class EmptyHead(BaseHTTPRequestHandler):
    """A TEI server that gives every text the same score: what is left is the way there and back."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["texts"]
        content = json.dumps([{"index": i, "score": 0.5} for i in range(len(texts))]).encode()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


class Instant:
    """A model that answers at once: what is left is the chain."""

    manifest = Manifest(name="instant")

    def score(self, query: str, memories: Sequence[Memory], **options: object) -> Scored:
        return Scored(np.zeros(len(memories)), [None] * len(memories), self.manifest)

    def count_tokens(self, memories: Sequence[Memory]) -> list[int]:
        return [1 for _ in memories]

    def close(self) -> None:
        """Nothing to give back."""


def milliseconds(call: Callable[[], object], times: int = 100) -> float:
    """The best of many, since other processes only ever add."""
    call()
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return min(taken) * 1000


def scoring(model: Scoring) -> Callable[[], object]:
    return lambda: model.score("How do I bake bread?", MEMORIES)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "mini"
    model = Model.load(name, probe=False)
    print(f"probe of {name}: {milliseconds(lambda: probe(model), 10):.1f} ms: {probe(model)}")
    alone = milliseconds(scoring(Instant()))
    for title, chain in {
        "failover chain": Failover([Instant()]),
        "failover chain with a timeout": Failover([Instant()], timeouts=[10]),
    }.items():
        print(f"{title}: {milliseconds(scoring(chain)) - alone:+.3f} ms a call")
    server = ThreadingHTTPServer(("127.0.0.1", 0), EmptyHead)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    remote = Model.load(f"tei:http://127.0.0.1:{server.server_address[1]}")
    print(f"32 memories over HTTP on this machine: {milliseconds(scoring(remote)):.2f} ms")
    remote.close()
    server.shutdown()


if __name__ == "__main__":
    main()
