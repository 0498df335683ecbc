"""Measure what single hostile requests cost a server: time, memory, and how long others wait.

    pip install 'mnemorank[serve,learn]'
    python benchmarks/hostile_requests.py

Sends each request alone, with a deadline, to a server with a feedback log that stores texts. Meanwhile another client
asks for `/health` all the time. Prints a Markdown table: response, seconds, CPU time and largest memory of the server,
and the longest wait for `/health`.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from load_clients import server

TEXT = "Ruby works at Aurora Labs. " * 115
NATIVE = "/v1/memories/rerank"


def numbered(count: int, **fields: Callable[[int], Any]) -> list[dict[str, Any]]:
    return [
        {"id": str(i), "text": f"Ruby {i}", **{name: make(i) for name, make in fields.items()}} for i in range(count)
    ]


def nested(values: bytes) -> bytes:
    return b'{"query": "ruby", "memories": [{"text": "ruby", "extra": [' + values + b"1]}]}"


# Name, path, deadline in milliseconds, and the body.
REQUESTS: list[tuple[str, str, int, Callable[[], Any]]] = [
    ("one memory", NATIVE, 1000, lambda: {"query": "ruby", "memories": ["ruby"]}),
    ("500,000 numbers for memories", NATIVE, 1000, lambda: {"query": "ruby", "memories": [1] * 500_000}),
    ("9 million empty objects", NATIVE, 1000, lambda: nested(b"{}," * 9_000_000)),
    ("1.9 million empty objects", NATIVE, 1000, lambda: nested(b"{}," * 1_900_000)),
    ("9,900 long memories", NATIVE, 4000, lambda: {"query": "ruby", "memories": [TEXT] * 9900, "top_k": 5}),
    ("9,900 long texts, TEI", "/rerank", 4000, lambda: {"query": "ruby", "texts": [TEXT] * 9900}),
    (
        "200 memories that supersede 9,000 each",
        NATIVE,
        1000,
        lambda: {"query": "ruby", "memories": numbered(200, supersedes=lambda _: list(map(str, range(9000))))},
    ),
    (
        "300 memories of 4,000 entities, diversity",
        NATIVE,
        1000,
        lambda: {
            "query": "ruby",
            "memories": numbered(300, entities=lambda i: [f"e{i * j % 99_991}" for j in range(4000)]),
            "options": {"diversity": 0.5},
        },
    ),
    (
        "a file of 8 million lines",
        "/v1/console/memories",
        1000,
        lambda: {"name": "m.jsonl", "content": "1\n" * 8_000_000},
    ),
]


class HealthClient:
    """Asks for `/health` all the time; `longest` is the longest wait since it was last set to 0."""

    def __init__(self, base_url: str) -> None:
        self.longest = 0.0
        self._is_over = False
        self._base_url = base_url
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._base_url, timeout=120) as client:
            while not self._is_over:
                started = time.monotonic()
                client.get("/health").raise_for_status()
                self.longest = max(self.longest, time.monotonic() - started)
                time.sleep(0.02)

    def close(self) -> None:
        self._is_over = True
        self._thread.join(120)


def memory_mb(pid: int) -> int:
    """Return the largest resident memory since the last call."""
    status = Path(f"/proc/{pid}/status").read_text()
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    match = re.search(r"VmHWM:\s+(\d+)", status)
    assert match is not None
    return int(match[1]) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini", help="bundled model, or model folder")
    arguments = parser.parse_args()
    columns = ("request", "size", "deadline", "response", "seconds", "CPU", "wait for /health", "memory")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    with tempfile.TemporaryDirectory() as folder:
        settings = f"[privacy]\ntexts = true\n[training]\nmodel = {json.dumps(arguments.model)}\n"
        (Path(folder) / "learning.toml").write_text(settings)
        with server("--learning", folder) as address:
            base_url = f"http://{address.host}:{address.port}"
            health = HealthClient(base_url)
            with httpx.Client(base_url=base_url, timeout=120) as client:
                for name, path, deadline, make_body in REQUESTS:
                    body = make_body()
                    content = body if isinstance(body, bytes) else json.dumps(body).encode()
                    time.sleep(1)
                    memory_mb(address.pid)
                    health.longest = 0.0
                    headers = {"content-type": "application/json", "x-deadline-ms": str(deadline)}
                    started, cpu_before = time.monotonic(), address.cpu_seconds()
                    status = client.post(path, content=content, headers=headers).status_code
                    seconds = time.monotonic() - started
                    time.sleep(0.2)
                    size = f"{len(content) / 1e6:.1f} MB"
                    cpu = address.cpu_seconds() - cpu_before
                    row = [name, size, f"{deadline / 1000:g} s", status, f"{seconds:.2f} s", f"{cpu:.2f} s"]
                    row.append(f"{health.longest:.2f} s")
                    print(f"| {' | '.join(map(str, row))} | {memory_mb(address.pid)} MB |", flush=True)
            health.close()


if __name__ == "__main__":
    main()
