"""Re-scoring long top results by excerpts, with the bundled model."""

from dataclasses import replace

import numpy as np
import pytest

from mnemorank import InputError, MnemorankError, Model, Options, Reranker, ScorerError
from mnemorank.memory.moment import Moment

QUERY = "What did Tesla study?"
FILLER = (
    "The valley has been settled since the bronze age. Its terraces are planted with vines and olives. Most visitors "
    "come in spring for the almond blossom. The road over the pass is closed in winter. A narrow railway once carried "
    "salt to the coast. Its stations are inns today. "
)
LONG = [
    FILLER + "The young Nikola Tesla read engineering and physics at Graz. " + FILLER,
    FILLER + "Nikola Tesla held many patents. " + FILLER,
    *(FILLER + f"Letters to Tesla fill box {number} of the archive. " + FILLER for number in range(6)),
]
SHORT = ["Tesla studied engineering.", "Tesla is a car."]
LOOKING = Options(weights={"rescoring": 0.6})
BLIND = Options(weights={"rescoring": 0.0})


class Watched:
    """The model, with each request kept, and perhaps another answer to the second."""

    def __init__(self, model, second=None):
        self.model, self.second = model, second
        self.asked = []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def score(self, query, memories, **arguments):
        self.asked.append(list(memories))
        scored = self.model.score(query, memories, **arguments)
        return self.second(scored) if len(self.asked) > 1 and self.second else scored


@pytest.fixture(scope="module")
def mini():
    model = Model.load("mini")
    yield model
    model.close()


def order(ranking):
    return [(result.index, result.score) for result in ranking]


def test_long_top_results_are_rescored_by_excerpts(mini):
    watched = Watched(mini)
    ranking = Reranker(watched, options=LOOKING).rerank(QUERY, LONG, explain=True)
    _, excerpts = watched.asked
    assert any("read engineering" in excerpt.text and len(excerpt.text) < 200 for excerpt in excerpts)
    looked_at = [result for result in ranking if result.factors["rescoring"]]
    assert 0 < len(looked_at) <= 5
    blind = {result.index: result for result in Reranker(mini, options=BLIND).rerank(QUERY, LONG)}
    assert all(result.raw_score == pytest.approx(blind[result.index].raw_score, abs=0.01) for result in ranking)
    assert all(result.relevance == pytest.approx(blind[result.index].relevance, abs=0.01) for result in ranking)
    assert any(result.score != pytest.approx(blind[result.index].score, abs=0.01) for result in looked_at)


def test_rescoring_is_proportional_to_its_weight(mini):
    def closer(weight):
        ranking = Reranker(mini, options=Options(weights={"rescoring": weight})).rerank(QUERY, LONG, explain=True)
        return {result.index: result.factors["rescoring"] for result in ranking}

    half, whole = closer(0.5), closer(1.0)
    assert half == {index: pytest.approx(value / 2) for index, value in whole.items()}


@pytest.mark.parametrize(("options", "memories"), [(BLIND, LONG), (LOOKING, SHORT), (LOOKING, [])])
def test_short_memories_are_not_rescored(mini, options, memories):
    watched = Watched(mini)
    Reranker(watched, options=options).rerank(QUERY, memories)
    assert len(watched.asked) == 1


@pytest.mark.parametrize("error", [ScorerError, MnemorankError])
def test_a_failure_during_rescoring_keeps_the_ranking(mini, error):
    def fail(_):
        raise error("gone")

    ranking = Reranker(Watched(mini, fail), options=LOOKING).rerank(QUERY, LONG)
    assert ranking.warnings == ("passages of the best memories were not scored again: gone",)
    assert ranking.degraded is None
    assert order(ranking) == order(Reranker(mini, options=BLIND).rerank(QUERY, LONG))


def test_the_number_of_excerpts_is_limited(mini):
    watched = Watched(mini)
    Reranker(watched, options=LOOKING).rerank(QUERY, ["\n".join(f"Tesla, item {n}." for n in range(60))])
    assert len(watched.asked[1]) == 16


def test_copies_get_the_same_rescoring(mini):
    ranking = Reranker(mini, options=LOOKING).rerank(QUERY, [LONG[0]] * 7 + LONG[1:], explain=True)
    copies = [result for result in ranking if result.index < 7]
    assert copies[0].factors["rescoring"]
    assert {result.factors["rescoring"] for result in copies} == {copies[0].factors["rescoring"]}
    dated = [{"text": LONG[0], "occurred_start": "2019-03-04"}, {"text": LONG[0], "occurred_end": "2011-03-04"}]
    other = Reranker(mini, options=LOOKING).rerank(QUERY, [*dated, *LONG[1:3]], explain=True)
    assert len({result.factors["rescoring"] for result in other if result.index < 2}) == 2


def test_future_memories_are_not_rescored(mini):
    begun = [{"text": text, "occurred_start": "2019-03-04"} for text in LONG[:2]]
    later = [{"text": text.replace("box", "box of Tesla, Tesla"), "occurred_start": "2023-03-04"} for text in LONG[2:]]
    ranking = Reranker(mini, options=LOOKING).rerank(QUERY, begun + later, as_of="2020", explain=True)
    assert {result.index for result in ranking if result.factors["rescoring"]} == {0, 1}


def test_a_long_context_is_left_out_of_excerpts(mini):
    watched = Watched(mini)
    Reranker(watched, options=LOOKING).rerank(QUERY, [{"text": LONG[0], "context": FILLER * 3}, *SHORT])
    assert len(watched.asked) == 1


@pytest.mark.parametrize(
    "second",
    [
        lambda scored: replace(scored, raw=np.array([*scored.raw[:-1], np.nan])),  # the deadline came first
        lambda scored: replace(scored, manifest=replace(scored.manifest, name="another")),
    ],
)
def test_nan_rescoring_changes_nothing(mini, second):
    ranking = Reranker(Watched(mini, second), options=LOOKING).rerank(QUERY, LONG)
    assert order(ranking) == order(Reranker(mini, options=BLIND).rerank(QUERY, LONG))
    assert ranking.degraded is None


def test_a_too_long_query_gives_one_warning(mini):
    ranking = Reranker(mini, options=LOOKING).rerank("word " * 600 + QUERY, LONG)
    assert len(ranking.warnings) == 1


def test_an_excerpt_keeps_the_dates_of_its_memory(mini):
    watched = Watched(mini)
    Reranker(watched, options=LOOKING).rerank(QUERY, [{"text": LONG[0], "occurred_start": "2021-05"}, *SHORT])
    assert {memory.occurred_start for memory in watched.asked[1]} == {Moment.parse("2021-05")}


def test_a_weight_above_one_is_rejected():
    with pytest.raises(InputError, match=r"weights\.rescoring: expected a number from 0 to 1"):
        Options(weights={"rescoring": 1.5})


def test_copies_share_one_slot(mini):
    crowd, few = Watched(mini), Watched(mini)
    copies = Reranker(crowd, options=LOOKING).rerank(QUERY, [*[LONG[0]] * 6, *LONG[1:3]], explain=True)
    once = Reranker(few, options=LOOKING).rerank(QUERY, LONG[:3], explain=True)
    assert len(crowd.asked[1]) == len(few.asked[1])
    assert all(result.factors["rescoring"] for ranking in (copies, once) for result in ranking)
