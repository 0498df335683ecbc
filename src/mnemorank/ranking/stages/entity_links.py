"""Links between a query and the subjects of memories, and from one memory to another.

First hops: a memory headed by what the query names. Second hops: a memory about something that a good candidate names,
though the query does not. "Where was the director of Kiss and Tell born?" is answered by a memory that shares no word
with it: the one about the person whom the memory about the film names. No model that reads one memory at a time can see
that; the pool can.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mnemorank._internal.arrays import Floats, sigmoid
from mnemorank.ranking.stage import RankingContext
from mnemorank.text.chat import without_role
from mnemorank.text.sentences import heading_of
from mnemorank.text.words import terms

# Where no heading (`Orlo Vantage: …`) says what a text is about, its first words do, with less certainty.
_IN_BRACKETS = re.compile(r"\(.*?\)")
_FIRST_TERMS, _CERTAINTY = 6, 0.25
_SOURCES = 5
_MAX_CANDIDATES = 200
_STEEPNESS, _HEAD_START = 2.0, 1.0
# What a first hop is worth beside a second: the model and BM25 have seen the query's words themselves. A heading of a
# single word may be no name at all (`Update: …`).
_FIRST_HOP, _SINGLE_WORD = 0.45, 0.5


class EntityLinks:
    """Raises memories about something that the query or a good candidate names."""

    name = "entity_links"

    def adjust(self, context: RankingContext) -> Floats:
        weight = context.weight(self.name)
        if self.name not in context.options.weights:
            weight *= context.bm25_trust  # a chat turn names much in passing that leads nowhere
        result = np.zeros(len(context.pool))
        if weight and context.candidates:
            best = sorted(context.candidates, key=lambda i: -context.log_odds[i])[:_MAX_CANDIDATES]
            texts = [context.pool[i].text for i in best]
            result[best] = linked(
                context.query, texts, [context.passage(i) for i in best], context.log_odds[best], weight
            )
        return result


def linked(query: str, texts: Sequence[str], passages: Sequence[str], odds: Floats, weight: float) -> Floats:
    """The log-odds that links are worth to each candidate: up to `weight` for a second hop, less for a first.

    :param texts: the candidates, whose beginnings say what each is about.
    :param passages: what was read of each, where another may be named.
    :param odds: log-odds of relevance so far; a candidate well below the best leads nowhere.
    """
    # A copy, as two retrievers give it, is no second witness.
    best: dict[str, int] = {}
    for i in np.argsort(-odds, kind="stable"):
        best.setdefault(texts[i], int(i))
    kept = sorted(best.values())
    found = _linked(query, [texts[i] for i in kept], [passages[i] for i in kept], odds[kept], weight)
    worth = {texts[i]: value for i, value in zip(kept, found, strict=True)}
    return np.array([worth[text] for text in texts], dtype=np.float64)


def _linked(query: str, texts: Sequence[str], passages: Sequence[str], odds: Floats, weight: float) -> Floats:
    """`linked` for texts that all differ."""
    if len(texts) < 2:
        return np.zeros(len(texts))
    asked = set(terms(query))
    said = [set(terms(passage)) for passage in passages]
    counts = Counter(term for passage in said for term in passage)
    subjects = [subject_of(text) for text in texts]
    first = weight * _FIRST_HOP * _named_by_query(asked, subjects, counts)
    return first + weight * _led_to(asked, subjects, said, counts, odds + first)


def _named_by_query(asked: set[str], subjects: Sequence[tuple[list[str], float]], counts: Counter[str]) -> Floats:
    """How much of each candidate's heading the query names, 0 to 1; what many have in common counts little."""
    pool = len(subjects)
    rarest = _rarity(1, pool)
    result = np.zeros(pool)
    for target, (subject, certainty) in enumerate(subjects):
        if certainty < 1 or asked.isdisjoint(subject):
            continue
        rarity = {term: _rarity(max(1, counts[term]), pool) for term in subject}
        named = sum(weight**2 for term, weight in rarity.items() if term in asked)
        result[target] = named / (sum(rarity.values()) * rarest) * (1 if len(rarity) > 1 else _SINGLE_WORD)
    return result


def _led_to(
    asked: set[str],
    subjects: Sequence[tuple[list[str], float]],
    said: Sequence[set[str]],
    counts: Counter[str],
    odds: Floats,
) -> Floats:
    """How far the best candidates lead to each one, 0 to 1: how good they are times how much of its subject they name.

    Only what the query itself does not name counts, a subject of the query being no second hop; what many candidates
    have in common counts little.
    """
    result = np.zeros(len(subjects))
    strength = sigmoid(_STEEPNESS * (odds - odds.max()) + _HEAD_START)
    sources = np.argsort(-odds, kind="stable")[:_SOURCES]
    for target, (subject, certainty) in enumerate(subjects):
        rarity = {term: _rarity(counts[term], len(subjects)) for term in subject if term not in asked}
        whole = sum(rarity.values())
        for source in sources:
            if source != target and whole > 0:
                named = sum(
                    weight / max(1, counts[term] - 1) for term, weight in rarity.items() if term in said[source]
                )
                result[target] = max(result[target], strength[source] * certainty * named / whole)
    return result


def subject_of(text: str) -> tuple[list[str], float]:
    """The terms of what a text is about, and how certain that is: by its heading, else its first words."""
    text = without_role(text)
    if stated := terms(_IN_BRACKETS.sub("", heading_of(text))):
        return stated, 1.0
    return terms(text[:400])[:_FIRST_TERMS], _CERTAINTY


def _rarity(count: int, pool: int) -> float:
    return math.log1p((pool - count + 0.5) / (count + 0.5))
