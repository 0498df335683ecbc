"""Features of a query and a text as multi-hop-rag-reranker computes them, shared by training and inference."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mnemorank.text.words import STOPWORDS, terms, words

ROLES = ("Main_Claim", "Supporting_Evidence", "Expert_Opinion", "Background_Information")
HOPS = (0, 1, 2)

_ENTITY = re.compile(r"\b(?:[A-Z][\w&'’.-]*\w|[A-Z])(?:\s(?:(?:of|the|de|van|von|al|and)\s)?[A-Z][\w&'’.-]*\w){0,3}")
_CAUSAL = re.compile(
    r"\b(?:because|since|due to|as a result|therefore|thus|hence|consequently|caused?|causes|causing|led to|leads to|"
    r"leading to|resulted in|results in|so that|owing to|thanks to|in order to)\b",
    re.IGNORECASE,
)
_OPINION = re.compile(
    r"\b(?:according to|said|says|argued?|argues|believes?|suggests?|claims?|claimed|recommends?|recommended|expert|"
    r"professor|analyst|researchers?)\b",
    re.IGNORECASE,
)
_EVIDENCE = re.compile(r"\d|%|\b(?:study|data|report|evidence|survey|measured|found|shows?|showed)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HopFeatures:
    """The features of a text for a query; `str()` is the prefix that the model reads.

    :param hop: lexical distance from the query: 0 shares a name or half of its words, 1 any word, 2 none.
    :param role: one of `ROLES`.
    """

    hop: int
    role: str
    entities: tuple[str, ...]
    causal: bool
    reasoning: bool

    def __str__(self) -> str:
        parts = [f"[HOP:{self.hop}]", f"[ROLE:{self.role}]"]
        if self.entities:
            parts.append(f"[ENT:{','.join(self.entities)}]")
        if self.causal:
            parts.append("[CAUSAL]")
        if self.reasoning:
            parts.append("[REASONING]")
        return " ".join(parts)


def entities(text: str) -> tuple[str, ...]:
    """Return the capitalized names in order of appearance, each once, without words that only open a sentence."""
    names: dict[str, None] = {}
    for match in _ENTITY.finditer(text):
        name = match.group()
        preceding = text[: match.start()].rstrip()
        opens_sentence = not preceding or preceding[-1] in ".!?\n:|"
        if name.lower() in STOPWORDS or (opens_sentence and " " not in name and name.lower() in _COMMON_OPENERS):
            continue
        names[name] = None
    return tuple(names)


_COMMON_OPENERS = frozenset(
    "after although before during every following however later many most new old one several since the there these "
    "this those two under until when while yes no what which who where why how did does is are was were".split()
)


def features_of(query: str, text: str) -> HopFeatures:
    """Return the features of a text for a query."""
    names = entities(text)
    causal = bool(_CAUSAL.search(text))
    query_terms = set(terms(query))
    shared = query_terms & set(terms(text))
    query_words = set(words(query))
    shares_name = any(set(words(name)) <= query_words for name in names if words(name))
    is_close = shares_name or (bool(query_terms) and len(shared) * 2 >= len(query_terms))
    hop = 0 if is_close else 1 if shared else 2
    if _OPINION.search(text):
        role = "Expert_Opinion"
    elif hop == 0:
        role = "Main_Claim"
    else:
        role = "Supporting_Evidence" if _EVIDENCE.search(text) else "Background_Information"
    return HopFeatures(hop, role, names[:3], causal, len(names) > 1 or causal)


def feature_prefix(query: str, text: str) -> str:
    """Return the features as the text that precedes query and text in the model's input."""
    return str(features_of(query, text))
