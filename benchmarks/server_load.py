"""Load tests of the server, which runs in its own process, over loopback. Prints Markdown tables.

    python benchmarks/server_load.py all          # everything below, about 7 minutes
    python benchmarks/server_load.py sustained --clients 100 --seconds 60
    python benchmarks/server_load.py swaps --clients 100 --swaps 100
    python benchmarks/server_load.py batching --clients 32 --documents 10 --seconds 8 --rounds 2
    python benchmarks/server_load.py capacity --seconds 5
    python benchmarks/server_load.py latency --documents 10 --seconds 8

Each client sends its next request when it has the response to the last one. The exit code is 1 if a request failed or a
response was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from load_clients import QUERIES, Address, Connection, Report, after, load, make_body, server, texts
from mnemorank.artifact.manifest import Calibration, write_manifest
from mnemorank.artifact.resolve import load_artifact

REPEATED_BODIES = 20
_STORE = 500
_SENTENCES = 5
_FIGURES = ("requests", "failed", "requests/s", "requests per CPU second", "p50 ms", "p99 ms", "p99/p50", "other load")


class Output:
    """Prints tables and collects failures."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def add_failures(self, report: Report) -> None:
        self.failures += report.failed + report.wrong

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[object]], *remarks: str) -> None:
        lines = [f"**{title}**", "", _row(head), "|" + "---|" * len(head), *map(_row, rows)]
        print("\n".join([*lines, "", *remarks]).rstrip() + "\n", flush=True)


def _row(cells: Sequence[object]) -> str:
    formatted = (f"{cell:.3g}" if isinstance(cell, float) and cell < 100 else f"{cell:.0f}" if isinstance(cell, float)
             else str(cell) for cell in cells)  # fmt: skip
    return "| " + " | ".join(formatted) + " |"


def sustained(arguments: argparse.Namespace, output: Output) -> None:
    """Run many clients for a while. Nothing should fail, and p99 should stay close to p50."""
    clients, seconds = arguments.clients or 100, arguments.seconds or 60.0
    with server("--model", arguments.model) as address:
        asyncio.run(load(address, 4, lambda rng: make_body(arguments.documents, rng), after(2)))
        report = asyncio.run(load(address, clients, lambda rng: make_body(arguments.documents, rng), after(seconds)))
    output.add_failures(report)
    output.table(
        f"{clients} clients, {arguments.documents} documents, {seconds:g} s",
        _FIGURES,
        [_figures(report)],
    )


def _figures(report: Report) -> list[object]:
    return [
        report.requests,
        len(report.failed),
        report.per_second,
        report.per_cpu_second,
        report.quantile_ms(0.5),
        report.quantile_ms(0.99),
        report.p99_over_p50,
        f"{report.other_load:.0%}",
    ]


def batching(arguments: argparse.Namespace, output: Output) -> None:
    """Compare throughput with and without shared batches, and with and without a score cache, taking turns.

    Without batching, each request scores its own pairs in its own thread, as with `Reranker.rerank` in a thread pool.
    """
    clients, seconds = arguments.clients or 32, arguments.seconds or 8.0
    repeated = [make_body(arguments.documents, random.Random(-number)) for number in range(REPEATED_BODIES)]
    numbers = itertools.count()

    def new(rng: random.Random) -> bytes:
        return make_body(arguments.documents, rng)

    def half_repeated(rng: random.Random) -> bytes:
        return rng.choice(repeated) if rng.random() < 0.5 else _with_unique_query(new(rng), next(numbers))

    variants: dict[str, tuple[Callable[[random.Random], bytes], tuple[str, ...]]] = {
        "shared batches": (new, ()),
        "no batching": (new, ("--no-batching",)),
        "half of the requests repeated": (half_repeated, ()),
        "the same, `--score-cache 10000`": (half_repeated, ("--score-cache", "10000")),
    }
    reports: dict[str, list[Report]] = {name: [] for name in variants}
    for _ in range(arguments.rounds):
        for name, (next_body, flags) in variants.items():
            with server("--model", arguments.model, *flags) as address:
                asyncio.run(load(address, 2, next_body, after(1)))
                reports[name].append(asyncio.run(load(address, clients, next_body, after(seconds))))
            output.add_failures(reports[name][-1])

    def median(name: str, figure: Callable[[Report], float]) -> float:
        return statistics.median(map(figure, reports[name]))

    figures: tuple[Callable[[Report], float], ...] = (
        lambda report: report.per_second,
        lambda report: report.per_cpu_second,
        lambda report: report.quantile_ms(0.5),
        lambda report: report.quantile_ms(0.99),
        lambda report: report.other_load,
    )
    batched, unbatched, uncached, cached = (median(name, figures[0]) for name in variants)
    output.table(
        f"{clients} clients, {arguments.documents} documents, {arguments.rounds} × {seconds:g} s (medians)",
        ("", "requests/s", "requests per CPU second", "p50 ms", "p99 ms", "other load"),
        [
            [name, *(median(name, figure) for figure in figures[:-1]), f"{median(name, figures[-1]):.0%}"]
            for name in variants
        ],
        f"Speedup by batching: {batched / unbatched:.2f}. Speedup by the cache: {cached / uncached:.2f}.",
    )


def _with_unique_query(body: bytes, number: int) -> bytes:
    """Return the request with a query that occurs only once, so that none of its pairs is in the cache."""
    request = json.loads(body)
    return json.dumps({**request, "query": f"{request['query']} {number}"}).encode()


def swaps(arguments: argparse.Namespace, output: Output) -> None:
    """Swap models under load. The two differ in their calibration, so that every score reveals its model."""
    with tempfile.TemporaryDirectory() as folder:
        for name, bias in (("one", 0.0), ("two", 3.0)):
            copy_model(arguments.model, Path(folder) / name, bias)
        with server("--model", str(Path(folder) / "one"), "--models-dir", folder) as address:
            asyncio.run(_swap_under_load(address, arguments, output))


async def _swap_under_load(address: Address, arguments: argparse.Namespace, output: Output) -> None:
    rng = random.Random(0)
    bodies = [make_body(arguments.documents, rng) for _ in range(20)]
    admin = Connection(address.host, address.port)
    expected: dict[bytes, list[dict[int, float]]] = {body: [] for body in bodies}
    for name in ("one", "two"):
        await _swap(admin, name)
        for body in bodies:
            _, response = await admin.post("/rerank", body)
            expected[body].append(_scores(response))
    done = False
    served: list[int] = [0, 0]

    def check(body: bytes, response: bytes) -> str | None:
        scores = _scores(response)
        for number, model_scores in enumerate(expected[body]):
            if all(abs(scores[i] - score) < 1e-3 for i, score in model_scores.items()):
                served[number] += 1
                return None
        return f"the scores are of neither model: {scores}"

    clients = arguments.clients or 100
    load_task = asyncio.create_task(load(address, clients, lambda rng: rng.choice(bodies), lambda: done, check))
    swap_seconds = []
    for number in range(arguments.swaps):
        swap_seconds.append(await _swap(admin, ("one", "two")[number % 2]))
    done = True
    report = await load_task
    admin.close()
    output.add_failures(report)
    output.table(
        f"{len(swap_seconds)} hot swaps with {clients} clients, {arguments.documents} documents",
        (*_FIGURES, "wrong responses", "responses by model", "seconds per swap (median)"),
        [[*_figures(report), len(report.wrong), f"{served[0]} / {served[1]}", statistics.median(swap_seconds)]],
    )  # fmt: skip


async def _swap(connection: Connection, name: str) -> float:
    started = time.monotonic()
    status, response = await connection.post("/v1/models/swap", json.dumps({"model": name}).encode())
    assert status == 200, response
    return time.monotonic() - started


def _scores(response: bytes) -> dict[int, float]:
    return {entry["index"]: entry["score"] for entry in json.loads(response)}


def copy_model(name: str, folder: Path, bias: float) -> None:
    """Copy a model with another calibration."""
    artifact = load_artifact(name)
    shutil.copytree(artifact.path, folder)
    manifest = replace(artifact.manifest, name=folder.name, calibration=Calibration(scale=1.0, bias=bias))
    write_manifest(folder, manifest)


def capacity(arguments: argparse.Namespace, output: Output) -> None:
    """Measure requests and pairs per second by the number of clients and documents."""
    rows: list[list[object]] = []
    with server("--model", arguments.model) as address:
        for documents, clients in ((10, 1), (10, 8), (10, 32), (50, 1), (50, 8), (200, 1), (200, 4)):
            report = asyncio.run(
                load(
                    address,
                    clients,
                    lambda rng, count=documents: make_body(count, rng),  # type: ignore[misc]
                    after(arguments.seconds or 5.0),
                )
            )
            output.add_failures(report)
            rows.append(
                [
                    clients,
                    documents,
                    report.per_second,
                    report.per_second * documents,
                    report.per_cpu_second * documents,
                    report.quantile_ms(0.5),
                    report.quantile_ms(0.99),
                    len(report.failed),
                    f"{report.other_load:.0%}",
                ]
            )
    head = ("clients", "documents", "requests/s", "pairs/s", "pairs per CPU second", "p50 ms", "p99 ms", "failed")
    output.table("Capacity", (*head, "other load"), rows)


def latency(arguments: argparse.Namespace, output: Output) -> None:
    """Measure p50 and p99 at 1, 8 and 32 clients, with memories of some 80 tokens that are known or new to the server.

    A split model has prepared the known ones. New ones occur in one request only.
    """
    generator = random.Random(0)
    store = [" ".join(generator.choices(texts(), k=_SENTENCES)) for _ in range(_STORE)]
    numbers = itertools.count()

    def known(rng: random.Random) -> bytes:
        return _body(rng.sample(store, min(arguments.documents, _STORE)), rng)

    def new(rng: random.Random) -> bytes:
        return _body([f"{next(numbers)} {rng.choice(store)}" for _ in range(arguments.documents)], rng)

    rows: list[list[object]] = []
    with server("--model", arguments.model) as address:
        warm_up = [_body(store[first : first + 50], generator) for first in range(0, _STORE, 50)]
        output.add_failures(asyncio.run(load(address, 1, lambda _: warm_up.pop(), lambda: not warm_up)))
        for name, body in {"known": known, "new": new}.items():
            for clients in (1, 8, 32):
                report = asyncio.run(load(address, clients, body, after(arguments.seconds or 8.0)))
                output.add_failures(report)
                rows.append([name, clients, *_figures(report)])
    output.table(
        f"{arguments.documents} memories of some 80 tokens per request",
        ("memories", "clients", *_FIGURES),
        rows,
    )


def _body(documents: Sequence[str], rng: random.Random) -> bytes:
    """Return a request with a query that hardly occurs twice."""
    return json.dumps({"query": f"{rng.choice(QUERIES)} {rng.randrange(10**6)}", "texts": documents}).encode()


COMMANDS: dict[str, Callable[[argparse.Namespace, Output], None]] = {
    "sustained": sustained,
    "batching": batching,
    "swaps": swaps,
    "capacity": capacity,
    "latency": latency,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*COMMANDS, "all"])
    parser.add_argument("--model", default="mini", help="as for `mnemorank serve`")
    parser.add_argument("--clients", type=int, default=None)
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    output = Output()
    for name in COMMANDS if arguments.command == "all" else [arguments.command]:
        started = time.monotonic()
        COMMANDS[name](arguments, output)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    for failure in output.failures[:5]:
        print(f"failed: {failure[:300]}", file=sys.stderr)
    return 1 if output.failures else 0


if __name__ == "__main__":
    sys.exit(main())
