"""Metrics against numbers worked out by hand, and the tie rule."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mnemorank import Memory
from mnemorank.data.examples import Candidate, Example
from mnemorank.evaluation.metrics import (
    Abstention,
    Bin,
    Judgments,
    expected_calibration_error,
    measure,
    measure_abstention,
    neutral_order,
    pairwise_accuracy,
    pool_recall,
    reliability,
)
from mnemorank.evaluation.protocol import Prediction


def judgments(*labels: float, **fields) -> Judgments:
    values = np.array(labels, dtype=float)
    return Judgments(values, values > 0, **fields)


def test_metrics_by_hand():
    """The ranking is: irrelevant, relevant, irrelevant, relevant."""
    values = measure([judgments(1, 0, 1, 0)], [[1, 0, 3, 2]])
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


def test_low_grades_count_in_ndcg_but_not_in_map():
    values = measure([Judgments.of(replace(example(0.2, 1.0), relevant_from=0.5))], [[0, 1]])
    assert values["map"][0] == pytest.approx(0.5)
    assert values["ndcg@10"][0] == pytest.approx((0.2 + 1 / math.log2(3)) / (1 + 0.2 / math.log2(3)))


def test_relevant_memories_outside_the_pool_lower_recall_and_map():
    one = judgments(1, 0, missing=(1.0,))
    values = measure([one], [[0, 1]])
    assert values["recall@10"][0] == pytest.approx(0.5)
    assert values["map"][0] == pytest.approx(0.5)
    assert pool_recall([one, judgments(1, 0)]) == pytest.approx(0.75)


def test_a_graded_memory_outside_the_pool_counts_by_its_label():
    values = measure([judgments(1, 0, missing=(0.5,))], [[0, 1]])
    assert values["ndcg@10"][0] == pytest.approx(1 / (1 + 0.5 / math.log2(3)))  # .7602 by ir_measures
    assert values["recall@10"][0] == pytest.approx(0.5)


def test_questions_without_relevant_memories_have_no_ranking_metrics():
    values = measure(
        [judgments(0, 0), judgments(1, 0, answerable=False), judgments(1, 0), judgments(missing=(1.0, 1.0))],
        [[0, 1]] * 3 + [[]],
    )
    assert np.isnan(values["map"]).tolist() == [True, True, False, False]
    assert values["map"][3] == 0


def example(*labels: float, key: str = "q") -> Example:
    candidates = tuple(Candidate(Memory(f"memory {i}", id=str(i)), label) for i, label in enumerate(labels))
    return Example(key, "query", candidates)


def test_ties_do_not_favor_what_the_file_lists_first():
    """A model with constant scores performs at chance, although the relevant memory is always listed first."""
    hits = []
    for number in range(2000):
        order = neutral_order(example(1, 0, 0, 0, key=str(number)))
        ranking = [order[i] for i in Prediction(np.zeros(4)).ranking]
        hits.append(ranking[0] == 0)
    assert np.mean(hits) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize(
    ("field", "relevant", "irrelevant"),
    [
        ("mentioned_at", "2024-01-02", "2024-05-02"),
        ("speaker", "user", "assistant"),
        ("type", "world", "event"),
        ("context", "at work", "at home"),
    ],
)
def test_memories_with_equal_texts_are_not_in_file_order(field, relevant, irrelevant):
    pair = tuple(
        Candidate(Memory("ok", **{field: value}), label) for value, label in ((relevant, 1.0), (irrelevant, 0.0))
    )
    orders = [neutral_order(Example(str(number), "query", pair)) for number in range(400)]
    assert np.mean([order[0] == 0 for order in orders]) == pytest.approx(0.5, abs=0.08)
    swapped = [neutral_order(Example(str(number), "query", pair[::-1])) for number in range(400)]
    assert [order[0] for order in swapped] == [1 - order[0] for order in orders]


def test_the_order_of_ties_is_stable_across_versions():
    """Published figures depend on the order of memories that differ in text, id or dates."""
    assert neutral_order(example(1, 0, 0, 0, 0)) == [1, 0, 2, 3, 4]


def test_the_order_of_ties_does_not_depend_on_the_file():
    one = example(1, 0, 0, 0, 0)
    reversed_example = Example(one.id, one.query, one.candidates[::-1])
    expected = [one.candidates[i].memory.id for i in neutral_order(one)]
    assert [reversed_example.candidates[i].memory.id for i in neutral_order(reversed_example)] == expected
    assert Prediction(np.array([0.0, 5.0, 0.0, 0.0, 0.0])).ranking == (1, 0, 2, 3, 4)


def test_pairwise_accuracy():
    one = judgments(1, 0, 0, pairs=((0, 1), (0, 2)))
    assert pairwise_accuracy([one, judgments(1, 0)], [[1, 0, 2], [0, 1]]).tolist() == pytest.approx(
        [0.5, math.nan], nan_ok=True
    )


def test_reliability_and_calibration_error():
    relevance = np.array([0.05, 0.05, 0.95, 0.95, 1.0])
    curve = reliability(relevance, np.array([False, True, True, True, False]))
    assert curve == [Bin(pytest.approx(0.05), 0.5, 2), Bin(pytest.approx(2.9 / 3), pytest.approx(2 / 3), 3)]
    assert expected_calibration_error(curve) == pytest.approx((2 * 0.45 + 3 * (2.9 / 3 - 2 / 3)) / 5)
    assert expected_calibration_error([]) is None


def test_abstention():
    best = [0.9, 0.2, 0.3, 0.1, 0.2]
    result = measure_abstention([True, True, True, False, False], best, [False, True, False, True, False])
    assert result.answerable_refused == pytest.approx(1 / 3)
    assert result.unanswerable_refused == pytest.approx(1 / 2)
    assert result.auc == pytest.approx((2 + 1.5 + 2) / 6)
    assert result.f1 == pytest.approx(0.5)


def test_a_system_that_never_abstains_has_only_an_auc():
    assert measure_abstention([True, False], [3.0, -1.0], None) == Abstention(None, None, 1.0, None)
