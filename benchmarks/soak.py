"""Soak test: clients of all routes, feedback, model swaps and a learning run, for an hour.

    pip install 'mnemorank[serve,learn,train]' httpx
    python benchmarks/soak.py --minutes 60 --clients 100 --rate 12

The server runs in its own process with a learning loop. Each client sends requests at random times, on average `rate`
per second for all clients together. Meanwhile the model is swapped every `--swap-seconds`, and a training run starts
after the warm-up. Memory, file descriptors and threads of the server are sampled every second.

Prints a Markdown table, and exits with 1 unless all of this holds:

- No request that was admitted failed. Refused ones (429) are counted apart.
- Memory and file descriptors are flat after the warm-up (the first quarter of the time).
- The 99th percentile of the latency of reranking is less than five times the median.
- The training run is done, and all swaps succeeded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from load_clients import server

PEOPLE = "Ada Ben Cleo Dan Eva Finn Gia Hal Iris Jon Kim Leo Mia Ned Ola Pia Quin Ray Sue Tom".split()
FACTS = {
    "Where does {} work?": "{} works at {}.",
    "What is {} allergic to?": "{} is allergic to {}.",
    "Where does {} live?": "{} lives in {}.",
    "What does {} play?": "{} plays the {}.",
    "What did {} buy?": "{} bought a {}.",
}
THINGS = "Aurora Zenith peanuts pollen Porto Lyon guitar cello bicycle kettle".split()
DOCUMENTS = 10
WARM_UP = 0.25
MAX_GROWTH = 0.1
MAX_MORE_FILES = 12
MAX_LATENCY_RATIO = 5.0
SETTINGS = """
[privacy]
texts = true
[training]
model = {model}
min_examples = 20
overrides = ["train.epochs=1"]
"""


@dataclass
class Measurements:
    """What the clients and the observer saw.

    :param seconds: latencies by route.
    :param samples: time, resident memory in MB, file descriptors and threads of the server.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: int = 0
    degraded: int = 0
    failures: list[str] = field(default_factory=list)
    swaps: int = 0
    run: dict[str, Any] = field(default_factory=dict)
    samples: list[tuple[float, float, int, int]] = field(default_factory=list)


class Client:
    """A client that reranks on all routes and gives feedback on what it got."""

    def __init__(self, number: int, http: httpx.AsyncClient, measured: Measurements) -> None:
        self.user = f"user{number}"
        self._rng = random.Random(number)
        self._http, self._measured = http, measured
        self._event: tuple[str, int] | None = None

    async def act(self) -> None:
        """Send one request."""
        routes = [(self.native, 40), (self.tei, 12), (self.cohere, 12), (self.jina, 12), (self.score, 8)]
        routes += [(self.feedback, 14), (self.administration, 2)]
        actions, weights = zip(*routes, strict=True)
        await self._rng.choices(actions, weights)[0]()

    def _question(self) -> tuple[str, list[str], int]:
        """Return a query, documents, and the index of the one that answers it."""
        query, fact = self._rng.choice(list(FACTS.items()))
        person = self._rng.choice(PEOPLE)
        documents = [
            self._rng.choice(list(FACTS.values())).format(other, self._rng.choice(THINGS))
            for other in self._rng.choices([name for name in PEOPLE if name != person], k=DOCUMENTS)
        ]
        index = self._rng.randrange(DOCUMENTS)
        documents[index] = fact.format(person, self._rng.choice(THINGS))
        return query.format(person), documents, index

    async def native(self) -> None:
        query, documents, index = self._question()
        memories = [{"id": str(number), "text": text} for number, text in enumerate(documents)]
        body = {"query": query, "memories": memories, "user": self.user}
        answer = await self._send("POST", "/v1/memories/rerank", body)
        if answer is not None:
            self._measured.degraded += answer["degraded"] is not None
            self._event = answer["event_id"], index

    async def tei(self) -> None:
        query, documents, _ = self._question()
        await self._send("POST", "/rerank", {"query": query, "texts": documents})

    async def cohere(self) -> None:
        query, documents, _ = self._question()
        await self._send("POST", "/v2/rerank", {"query": query, "documents": documents})

    async def jina(self) -> None:
        query, documents, _ = self._question()
        await self._send("POST", "/v1/rerank", {"query": query, "documents": documents})

    async def score(self) -> None:
        query, documents, _ = self._question()
        await self._send("POST", "/score", {"text_1": query, "text_2": documents})

    async def feedback(self) -> None:
        if self._event is None:
            return await self.native()
        event_id, index = self._event
        others = [number for number in range(DOCUMENTS) if number != index]
        signals = [{"kind": "cited", "memory_id": str(index)}]
        signals += [{"kind": "ignored", "memory_id": str(number)} for number in self._rng.sample(others, 3)]
        await self._send("POST", "/v1/feedback", {"event_id": event_id, "signals": signals})

    async def administration(self) -> None:
        paths = ("/metrics", "/v1/models", "/v1/learning/status", "/info", "/health")
        await self._send("GET", self._rng.choice(paths))

    async def _send(self, method: str, path: str, body: Any = None) -> Any:
        started = time.monotonic()
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            self._measured.failures.append(f"{path}: {type(error).__name__}: {error}")
            return None
        if answer.status_code == 429:
            self._measured.refused += 1
        elif answer.is_success:
            self._measured.seconds[path].append(time.monotonic() - started)
            return answer.json() if "json" in answer.headers.get("content-type", "") else None
        else:
            self._measured.failures.append(f"{path}: {answer.status_code} {answer.text[:200]}")
        return None


async def keep_acting(client: Client, mean_pause: float, until: float) -> None:
    rng = random.Random(client.user)
    await asyncio.sleep(rng.random() * mean_pause)
    while time.monotonic() < until:
        await client.act()
        await asyncio.sleep(min(rng.expovariate(1 / mean_pause), max(until - time.monotonic(), 0)))


async def swap_models(http: httpx.AsyncClient, measured: Measurements, model: str, pause: float, until: float) -> None:
    """Swap between a model and the learning loop's current version."""
    bodies: list[dict[str, Any]] = [{"model": model}, {}]
    while time.monotonic() + pause < until:
        await asyncio.sleep(pause)
        answer = await http.post("/v1/models/swap", json=bodies[measured.swaps % 2])
        if answer.is_success:
            measured.swaps += 1
        else:
            measured.failures.append(f"swap: {answer.status_code} {answer.text[:200]}")


async def learn(http: httpx.AsyncClient, measured: Measurements, delay: float, until: float) -> None:
    """Start a training run and follow it."""
    await asyncio.sleep(delay)
    answer = await http.post("/v1/learning/run")
    if not answer.is_success:
        measured.failures.append(f"learning run: {answer.status_code} {answer.text[:200]}")
        return
    measured.run = answer.json()
    while measured.run["state"] in ("waiting", "running") and time.monotonic() < until:
        await asyncio.sleep(1)
        measured.run = (await http.get(f"/v1/learning/runs/{measured.run['id']}")).json()


async def observe(pid: int, measured: Measurements, until: float) -> None:
    process = Path(f"/proc/{pid}")
    while time.monotonic() < until:
        fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
        memory = int(fields["VmRSS"].split()[0]) / 1024
        files = len(list((process / "fd").iterdir()))
        measured.samples.append((time.monotonic(), memory, files, int(fields["Threads"])))
        await asyncio.sleep(1)


async def soak(arguments: argparse.Namespace, address: Any) -> Measurements:
    measured = Measurements()
    seconds = 60 * arguments.minutes
    until = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=arguments.clients + 10)
    base = f"http://{address.host}:{address.port}"
    async with httpx.AsyncClient(base_url=base, timeout=120, limits=limits) as http:
        clients = [Client(number, http, measured) for number in range(arguments.clients)]
        await asyncio.gather(
            *(keep_acting(client, arguments.clients / arguments.rate, until) for client in clients),
            swap_models(http, measured, Path(arguments.model).name, arguments.swap_seconds, until),
            learn(http, measured, WARM_UP * seconds, until),
            observe(address.pid, measured, until),
        )
    return measured


def report(measured: Measurements, arguments: argparse.Namespace) -> bool:
    """Print what was measured; return whether everything holds that should."""
    rerank = sorted(
        value for route, values in measured.seconds.items() if "rerank" in route or "score" in route for value in values
    )
    p50, p99 = (1000 * statistics.quantiles(rerank, n=100)[place - 1] for place in (50, 99))
    started = measured.samples[0][0]
    warm = [sample for sample in measured.samples if sample[0] - started > WARM_UP * 60 * arguments.minutes]
    quarter = max(len(warm) // 4, 1)
    first, last = warm[:quarter], warm[-quarter:]
    memory = [statistics.median(sample[1] for sample in part) for part in (first, last)]
    files, threads = ([max(sample[place] for sample in part) for part in (first, last)] for place in (2, 3))
    count = sum(map(len, measured.seconds.values()))
    rows = [
        ("duration, clients", f"{arguments.minutes:g} min, {arguments.clients}"),
        ("answered requests", f"{count} ({count / (60 * arguments.minutes):.1f} per second)"),
        ("failed, refused (429), degraded", f"{len(measured.failures)}, {measured.refused}, {measured.degraded}"),
        ("swaps", measured.swaps),
        ("learning run", f"{measured.run.get('state')}, {measured.run.get('examples')} examples"),
        ("latency of reranking, p50 and p99", f"{p50:.0f} ms, {p99:.0f} ms ({p99 / p50:.1f} times)"),
        ("memory, first and last quarter after the warm-up", f"{memory[0]:.0f} MB, {memory[1]:.0f} MB"),
        ("file descriptors, likewise", f"{files[0]}, {files[1]}"),
        ("threads, likewise", f"{threads[0]}, {threads[1]}"),
    ]
    print("| | |\n|---|---|")
    print("\n".join(f"| {name} | {value} |" for name, value in rows), flush=True)
    for failure, times in Counter(measured.failures).most_common(10):
        print(f"{times} x {failure}", file=sys.stderr)
    if arguments.samples:
        arguments.samples.write_text(json.dumps(measured.samples))
    checks = {
        "no failures": not measured.failures,
        "flat memory": memory[1] <= memory[0] * (1 + MAX_GROWTH),
        "flat file descriptors": files[1] <= files[0] + MAX_MORE_FILES,
        "p99 below five times p50": p99 < MAX_LATENCY_RATIO * p50,
        "training run done": measured.run.get("state") == "done",
        "swaps": measured.swaps > 0,
    }
    for name, holds in checks.items():
        print(f"{'ok' if holds else 'FAILED'}: {name}", flush=True)
    return all(checks.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini", help="bundled model, or model folder")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rate", type=float, default=12.0, help="requests per second of all clients together")
    parser.add_argument("--swap-seconds", type=float, default=20.0)
    parser.add_argument("--root", type=Path, help="folder of a learning loop (default: a new one)")
    parser.add_argument("--samples", type=Path, help="write the samples of memory and file descriptors to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.root or Path(folder)
        if not (root / "learning.toml").exists():
            (root / "learning.toml").write_text(SETTINGS.format(model=json.dumps(arguments.model)))
        folder_of_models = ["--models-dir", str(Path(arguments.model).parent)] if "/" in arguments.model else []
        with server("--learning", str(root), *folder_of_models) as address:
            measured = asyncio.run(soak(arguments, address))
    return 0 if report(measured, arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
