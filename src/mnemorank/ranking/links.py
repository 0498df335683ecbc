"""Second hops: a memory about something that a good candidate names, though the query does not.

"Where was the director of Kiss and Tell born?" is answered by a memory that shares no word with it: the one about the
person whom the memory about the film names. No model that reads one memory at a time can see that; the pool can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mnemorank.ranking.calibrate import sigmoid
from mnemorank.words import terms

Floats = NDArray[np.float64]
# A text says what it is about in its first words.
SUBJECT_TERMS = 6
_SOURCES = 5
_STEEPNESS = 2.0
_HEAD_START = 1.0


def led_to(query: str, texts: Sequence[str], passages: Sequence[str], odds: Floats) -> Floats:
    """How far the best candidates lead to each one, 0 to 1: how good they are times how much of its subject they name.

    Only what the query itself does not name counts: a subject of the query is no second hop.

    :param texts: the candidates, whose first words say what each is about.
    :param passages: what was read of each, where another may be named.
    :param odds: log-odds of relevance so far; a candidate well below the best leads nowhere.
    """
    result = np.zeros(len(texts))
    if len(texts) < 2:
        return result
    asked = set(terms(query))
    said = [set(terms(passage)) for passage in passages]
    rarity = _rarity(said)
    strength = sigmoid(_STEEPNESS * (odds - odds.max()) + _HEAD_START)
    sources = np.argsort(-odds, kind="stable")[:_SOURCES]
    for target, text in enumerate(texts):
        subject = [term for term in dict.fromkeys(terms(text[:400])[:SUBJECT_TERMS]) if term not in asked]
        whole = sum(rarity.get(term, rarity[""]) for term in subject)
        for source in sources:
            if source != target and whole > 0:
                named = sum(rarity[term] for term in subject if term in said[source])
                result[target] = max(result[target], strength[source] * named / whole)
    return result


def _rarity(said: Sequence[set[str]]) -> dict[str, float]:
    """BM25's idf of each term over the candidates; the empty term stands for one that none of them has."""
    counts = Counter(term for terms_of_one in said for term in terms_of_one)
    counts[""] = 0
    return {term: float(np.log1p((len(said) - count + 0.5) / (count + 0.5))) for term, count in counts.items()}
