from dataclasses import replace

import numpy as np
import pytest

from mnemorank import InputError, Memory, Model, Options, Reranker
from mnemorank.artifact.manifest import PipelineWeights
from mnemorank.ranking.first_stage import FirstStageRanking
from mnemorank.ranking.pipeline import Pipeline
from mnemorank.ranking.stage import Times
from mnemorank.ranking.stages.same_day import same_day_evidence


def memories(*days):
    return [Memory(f"note {number}", mentioned_at=day) for number, day in enumerate(days)]


POOL = memories("2024-05-03", "2024-05-03", "2024-05-03", "2024-05-04", "2024-05-04", *["2023-01"] * 4, None)
ODDS = np.array([3.0, 1.0, -5.0, -5.0, 2.0, -1.0, -1.0, -1.0, -1.0, -2.0])
ABOVE = ODDS - ODDS.mean()


def test_memories_of_one_day_support_each_other():
    found = same_day_evidence(POOL, ODDS)
    assert found[2] == pytest.approx(0.7 * (ABOVE[0] + ABOVE[1]) / 2)
    assert found[1] == pytest.approx(0.7 * ABOVE[0] / 2)  # the other companion is below the mean
    assert found[3] == pytest.approx(0.8 * ABOVE[4] / 2)
    assert found[4] == 0  # its one companion is below the mean


def test_months_and_missing_dates_do_not_count():
    assert not same_day_evidence(POOL, ODDS)[5:].any()


def test_mentioned_at_takes_precedence():
    said = [replace(memory, occurred_start="2020-01-01") for memory in POOL]
    assert same_day_evidence(said, ODDS)[:5] == pytest.approx(same_day_evidence(POOL, ODDS)[:5])
    began = [Memory(memory.text, occurred_start=memory.mentioned_at) for memory in POOL]
    assert same_day_evidence(began, ODDS) == pytest.approx(same_day_evidence(POOL, ODDS))


@pytest.mark.parametrize(
    ("field", "day", "counts"),
    [
        ("mentioned_at", "2024-05-01", True),
        ("occurred_start", "2024-05-01", False),
        ("occurred_start", "2024-05-01T09:30", True),
    ],
)
def test_the_first_of_a_month_is_treated_as_a_month(field, day, counts):
    pool = [Memory(f"note {n}", **{field: day if n < 3 else None}) for n in range(12)]
    assert same_day_evidence(pool, np.array([3.0, 2.0, *[-1.0] * 10])).any() == counts


def test_days_are_compared_as_written():
    morning, evening, elsewhere = memories("2024-05-03T08:00:00Z", "2024-05-03T23:30:00-05:00", "2024-05-04T04:35:00Z")
    found = same_day_evidence([morning, evening, elsewhere, *POOL[5:]], np.array([3.0, -2.0, -2.0, *ODDS[5:]]))
    assert found[1] > 0
    assert found[2] == 0


def test_a_day_shared_by_all_adds_nothing():
    assert not same_day_evidence(memories(*["2024-05-03"] * 12), np.linspace(-3, 3, 12)).any()


def test_large_days_are_corrected_for_chance():
    def lift(of_that_day):
        pool = memories(*["2024-05-03"] * of_that_day, *[None] * (100 - of_that_day))
        return same_day_evidence(pool, np.array([3.0, 3.0, *[-1.0] * 98]))[2]

    assert lift(9) / 0.91 == pytest.approx(lift(3) / 0.97)
    assert lift(17) / 0.83 == pytest.approx(lift(9) / 0.91 / 2)


def test_copies_do_not_support_each_other():
    twice = [replace(POOL[0], text="the same"), replace(POOL[1], text="the same"), *POOL[2:]]
    found = same_day_evidence(twice, ODDS)
    assert found[:2].tolist() == [0, 0]
    assert found[2] == pytest.approx(0.7 * ABOVE[0] / 2)


def test_a_small_pool_counts_less():
    small = same_day_evidence([*POOL[:2], POOL[9]], np.array([1.0, -1.0, 0.0]))
    assert small[1] == pytest.approx((1 - 2 / 3) * 0.5 * 3 / 10)
    assert not same_day_evidence([], np.array([])).size


WORDS = "cat tea boat work city rain song bread Ruby moved sleeps at".split()


def with_weight(folder, weight):
    model = Model.load(folder)
    return replace(model, manifest=replace(model.manifest, weights=PipelineWeights(same_day=weight)))


def test_same_day_raises_the_score_not_relevance(tiny_onnx):
    model = with_weight(tiny_onnx, 0.5)
    pool = [Memory(" ".join(WORDS[: n + 1]), mentioned_at="2024-05-03" if n % 2 else None) for n in range(len(WORDS))]
    off = Reranker(model, options=Options(weights={"same_day": 0})).rerank("Ruby?", pool, explain=True)
    on = Reranker(model).rerank("Ruby?", pool, explain=True)
    before, after = ({r.index: r for r in ranking} for ranking in (off, on))
    assert all(r.factors["same_day"] == 0 for r in off)
    for index, result in after.items():
        assert result.relevance == before[index].relevance
        raised = result.score > before[index].score * 1.0001  # ties are broken by a smaller step
        assert raised == (result.factors["same_day"] > 0)
        assert index % 2 or result.factors["same_day"] == 0
    assert any(r.factors["same_day"] > 0 for r in on)


def ranked(folder, pool, logits, as_of=None, query="Where does Ruby work?"):
    """The pipeline over logits of our own."""
    model = with_weight(folder, 0.4)
    scored = replace(model.score(query, pool), raw=np.array(logits), manifest=model.manifest)
    first_stage = FirstStageRanking.of(query, pool, "none")
    times = Times.parse("2024-12-01", as_of, None)
    stage = Pipeline(query, pool, Options(first_stage="none"), times, first_stage, model, None, None)
    return stage.rank(scored, None, None, True, (), ())


OTHERS = [Memory(f"{word} and {word}s") for word in WORDS[:8]]


def test_outdated_memories_stay_below_their_successor(tiny_onnx):
    def job(place, day):
        return Memory(f"Ruby works at {place}.", occurred_start=day, metadata={"key": "ruby/job"})

    notes = [Memory(text, occurred_start="2021-05-03") for text in ("Ruby signed.", "Ruby got a badge.")]
    pool = [job("Zenith", "2021-05-03"), job("Aurora Labs", "2024-02-01"), *notes, *OTHERS]
    ranking = ranked(tiny_onnx, pool, [-1.0, -0.8, 3.0, 3.0, *[-4.0] * 8])
    place = {result.index: result for result in ranking}
    assert place[0].factors["same_day"] > 1
    assert place[0].stale
    assert place[1].rank < place[0].rank


def test_future_memories_do_not_support_others(tiny_onnx):
    pool = [
        Memory("Ruby moved.", occurred_start="2024-05-03", mentioned_at="2020-05-03"),
        Memory("Ruby sleeps.", mentioned_at="2020-05-03"),
        *OTHERS,
    ]
    logits = [5.0, 0.0, *[-2.0] * 8]
    now, then = (
        {result.index: result.factors["same_day"] for result in ranked(tiny_onnx, pool, logits, as_of)}
        for as_of in (None, "2021")
    )
    assert now[1] > 0
    assert then[1] == 0


def test_unscored_memories_are_ignored(tiny_onnx):
    logits = [3.0, np.nan, 1.0, -2.0, np.nan, *[-2.0] * 6]
    days = memories(*["2024-05-03"] * 4, *[None] * 7)
    found = {result.index: result for result in ranked(tiny_onnx, days, logits)}
    assert found[1].score is None
    assert found[3].factors["same_day"] > 0
    assert np.isfinite([result.score for result in found.values() if result.score is not None]).all()


@pytest.mark.parametrize("weight", [-1, 1.5, float("nan")])
def test_a_weight_out_of_range_is_rejected(weight):
    with pytest.raises(InputError, match=r"weights\.same_day: expected a number from 0 to 1"):
        Options(weights={"same_day": weight})
