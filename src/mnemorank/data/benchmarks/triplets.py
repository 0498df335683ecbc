"""R0's triplets: each query is ranked against all positives and negatives of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from mnemorank.data.benchmarks.base import Loader, labelled, loaders
from mnemorank.data.records import Example, Triplet, read_triplets
from mnemorank.memory import Memory


def read(path: Path) -> Iterator[Example]:
    """One example a query; memories that occur more than once are one candidate.

    `pairs` keeps what each triplet sets against each other, for pairwise accuracy.
    """
    pool: dict[str, int] = {}
    memories: list[Memory] = []

    def place(memory: Memory) -> int:
        key = json.dumps(memory.to_dict(), sort_keys=True, default=str)
        if key not in pool:
            pool[key] = len(memories)
            memories.append(memory)
        return pool[key]

    asked: dict[str, list[tuple[int, int]]] = {}
    firsts: dict[str, Triplet] = {}
    for triplet in read_triplets(path):
        firsts.setdefault(triplet.query, triplet)
        asked.setdefault(triplet.query, []).append((place(triplet.positive), place(triplet.negative)))
    for number, (query, pairs) in enumerate(asked.items()):
        right = {positive for positive, _ in pairs}
        yield Example(
            id=str(number),
            query=query,
            candidates=labelled(memories, (i in right for i in range(len(memories)))),
            group=firsts[query].group or query,
            source="triplets",
            kind=firsts[query].kind,
            pairs=tuple(pairs),
        )


loaders.add(Loader("triplets", "R0's records: query, positive, negative a line", read))
