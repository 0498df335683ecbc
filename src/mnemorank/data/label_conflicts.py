"""Label conflicts: a pair of query and memory that is labeled 1 in one place and 0 in another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import replace

from mnemorank.data.examples import Candidate, Example
from mnemorank.errors import InputError

PairKey = Callable[[Example, Candidate], Hashable]
"""Identifies a pair: labels of pairs with the same key must agree."""


def by_content(example: Example, candidate: Candidate) -> Hashable:
    """Identify a pair by query, query time, text and dates."""
    memory = candidate.memory
    dates = example.query_time, memory.occurred_start, memory.occurred_end, memory.mentioned_at
    return (example.query, memory.text, *map(str, dates))


def check_label_conflicts(
    examples: Iterable[Example],
    key: PairKey = by_content,
    describe: Callable[[Example], str] = lambda example: f"example {example.id}",
) -> Iterator[Example]:
    """Yield the examples unchanged; raise an `InputError` of code `label_conflict` at the first conflict.

    :param describe: names an example in the error message.
    """
    # Both extremes are kept, so that a grade between them does not hide a conflict.
    extremes: dict[Hashable, tuple[tuple[float, str], tuple[float, str]]] = {}
    for example in examples:
        where = describe(example)
        for candidate in example.candidates:
            pair, current = key(example, candidate), (candidate.label, where)
            low, high = extremes.get(pair, (current, current))
            for label, other in (low, high):
                if abs(label - candidate.label) >= 1:
                    raise InputError(
                        f"label {candidate.label:g} conflicts with label {label:g} in {other}: query "
                        f"{example.query!r:.60}, memory {candidate.memory.text!r:.60}; fix the data, or set "
                        'label_conflicts = "drop" for the source',
                        code="label_conflict",
                        location=where,
                    )
            extremes[pair] = min(low, current, key=_label), max(high, current, key=_label)
        yield example


def drop_label_conflicts(
    examples: Iterable[Example], key: PairKey = by_content, sources: Collection[str] | None = None
) -> list[Example]:
    """Return the examples without candidates labeled 0 whose pair is labeled 1 elsewhere.

    Examples that lose all their candidates are left out.

    :param sources: drop only from examples of these sources; None for all.
    """
    examples = list(examples)
    positives = {key(e, candidate) for e in examples for candidate in e.candidates if candidate.label == 1}
    kept: list[Example] = []
    for example in examples:
        if sources is None or example.source in sources:
            candidates = tuple(c for c in example.candidates if c.label > 0 or key(example, c) not in positives)
            if len(candidates) < len(example.candidates):
                # `pairs` refers to positions, which no longer hold.
                example = replace(example, candidates=candidates, pairs=())
        if example.candidates:
            kept.append(example)
    return kept


def _label(entry: tuple[float, str]) -> float:
    return entry[0]
