"""Measure the figures of docs/scaling.md: pairs and comparisons per core, and the overhead of bulk jobs.

    python benchmarks/scaling.py [--model M] [--rows N]

The rates are of one core with nothing else running. The ratio compares runs that take turns: it holds on a busy
machine, too. `ray_overhead.py` measures the engine ray.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mnemorank import Reranker
from mnemorank.bulk import BulkJob, run_bulk
from mnemorank.index.vectors import Vectors

WORDS = "Ruby works at Aurora Labs before Zenith Berlin lives moved cat dog doctor visit March trip Lisbon".split()
CANDIDATES = 20
TOKENS = 78


def questions(count: int) -> list[dict]:
    generator = random.Random(0)
    return [
        {
            "query": " ".join(generator.choices(WORDS, k=8)),
            "memories": [" ".join(generator.choices(WORDS, k=TOKENS - 12)) for _ in range(CANDIDATES)],
        }
        for _ in range(count)
    ]


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def comparisons_per_second(rows: int = 50_000, width: int = 384) -> float:
    values = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float16)
    vectors = Vectors.empty().extend(range(rows), range(rows), values)
    query = values[0].astype(np.float32)
    return rows / min(seconds(lambda: vectors.cosines(query)) for _ in range(20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    records = questions(arguments.rows)
    print(f"comparisons per core and second: {comparisons_per_second():,.0f}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        times: dict[str, list[float]] = {}
        reranker = Reranker(arguments.model, threads=1)

        def loop() -> None:
            for record in records:
                reranker.score(record["query"], record["memories"])

        def bulk(number: int) -> None:
            job = BulkJob("score", (str(path),), f"{folder}/{number}", {"model": arguments.model}, 5)
            run_bulk(job, threads=1)

        loop()
        for number in range(arguments.rounds):
            times.setdefault("loop", []).append(seconds(loop))
            times.setdefault("bulk", []).append(seconds(lambda n=number: bulk(n)))
    medians = {name: statistics.median(values) for name, values in times.items()}
    pairs = len(records) * CANDIDATES
    print(f"pairs per core and second: {pairs / medians['loop']:.1f}")
    print(f"bulk / loop: {medians['loop'] / medians['bulk']:.2f}× as fast")


if __name__ == "__main__":
    main()
