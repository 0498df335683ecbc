"""R4's features of a query and a sentence, computed by this one module in training and at inference."""

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
class Features:
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
    """Capitalised names in order of appearance, each once; a capital that only opens a sentence does not count."""
    found: dict[str, None] = {}
    for match in _ENTITY.finditer(text):
        name = match.group()
        opens_sentence = not text[: match.start()].rstrip() or text[: match.start()].rstrip()[-1] in ".!?\n:|"
        if name.lower() in STOPWORDS or (opens_sentence and " " not in name and name.lower() in _COMMON_OPENERS):
            continue
        found[name] = None
    return tuple(found)


_COMMON_OPENERS = frozenset(
    "after although before during every following however later many most new old one several since the there these "
    "this those two under until when while yes no what which who where why how did does is are was were".split()
)


def features_of(query: str, text: str) -> Features:
    """HOP is the lexical distance from the query: 0 shares a name or half of its words, 1 any word, 2 none."""
    names = entities(text)
    causal = bool(_CAUSAL.search(text))
    asked, told = set(terms(query)), set(terms(text))
    shared = asked & told
    in_query = set(words(query))
    shares_name = any(set(words(name)) <= in_query for name in names if words(name))
    is_close = shares_name or (bool(asked) and len(shared) * 2 >= len(asked))
    hop = 0 if is_close else 1 if shared else 2
    if _OPINION.search(text):
        role = "Expert_Opinion"
    elif hop == 0:
        role = "Main_Claim"
    else:
        role = "Supporting_Evidence" if _EVIDENCE.search(text) else "Background_Information"
    return Features(hop, role, names[:3], causal, len(names) > 1 or causal)


def feature_prefix(query: str, text: str) -> str:
    return str(features_of(query, text))
