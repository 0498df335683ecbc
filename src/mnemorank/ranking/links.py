"""Second hops: a memory about something that a good candidate names, though the query does not.

"Where was the director of Kiss and Tell born?" is answered by a memory that shares no word with it: the one about the
person whom the memory about the film names. No model that reads one memory at a time can see that; the pool can.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mnemorank.ranking.calibrate import sigmoid
from mnemorank.words import terms

Floats = NDArray[np.float64]
# Where no heading (`Orlo Vantage: …`) says what a text is about, its first words do, with less certainty.
_HEADING = re.compile(r"([^\n]{2,60}?): ")
_IN_BRACKETS = re.compile(r"\(.*?\)")
_FIRST_TERMS, _CERTAINTY = 6, 0.5
_SOURCES = 5
_STEEPNESS, _HEAD_START = 2.0, 1.0


def led_to(query: str, texts: Sequence[str], passages: Sequence[str], odds: Floats) -> Floats:
    """How far the best candidates lead to each one, 0 to 1: how good they are times how much of its subject they name.

    Only what the query itself does not name counts, a subject of the query being no second hop; what many candidates
    have in common counts little.

    :param texts: the candidates, whose beginnings say what each is about.
    :param passages: what was read of each, where another may be named.
    :param odds: log-odds of relevance so far; a candidate well below the best leads nowhere.
    """
    result = np.zeros(len(texts))
    if len(texts) < 2:
        return result
    asked = set(terms(query))
    said = [set(terms(passage)) for passage in passages]
    counts = Counter(term for passage in said for term in passage)
    strength = sigmoid(_STEEPNESS * (odds - odds.max()) + _HEAD_START)
    sources = np.argsort(-odds, kind="stable")[:_SOURCES]
    for target, text in enumerate(texts):
        subject, certainty = subject_of(text)
        rarity = {term: _rarity(counts[term], len(texts)) for term in subject if term not in asked}
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
    heading = _HEADING.match(text)
    if heading and (stated := terms(_IN_BRACKETS.sub("", heading[1]))):
        return stated, 1.0
    return terms(text[:400])[:_FIRST_TERMS], _CERTAINTY


def _rarity(count: int, pool: int) -> float:
    return math.log1p((pool - count + 0.5) / (count + 0.5))
