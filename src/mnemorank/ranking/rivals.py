"""Whether two similar facts exclude each other or may both be true: an English heuristic on their first words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from mnemorank.text.words import STOPWORDS, stem, words

_MAX_WORDS = 16
_MAX_SUBJECT_WORDS = 8
# Attributes that can have several values at once, so that a new value does not replace the old one.
_MULTI_VALUED = frozenset(
    stem(word)
    for word in "admire adore afraid allergic collect cook dance dislike dream eat enjoy fan fear friend good hate "
    "interested know learn like love member own play read recommend scared sing speak volunteer want watch".split()
)
_PAST = frozenset(
    "ate began bought brought built came caught chose did drank drove fell felt flew forgot found gave got grew heard "
    "held knew left lent lost made met paid ran rode said sang sat saw sent slept sold spent spoke stood swam taught "
    "told took thought threw went woke won wore wrote".split()
)
# Verbs of change: the outcome holds until the next change.
_CHANGES = frozenset(
    stem(word)
    for word in "appointed changed increased lowered migrated moved postponed promoted raised reduced relocated "
    "renamed rescheduled switched transferred upgraded".split()
)
# Words that mark a fact as denied, past or only planned.
_QUALIFYING = frozenset("not never will might used wants hopes plans formerly previously".split())
_IS = frozenset("is are am".split())
_TO_BE = _IS | frozenset("was were".split())
_AUXILIARIES = _TO_BE | frozenset("has have had can could will would must may does do".split())
_ARTICLES = frozenset("a an the my our your his her their its this that".split())
_DEFINITE = _ARTICLES - {"a", "an"}
_IGNORED = STOPWORDS | frozenset("now currently still always usually recently already".split())


@dataclass(frozen=True, slots=True)
class Claim:
    """The first words of a fact.

    :param multi_valued: the attributes among them that can have several values at once.
    :param verbs: positions of the words that look like verbs.
    """

    words: tuple[str, ...]
    multi_valued: frozenset[str]
    verbs: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Claim:
        first = words(text[: _MAX_WORDS * 40])[:_MAX_WORDS]
        # "own" alone may be that of "their own".
        multi_valued = {stem(word) for word in first if word != "own"} & _MULTI_VALUED
        multi_valued |= {"has a" for word, following in pairwise(first) if _is_has_a(word, following)}
        return cls(tuple(first), frozenset(multi_valued), tuple(i for i in range(len(first)) if _is_verb(first, i)))


def are_rivals(a: Claim, b: Claim) -> bool:
    """Return whether at most one of two similar facts can be true at a time; true if in doubt.

    They are not rivals if they share an attribute with several values ("likes", "is allergic to", "has a"), if they
    report events (a past-tense verb that is not a change of state), if only one of them is denied, past or planned and
    does not repeat the other, or if their subjects differ ("Tom lives in …", "Anna lives in …"), except for
    "X is the …".
    """
    if a.multi_valued & b.multi_valued or not _are_comparable(a, b):
        return False
    in_b = {b.words[j]: j for j in reversed(b.verbs)}
    shared_verb = next(((i, in_b[a.words[i]]) for i in a.verbs if a.words[i] in in_b), None)
    if shared_verb is None:
        return True
    verb_a, verb_b = shared_verb
    if _is_event(a.words, verb_a):
        return False
    subject_a, subject_b = _content(a.words[:verb_a]), _content(b.words[:verb_b])
    if max(shared_verb) > _MAX_SUBJECT_WORDS or subject_a <= subject_b or subject_b <= subject_a:
        return True
    return _is_unique_role(a.words, verb_a) and _is_unique_role(b.words, verb_b)


def _are_comparable(a: Claim, b: Claim) -> bool:
    """Return whether one fact can contradict the other.

    A denied, past or planned fact ("does not live in Porto") contradicts a plain one only if it repeats it ("is vegan",
    "is not vegan any more").
    """
    if _is_qualified(a) == _is_qualified(b):
        return True
    qualified, plain = (a, b) if _is_qualified(a) else (b, a)
    return _content(plain.words) <= _content(qualified.words)


def _is_qualified(claim: Claim) -> bool:
    if any(word in _QUALIFYING or word.endswith(("n't", "n’t")) for word in claim.words):
        return True
    # "is located" is a state.
    return any(_is_event(claim.words, i) and claim.words[i - 1] not in _IS for i in claim.verbs if i)


def _is_has_a(word: str, following: str) -> bool:
    return word in ("has", "have", "own") and following in ("a", "an", "another")


def _is_verb(sentence: list[str], i: int) -> bool:
    word = sentence[i]
    if word in _AUXILIARIES:
        return True
    if i == 0 or sentence[i - 1] in _ARTICLES or _is_possessive(sentence[i - 1]) or _is_possessive(word):
        return False
    return _is_past(word) or (len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us")))


def _is_past(word: str) -> bool:
    return word in _PAST or (len(word) > 4 and word.endswith("ed") and not word.endswith("eed"))


def _is_event(sentence: tuple[str, ...], i: int) -> bool:
    if sentence[i] in ("was", "were", "has", "have", "had") and i + 1 < len(sentence):
        i += 1
    return _is_past(sentence[i]) and stem(sentence[i]) not in _CHANGES


def _is_possessive(word: str) -> bool:
    return word.endswith(("'s", "’s"))


def _content(sentence: tuple[str, ...]) -> set[str]:
    return {word if _is_possessive(word) else stem(word) for word in sentence if word not in _IGNORED}


def _is_unique_role(sentence: tuple[str, ...], i: int) -> bool:
    """Return whether "is" is followed by a role that only one can have: the mayor, Ann's dentist."""
    if sentence[i] not in _TO_BE or i + 1 == len(sentence):
        return False
    return sentence[i + 1] in _DEFINITE or _is_possessive(sentence[i + 1])
