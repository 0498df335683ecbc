from dataclasses import replace

import numpy as np
import pytest

from mnemorank import Fusion, InputError, Memory, Model, Options, Reranker
from mnemorank.ranking.occasions import company


def memories(*days):
    return [Memory(f"note {number}", mentioned_at=day) for number, day in enumerate(days)]


POOL = memories("2024-05-03", "2024-05-03", "2024-05-03", "2024-05-04", "2024-05-04", *["2023-01"] * 4, None)
ODDS = np.array([3.0, 1.0, -5.0, -5.0, 2.0, -1.0, -1.0, -1.0, -1.0, -2.0])


def test_memories_of_a_day_lift_each_other():
    mean = ODDS.mean()
    found = company(POOL, ODDS)
    assert found[2] == pytest.approx(((3.0 - mean) + (1.0 - mean)) / 2)
    assert found[1] == pytest.approx((3.0 - mean) / 2)  # the other companion is below the mean
    assert found[3] == pytest.approx((2.0 - mean) / 2)
    assert found[4] == 0  # its one companion is below the mean


def test_a_month_or_no_date_is_no_occasion():
    assert not company(POOL, ODDS)[5:].any()


def test_when_it_was_said_goes_before_when_it_began():
    said = [replace(memory, occurred_start="2020-01-01") for memory in POOL]
    assert company(said, ODDS)[:5] == pytest.approx(company(POOL, ODDS)[:5])
    began = [Memory(memory.text, occurred_start=memory.mentioned_at) for memory in POOL]
    assert company(began, ODDS) == pytest.approx(company(POOL, ODDS))


def test_a_time_of_day_does_not_part_a_day():
    morning, evening = memories("2024-05-03T08:00:00Z", "2024-05-03T21:00:00Z")
    assert company([morning, evening, *POOL[5:]], np.array([3.0, -2.0, *ODDS[5:]]))[1] > 0


def test_a_small_pool_says_less():
    small = company(POOL[:2], np.array([1.0, -1.0]))
    assert small[1] == pytest.approx(0.5 * 2 / 10)
    assert not company([], np.array([])).size


def test_an_occasion_raises_the_score_and_leaves_relevance(tiny_onnx):
    model = Model.load(tiny_onnx)
    model = replace(model, manifest=replace(model.manifest, occasion_weight=0.5))
    words = "cat tea boat work city rain song bread Ruby moved sleeps at".split()
    pool = [Memory(" ".join(words[: n + 1]), mentioned_at="2024-05-03" if n % 2 else None) for n in range(len(words))]
    off = Reranker(model, options=Options(fusion=Fusion(occasion_weight=0))).rerank("Ruby?", pool, explain=True)
    on = Reranker(model).rerank("Ruby?", pool, explain=True)
    before, after = ({r.index: r for r in ranking} for ranking in (off, on))
    assert all(r.factors["occasion"] == 0 for r in off)
    for index, result in after.items():
        assert result.relevance == before[index].relevance
        assert (result.score > before[index].score) == (result.factors["occasion"] > 0)
        assert index % 2 or result.factors["occasion"] == 0
    assert any(r.factors["occasion"] > 0 for r in on)


def test_a_negative_weight_is_refused():
    with pytest.raises(InputError, match="occasion_weight"):
        Fusion(occasion_weight=-1)
