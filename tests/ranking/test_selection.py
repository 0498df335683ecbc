from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank import InputError, Memory, Moment, Options
from mnemorank._internal.deadline import Deadline
from mnemorank.ranking.selection import MemorySimilarity, mmr, newer_first_among_ties, replace_one, within_budget
from mnemorank.text.similarity import cosine, name_similarity


def test_ties_go_to_the_newer():
    pool = [Memory("a", occurred_start=Moment(2020)), Memory("b", occurred_start=Moment(2023)), Memory("c")]
    scores = np.array([0.805, 0.80, 0.5])
    assert newer_first_among_ties([0, 1, 2], scores, pool, 0.01) == [1, 0, 2]
    assert newer_first_among_ties([0, 1, 2], scores, pool, 0.0) == [0, 1, 2]


def test_ties_are_measured_from_the_best():
    pool = [Memory(str(i), occurred_start=Moment(2000 + i)) for i in range(3)]
    scores = np.array([0.800, 0.795, 0.789])
    assert newer_first_among_ties([0, 1, 2], scores, pool, 0.01) == [1, 0, 2]


def test_overlapping_dates_do_not_reorder_ties():
    pool = [Memory("a", occurred_start=Moment(2024, 3)), Memory("b", occurred_start=Moment(2024))]
    assert newer_first_among_ties([0, 1], np.array([0.5, 0.5]), pool, 0.01) == [0, 1]


def test_undated_memories_keep_their_place_in_ties():
    pool = [Memory("a", occurred_start="2024-01-05"), Memory("b"), Memory("c", occurred_start="2024-06-05")]
    assert newer_first_among_ties([0, 1, 2], np.full(3, 0.5), pool, 0.01) == [2, 1, 0]
    pool[1] = Memory("b", occurred_start="2024")
    assert newer_first_among_ties([0, 1, 2], np.full(3, 0.5), pool, 0.01) == [1, 2, 0]


DATES = [None, "2023", "2024", "2024-03", "2024-03-04", "2024-03-05", "2024-03-05T00:00:00Z", "2024-03-05T10:00:00Z"]


@given(st.lists(st.sampled_from([*DATES, "2024-06", "2024-06-05"]), max_size=12))
def test_certainly_newer_memories_lead_ties(dates):
    pool = [Memory(str(i), occurred_start=date) for i, date in enumerate(dates)]
    order = newer_first_among_ties(range(len(pool)), np.full(len(pool), 0.5), pool, 0.01)
    assert sorted(order) == list(range(len(pool)))
    assert [i for i, item in enumerate(order) if dates[item] is None] == [i for i, d in enumerate(dates) if d is None]
    for place, item in enumerate(order):
        assert not any(pool[later].is_newer_than(pool[item]) for later in order[place + 1 :])


def test_mmr():
    similarity = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).__getitem__
    scores = np.array([0.9, 0.85, 0.5])
    assert mmr([0, 1, 2], scores, similarity, 0.5, 3) == [0, 2, 1]
    assert mmr([0, 1, 2], scores, similarity, 1.0, 3) == [0, 1, 2]


def test_similarity_mixes_words_and_entities():
    pool = [Memory("cat mat", entities=("A",)), Memory("cat mat", entities=("B",)), Memory("cat mat")]
    similarity = MemorySimilarity(pool)
    assert similarity(0) == pytest.approx([1.0, 0.6, 1.0])
    assert similarity(2) == pytest.approx([1.0, 1.0, 1.0])


WORDS = st.lists(st.sampled_from("cat dog mat red".split()), max_size=6)
NAMES = st.lists(st.sampled_from(("Ann", "ann", "Bo", "Cy")), max_size=4)


@given(st.lists(st.tuples(WORDS, NAMES), min_size=1, max_size=6))
def test_similarity_is_that_of_each_pair(pool):
    """Compared with the plain definition, pair by pair."""
    memories = [Memory(" ".join(words), entities=tuple(names)) for words, names in pool]
    similarity = MemorySimilarity(memories)
    for a, (words, names) in enumerate(pool):
        expected = []
        for other_words, other_names in pool:
            value = cosine(Counter(words), Counter(other_words))
            if names and other_names:
                value = 0.6 * value + 0.4 * name_similarity(names, other_names)
            expected.append(value)
        assert similarity(a) == pytest.approx(expected)


def test_no_memory_is_compared_after_the_deadline():
    pool = [Memory("cat mat", entities=("A",))] * 3
    expired = Deadline(0)
    similarity = MemorySimilarity(pool, deadline=expired)
    assert similarity(0).tolist() == [0, 0, 0]
    assert mmr([2, 0, 1], np.array([0.1, 0.2, 0.3]), similarity, 0.5, 3, deadline=expired) == [2, 0, 1]


def test_the_budget_keeps_at_least_one():
    assert within_budget([2, 0, 1], dict.fromkeys(range(3), 5), 10) == [2, 0]
    assert within_budget([0, 1], {0: 50, 1: 1}, 10) == [0]


def test_replacement_needs_a_clear_win():
    scores = np.array([0.6, 0.2, 0.9, 0.1])
    assert replace_one([2, 0, 1, 3], [0, 1, 2, 3], scores, 2, 0.3) == [0, 2, 1, 3]
    assert replace_one([2, 0, 1, 3], [0, 1, 2, 3], np.array([0.65, 0.7, 0.9, 0.1]), 2, 0.3) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "bad",
    [
        {"floor": 2},
        {"diversity": -1},
        {"tie_margin": 3},
        {"token_budget": 0},
        {"floor": "0.2"},
        {"token_budget": "200"},
        {"tie_margin": float("nan")},
        {"replace_margin": 0.3, "diversity": 0.9},
    ],
)
def test_bad_options_are_named(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Options(**bad)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0, 1), st.integers(1, 15))
def test_mmr_and_replacement_lose_nothing(scores, balance, top_k):
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    values = np.array(scores)
    assert sorted(mmr(order, values, lambda place: np.full(len(order), 0.5), balance, top_k)) == sorted(order)
    assert sorted(replace_one(order, list(range(len(scores))), values, top_k, 0.3)) == sorted(order)
