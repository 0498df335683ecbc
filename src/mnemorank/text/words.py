"""Words of a text, as BM25, similarity measures and features see them."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
# Scripts that put no spaces between words: each character counts as a word.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_VOWEL = re.compile("[aeiouy]")
# Request texts end up in the cache, so it must stay small: at most about 8 MB for any words.
_CACHED_WORDS = 16_384
_MAX_CACHED_LENGTH = 32

STOPWORDS = frozenset(
    "a about after all also am an and any are as at be been being but by can could did do does doing for from had has "
    "have having he her hers him his how i if in into is it its just me my no not of on or our ours own same she "
    "should so some such than that the their theirs them then there these they this those to too very was we were what "
    "when where which while who whom why will with would you your yours i'm i've it's that's don't didn't".split()
)


def words(text: str) -> list[str]:
    """Return the lower-case words of a text, in order; for Chinese and Japanese, the characters."""
    if text.isascii():
        return _WORD.findall(text.lower())
    text = unicodedata.normalize("NFC", text)
    if _UNSPACED.search(text):
        text = _UNSPACED.sub(r" \g<0> ", text)
    return _word_with_marks().findall(unicodedata.normalize("NFC", text.lower()))


def terms(text: str) -> list[str]:
    """Return the stems of a text's words, in order and without stopwords. A text of stopwords alone keeps them."""
    tokens = words(text)
    return [stem(word) for word in tokens if word not in STOPWORDS] or [stem(word) for word in tokens]


def stem(word: str) -> str:
    """Remove plural, -ing, -ed, -ly and a final e or y from an English word; at least three letters remain."""
    return _cached_stem(word) if len(word) <= _MAX_CACHED_LENGTH else _stem(word)


def _stem(word: str) -> str:
    word = word.removesuffix("'s").removesuffix("’s")
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 4 and word.endswith(("sses", "xes", "ches", "shes")):
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed", "ly"):
        base = word.removesuffix(ending)
        if base != word and len(base) >= 3 and _VOWEL.search(base):
            word = base[:-1] if ending != "ly" and base[-1] == base[-2] and base[-1] not in "lsz" else base
            break
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    if len(word) > 3 and word.endswith("y"):
        word = word[:-1] + "i"
    return word


_cached_stem = lru_cache(maxsize=_CACHED_WORDS)(_stem)


@lru_cache(maxsize=1)
def _word_with_marks() -> re.Pattern[str]:
    """Return the pattern of a word with combining marks, such as Hindi and Thai vowels, which `\\w` does not match."""
    marks = "".join(chr(c) for c in range(0x300, 0x10000) if unicodedata.category(chr(c))[0] == "M")
    letters = rf"[^\W_](?:[^\W_]|[{marks}\u200c\u200d])*"
    return re.compile(rf"{letters}(?:['’]{letters})?")
