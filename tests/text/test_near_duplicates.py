"""Near-duplicates among many texts."""

from __future__ import annotations

import pytest

from mnemorank.evaluation.audits.leakage import similar_queries
from mnemorank.text.near_duplicates import find_near_duplicates, shingles
from mnemorank.text.similarity import jaccard, overlap


def matches(queries, others, groups=None):
    return {index: match.index for index, match in similar_queries(queries, others, groups).items()}


def test_near_duplicates_share_most_of_their_words():
    texts = ["where does ruby work now", "where does ruby work", "what is the capital of france"]
    assert matches(texts[:1], ["paris", "Ruby: where does she WORK now?"]) == {0: 1}
    assert matches(texts, texts, ["a", "a", "b"]) == {}


def test_a_copy_is_found_among_many_texts_that_share_its_words():
    crowd = [f"job title of person{i}" for i in range(700)]
    assert matches(["job title"], [*crowd, "Job title?"]) == {0: 700}
    texts = ["job title", *crowd, "job title", "job title"]
    groups = ["a", *("b" for _ in crowd), "a", "c"]
    assert matches(texts, texts, groups)[0] == 702
    assert matches(["?"], ["!"]) == {}


def test_texts_that_share_a_rare_word_are_compared_first():
    common = [f"word{letter}" for letter in "abcdefghijklmn"]
    crowd = [" ".join([*common, *(f"unique{i}of{n}" for i in range(10))]) for n in range(300)]
    similar = " ".join(["zanzibar", *common[:11]])  # shares fewer words than the crowd
    assert matches([" ".join(["zanzibar", *common])], [*crowd, similar]) == {0: 300}


def test_the_most_similar_text_is_returned():
    text = "the quick brown fox jumps over the lazy dog in the old garden behind the house"
    others = [f"{text} on a warm day", f"{text} today", "something else"]
    match = find_near_duplicates([text], others, 0.5)[0]
    assert match.index == 1
    assert match.similarity == pytest.approx(jaccard(shingles(text), shingles(others[1])))


def test_similarities():
    first, second = frozenset("abcd"), frozenset("ab")
    assert (jaccard(first, second), overlap(first, second)) == (0.5, 0.5)
    third = frozenset("abxy")
    assert (jaccard(first, third), overlap(first, third)) == (pytest.approx(1 / 3), 0.5)
    assert (jaccard(frozenset(), frozenset()), overlap(frozenset(), frozenset())) == (0, 0)


def test_a_short_text_is_one_shingle():
    assert shingles("Ruby works") == {"ruby works"}
    assert shingles("one two three four") == {"one two three", "two three four"}
