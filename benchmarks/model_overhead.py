"""Measure the overhead of Python, the probe, failover and HTTP: `python benchmarks/model_overhead.py [MODEL]`.

The overhead of Python is the CPU time of `rerank` outside onnxruntime, for a split model on one thread and 100 memories
of 80 tokens, with the model alone and with all stages. Medians; the texts have been ranked before by another query.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import onnxruntime as ort

from mnemorank import Failover, Memory, Model, Options, Reranker
from mnemorank.artifact.manifest import Manifest
from mnemorank.artifact.resolve import load_artifact
from mnemorank.model.model import Scored, Scoring
from mnemorank.model.probe import probe
from mnemorank.scorers.split import SplitScorer
from speed import make_pairs

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


@dataclass
class TimedSession:
    """An onnxruntime session that adds up the CPU time of its runs."""

    session: ort.InferenceSession
    seconds: float = 0.0

    def run(self, *arguments: object) -> object:
        started = time.thread_time()
        outputs = self.session.run(*arguments)
        self.seconds += time.thread_time() - started
        return outputs


def measure_python(name: str, queries: int = 3, rounds: int = 5) -> None:
    pools = make_pairs(load_artifact(name).file("tokenizer.json"), queries)
    for is_prepared in (True, False):
        for title, options in {"the model alone": Options.model_only(), "all stages": Options()}.items():
            cache = {} if is_prepared else {"cache_megabytes": 0}
            model = Model.load(name, threads=1, **cache)
            scorer = model.scorer
            assert isinstance(scorer, SplitScorer)
            sessions = [TimedSession(scorer._encoder), TimedSession(scorer._joint)]
            scorer._encoder, scorer._joint = sessions
            seconds = []
            with Reranker(model, options=options) as reranker:
                for number in range(-1, rounds):  # the first round warms up
                    for query, texts in pools:
                        inside, started = sum(session.seconds for session in sessions), time.process_time()
                        reranker.rerank(f"{query} {number}", texts)
                        total = time.process_time() - started
                        if number >= 0:
                            seconds.append((total, total - sum(session.seconds for session in sessions) + inside))
            total, outside = np.median(seconds, axis=0)
            share = np.median([outside / total for total, outside in seconds])
            print(
                f"{'prepared' if is_prepared else 'unprepared'}, {title}: {1000 * total:.0f} ms of CPU, "
                f"{1000 * outside:.1f} ms ({share:.1%}) outside onnxruntime"
            )


def scoring(model: Scoring) -> Callable[[], object]:
    return lambda: model.score("How do I bake bread?", MEMORIES)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "mini"
    if load_artifact(name).manifest.family == "split":
        measure_python(name)
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
