"""Entity links: from the query to the subjects of memories, and from one memory to another.

First hops: memories whose heading the query names. Second hops: memories about something that a good candidate names
but the query does not. "Where was the director of Kiss and Tell born?" is answered by a memory that shares no word
with it: the one about the person whom the memory about the film names. A model that reads one memory at a time cannot
see that.
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

_IN_BRACKETS = re.compile(r"\(.*?\)")
# Without a heading (`Orlo Vantage: …`), the first words of a text say what it is about, with less certainty.
_FIRST_TERMS, _CERTAINTY = 6, 0.25
_SOURCES = 5
_MAX_CANDIDATES = 200
_STEEPNESS, _HEAD_START = 2.0, 1.0
# A first hop is worth less than a second: the model and BM25 have already seen the query's words. A heading of a single
# word may not be a name (`Update: …`).
_FIRST_HOP, _SINGLE_WORD = 0.45, 0.5


class EntityLinks:
    """Raises memories about something that the query or a good candidate names."""

    name = "entity_links"

    def adjust(self, context: RankingContext) -> Floats:
        weight = context.weight(self.name)
        if self.name not in context.options.weights:
            weight *= context.bm25_trust  # a long chat message mentions many unrelated things
        result = np.zeros(len(context.pool))
        if weight and context.candidates:
            best = sorted(context.candidates, key=lambda i: -context.log_odds[i])[:_MAX_CANDIDATES]
            texts = [context.pool[i].text for i in best]
            result[best] = link_evidence(
                context.query, texts, [context.passage(i) for i in best], context.log_odds[best], weight
            )
        return result


def link_evidence(query: str, texts: Sequence[str], passages: Sequence[str], odds: Floats, weight: float) -> Floats:
    """Return the log-odds to add for the links to each candidate: up to `weight` for a second hop, less for a first.

    :param texts: the candidates; the beginning of each says what it is about.
    :param passages: the part of each that the model read, searched for names of others.
    :param odds: log-odds of relevance so far; links from candidates far below the best count little.
    """
    # A copy, such as from a second retriever, is not further evidence.
    best: dict[str, int] = {}
    for i in np.argsort(-odds, kind="stable"):
        best.setdefault(texts[i], int(i))
    kept = sorted(best.values())
    links = _link_evidence(query, [texts[i] for i in kept], [passages[i] for i in kept], odds[kept], weight)
    link_by_text = {texts[i]: link for i, link in zip(kept, links, strict=True)}
    return np.array([link_by_text[text] for text in texts], dtype=np.float64)


def _link_evidence(query: str, texts: Sequence[str], passages: Sequence[str], odds: Floats, weight: float) -> Floats:
    """Return what `link_evidence` does, for distinct texts."""
    if len(texts) < 2:
        return np.zeros(len(texts))
    query_terms = set(terms(query))
    passage_terms = [set(terms(passage)) for passage in passages]
    counts = Counter(term for passage in passage_terms for term in passage)
    subjects = [subject_of(text) for text in texts]
    first = weight * _FIRST_HOP * _first_hops(query_terms, subjects, counts)
    return first + weight * _second_hops(query_terms, subjects, passage_terms, counts, odds + first)


def _first_hops(query_terms: set[str], subjects: Sequence[tuple[list[str], float]], counts: Counter[str]) -> Floats:
    """Return how much of each candidate's heading the query names, from 0 to 1; common terms count little."""
    pool = len(subjects)
    rarest = _rarity(1, pool)
    result = np.zeros(pool)
    for target, (subject, certainty) in enumerate(subjects):
        if certainty < 1 or query_terms.isdisjoint(subject):
            continue
        rarity = {term: _rarity(max(1, counts[term]), pool) for term in subject}
        named = sum(weight**2 for term, weight in rarity.items() if term in query_terms)
        result[target] = named / (sum(rarity.values()) * rarest) * (1 if len(rarity) > 1 else _SINGLE_WORD)
    return result


def _second_hops(
    query_terms: set[str],
    subjects: Sequence[tuple[list[str], float]],
    passage_terms: Sequence[set[str]],
    counts: Counter[str],
    odds: Floats,
) -> Floats:
    """Return how strongly the best candidates link to each one, from 0 to 1.

    A link is the quality of its source times the share of the target's subject that the source names. Terms of the
    query do not count, since its own subject is not a second hop; terms that many candidates share count little.
    """
    result = np.zeros(len(subjects))
    strength = sigmoid(_STEEPNESS * (odds - odds.max()) + _HEAD_START)
    sources = np.argsort(-odds, kind="stable")[:_SOURCES]
    for target, (subject, certainty) in enumerate(subjects):
        rarity = {term: _rarity(counts[term], len(subjects)) for term in subject if term not in query_terms}
        total = sum(rarity.values())
        for source in sources:
            if source != target and total > 0:
                named = sum(
                    weight / max(1, counts[term] - 1)
                    for term, weight in rarity.items()
                    if term in passage_terms[source]
                )
                result[target] = max(result[target], strength[source] * certainty * named / total)
    return result


def subject_of(text: str) -> tuple[list[str], float]:
    """Return the terms of what a text is about and how certain that is: its heading, else its first words."""
    text = without_role(text)
    if heading := terms(_IN_BRACKETS.sub("", heading_of(text))):
        return heading, 1.0
    return terms(text[:400])[:_FIRST_TERMS], _CERTAINTY


def _rarity(count: int, pool: int) -> float:
    return math.log1p((pool - count + 0.5) / (count + 0.5))
