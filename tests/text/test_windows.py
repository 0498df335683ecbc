import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank.text.windows import best_windows, coarse_split, split


def characters_of(text):
    """Return the spans of a tokenizer that makes every character a token."""
    return [match.span() for match in re.finditer(r"\S", text)]


def test_a_short_text_is_one_window():
    assert split("a b c", characters_of("a b c"), 3) == [(0, 5)]


def test_windows_end_at_line_breaks_or_sentence_ends():
    text = "a b c d.\ne f g. h i j k l"
    spans = split(text, characters_of(text), 8, overlap=0)
    assert text[slice(*spans[0])] == "a b c d.\n"
    assert text[slice(*spans[1])].startswith("e f g. ")


def test_windows_overlap():
    text = " ".join("abcdefghijklmnopqrst")
    spans = split(text, characters_of(text), 10, overlap=0.2)
    assert text[slice(*spans[0])].split() == list("abcdefghij")
    assert text[slice(*spans[1])].split()[:2] == ["i", "j"]


def test_a_window_needs_room_for_a_token():
    with pytest.raises(ValueError, match="room"):
        split("a", [(0, 1)], 0)


@given(st.text(alphabet="ab .\n!?", max_size=300), st.integers(1, 40), st.floats(0, 0.9))
def test_windows_cover_the_text_and_fit_the_room(text, room, overlap):
    tokens = characters_of(text)
    spans = split(text, tokens, room, overlap)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    for (_, end), (start, _) in pairwise(spans):
        assert start <= end
    assert all(a[0] < b[0] for a, b in pairwise(spans))
    for start, end in spans:
        assert sum(start <= s and e <= end for s, e in tokens) <= room


def test_best_windows_are_in_reading_order():
    assert best_windows(np.array([1.0, 3.0, 2.0, 3.0]), 3) == [1, 2, 3]
    assert best_windows(np.array([1.0, 1.0, 1.0]), 2) == [0, 1]


def test_windows_without_scores_are_spread_over_the_text():
    assert best_windows(np.zeros(9), 3) == [0, 4, 8]
    assert best_windows(np.zeros(2), 3) == [0, 1]


@given(st.text(alphabet="ab .\n", max_size=200), st.integers(2, 40))
def test_coarse_parts_join_to_the_text(text, characters):
    spans = coarse_split(text, characters)
    assert "".join(text[slice(*span)] for span in spans) == text
    assert all(end - start <= characters for start, end in spans)
