"""Our `triplets` format: each query is ranked against all positives and negatives of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from mnemorank.data.benchmarks.loader import Loader, label_candidates, loaders
from mnemorank.data.examples import Example, normalize_query
from mnemorank.data.formats import read_triplets
from mnemorank.memory.memory import Memory


def read(path: Path) -> Iterator[Example]:
    """Yield one example per query and group, with all distinct memories of the file as candidates.

    Positives of the same query in another group are left out, since their relevance here is unknown. `pairs` keeps the
    comparisons of the triplets, for pairwise accuracy.
    """
    positions: dict[str, int] = {}
    memories: list[Memory] = []

    def position_of(memory: Memory) -> int:
        key = json.dumps(memory.to_dict(), sort_keys=True, default=str)
        if key not in positions:
            positions[key] = len(memories)
            memories.append(memory)
        return positions[key]

    pairs_by_query: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    kinds: dict[tuple[str, str | None], str | None] = {}
    positives_by_text: dict[str, set[int]] = {}
    for triplet in read_triplets(path):
        key = triplet.query, triplet.group
        kinds.setdefault(key, triplet.kind)
        positive, negative = position_of(triplet.positive), position_of(triplet.negative)
        pairs_by_query.setdefault(key, []).append((positive, negative))
        positives_by_text.setdefault(triplet.query, set()).add(positive)
    for number, ((query, group), pairs) in enumerate(pairs_by_query.items()):
        relevant = {positive for positive, _ in pairs}
        unknown = positives_by_text[query] - {position for pair in pairs for position in pair}
        kept = [position for position in range(len(memories)) if position not in unknown]
        new_position = {position: i for i, position in enumerate(kept)}
        yield Example(
            id=str(number),
            query=query,
            candidates=label_candidates([memories[p] for p in kept], (p in relevant for p in kept)),
            group=group or normalize_query(query),
            source="triplets",
            kind=kinds[query, group],
            pairs=tuple((new_position[positive], new_position[negative]) for positive, negative in pairs),
        )


loaders.add(Loader("triplets", "query, positive and negative memory per line, ranked against the whole file", read))
