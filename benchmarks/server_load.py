"""Load tests of the server, on loopback, with the server in a process of its own.

    python benchmarks/server_load.py hold --clients 100 --seconds 60
    python benchmarks/server_load.py swaps --clients 100 --swaps 100
    python benchmarks/server_load.py batching --clients 32 --documents 10 --seconds 20
    python benchmarks/server_load.py capacity

Each client sends its next request when it has the answer to the last. `--model` takes what `mnemorank serve` takes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from mnemorank.artefact import load_artefact
from mnemorank.manifest import Calibration, write_manifest

QUERIES = (
    "Where does Ruby work now?",
    "When is the dentist appointment?",
    "Which database did we choose for the billing service?",
    "What did Sam say about the trip to Lisbon?",
)


@dataclass
class Report:
    """:param seconds: latency of each answered request."""

    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    elapsed: float = 0.0
    cpu_seconds: float = 0.0

    def shown(self) -> dict[str, Any]:
        ordered = sorted(self.seconds)

        def quantile(share: float) -> float:
            return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")

        p50, p99 = quantile(0.5), quantile(0.99)
        return {
            "requests": len(ordered),
            "failed": len(self.failed),
            "per_second": round(len(ordered) / self.elapsed, 1),
            "per_cpu_second": round(len(ordered) / self.cpu_seconds, 1),
            "p50_ms": round(p50 * 1000, 1),
            "p95_ms": round(quantile(0.95) * 1000, 1),
            "p99_ms": round(p99 * 1000, 1),
            "p99_over_p50": round(p99 / p50, 2),
            **({"first_failure": self.failed[0][:300]} if self.failed else {}),
        }


class Connection:
    """As little of an HTTP client as will do, so that the clients take little of the machine."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        assert length is not None, answer
        return int(answer.split(b" ", 2)[1]), await reader.readexactly(int(length.group(1)))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


class Address(NamedTuple):
    host: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """CPU time that the server has used, which tells its work apart from that of other processes."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[Address]:
    """`mnemorank serve` as a process; yields where it listens."""
    command = [sys.executable, "-m", "mnemorank", "serve", "--port", "0", "--log-level", "warning", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            found = re.search(r"serves on http://(\S+):(\d+)", line)
            if found:
                break
        else:
            raise SystemExit("the server did not start")
        time.sleep(0.5)
        yield Address(found.group(1), int(found.group(2)), process.pid)
    finally:
        process.terminate()
        _, rest = process.communicate(timeout=60)
        if process.returncode != 0:
            print(rest[-2000:], file=sys.stderr)
            raise SystemExit(f"the server ended with {process.returncode}")


def texts() -> list[str]:
    lines = (files("mnemorank") / "samples" / "memories.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines if line.strip()]


def body(documents: int, source: random.Random) -> bytes:
    pool = texts()
    chosen = [source.choice(pool) for _ in range(documents)]
    return json.dumps({"query": source.choice(QUERIES), "texts": chosen}).encode()


async def load(
    address: Address,
    clients: int,
    make_body: Callable[[random.Random], bytes],
    is_over: Callable[[], bool],
    check: Callable[[bytes, bytes], str | None] | None = None,
) -> Report:
    """Clients that ask and ask again until it is over.

    :param check: of request and answer; returns what is wrong with it, if anything.
    """
    report = Report()

    async def one(number: int) -> None:
        source = random.Random(number)
        connection = Connection(address.host, address.port)
        while not is_over():
            sent = make_body(source)
            started = time.monotonic()
            try:
                status, answer = await connection.post("/rerank", sent)
            except (OSError, EOFError) as error:
                report.failed.append(repr(error))
                connection.close()
                connection = Connection(address.host, address.port)
                continue
            report.seconds.append(time.monotonic() - started)
            wrong = f"{status} {answer[:200]!r}" if status != 200 else check(sent, answer) if check else None
            if wrong:
                report.failed.append(wrong)
        connection.close()

    started, cpu_before = time.monotonic(), address.cpu_seconds()
    await asyncio.gather(*(one(number) for number in range(clients)))
    report.elapsed, report.cpu_seconds = time.monotonic() - started, address.cpu_seconds() - cpu_before
    return report


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def hold(arguments: argparse.Namespace) -> dict[str, Any]:
    """Many clients for a while: no failure, and the slowest not much slower than the rest."""
    with server("--model", arguments.model) as address:
        asyncio.run(load(address, 4, lambda source: body(arguments.documents, source), after(2)))
        report = asyncio.run(
            load(address, arguments.clients, lambda source: body(arguments.documents, source), after(arguments.seconds))
        )
    return report.shown()


def batching(arguments: argparse.Namespace) -> dict[str, Any]:
    """Throughput with shared batches and without, in turns, so that both see the same machine."""
    reports: dict[str, list[dict[str, Any]]] = {"on": [], "off": []}
    for _ in range(arguments.rounds):
        for name, flags in (("on", ()), ("off", ("--no-batching",))):
            with server("--model", arguments.model, *flags) as address:
                report = asyncio.run(
                    load(
                        address,
                        arguments.clients,
                        lambda source: body(arguments.documents, source),
                        after(arguments.seconds),
                    )
                )
            assert not report.failed, report.failed[0]
            reports[name].append(report.shown())

    def median(name: str, figure: str) -> float:
        return statistics.median(shown[figure] for shown in reports[name])

    return {
        f"{figure}_{name}": round(value, 2)
        for figure in ("per_second", "per_cpu_second", "p99_ms")
        for name, value in {
            "on": median("on", figure),
            "off": median("off", figure),
            "ratio": median("on", figure) / median("off", figure),
        }.items()
    }


def swaps(arguments: argparse.Namespace) -> dict[str, Any]:
    """Swaps under load between two models that differ in their calibration, so that every score tells its model."""
    with tempfile.TemporaryDirectory() as folder:
        for name, bias in (("one", 0.0), ("two", 3.0)):
            copy_model(arguments.model, Path(folder) / name, bias)
        with server("--model", str(Path(folder) / "one"), "--models-dir", folder) as address:
            return asyncio.run(_swap_under_load(address, arguments))


async def _swap_under_load(address: Address, arguments: argparse.Namespace) -> dict[str, Any]:
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

    loading = asyncio.create_task(load(address, arguments.clients, lambda s: s.choice(bodies), lambda: done, check))
    times = []
    for number in range(arguments.swaps):
        times.append(await _swap(admin, ("one", "two")[number % 2]))
    done = True
    report = await loading
    admin.close()
    return {
        "swaps": len(times),
        "swap_seconds_median": round(statistics.median(times), 2),
        "answers_by_model": served,
        **report.shown(),
    }


async def _swap(connection: Connection, name: str) -> float:
    started = time.monotonic()
    status, answer = await connection.post("/v1/models/swap", json.dumps({"model": name}).encode())
    assert status == 200, answer
    return time.monotonic() - started


def _scores(answer: bytes) -> dict[int, float]:
    return {entry["index"]: entry["score"] for entry in json.loads(answer)}


def copy_model(name: str, folder: Path, bias: float) -> None:
    artefact = load_artefact(name)
    shutil.copytree(artefact.path, folder)
    manifest = replace(artefact.manifest, name=folder.name, calibration=Calibration(scale=1.0, bias=bias))
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    write_manifest(folder, manifest, [name for name in names if name != "mnemorank.json"])


def capacity(arguments: argparse.Namespace) -> dict[str, Any]:
    """The capacity table: requests and pairs a second by clients and documents."""
    rows = []
    with server("--model", arguments.model) as address:
        for documents in (10, 50, 200):
            for clients in (1, 8, 32):
                report = asyncio.run(
                    load(
                        address,
                        clients,
                        lambda source, count=documents: body(count, source),  # type: ignore[misc]
                        after(arguments.seconds),
                    )
                )
                shown = report.shown()
                rows.append(
                    {
                        "clients": clients,
                        "documents": documents,
                        "per_second": shown["per_second"],
                        "pairs_per_second": round(shown["per_second"] * documents),
                        "pairs_per_cpu_second": round(shown["per_cpu_second"] * documents),
                        "p50_ms": shown["p50_ms"],
                        "p99_ms": shown["p99_ms"],
                        "failed": shown["failed"],
                    }
                )
                print("| " + " | ".join(str(value) for value in rows[-1].values()) + " |", flush=True)
    return {"rows": rows}


COMMANDS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "hold": hold,
    "batching": batching,
    "swaps": swaps,
    "capacity": capacity,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--clients", type=int, default=None)
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    defaults = {"hold": (100, 60.0), "batching": (32, 15.0), "swaps": (100, 60.0), "capacity": (1, 8.0)}
    clients, seconds = defaults[arguments.command]
    arguments.clients = arguments.clients or clients
    arguments.seconds = arguments.seconds or seconds
    print(json.dumps({"command": arguments.command, **COMMANDS[arguments.command](arguments)}))


if __name__ == "__main__":
    main()
