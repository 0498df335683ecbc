"""From a ranking to the short list: ties, diversity, conservative replacement, token budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush

from mnemorank._internal.arrays import Floats
from mnemorank.memory.memory import Memory
from mnemorank.text.similarity import cosine, name_similarity
from mnemorank.text.words import terms

Similarity = Callable[[int, int], float]


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


def mmr(order: Sequence[int], scores: Floats, similarity: Similarity, balance: float, top_k: int) -> list[int]:
    """Return the order by maximal marginal relevance: `balance · score − (1 − balance) · similarity to those picked`.

    The first `top_k` are picked that way; the others follow in their order.
    """
    left = list(order)
    picked: list[int] = []
    similarities = dict.fromkeys(left, 0.0)
    while left and len(picked) < top_k:
        best = max(left, key=lambda item: balance * scores[item] - (1 - balance) * similarities[item])
        left.remove(best)
        picked.append(best)
        for item in left:
            similarities[item] = max(similarities[item], similarity(item, best))
    return picked + left


def memory_similarity(memories: Sequence[Memory]) -> Similarity:
    """Return the similarity of two memories: 0.6 · cosine of words + 0.4 · Jaccard of entities, if both have entities.

    The weights are the Hindsight reranker's, which takes the cosine of embeddings.
    """
    bags: dict[int, Counter[str]] = {}

    def bag(item: int) -> Counter[str]:
        if item not in bags:
            bags[item] = Counter(terms(memories[item].text[:5000]))
        return bags[item]

    def similarity(a: int, b: int) -> float:
        words = cosine(bag(a), bag(b))
        if not (memories[a].entities and memories[b].entities):
            return words
        return 0.6 * words + 0.4 * name_similarity(memories[a].entities, memories[b].entities)

    return similarity


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
