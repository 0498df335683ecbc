"""Words of a text, for everything lexical: BM25, similarity of memories, features."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
# Scripts without spaces between words: each character counts as one.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")

STOPWORDS = frozenset(
    "a about after all also am an and any are as at be been being but by can could did do does doing for from had has "
    "have having he her hers him his how i if in into is it its just me my no not of on or our ours own same she "
    "should so some such than that the their theirs them then there these they this those to too very was we were what "
    "when where which while who whom why will with would you your yours i'm i've it's that's don't didn't".split()
)


def words(text: str) -> list[str]:
    """Lower-case words, in order; of Chinese and Japanese, characters."""
    if text.isascii():
        return _WORD.findall(text.lower())
    text = unicodedata.normalize("NFC", text)
    if _UNSPACED.search(text):
        text = _UNSPACED.sub(r" \g<0> ", text)
    return _marked_word().findall(unicodedata.normalize("NFC", text.lower()))


@lru_cache(maxsize=1)
def _marked_word() -> re.Pattern[str]:
    """A word whose letters may bear marks, as vowels of Hindi and Thai are: to Python these are no letters."""
    marks = "".join(chr(c) for c in range(0x300, 0x10000) if unicodedata.category(chr(c))[0] == "M")
    letters = rf"[^\W_](?:[^\W_]|[{marks}\u200c\u200d])*"
    return re.compile(rf"{letters}(?:['’]{letters})?")


def terms(text: str) -> list[str]:
    """Stemmed words without stopwords, in order. A text of stopwords alone keeps them."""
    found = words(text)
    return [stem(word) for word in found if word not in STOPWORDS] or [stem(word) for word in found]


@lru_cache(maxsize=200_000)
def stem(word: str) -> str:
    """A light English stemmer: plurals, -ing, -ed, -ly and a final e or y, never below three letters."""
    word = word.removesuffix("'s").removesuffix("’s")
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 4 and word.endswith(("sses", "xes", "ches", "shes")):
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed", "ly"):
        base = word.removesuffix(ending)
        if base != word and len(base) >= 3 and re.search("[aeiouy]", base):
            word = base[:-1] if ending != "ly" and base[-1] == base[-2] and base[-1] not in "lsz" else base
            break
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    if len(word) > 3 and word.endswith("y"):
        word = word[:-1] + "i"
    return word
