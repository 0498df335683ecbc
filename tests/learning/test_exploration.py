import random
from collections import Counter

import pytest

from mnemorank import InputError, Memory
from mnemorank.learning.exploration import explore, swap_neighbors
from mnemorank.results import Ranking, Result
from tests.learning.server import serving


def test_probability_zero_changes_nothing():
    assert swap_neighbors("abc", 0.0) == (["a", "b", "c"], [1.0, 1.0, 1.0])


@pytest.mark.parametrize("length", [0, 1, 2, 3, 6])
def test_the_propensity_is_the_frequency(length):
    rng = random.Random(0)
    items = list(range(length))
    counts: Counter[tuple[int, int]] = Counter()
    propensity_at = {}
    for _ in range(20_000):
        order, propensities = swap_neighbors(items, 0.3, rng)
        assert sorted(order) == items
        for index, (item, propensity) in enumerate(zip(order, propensities, strict=True)):
            assert abs(item - index) <= 1
            counts[item, index] += 1
            propensity_at[item, index] = propensity
    for key, count in counts.items():
        assert count / 20_000 == pytest.approx(propensity_at[key], abs=0.015)


@pytest.mark.parametrize("probability", [-0.1, 0.6, 2])
def test_invalid_probabilities_are_rejected(probability):
    with pytest.raises(InputError) as error:
        swap_neighbors("ab", probability)
    assert error.value.field == "explore"


def test_ranks_rank_changes_and_scores_follow_the_new_order():
    results = tuple(
        Result(
            index=9 - rank,
            memory=Memory(str(rank)),
            rank=rank,
            relevance=0.5,
            score=1 / rank,
            raw_score=0.0,
            rank_change=1,
        )
        for rank in range(1, 5)
    )
    ranking, propensities = explore(Ranking(results), 0.5, random.Random(4))
    assert [result.rank for result in ranking] == [1, 2, 3, 4]
    assert [result.score for result in ranking] == [result.score for result in results]
    is_moved = [result.rank != int(result.text) for result in ranking]
    assert any(is_moved)
    assert all(result.rank_change == 1 + int(result.text) - result.rank for result in ranking)
    assert [propensity < 0.5 for propensity in propensities] == is_moved


def test_a_seed_makes_exploration_reproducible(tmp_path, tiny_onnx):
    def rankings(seed: int) -> list[list[int]]:
        with serving(model=str(tiny_onnx), store=str(tmp_path / "e.db"), explore=0.5, explore_seed=seed) as client:
            body = {"query": "ruby", "memories": [f"{'ruby ' * (9 - i)}cat" for i in range(8)]}
            responses = [client.post("/v1/memories/rerank", json=body).json() for _ in range(6)]
        return [[result["index"] for result in response["results"]] for response in responses]

    first = rankings(1)
    assert rankings(1) == first
    assert rankings(2) != first
    assert len({tuple(order) for order in first}) > 1
