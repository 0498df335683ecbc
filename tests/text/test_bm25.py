import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank._internal.deadline import Deadline
from mnemorank.text.bm25 import K1, B, bm25
from mnemorank.text.words import terms


def test_score_of_one_term_by_hand():
    scores = bm25("cat", ["cat", "dog", "dog bird"])
    idf = np.log1p((3 - 1 + 0.5) / (1 + 0.5))
    relative_length = 1 / (4 / 3)
    assert scores[0] == pytest.approx(idf * (K1 + 1) / (1 + K1 * (1 - B + B * relative_length)))
    assert list(scores[1:]) == [0, 0]


def test_word_forms_match():
    assert bm25("planning trips", ["she plans a trip", "a dog"])[0] > 0


def test_agrees_with_bm25s():
    bm25s = pytest.importorskip("bm25s")
    texts = ["the cat sat on the mat", "dogs and cats fight", "a bird sings", "cat cat cat", "nothing here at all"]
    index = bm25s.BM25(k1=K1, b=B, method="lucene")
    index.index([terms(text) for text in texts], show_progress=False)
    expected = index.get_scores(terms("cat on mat"))
    # bm25s leaves out Lucene's constant factor k1 + 1, which does not change the order.
    np.testing.assert_allclose(bm25("cat on mat", texts), expected * (K1 + 1), rtol=1e-5)


def test_empty_pool_and_empty_texts():
    assert len(bm25("x", [])) == 0
    assert list(bm25("x", ["", " "])) == [0, 0]


@given(st.text(), st.lists(st.text(), max_size=8))
def test_scores_are_finite_and_never_negative(query, texts):
    scores = bm25(query, texts)
    assert scores.shape == (len(texts),)
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()


def test_chinese_matches_by_character():
    assert bm25("猫在哪里", ["狗在这里", "我的猫", "dog"])[1] > 0


def test_hindi_vowel_signs_are_part_of_the_word():
    assert list(bm25("किताब", ["यह कितना बड़ा है", "मेज़ पर किताब है"]).nonzero()[0]) == [1]


def test_the_end_of_a_very_long_query_counts():
    query = " ".join(f"word{number}" for number in range(300)) + " which vaccine did Biscuit get?"
    answer, other = bm25(query, ["The vaccine that Biscuit got is for rabies.", "Rain is expected."])
    assert answer > 0 == other


class _ExpiresAfter(Deadline):
    """A deadline that expires after so many checks."""

    def __init__(self, checks):
        super().__init__(math.inf)
        self.checks = checks

    @property
    def expired(self):
        self.checks -= 1
        return self.checks < 0


def test_texts_not_read_before_the_deadline_have_no_score():
    texts = ["a cat", "a dog", "another cat", "a bird"]
    scores = bm25("cat", texts, deadline=_ExpiresAfter(2))
    np.testing.assert_array_equal(scores[:2], bm25("cat", texts[:2]))
    assert np.isnan(scores[2:]).all()
    assert np.isnan(bm25("cat", texts, deadline=Deadline(0))).all()
    np.testing.assert_array_equal(bm25("cat", texts, deadline=Deadline(60)), bm25("cat", texts))
