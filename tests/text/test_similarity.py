from collections import Counter

import pytest

from mnemorank.text.similarity import cosine, jaccard, name_similarity


def test_cosine():
    assert cosine(Counter("ab"), Counter("ab")) == pytest.approx(1)
    assert cosine(Counter("ab"), Counter("bc")) == pytest.approx(0.5)
    assert cosine(Counter("a"), Counter("b")) == 0
    assert cosine(Counter(), Counter("b")) == 0


def test_jaccard():
    assert jaccard({"a", "b"}, {"b", "c"}) == pytest.approx(1 / 3)
    assert jaccard(set(), {"a"}) == jaccard(set(), set()) == 0


def test_names_are_compared_without_case():
    assert name_similarity(["Ann", "Bo"], ["ann"]) == 0.5
    assert name_similarity([], ["a"]) == 0
