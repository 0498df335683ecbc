"""From a ranking to the short list: floor, diversity, conservative replacement, token budget, top k."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from mnemorank._internal.arrays import Floats
from mnemorank._internal.validation import check_number
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.text.bm25 import jaccard, word_cosine
from mnemorank.text.words import terms

Similarity = Callable[[int, int], float]


@dataclass(frozen=True, slots=True)
class Selection:
    """What makes the short list. Everything is off by default but `top_k`, which the call gives.

    :param floor: drop memories whose relevance is under it, and those that were not scored.
    :param diversity: MMR's λ: 1 is relevance alone, lower is stronger; R0 uses 0.9. None leaves the order as it is.
    :param tie_margin: scores this close count as equal, and the newer memory goes first; R0 uses 0.01.
    :param token_budget: stop before the chosen memories exceed this many tokens; the first is kept even if it alone
        is longer.
    :param replace_only: R1's cautious mode: keep the first stage's top k but for one memory, which is replaced only if
        a better one beats the weakest by this much.
    """

    floor: float | None = None
    diversity: float | None = None
    tie_margin: float = 0.0
    token_budget: int | None = None
    replace_only: float | None = None

    def __post_init__(self) -> None:
        for name in ("floor", "diversity", "replace_only"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, 1)
        check_number("tie_margin", self.tie_margin, 0, 1)
        if self.token_budget is not None:
            check_number("token_budget", self.token_budget, 1, whole=True)
        if self.replace_only is not None and self.diversity not in (None, 1):
            raise InputError(
                "keeps the first stage's choice, which diversity would change; leave one out", field="replace_only"
            )


def newer_first_among_ties(
    order: Sequence[int], scores: Floats, memories: Sequence[Memory], margin: float
) -> list[int]:
    """Within runs of scores at most `margin` under the run's best, put the certainly newer first (stable otherwise)."""
    runs: list[list[int]] = []
    for item in order:
        if runs and scores[runs[-1][0]] - scores[item] <= margin:
            runs[-1].append(item)
        else:
            runs.append([item])
    return [item for run in runs for item in _newer_first(run, memories)]


def _newer_first(run: Sequence[int], memories: Sequence[Memory]) -> list[int]:
    """The dated ones, each after all that are certainly newer, else as they were; the others keep their places.

    Dates of different precision are only partly ordered, which `sorted` cannot take. One whose end is after every
    start that is left has nothing newer to wait for.
    """
    dated = [(place, date) for place, item in enumerate(run) if (date := memories[item].date) is not None]
    if len(dated) < 2:
        return list(run)
    waiting = sorted(dated, key=lambda one: (one[1].end, one[1].start))
    starts = sorted(dated, key=lambda one: one[1].start)
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
    """Maximal marginal relevance: pick by `balance · score − (1 − balance) · likeness to what was picked`.

    The first `top_k` are picked so; the rest follow in their order.
    """
    left = list(order)
    picked: list[int] = []
    likeness = dict.fromkeys(left, 0.0)
    while left and len(picked) < top_k:
        best = max(left, key=lambda item: balance * scores[item] - (1 - balance) * likeness[item])
        left.remove(best)
        picked.append(best)
        for item in left:
            likeness[item] = max(likeness[item], similarity(item, best))
    return picked + left


def memory_similarity(memories: Sequence[Memory]) -> Similarity:
    """R0's likeness, .6 · cosine + .4 · Jaccard of entities, by the cosine of words; that alone without entities."""
    bags: dict[int, Counter[str]] = {}

    def bag(item: int) -> Counter[str]:
        if item not in bags:
            bags[item] = Counter(terms(memories[item].text[:5000]))
        return bags[item]

    def similarity(a: int, b: int) -> float:
        words = word_cosine(bag(a), bag(b))
        if not (memories[a].entities and memories[b].entities):
            return words
        return 0.6 * words + 0.4 * jaccard(memories[a].entities, memories[b].entities)

    return similarity


def within_budget(order: Sequence[int], costs: Mapping[int, int], budget: int) -> list[int]:
    """The longest beginning of the order whose costs fit; the first memory is kept even if it alone is too long."""
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
    """R1's cautious mode: the first stage's top k, its weakest replaced by the best outsider if that wins by `margin`.

    The rest follows in the reranked order.
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
