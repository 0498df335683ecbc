"""Measure how fast bulk jobs are on Ray, as a ratio to the plain loop on as many cores.

    python benchmarks/ray_overhead.py [--model M] [--rows N] [--rounds N]

Needs the extra `ray` and two idle cores; takes about two minutes. The loop and the jobs take turns, and each ratio is
of one round. The first column counts a whole job, in which actors start and load the model; the second one counts from
its first quarter on, as in a job of any length. The start of the cluster is not counted. If other programs run, set
RAY_worker_niceness=0: Ray lowers the priority of its workers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from mnemorank import Reranker
from mnemorank.bulk import BulkJob, run_bulk
from mnemorank.bulk.job import Engine
from scaling import CANDIDATES, questions

BLOCK_ROWS = 2


class Setup(NamedTuple):
    """A job that is compared with a loop on as many threads."""

    name: str
    engine: Engine
    cores: int


SETUPS = (
    Setup("local, 1 thread", "local", 1),
    Setup("ray, 1 actor", "ray", 1),
    Setup("ray, 2 actors", "ray", 2),
)


def row_times(reranker: Reranker, records: list[dict]) -> list[float]:
    """Run the plain loop; return when it began, and when each row was done."""
    times = [time.perf_counter()]
    for record in records:
        reranker.score(record["query"], record["memories"])
        times.append(time.perf_counter())
    return times


def block_times(job: BulkJob, setup: Setup) -> list[float]:
    """Run a job; return when it began, and when each block was done."""
    times = [time.perf_counter()]

    def on_progress(done: int, *_: int) -> None:
        if done:
            times.append(time.perf_counter())

    threads = setup.cores if setup.engine == "local" else 1
    run_bulk(job, engine=setup.engine, workers=setup.cores, threads=threads, on_progress=on_progress)
    return times


def speeds(times: list[float]) -> tuple[float, float]:
    """Return the parts of the work done per second: in all, and after the first quarter."""
    quarter = (len(times) - 1) // 4
    return 1 / (times[-1] - times[0]), (1 - quarter / (len(times) - 1)) / (times[-1] - times[quarter])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--rows", type=int, default=40, help=f"questions with {CANDIDATES} memories each")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.rows < 4 * BLOCK_ROWS:
        parser.error(f"--rows: expected at least {4 * BLOCK_ROWS}")
    records = questions(arguments.rows)
    rerankers = {cores: Reranker(arguments.model, threads=cores) for cores in (1, 2)}
    expected = [[s.raw_score for s in rerankers[1].score(each["query"], each["memories"])] for each in records]
    ratios: dict[str, list[tuple[float, float]]] = {setup.name: [] for setup in SETUPS}
    are_equal = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "questions.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))

        def job(name: str) -> BulkJob:
            return BulkJob("score", (str(path),), f"{folder}/{name}", {"model": arguments.model}, BLOCK_ROWS)

        block_times(job("start of the cluster"), SETUPS[-1])
        for number in range(arguments.rounds):
            loops = {cores: speeds(row_times(reranker, records)) for cores, reranker in rerankers.items()}
            for setup in SETUPS:
                output = job(f"{setup.name} {number}")
                whole, steady = speeds(block_times(output, setup))
                loop = loops[setup.cores]
                ratios[setup.name].append((whole / loop[0], steady / loop[1]))
                are_equal &= pq.read_table(output.output).column("raw_score").to_pylist() == expected
    print(f"{arguments.rows * CANDIDATES} pairs; speed relative to the plain loop: median (lowest to highest)")
    print(f"{'bulk':<18}{'whole job':<26}after its first quarter")
    for name, found in ratios.items():
        print(f"{name:<18}" + "".join(f"{_summary(column):<26}" for column in zip(*found, strict=True)).rstrip())
    print(f"scores equal those of the loop to the last digit: {'yes' if are_equal else 'no'}")


def _summary(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):.2f}× ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
