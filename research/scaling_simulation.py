"""Check the plan of docs/scaling.md with a discrete-event simulation.

    python research/scaling_simulation.py

Queries arrive at random (Poisson) for tenants of unequal activity (Zipf). A query waits for a core of the machine that
holds its tenant's shard, which compares embeddings, and then for any core of the scoring tier. Service times come from
the measured figures, with a spread; nothing else is assumed. The load is that of the plan, divided by --scale.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import random
from dataclasses import dataclass

# Measured; see docs/scaling.md for the commands.
PAIRS_PER_SECOND = 110.0  # of one core, pairs of 78 tokens
OTHER_SECONDS = 0.0039  # of a request besides the model
COMPARE_SECONDS = 0.002 / 50_000  # of one embedding


@dataclass(frozen=True)
class Load:
    queries_per_second: float
    tenants: int
    memories: int
    candidates: int


@dataclass
class Tier:
    """Machines with cores, each with a queue of its own."""

    cores: list[list[float]]
    busy: float = 0.0

    @classmethod
    def of(cls, machines: int, cores: int) -> Tier:
        return cls([[0.0] * cores for _ in range(machines)])

    def serve(self, machine: int, arrival: float, seconds: float) -> float:
        """Return when a query that arrives now is done."""
        free = self.cores[machine]
        start = max(arrival, heapq.heappop(free))
        heapq.heappush(free, start + seconds)
        self.busy += seconds
        return start + seconds

    def utilization(self, seconds: float) -> float:
        return self.busy / (seconds * sum(map(len, self.cores)))


def simulate(load: Load, shards: int, cores_per_shard: int, scoring_cores: int, seconds: float, seed: int) -> dict:
    generator = random.Random(seed)
    retrieval, scoring = Tier.of(shards, cores_per_shard), Tier.of(1, scoring_cores)
    per_tenant = load.memories / load.tenants
    weights = [1 / (rank + 1) ** 0.8 for rank in range(load.tenants)]
    tenants = generator.choices(range(load.tenants), weights, k=int(load.queries_per_second * seconds * 1.2))
    # Events: a query reaches the scoring tier when its shard is done, in the order of these times.
    waiting: list[tuple[float, float]] = []
    now = 0.0
    for tenant in tenants:
        now += generator.expovariate(load.queries_per_second)
        if now > seconds:
            break
        shard = int.from_bytes(hashlib.blake2b(str(tenant).encode(), digest_size=8).digest(), "big") % shards
        # A tenant's own memories are compared; sizes differ.
        work = COMPARE_SECONDS * per_tenant * generator.lognormvariate(0, 1) + OTHER_SECONDS / 2
        heapq.heappush(waiting, (retrieval.serve(shard, now, work), now))
    latencies = []
    while waiting:
        ready, arrival = heapq.heappop(waiting)
        work = load.candidates / PAIRS_PER_SECOND * generator.uniform(0.7, 1.3) + OTHER_SECONDS / 2
        latencies.append(scoring.serve(0, ready, work) - arrival)
    latencies.sort()
    return {
        "queries": len(latencies),
        "p50 ms": 1000 * latencies[len(latencies) // 2],
        "p99 ms": 1000 * latencies[int(len(latencies) * 0.99)],
        "retrieval use": retrieval.utilization(seconds),
        "scoring use": scoring.utilization(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=100, help="divide the load of the plan by this (default: 100)")
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120)
    arguments = parser.parse_args()
    load = Load(1e4 / arguments.scale, int(1e6 / arguments.scale), int(1e9 / arguments.scale), arguments.candidates)
    needed = load.queries_per_second * (load.candidates / PAIRS_PER_SECOND + OTHER_SECONDS / 2)
    print(f"{load}\nscoring needs {needed:.1f} cores at full use")
    print(f"{'use':>5} {'cores':>6} {'p50 ms':>8} {'p99 ms':>8} {'retrieval use':>14} {'scoring use':>12}")
    for target in (0.5, 0.7, 0.8, 0.9, 0.95):
        cores = round(needed / target)
        result = simulate(load, max(1, round(320 / arguments.scale)), 2, cores, arguments.seconds, seed=1)
        print(
            f"{target:>5} {cores:>6} {result['p50 ms']:>8.0f} {result['p99 ms']:>8.0f} "
            f"{result['retrieval use']:>14.2f} {result['scoring use']:>12.2f}"
        )


if __name__ == "__main__":
    main()
