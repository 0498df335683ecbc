"""R0's triplets: each query is ranked against all positives and negatives of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from mnemorank.data.benchmarks.loader import Loader, labelled, loaders
from mnemorank.data.examples import Example, Triplet, question_group, read_triplets
from mnemorank.memory.memory import Memory


def read(path: Path) -> Iterator[Example]:
    """One example a query of a group; memories that occur more than once are one candidate. What answers the same
    words in another group is none: nothing says whether it is right here.

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

    asked: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    firsts: dict[tuple[str, str | None], Triplet] = {}
    answers: dict[str, set[int]] = {}
    for triplet in read_triplets(path):
        key = triplet.query, triplet.group
        firsts.setdefault(key, triplet)
        asked.setdefault(key, []).append((place(triplet.positive), place(triplet.negative)))
        answers.setdefault(triplet.query, set()).add(place(triplet.positive))
    for number, ((query, group), pairs) in enumerate(asked.items()):
        right = {positive for positive, _ in pairs}
        left_out = answers[query] - {i for pair in pairs for i in pair}
        kept = [i for i in range(len(memories)) if i not in left_out]
        at = {i: position for position, i in enumerate(kept)}
        yield Example(
            id=str(number),
            query=query,
            candidates=labelled([memories[i] for i in kept], (i in right for i in kept)),
            group=group or question_group(query),
            source="triplets",
            kind=firsts[query, group].kind,
            pairs=tuple((at[positive], at[negative]) for positive, negative in pairs),
        )


loaders.add(Loader("triplets", "R0's records: query, positive, negative a line", read))
