"""Whether two like facts rule each other out, or may both be true: an English heuristic of the first few words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from mnemorank.text.words import STOPWORDS, stem, words

_READ = 16
_LONGEST_SUBJECT = 8
# What a person or thing does, has or is many times over, so that a new one takes nothing from the old.
_MANY = frozenset(
    stem(word)
    for word in "admire adore afraid allergic collect cook dance dislike dream eat enjoy fan fear friend good hate "
    "interested know learn like love member own play read recommend scared sing speak volunteer want watch".split()
)
_PAST = frozenset(
    "ate began bought brought built came caught chose did drank drove fell felt flew forgot found gave got grew heard "
    "held knew left lent lost made met paid ran rode said sang sat saw sent slept sold spent spoke stood swam taught "
    "told took thought threw went woke won wore wrote".split()
)
# Reported changes: their outcome stands until the next one.
_CHANGES = frozenset(
    stem(word)
    for word in "appointed changed increased lowered migrated moved postponed promoted raised reduced relocated "
    "renamed rescheduled switched transferred upgraded".split()
)
# What is denied, past or only wished for.
_QUALIFYING = frozenset("not never will might used wants hopes plans formerly previously".split())
_BEING_NOW = frozenset("is are am".split())
_BEING = _BEING_NOW | frozenset("was were".split())
_HELPING = _BEING | frozenset("has have had can could will would must may does do".split())
_ARTICLES = frozenset("a an the my our your his her their its this that".split())
_THE_ONE = _ARTICLES - {"a", "an"}
_ASIDE = STOPWORDS | frozenset("now currently still always usually recently already".split())


@dataclass(frozen=True, slots=True)
class Claim:
    """What a fact says, as far as its first words tell.

    :param many: words in it of which several hold at once.
    :param verbs: where it has what looks like a verb.
    """

    words: tuple[str, ...]
    many: frozenset[str]
    verbs: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Claim:
        found = words(text[: _READ * 40])[:_READ]
        # Not "own" of "their own".
        many = {stem(word) for word in found if word != "own"} & _MANY
        many |= {"has a" for first, second in pairwise(found) if _has_one(first, second)}
        return cls(tuple(found), frozenset(many), tuple(i for i in range(len(found)) if _is_verb(found, i)))


def are_rivals(a: Claim, b: Claim) -> bool:
    """Whether only one of two like facts can be true at a time, unless nothing tells.

    They are none if they share a word of many values ("likes", "is allergic to", "has a"), if they tell of events (a
    verb of the past that is no change of state), if only one of them is denied, past or planned and it says nothing of
    the other, or if they are about different subjects ("Tom lives in …", "Anna lives in …"), but for "X is the …".
    """
    if a.many & b.many or not _may_answer(a, b):
        return False
    in_b = {b.words[j]: j for j in reversed(b.verbs)}
    at = next(((i, in_b[a.words[i]]) for i in a.verbs if a.words[i] in in_b), None)
    if at is None:
        return True
    if _is_event(a.words, at[0]):
        return False
    subject_a, subject_b = (_subject(claim.words[:place]) for claim, place in zip((a, b), at, strict=True))
    if max(at) > _LONGEST_SUBJECT or subject_a <= subject_b or subject_b <= subject_a:
        return True
    return _is_the_one(a.words, at[0]) and _is_the_one(b.words, at[1])


def _may_answer(a: Claim, b: Claim) -> bool:
    """Whether one answers the other. What is denied, past or only planned ("does not live in Porto") takes nothing from
    a plain fact but from one that it repeats ("is vegan", "is not vegan any more").
    """
    if _is_qualified(a) == _is_qualified(b):
        return True
    qualified, plain = (a, b) if _is_qualified(a) else (b, a)
    return _subject(plain.words) <= _subject(qualified.words)


def _is_qualified(claim: Claim) -> bool:
    if any(word in _QUALIFYING or word.endswith(("n't", "n’t")) for word in claim.words):
        return True
    # Not "is located".
    return any(_is_event(claim.words, i) and claim.words[i - 1] not in _BEING_NOW for i in claim.verbs if i)


def _has_one(word: str, following: str) -> bool:
    return word in ("has", "have", "own") and following in ("a", "an", "another")


def _is_verb(found: list[str], i: int) -> bool:
    word = found[i]
    if word in _HELPING:
        return True
    if i == 0 or found[i - 1] in _ARTICLES or _is_possessive(found[i - 1]) or _is_possessive(word):
        return False
    return _is_past(word) or (len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us")))


def _is_past(word: str) -> bool:
    return word in _PAST or (len(word) > 4 and word.endswith("ed") and not word.endswith("eed"))


def _is_event(found: tuple[str, ...], i: int) -> bool:
    if found[i] in ("was", "were", "has", "have", "had") and i + 1 < len(found):
        i += 1
    return _is_past(found[i]) and stem(found[i]) not in _CHANGES


def _is_possessive(word: str) -> bool:
    return word.endswith(("'s", "’s"))


def _subject(found: tuple[str, ...]) -> set[str]:
    return {word if _is_possessive(word) else stem(word) for word in found if word not in _ASIDE}


def _is_the_one(found: tuple[str, ...], i: int) -> bool:
    """Whether "is" is followed by what only one is: the mayor, Ann's dentist."""
    if found[i] not in _BEING or i + 1 == len(found):
        return False
    return found[i + 1] in _THE_ONE or _is_possessive(found[i + 1])
