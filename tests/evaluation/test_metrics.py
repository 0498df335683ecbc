"""Measures against numbers worked out by hand, and the tie rule."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mnemorank import Memory
from mnemorank.data.examples import Candidate, Example
from mnemorank.evaluation.baselines import Answer
from mnemorank.evaluation.metrics import (
    Bin,
    Judged,
    abstention,
    expected_calibration_error,
    measure,
    neutral_order,
    pairwise_accuracy,
    pool_recall,
    reliability,
)


def judged(*labels: float, **fields) -> Judged:
    values = np.array(labels, dtype=float)
    return Judged(values, values > 0, **fields)


def test_measures_by_hand():
    """Ranking: wrong, right, wrong, right."""
    values = measure([judged(1, 0, 1, 0)], [[1, 0, 3, 2]])
    expected = {
        "map": (1 / 2 + 2 / 4) / 2,
        "mrr@10": 1 / 2,
        "ndcg@10": (1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3)),
        "recall@5": 1,
        "recall@10": 1,
        "hit@1": 0,
        "hit@3": 1,
        "hit@5": 1,
        "hit@10": 1,
    }
    assert {name: float(value[0]) for name, value in values.items()} == pytest.approx(expected)


def test_graded_labels_weigh_in_ndcg_and_not_in_map():
    values = measure([Judged.of(replace(example(0.2, 1.0), relevant_from=0.5))], [[0, 1]])
    assert values["map"][0] == pytest.approx(0.5)
    assert values["ndcg@10"][0] == pytest.approx((0.2 + 1 / math.log2(3)) / (1 + 0.2 / math.log2(3)))


def test_relevant_memories_outside_of_the_pool_count_against_recall_and_map():
    one = judged(1, 0, missing=(1.0,))
    values = measure([one], [[0, 1]])
    assert values["recall@10"][0] == pytest.approx(0.5)
    assert values["map"][0] == pytest.approx(0.5)
    assert pool_recall([one, judged(1, 0)]) == pytest.approx(0.75)


def test_a_graded_memory_outside_of_the_pool_counts_by_its_label():
    values = measure([judged(1, 0, missing=(0.5,))], [[0, 1]])
    assert values["ndcg@10"][0] == pytest.approx(1 / (1 + 0.5 / math.log2(3)))  # .7602, as ir_measures has it
    assert values["recall@10"][0] == pytest.approx(0.5)


def test_questions_without_anything_relevant_have_no_ranking_measures():
    values = measure(
        [judged(0, 0), judged(1, 0, answerable=False), judged(1, 0), judged(missing=(1.0, 1.0))], [[0, 1]] * 3 + [[]]
    )
    assert np.isnan(values["map"]).tolist() == [True, True, False, False]
    assert values["map"][3] == 0


def example(*labels: float, key: str = "q") -> Example:
    candidates = tuple(Candidate(Memory(f"memory {i}", id=str(i)), label) for i, label in enumerate(labels))
    return Example(key, "query", candidates)


def test_ties_do_not_favour_what_the_file_lists_first():
    """A model that scores everything alike must do as well as chance, though the right one is always listed first."""
    hits = []
    for number in range(2000):
        order = neutral_order(example(1, 0, 0, 0, key=str(number)))
        ranking = [order[i] for i in Answer(np.zeros(4)).ranking()]
        hits.append(ranking[0] == 0)
    assert np.mean(hits) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        ("mentioned_at", "2024-01-02", "2024-05-02"),
        ("speaker", "user", "assistant"),
        ("type", "world", "event"),
        ("context", "at work", "at home"),
    ],
)
def test_memories_of_one_text_that_differ_otherwise_do_not_stand_as_in_the_file(field, right, wrong):
    pair = tuple(Candidate(Memory("ok", **{field: value}), label) for value, label in ((right, 1.0), (wrong, 0.0)))
    orders = [neutral_order(Example(str(number), "query", pair)) for number in range(400)]
    assert np.mean([order[0] == 0 for order in orders]) == pytest.approx(0.5, abs=0.08)
    turned = [neutral_order(Example(str(number), "query", pair[::-1])) for number in range(400)]
    assert [order[0] for order in turned] == [1 - order[0] for order in orders]


def test_ties_of_published_figures_stand_as_they_stood():
    """The order of memories that differ in text, id or span is part of every figure measured so far."""
    assert neutral_order(example(1, 0, 0, 0, 0)) == [1, 0, 2, 3, 4]


def test_ties_stand_the_same_way_for_every_contestant_and_whatever_the_order_of_the_file():
    one = example(1, 0, 0, 0, 0)
    turned = Example(one.id, one.query, one.candidates[::-1])
    drawn = [one.candidates[i].memory.id for i in neutral_order(one)]
    assert [turned.candidates[i].memory.id for i in neutral_order(turned)] == drawn
    half_tied = Answer(np.array([0.0, 5.0, 0.0, 0.0, 0.0])).ranking()
    assert half_tied == [1, 0, 2, 3, 4]


def test_pairwise_accuracy():
    one = judged(1, 0, 0, pairs=((0, 1), (0, 2)))
    assert pairwise_accuracy([one, judged(1, 0)], [[1, 0, 2], [0, 1]]).tolist() == pytest.approx(
        [0.5, math.nan], nan_ok=True
    )


def test_reliability_and_its_error():
    relevance = np.array([0.05, 0.05, 0.95, 0.95, 1.0])
    curve = reliability(relevance, np.array([False, True, True, True, False]))
    assert curve == [Bin(pytest.approx(0.05), 0.5, 2), Bin(pytest.approx(2.9 / 3), pytest.approx(2 / 3), 3)]
    assert expected_calibration_error(curve) == pytest.approx((2 * 0.45 + 3 * (2.9 / 3 - 2 / 3)) / 5)
    assert expected_calibration_error([]) is None


def test_abstention():
    found = abstention([True, True, False, False], [False, True, True, False], [0.9, 0.2, 0.1, 0.2])
    assert found["abstention_f1"] == pytest.approx(0.5)
    assert found["abstention_auc"] == pytest.approx((1 + 1 + 1 + 0.5) / 4)
