from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank.text.bm25 import K1, B, bm25, jaccard, word_cosine
from mnemorank.text.words import stem, terms, words


def test_one_term_by_hand():
    scores = bm25("cat", ["cat", "dog", "dog bird"])
    idf = np.log1p((3 - 1 + 0.5) / (1 + 0.5))
    relative = 1 / (4 / 3)
    assert scores[0] == pytest.approx(idf * (K1 + 1) / (1 + K1 * (1 - B + B * relative)))
    assert list(scores[1:]) == [0, 0]


def test_letters_keep_their_marks():
    assert words("मेरी बेटी") == ["मेरी", "बेटी"]
    assert words("cafe\u0301 Ann's") == ["café", "ann's"]
    texts = ["यह कितना बड़ा है", "मेज़ पर किताब है"]
    assert list(bm25("किताब", texts).nonzero()[0]) == [1]


def test_word_forms_match():
    assert bm25("planning trips", ["she plans a trip", "a dog"])[0] > 0


def test_agrees_with_bm25s():
    bm25s = pytest.importorskip("bm25s")
    texts = ["the cat sat on the mat", "dogs and cats fight", "a bird sings", "cat cat cat", "nothing here at all"]
    index = bm25s.BM25(k1=K1, b=B, method="lucene")
    index.index([terms(text) for text in texts], show_progress=False)
    expected = index.get_scores(terms("cat on mat"))
    ours = bm25("cat on mat", texts)
    # bm25s leaves out Lucene's constant factor k1 + 1, which changes no order.
    np.testing.assert_allclose(ours, expected * (K1 + 1), rtol=1e-5)


def test_empty_pool_and_empty_texts():
    assert len(bm25("x", [])) == 0
    assert list(bm25("x", ["", " "])) == [0, 0]


def test_stems():
    assert stem("running") == stem("runs") == "run"
    assert stem("studies") == stem("study")
    assert stem("classes") == stem("class")
    assert stem("bus") == "bus"


def test_cosine_and_jaccard():
    assert word_cosine(Counter("ab"), Counter("ab")) == pytest.approx(1)
    assert word_cosine(Counter("a"), Counter("b")) == 0
    assert jaccard(["Ann", "Bo"], ["ann"]) == 0.5
    assert jaccard([], ["a"]) == 0


@given(st.text(), st.lists(st.text(), max_size=8))
def test_scores_are_finite_and_never_negative(query, texts):
    scores = bm25(query, texts)
    assert scores.shape == (len(texts),)
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()


def test_chinese_is_read_by_characters():
    assert bm25("猫在哪里", ["狗在这里", "我的猫", "dog"])[1] > 0


def test_of_a_very_long_query_the_end_counts():
    query = " ".join(f"word{number}" for number in range(300)) + " which vaccine did Biscuit get?"
    answer, other = bm25(query, ["The vaccine that Biscuit got is for rabies.", "Rain is expected."])
    assert answer > 0 == other
