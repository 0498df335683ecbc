"""Load tests of the server, on loopback, with the server in a process of its own. Prints tables for docs/serving.md.

    python benchmarks/server_load.py all          # everything below as given, about 6 minutes
    python benchmarks/server_load.py hold --clients 100 --seconds 60
    python benchmarks/server_load.py swaps --clients 100 --swaps 100
    python benchmarks/server_load.py batching --clients 32 --documents 10 --seconds 8 --rounds 2
    python benchmarks/server_load.py capacity --seconds 5

Each client sends its next request when it has the answer to the last. `--model` takes what `mnemorank serve` takes.
Exit code 1 if a request failed or an answer was wrong.
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

from load_clients import Address, Connection, Report, after, body, load, server
from mnemorank.artifact.manifest import Calibration, write_manifest
from mnemorank.artifact.resolve import load_artifact

SEEN_BEFORE = 20


class Outcome:
    """Tables as they come, and whether all went well."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def note(self, report: Report) -> None:
        self.failures += report.failed + report.wrong

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[object]], *remarks: str) -> None:
        lines = [f"**{title}**", "", _row(head), "|" + "---|" * len(head), *map(_row, rows)]
        print("\n".join([*lines, "", *remarks]).rstrip() + "\n", flush=True)


def _row(cells: Sequence[object]) -> str:
    shown = (f"{cell:.3g}" if isinstance(cell, float) and cell < 100 else f"{cell:.0f}" if isinstance(cell, float)
             else str(cell) for cell in cells)  # fmt: skip
    return "| " + " | ".join(shown) + " |"


def hold(arguments: argparse.Namespace, outcome: Outcome) -> None:
    """Many clients for a while: no failure, and the slowest not much slower than the rest."""
    clients, seconds = arguments.clients or 100, arguments.seconds or 60.0
    with server("--model", arguments.model) as address:
        asyncio.run(load(address, 4, lambda source: body(arguments.documents, source), after(2)))
        report = asyncio.run(load(address, clients, lambda source: body(arguments.documents, source), after(seconds)))
    outcome.note(report)
    outcome.table(
        f"{clients} clients, {arguments.documents} documents, {seconds:g} s",
        ("requests", "failed", "requests/s", "requests a CPU second", "p50 ms", "p99 ms", "p99/p50", "others' CPU"),
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
        f"{report.others:.0%}",
    ]


def batching(arguments: argparse.Namespace, outcome: Outcome) -> None:
    """Throughput with shared batches and without, in turns, so that both see the same machine; and with known pairs.

    Without batching a request's thread hands its own pairs to the scorer, whose threads (one a core) run what all
    requests hand them: what `Reranker.rerank` in a thread a request does.
    """
    clients, seconds = arguments.clients or 32, arguments.seconds or 8.0
    seen = [body(arguments.documents, random.Random(-number)) for number in range(SEEN_BEFORE)]
    numbers = itertools.count()

    def new(source: random.Random) -> bytes:
        return body(arguments.documents, source)

    def half_seen(source: random.Random) -> bytes:
        return source.choice(seen) if source.random() < 0.5 else _unlike_any_other(new(source), next(numbers))

    ways: dict[str, tuple[Callable[[random.Random], bytes], tuple[str, ...]]] = {
        "shared batches": (new, ()),
        "none": (new, ("--no-batching",)),
        "half of the requests seen before": (half_seen, ()),
        "the same, `--score-cache 10000`": (half_seen, ("--score-cache", "10000")),
    }
    reports: dict[str, list[Report]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, (make_body, flags) in ways.items():
            with server("--model", arguments.model, *flags) as address:
                asyncio.run(load(address, 2, make_body, after(1)))
                reports[name].append(asyncio.run(load(address, clients, make_body, after(seconds))))
            outcome.note(reports[name][-1])

    def median(name: str, figure: Callable[[Report], float]) -> float:
        return statistics.median(map(figure, reports[name]))

    figures: tuple[Callable[[Report], float], ...] = (
        lambda report: report.per_second,
        lambda report: report.per_cpu_second,
        lambda report: report.quantile_ms(0.5),
        lambda report: report.quantile_ms(0.99),
        lambda report: report.others,
    )
    on, off, fresh, known = (median(name, figures[0]) for name in ways)
    outcome.table(
        f"{clients} clients, {arguments.documents} documents, {arguments.rounds} × {seconds:g} s (medians)",
        ("", "requests/s", "requests a CPU second", "p50 ms", "p99 ms", "others' CPU"),
        [
            [name, *(median(name, figure) for figure in figures[:-1]), f"{median(name, figures[-1]):.0%}"]
            for name in ways
        ],
        f"Shared batches against none: {on / off:.2f}. With the cache against without: {known / fresh:.2f}.",
    )


def _unlike_any_other(sent: bytes, number: int) -> bytes:
    """The request with a word that no other has, so that none of its pairs was seen before."""
    asked = json.loads(sent)
    return json.dumps({**asked, "query": f"{asked['query']} {number}"}).encode()


def swaps(arguments: argparse.Namespace, outcome: Outcome) -> None:
    """Swaps under load between two models that differ in their calibration, so that every score tells its model."""
    with tempfile.TemporaryDirectory() as folder:
        for name, bias in (("one", 0.0), ("two", 3.0)):
            copy_model(arguments.model, Path(folder) / name, bias)
        with server("--model", str(Path(folder) / "one"), "--models-dir", folder) as address:
            asyncio.run(_swap_under_load(address, arguments, outcome))


async def _swap_under_load(address: Address, arguments: argparse.Namespace, outcome: Outcome) -> None:
    source = random.Random(0)
    bodies = [body(arguments.documents, source) for _ in range(20)]
    admin = Connection(address.host, address.port)
    expected: dict[bytes, list[dict[int, float]]] = {sent: [] for sent in bodies}
    for name in ("one", "two"):
        await _swap(admin, name)
        for sent in bodies:
            _, answer = await admin.post("/rerank", sent)
            expected[sent].append(_scores(answer))
    done = False
    served: list[int] = [0, 0]

    def check(sent: bytes, answer: bytes) -> str | None:
        scores = _scores(answer)
        for number, wanted in enumerate(expected[sent]):
            if all(abs(scores[i] - wanted[i]) < 1e-3 for i in wanted):
                served[number] += 1
                return None
        return f"the scores are neither model's: {scores}"

    clients = arguments.clients or 100
    loading = asyncio.create_task(load(address, clients, lambda s: s.choice(bodies), lambda: done, check))
    times = []
    for number in range(arguments.swaps):
        times.append(await _swap(admin, ("one", "two")[number % 2]))
    done = True
    report = await loading
    admin.close()
    outcome.note(report)
    outcome.table(
        f"{len(times)} hot swaps under {clients} clients, {arguments.documents} documents",
        ("requests", "failed", "requests/s", "requests a CPU second", "p50 ms", "p99 ms", "p99/p50", "others' CPU",
         "mixed answers", "answers by model", "seconds a swap (median)"),
        [[*_figures(report), len(report.wrong), f"{served[0]} / {served[1]}", statistics.median(times)]],
    )  # fmt: skip


async def _swap(connection: Connection, name: str) -> float:
    started = time.monotonic()
    status, answer = await connection.post("/v1/models/swap", json.dumps({"model": name}).encode())
    assert status == 200, answer
    return time.monotonic() - started


def _scores(answer: bytes) -> dict[int, float]:
    return {entry["index"]: entry["score"] for entry in json.loads(answer)}


def copy_model(name: str, folder: Path, bias: float) -> None:
    artifact = load_artifact(name)
    shutil.copytree(artifact.path, folder)
    manifest = replace(artifact.manifest, name=folder.name, calibration=Calibration(scale=1.0, bias=bias))
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    write_manifest(folder, manifest, [name for name in names if name != "mnemorank.json"])


def capacity(arguments: argparse.Namespace, outcome: Outcome) -> None:
    """The capacity table: requests and pairs a second by clients and documents."""
    rows: list[list[object]] = []
    with server("--model", arguments.model) as address:
        for documents, clients in ((10, 1), (10, 8), (10, 32), (50, 1), (50, 8), (200, 1), (200, 4)):
            report = asyncio.run(
                load(
                    address,
                    clients,
                    lambda source, count=documents: body(count, source),  # type: ignore[misc]
                    after(arguments.seconds or 5.0),
                )
            )
            outcome.note(report)
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
                    f"{report.others:.0%}",
                ]
            )
    head = ("clients", "documents", "requests/s", "pairs/s", "pairs a CPU second", "p50 ms", "p99 ms", "failed")
    outcome.table("Capacity", (*head, "others' CPU"), rows)


COMMANDS: dict[str, Callable[[argparse.Namespace, Outcome], None]] = {
    "hold": hold,
    "batching": batching,
    "swaps": swaps,
    "capacity": capacity,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*COMMANDS, "all"])
    parser.add_argument("--model", default="mini")
    parser.add_argument("--clients", type=int, default=None)
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    outcome = Outcome()
    for name in COMMANDS if arguments.command == "all" else [arguments.command]:
        started = time.monotonic()
        COMMANDS[name](arguments, outcome)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    for failure in outcome.failures[:5]:
        print(f"failed: {failure[:300]}", file=sys.stderr)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
