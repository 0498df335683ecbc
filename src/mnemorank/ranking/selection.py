"""From a ranking to the short list: ties, diversity, conservative replacement, token budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.arrays import Floats
from mnemorank._internal.deadline import Deadline
from mnemorank.memory.memory import Memory
from mnemorank.text.words import terms

Similarity = Callable[[int], Floats]
_COMPARED_CHARACTERS = 5000


def newer_first_among_ties(
    order: Sequence[int], scores: Floats, memories: Sequence[Memory], margin: float
) -> list[int]:
    """Return the order with newer memories first among ties: runs of scores at most `margin` below the run's best."""
    runs: list[list[int]] = []
    for item in order:
        if runs and scores[runs[-1][0]] - scores[item] <= margin:
            runs[-1].append(item)
        else:
            runs.append([item])
    return [item for run in runs for item in _newer_first(run, memories)]


def _newer_first(run: Sequence[int], memories: Sequence[Memory]) -> list[int]:
    """Return a run with each dated memory after all that are certainly newer; undated ones keep their places.

    Dates of different precision are only partially ordered, which `sorted` cannot handle. A date whose end is after
    every remaining start has nothing newer to wait for.
    """
    dated = [(place, date) for place, item in enumerate(run) if (date := memories[item].date) is not None]
    if len(dated) < 2:
        return list(run)
    waiting = sorted(dated, key=lambda entry: (entry[1].end, entry[1].start))
    starts = sorted(dated, key=lambda entry: entry[1].start)
    free: list[int] = []
    taken: set[int] = set()
    result = list(run)
    for slot, _ in dated:
        while starts[-1][0] in taken:
            starts.pop()
        latest = starts[-1][1]
        while waiting and not waiting[-1][1].is_before(latest):
            heappush(free, waiting.pop()[0])
        place = heappop(free)
        taken.add(place)
        result[slot] = run[place]
    return result


def mmr(
    order: Sequence[int],
    scores: Floats,
    similarity: Similarity,
    balance: float,
    top_k: int,
    *,
    deadline: Deadline | None = None,
) -> list[int]:
    """Return the order by maximal marginal relevance: `balance · score − (1 − balance) · similarity to those picked`.

    The first `top_k` are picked that way; the others follow in their order.

    :param similarity: gives the similarity of each item of `order` to the one at a place in it.
    :param deadline: no more are picked after it.
    """
    gains = balance * np.array([scores[item] for item in order])
    picked: list[int] = []
    highest = np.zeros(len(order))
    while len(picked) < min(top_k, len(order)) and not (deadline is not None and deadline.expired):
        best = int(np.argmax(gains - (1 - balance) * highest))
        picked.append(best)
        gains[best] = -np.inf
        highest = np.maximum(highest, similarity(best))
    chosen = set(picked)
    return [order[place] for place in picked] + [item for place, item in enumerate(order) if place not in chosen]


class MemorySimilarity:
    """The similarity of memories: 0.6 · cosine of words + 0.4 · Jaccard of entities, if both have entities.

    The weights are the Hindsight reranker's, which takes the cosine of embeddings.

    :param deadline: memories not read by then are similar to none.
    """

    def __init__(self, memories: Sequence[Memory], *, deadline: Deadline | None = None) -> None:
        words, entities = _Bags(len(memories)), _Bags(len(memories))
        for place, memory in enumerate(memories):
            if deadline is not None and deadline.expired:
                break
            words.add(place, Counter(terms(memory.text[:_COMPARED_CHARACTERS])))
            entities.add(place, dict.fromkeys((name.lower() for name in memory.entities), 1))
        self._words, self._entities = words.matrix(), entities.matrix()

    def __call__(self, place: int) -> Floats:
        """Return the similarity of every memory to the one at a place."""
        norms, counts = np.sqrt(self._words.squares), self._entities.squares
        dots = self._words.products(place)
        cosine: Floats = np.divide(dots, norms * norms[place], out=np.zeros_like(dots), where=dots > 0)
        if not counts[place]:
            return cosine
        common = self._entities.products(place)
        jaccard = common / np.maximum(counts + counts[place] - common, 1.0)
        mixed: Floats = np.where(counts > 0, 0.6 * cosine + 0.4 * jaccard, cosine)
        return mixed


class _Bags:
    """Collects a bag of words for each memory."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._numbers: dict[str, int] = {}
        self._owners: list[int] = []
        self._words: list[int] = []
        self._amounts: list[int] = []

    def add(self, owner: int, bag: Mapping[str, int]) -> None:
        self._owners += [owner] * len(bag)
        self._words += [self._numbers.setdefault(word, len(self._numbers)) for word in bag]
        self._amounts += bag.values()

    def matrix(self) -> _SparseMatrix:
        return _SparseMatrix(
            self._count,
            len(self._numbers),
            np.array(self._owners, dtype=np.intp),
            np.array(self._words, dtype=np.intp),
            np.array(self._amounts, dtype=np.float64),
        )


class _SparseMatrix:
    """How often each word occurs in each memory."""

    def __init__(
        self, rows: int, columns: int, owners: NDArray[np.intp], words: NDArray[np.intp], amounts: Floats
    ) -> None:
        self._rows, self._columns = rows, columns
        self._owners, self._words, self._amounts = owners, words, amounts
        self.squares = self._sum_rows(amounts**2)

    def products(self, row: int) -> Floats:
        """Return the dot product of a row with every row."""
        first, last = np.searchsorted(self._owners, (row, row + 1))
        dense = np.zeros(self._columns)
        dense[self._words[first:last]] = self._amounts[first:last]
        return self._sum_rows(self._amounts * dense[self._words])

    def _sum_rows(self, values: Floats) -> Floats:
        return np.bincount(self._owners, values, minlength=self._rows).astype(np.float64, copy=False)


def within_budget(order: Sequence[int], costs: Mapping[int, int], budget: int) -> list[int]:
    """Return the longest prefix of the order whose costs fit the budget, at least the first memory."""
    total = 0
    chosen: list[int] = []
    for item in order:
        total += costs[item]
        if chosen and total > budget:
            break
        chosen.append(item)
    return chosen


def replace_one(
    order: Sequence[int], first_stage_order: Sequence[int], scores: Floats, top_k: int, margin: float
) -> list[int]:
    """Return the first stage's top k with its weakest replaced by the best outsider, if that wins by `margin`.

    This is LycheeMem's conservative mode. The others follow in the reranked order.
    """
    kept = list(first_stage_order[:top_k])
    chosen = set(kept)
    outside = [item for item in order if item not in chosen]
    if kept and outside:
        weakest = min(kept, key=lambda item: scores[item])
        if scores[outside[0]] - scores[weakest] > margin:
            kept[kept.index(weakest)] = outside[0]
    chosen = set(kept)
    return kept + [item for item in order if item not in chosen]
