"""What load tests of the server are made of: a server in a process of its own, clients, and what they saw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
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
    """What the clients of a load saw.

    :param seconds: latency of each answered request.
    :param failed: of each request that got no answer, or not 200: what it got instead.
    :param wrong: of each answer that the check did not like: what it said.
    :param cpu_seconds: the server's.
    :param others: the share of the machine that neither server nor clients used, but somebody did.
    """

    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    elapsed: float = 0.0
    cpu_seconds: float = 0.0
    others: float = 0.0

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


def machine_cpu_seconds() -> float:
    """CPU time that all processes have used."""
    user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


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


@cache
def texts() -> list[str]:
    lines = (files("mnemorank") / "assets" / "samples" / "memories.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines if line.strip()]


def body(documents: int, source: random.Random) -> bytes:
    chosen = [source.choice(texts()) for _ in range(documents)]
    return json.dumps({"query": source.choice(QUERIES), "texts": chosen}).encode()


async def load(
    address: Address,
    clients: int,
    make_body: Callable[[random.Random], bytes],
    is_over: Callable[[], bool],
    check: Check | None = None,
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
            if status != 200:
                report.failed.append(f"{status} {answer[:200]!r}")
            elif check is not None and (wrong := check(sent, answer)) is not None:
                report.wrong.append(wrong)
        connection.close()

    def clocks() -> tuple[float, float, float]:
        own = address.cpu_seconds()
        return time.monotonic(), own, machine_cpu_seconds() - own - time.process_time()

    before = clocks()
    await asyncio.gather(*(one(number) for number in range(clients)))
    report.elapsed, report.cpu_seconds, others = (b - a for a, b in zip(before, clocks(), strict=True))
    report.others = max(others, 0.0) / (report.elapsed * (os.cpu_count() or 1))
    return report


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end
