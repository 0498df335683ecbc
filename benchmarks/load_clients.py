"""A server in its own process, and simulated clients that measure it. Used by server_load.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

QUERIES = (
    "Where does Ruby work now?",
    "When is the dentist appointment?",
    "Which database did we choose for the billing service?",
    "What did Sam say about the trip to Lisbon?",
)
Check = Callable[[bytes, bytes], str | None]


@dataclass
class Report:
    """What the clients measured.

    :param seconds: the latency of each request with a response.
    :param failed: the errors of requests without a response or with another status than 200.
    :param wrong: what was wrong with responses that did not pass the check.
    :param cpu_seconds: CPU time of the server.
    :param other_load: the share of the machine used by processes other than server and clients.
    """

    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    elapsed: float = 0.0
    cpu_seconds: float = 0.0
    other_load: float = 0.0

    @property
    def requests(self) -> int:
        return len(self.seconds)

    @property
    def per_second(self) -> float:
        return self.requests / self.elapsed

    @property
    def per_cpu_second(self) -> float:
        return self.requests / self.cpu_seconds

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000 if ordered else float("nan")

    @property
    def p99_over_p50(self) -> float:
        return self.quantile_ms(0.99) / self.quantile_ms(0.5)


class Connection:
    """A minimal HTTP client, so that the clients themselves use little CPU."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        request_head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        writer.write(request_head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None, head
        return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length.group(1)))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


class Address(NamedTuple):
    host: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server, which does not depend on other processes."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_cpu_seconds() -> float:
    """Return the CPU time of all processes."""
    user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[Address]:
    """Start `mnemorank serve` and yield its address."""
    command = [sys.executable, "-m", "mnemorank", "serve", "--port", "0", "--log-level", "warning", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines: deque[str] = deque(maxlen=20)
    reader = None
    try:
        for line in process.stderr:
            lines.append(line)
            match = re.search(r"http://(\S+?):(\d+)", line)
            if match:
                break
        else:
            raise SystemExit("the server did not start")
        # Read on, since a full pipe would stop the server.
        reader = threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True)
        reader.start()
        time.sleep(0.5)
        yield Address(match.group(1), int(match.group(2)), process.pid)
    finally:
        process.terminate()
        process.wait(60)
        if process.returncode != 0:
            if reader is not None:
                reader.join(5)
            print("".join(lines), file=sys.stderr)
            raise SystemExit(f"the server exited with {process.returncode}")


@cache
def texts() -> list[str]:
    lines = (files("mnemorank") / "assets" / "samples" / "memories.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines if line.strip()]


def make_body(documents: int, rng: random.Random) -> bytes:
    """Return a request of the TEI dialect with random texts."""
    chosen = [rng.choice(texts()) for _ in range(documents)]
    return json.dumps({"query": rng.choice(QUERIES), "texts": chosen}).encode()


async def load(
    address: Address,
    clients: int,
    next_body: Callable[[random.Random], bytes],
    is_over: Callable[[], bool],
    check: Check | None = None,
) -> Report:
    """Run clients that each send one request after the other until `is_over`.

    :param check: returns what is wrong with the response to a request, or None.
    """
    report = Report()

    async def run_client(number: int) -> None:
        rng = random.Random(number)
        connection = Connection(address.host, address.port)
        while not is_over():
            request = next_body(rng)
            started = time.monotonic()
            try:
                status, response = await connection.post("/rerank", request)
            except (OSError, EOFError) as error:
                report.failed.append(repr(error))
                connection.close()
                connection = Connection(address.host, address.port)
                continue
            report.seconds.append(time.monotonic() - started)
            if status != 200:
                report.failed.append(f"{status} {response[:200]!r}")
            elif check is not None and (wrong := check(request, response)) is not None:
                report.wrong.append(wrong)
        connection.close()

    def clocks() -> tuple[float, float, float]:
        server_cpu = address.cpu_seconds()
        return time.monotonic(), server_cpu, machine_cpu_seconds() - server_cpu - time.process_time()

    before = clocks()
    await asyncio.gather(*(run_client(number) for number in range(clients)))
    report.elapsed, report.cpu_seconds, other_cpu = (b - a for a, b in zip(before, clocks(), strict=True))
    report.other_load = max(other_cpu, 0.0) / (report.elapsed * (os.cpu_count() or 1))
    return report


def after(seconds: float) -> Callable[[], bool]:
    """Return a function that returns True once the given time has passed."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end
