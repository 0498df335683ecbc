import random
from collections import Counter

import pytest

from mnemorank import InputError, Memory
from mnemorank.learning.exploration import explore, swap_neighbours
from mnemorank.results import Ranking, Result
from tests.learning.learning_server import serving


def test_off_by_default_value_changes_nothing():
    assert swap_neighbours("abc", 0.0) == (["a", "b", "c"], [1.0, 1.0, 1.0])


@pytest.mark.parametrize("length", [0, 1, 2, 3, 6])
def test_the_logged_propensity_is_how_often_it_happens(length):
    source = random.Random(0)
    items = list(range(length))
    happened: Counter[tuple[int, int]] = Counter()
    logged = {}
    for _ in range(20_000):
        order, chances = swap_neighbours(items, 0.3, source)
        assert sorted(order) == items
        for position, (item, chance) in enumerate(zip(order, chances, strict=True)):
            assert abs(item - position) <= 1
            happened[item, position] += 1
            logged[item, position] = chance
    for key, count in happened.items():
        assert count / 20_000 == pytest.approx(logged[key], abs=0.015)


@pytest.mark.parametrize("probability", [-0.1, 0.6, 2])
def test_a_bad_probability_is_refused(probability):
    with pytest.raises(InputError, match="explore"):
        swap_neighbours("ab", probability)


def test_a_ranking_keeps_its_ranks_in_step():
    results = tuple(
        Result(
            index=9 - rank, memory=Memory(str(rank)), rank=rank, relevance=0.5, score=0.5, raw_score=0.0, rank_change=1
        )
        for rank in range(1, 5)
    )
    ranking, chances = explore(Ranking(results), 0.5, random.Random(4))
    assert [result.rank for result in ranking] == [1, 2, 3, 4]
    moved = [result for result in ranking if result.rank != int(result.text)]
    assert moved
    assert all(result.rank_change == 1 + int(result.text) - result.rank for result in ranking)
    assert [chance < 0.5 for chance in chances] == [result.rank != int(result.text) for result in ranking]


def test_a_seed_draws_the_same_at_every_start(tmp_path, tiny_onnx):
    def orders(seed: int) -> list[list[int]]:
        with serving(model=str(tiny_onnx), store=str(tmp_path / "e.db"), explore=0.5, explore_seed=seed) as client:
            body = {"query": "ruby", "memories": [f"{'ruby ' * (9 - i)}cat" for i in range(8)]}
            answers = [client.post("/v1/memories/rerank", json=body).json() for _ in range(6)]
        return [[result["index"] for result in answer["results"]] for answer in answers]

    first = orders(1)
    assert orders(1) == first
    assert orders(2) != first
    assert len({tuple(order) for order in first}) > 1
