import asyncio
import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemorank import Fusion, InputError, Memory, Model, Moment, Options, Reranker, ScorerError, Selection
from mnemorank.manifest import Calibration, FirstStage, Manifest, Windows, write_manifest
from mnemorank.model import Scored

QUERY = "where does ruby work now"
POOL = ["the cat", "ruby work at aurora", "a dog in berlin", "ruby now"]


@pytest.fixture(scope="module")
def folder(tiny_onnx, tmp_path_factory):
    target = tmp_path_factory.mktemp("calibrated") / "model"
    shutil.copytree(tiny_onnx, target)
    manifest = Manifest(
        "overlap",
        format="hindsight-2",
        max_length=64,
        calibration=Calibration(1.0, -0.5),
        first_stage=FirstStage(0.5, long_query=8),
        abstain_below=0.3,
        windows=Windows(overlap=0.2, most=3),
    )
    write_manifest(target, manifest, ["model.onnx", "tokenizer.json", "config.json"])
    return target


@pytest.fixture(scope="module")
def reranker(folder):
    with Reranker(folder, options=Options(first_stage="none")) as made:
        yield made


class Broken:
    """A real model that fails when it is asked."""

    def __init__(self, model):
        self.model = model
        self.manifest = model.manifest

    def score(self, *_, **__):
        raise ScorerError("the model's card is on fire")

    def count_tokens(self, memories):
        return self.model.count_tokens(memories)

    def close(self):
        pass


def test_best_first_with_all_the_fields(reranker):
    ranking = reranker.rerank(QUERY, POOL, top_k=2)
    assert [result.index for result in ranking] == [1, 3]
    best = ranking[0]
    assert best.raw_score == 1
    assert best.relevance == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert best.rank_change == 1
    assert ranking.scored_by == "overlap"
    assert (best.rank, best.text, best.stale, best.passage) == (0, "ruby work at aurora", False, None)


def test_explain_gives_the_factors_and_they_multiply_to_the_score(reranker):
    pool = [Memory("ruby", trust=1.0, proof_count=100, occurred_start=Moment(2024))]
    (result,) = reranker.rerank(
        QUERY, pool, explain=True, now="2024-06-01", time_range=("2024", "2024"),
        options=Options(first_stage="none", fusion=Fusion(recency="linear")),
    )  # fmt: skip
    factors = result.factors
    product = result.relevance * np.prod([factors[name] for name in ("recency", "temporal", "proof", "trust")])
    assert result.score == pytest.approx(product)
    assert not reranker.rerank(QUERY, pool)[0].factors


def test_dicts_come_back_as_copies_with_a_score(reranker):
    records = [{"content": "the cat", "n": 1}, {"content": "ruby work", "n": 2}]
    ranked = reranker.rerank(QUERY, records).as_dicts()
    assert [record["n"] for record in ranked] == [2, 1]
    assert ranked[0]["rerank_score"] > ranked[1]["rerank_score"]
    assert records == [{"content": "the cat", "n": 1}, {"content": "ruby work", "n": 2}]


def test_given_first_stage_scores_count(folder):
    with Reranker(folder) as reranker:
        pool = [Memory("cat", first_stage_score=0.0), Memory("dog", first_stage_score=9.0)]
        ranking = reranker.rerank(QUERY, pool)
        assert [r.index for r in ranking] == [1, 0]
        assert ranking[0].relevance > ranking[1].relevance
        none = reranker.rerank(QUERY, pool, options=Options(first_stage="none"))
        assert none[0].relevance == none[1].relevance


def test_without_scores_bm25_stands_in(folder):
    with Reranker(folder) as reranker:
        explained = reranker.rerank(QUERY, ["cat", "ruby"], explain=True)
        assert explained[0].factors["first_stage"] > 0 > explained[1].factors["first_stage"]


def test_in_a_long_query_bm25_counts_less_and_given_scores_as_much(folder):
    query = QUERY + " and " + " ".join(f"chatter{n}" for n in range(30))
    given = [Memory(text, first_stage_score=float(n)) for n, text in enumerate(POOL)]
    with Reranker(folder) as reranker:

        def evidence(asked, pool):
            found = reranker.rerank(asked, pool, explain=True)
            return max(abs(result.factors["first_stage"]) for result in found)

        words = [f"{QUERY} {n}" if n % 2 else "nothing" for n in range(20)]
        assert 0 < evidence(query, words) < evidence(QUERY, words)
        assert evidence(query, given) == pytest.approx(evidence(QUERY, given))


def test_a_failing_model_gives_the_first_stage_order_and_says_so(folder):
    model = Model.load(folder)
    pool = [Memory("cat", first_stage_score=0.1), Memory("dog", first_stage_score=0.9), Memory("cow")]
    ranking = Reranker(Broken(model)).rerank(QUERY, pool, top_k=2)
    assert [result.index for result in ranking] == [1, 0]
    assert "on fire" in ranking.degraded
    assert all(r.relevance is None and r.score is None for r in ranking)
    assert ranking.scored_by is None
    assert ranking.as_dicts()[0]["rerank_score"] is None


def test_abstention(reranker):
    assert reranker.rerank(QUERY, ["the cat", "a dog"]).abstained
    assert not reranker.rerank(QUERY, POOL).abstained


def test_superseded_memories_go_below_and_are_flagged(reranker):
    old = Memory(
        "ruby has work now, a plan at zenith", type="world", occurred_start=Moment(2019), occurred_end=Moment(2023)
    )
    new = Memory("ruby has work, a plan at aurora", type="world", occurred_start=Moment(2024))
    ranking = reranker.rerank(QUERY, [old, new])
    assert [r.index for r in ranking] == [1, 0]
    assert ranking[1].stale
    assert ranking[1].superseded_by == 1
    past = reranker.rerank("where did ruby work before now", [old, new])
    assert past[0].index == 0
    assert past[0].stale
    off = reranker.rerank(QUERY, [old, new], options=Options(first_stage="none", supersede=False))
    assert [(r.index, r.stale) for r in off] == [(0, False), (1, False)]


def test_superseded_memories_are_dropped_before_top_k(reranker):
    old = Memory("ruby work now at zenith", occurred_start=Moment(2019))
    new = Memory("ruby work at aurora", occurred_start=Moment(2024))
    pool = [old, new, "the cat"]
    options = Options(first_stage="none", supersede="drop")
    assert [r.index for r in reranker.rerank(QUERY, pool, top_k=2, options=options)] == [1, 2]
    assert 0 in [r.index for r in reranker.rerank("where did ruby work", pool, options=options)]
    demoted = reranker.rerank(QUERY, pool, options=Options(first_stage="none", supersede="demote"))
    assert [(r.index, r.stale_because) for r in demoted] == [(1, None), (0, "alike"), (2, None)]


def test_what_was_dropped_does_not_keep_the_ranking_from_abstaining(reranker):
    old = Memory("ruby work now", id="1", metadata={"superseded_by": "2"})
    pool = [old, Memory("the cat", id="2")]
    assert not reranker.rerank(QUERY, pool).abstained
    assert reranker.rerank(QUERY, pool, options=Options(supersede="drop")).abstained


def test_the_caller_may_say_when_to_abstain(reranker):
    assert not reranker.rerank(QUERY, ["the cat"], options=Options(abstain_below=0)).abstained
    assert not reranker.rerank(QUERY, [], options=Options(abstain_below=0)).abstained
    assert reranker.rerank(QUERY, ["the cat"], options=Options(abstain_below=0.9)).abstained
    assert reranker.rerank(QUERY, POOL, options=Options(abstain_below=1)).abstained


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"supersede": "hide"}, "supersede: expected True, False, 'demote' or 'drop', got 'hide'"),
        ({"supersede": None}, "supersede: expected True, False, 'demote' or 'drop', got None"),
        ({"supersede": ["drop"]}, "supersede: expected True"),
        ({"abstain_below": 1.5}, "abstain_below: expected None or a number from 0 to 1, got 1.5"),
        ({"abstain_below": "high"}, "abstain_below: expected None or a number from 0 to 1"),
        ({"abstain_below": float("nan")}, "abstain_below: expected None or a number from 0 to 1"),
    ],
)
def test_wrong_options_name_the_values(options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Options(**options)


def test_as_of_asks_for_an_earlier_state(reranker):
    old = Memory("ruby work at zenith", type="world", occurred_start=Moment(2019), occurred_end=Moment(2023))
    new = Memory("ruby work at aurora now", type="world", occurred_start=Moment(2024))
    ranking = reranker.rerank(QUERY, [old, new], as_of="2021")
    assert [r.index for r in ranking] == [0, 1]
    assert not ranking[0].stale


def test_long_memories_are_read_in_windows_and_the_best_counts(reranker):
    long = "the cat. a dog in the house. " * 60 + "ruby work now at aurora. " + "a plan of the trip. " * 60
    (result,) = reranker.rerank(QUERY, [long])
    assert "ruby work now" in result.passage
    assert len(result.passage) < len(long) / 5
    assert result.raw_score == 2


def test_every_window_keeps_the_dates(folder, reranker):
    memory = Memory("cat. " * 200, type="event", occurred_start=Moment(2024, 3, 5))
    (result,) = reranker.rerank("march 05 2024", [memory])
    assert result.raw_score == reranker.rerank("march 05 2024", [replace(memory, text="cat.")])[0].raw_score


def test_text_of_one_endless_word_is_still_read_whole(reranker):
    (result,) = reranker.rerank(QUERY, ["zqx" * 3000])
    assert result.scored


def test_a_context_longer_than_the_window_is_read_as_text(reranker):
    (result,) = reranker.rerank(QUERY, [Memory("cat", context="ruby now " * 100)])
    assert result.raw_score > 0


def test_a_deadline_leaves_the_tail_in_first_stage_order(folder):
    class Slow:
        """The real model, scoring nothing after the deadline it is given has been cut short."""

        def __init__(self, model):
            self.model, self.manifest = model, model.manifest

        def score(self, query, memories, *, instruction=None, deadline=None):
            first = self.model.score(query, memories[:1])
            raw = np.concatenate([first.raw, np.full(len(memories) - 1, np.nan)])
            return Scored(raw, [None] * len(memories), self.manifest)

        def count_tokens(self, memories):
            return self.model.count_tokens(memories)

        def close(self):
            pass

    pool = [Memory(t, first_stage_score=s) for t, s in zip(POOL, [0.1, 0.2, 0.9, 0.5], strict=True)]
    ranking = Reranker(Slow(Model.load(folder))).rerank(QUERY, pool, deadline_ms=5)
    assert [r.index for r in ranking] == [2, 3, 1, 0]
    assert [r.scored for r in ranking] == [True, False, False, False]
    assert "3 of 4" in ranking.degraded
    assert not ranking.abstained


def test_a_real_deadline_is_kept(reranker):
    """Far fewer are scored than there are; how long that takes is a matter for benchmarks."""
    pool = ["ruby work at aurora labs in berlin " * 5] * 20_000
    ranking = reranker.rerank(QUERY, pool, deadline_ms=50)
    assert "deadline" in ranking.degraded
    assert len(ranking.results) == len(pool)
    assert sum(result.scored for result in ranking.results) < len(pool) / 2


def test_beyond_the_limit_the_order_is_the_first_stages(reranker):
    options = Options(first_stage="none", limit=2)
    ranking = reranker.rerank(QUERY, POOL, options=options)
    assert [r.index for r in ranking] == [1, 0, 2, 3]
    assert [r.scored for r in ranking] == [True, True, False, False]
    assert ranking.degraded is None


def test_selection_floor_budget_and_diversity(reranker):
    def chosen(**selection):
        options = Options(first_stage="none", selection=Selection(**selection))
        return [r.index for r in reranker.rerank(QUERY, [*POOL, "ruby work at aurora"], options=options)]

    assert chosen(floor=0.5) == [1, 3, 4]
    assert chosen(token_budget=8) == [1, 3]
    assert chosen(diversity=0.3)[:2] == [1, 0]
    assert chosen(replace_only=0.3)[:1] == [0]


def test_score_judges_each_alone(reranker):
    scores = reranker.score(QUERY, ["ruby now", "", "cat"])
    assert [s.raw_score for s in scores] == [1, None, -1]
    assert scores[1].relevance is None


def test_arerank_runs_many_at_once_beside_the_loop(reranker):
    async def many():
        return await asyncio.gather(*(reranker.arerank(QUERY, POOL, top_k=1) for _ in range(50)))

    assert {ranking[0].index for ranking in asyncio.run(many())} == {1}


def test_an_empty_pool_is_an_empty_ranking(reranker):
    ranking = reranker.rerank(QUERY, [])
    assert len(ranking) == 0
    assert ranking.abstained


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"query": ""}, "query"),
        ({"query": "  "}, "query"),
        ({"query": None}, "query"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": "5"}, "top_k"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"now": "soon"}, "now"),
        ({"as_of": "2024-99"}, "as_of"),
        ({"time_range": ("2024", "2023")}, "time_range"),
        ({"time_range": "2024"}, "time_range"),
        ({"memories": [None]}, "memory 0"),
        ({"memories": "text"}, "memories"),
        ({"memories": [{"text": "a"}, {"text": 3}]}, "memory 1"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_bad_requests_name_what_is_wrong(reranker, arguments, named):
    given_arguments = {"query": QUERY, "memories": POOL, **arguments}
    with pytest.raises(InputError, match=named):
        reranker.rerank(given_arguments.pop("query"), given_arguments.pop("memories"), **given_arguments)


@pytest.mark.parametrize("bad", [{"first_stage": "bm52"}, {"limit": 0}])
def test_bad_options_are_named(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Options(**bad)


def test_odd_texts_have_defined_results(reranker):
    pool = ["", " \n", "\ud800 ruby", "ruby\x00\x07\u202e now", "🙂" * 10, "ruby"]
    ranking = reranker.rerank(QUERY, pool)
    assert {r.index for r in ranking[:3]} == {2, 3, 5}
    assert [r.index for r in ranking][-2:] == [0, 1]
    assert not ranking[-1].scored


def test_ten_megabytes_of_text(reranker):
    text = ("the cat sat. " * 800_000) + "ruby work now."
    (result,) = reranker.rerank(QUERY, [text])
    assert "ruby work now" in result.passage


def test_a_hundred_thousand_candidates(reranker):
    pool = [Memory("ruby" if i == 77_777 else f"cat {i}", first_stage_score=float(i == 77_777)) for i in range(100_000)]
    ranking = reranker.rerank(QUERY, pool, options=Options(limit=100), top_k=1)
    assert ranking[0].index == 77_777


def test_duplicate_ids_are_reported_and_kept(reranker):
    ranking = reranker.rerank(QUERY, [Memory("ruby", id="1"), Memory("cat", id="1")])
    assert len(ranking) == 2
    assert "more than once" in ranking.warnings[0]


def test_nan_scores_are_reported(reranker):
    ranking = reranker.rerank(QUERY, [{"text": "a", "score": float("nan")}, {"text": "b", "score": 1.0}])
    assert "NaN" in ranking.warnings[0]
    nan = reranker.rerank(QUERY, [Memory("a", first_stage_score=float("nan")), Memory("b", first_stage_score=1.0)])
    assert {r.index for r in nan} == {0, 1}


def test_skipped_dates_become_warnings(reranker):
    ranking = reranker.rerank(QUERY, [{"text": "a", "occurred_start": "soon"}], on_error="skip")
    assert "occurred_start" in ranking.warnings[0]
    assert ranking[0].memory.date is None


@given(st.lists(st.text(max_size=40), max_size=6), st.none() | st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_every_pool_gives_each_memory_at_most_once(reranker, pool, top_k):
    ranking = reranker.rerank(QUERY, pool, top_k=top_k)
    indexes = [r.index for r in ranking]
    assert len(set(indexes)) == len(indexes) == min(len(pool), top_k or len(pool))
    assert [r.rank for r in ranking] == list(range(len(indexes)))
    scores = [r.score for r in ranking if r.scored]
    assert scores == sorted(scores, reverse=True)


def test_results_are_plain_data(reranker):
    ranking = reranker.rerank(QUERY, POOL)
    json.dumps(ranking.as_dicts())


OLD_AND_NEW = [
    {"text": "ruby work now", "occurred_start": "2019", "key": "job"},
    {"text": "ruby work", "occurred_start": "2024", "key": "job"},
]


@pytest.mark.parametrize("selection", [Selection(), Selection(diversity=0.9), Selection(replace_only=0.1)])
def test_selection_never_undoes_supersession(reranker, selection):
    options = Options(first_stage="none", selection=selection)
    assert [r.index for r in reranker.rerank(QUERY, OLD_AND_NEW, options=options)] == [1, 0]
    assert [r.index for r in reranker.rerank(QUERY, OLD_AND_NEW, options=options, as_of="2020")] == [0, 1]


def test_nothing_scored_in_time_is_not_nothing_relevant(reranker):
    ranking = reranker.rerank(QUERY, POOL, deadline_ms=0.0001)
    assert not ranking.abstained
    assert ranking.scored_by is None
    assert "deadline" in ranking.degraded


def test_a_model_that_gives_no_numbers_is_named_as_such(folder):
    class Blank(Broken):
        def score(self, query, memories, **_):
            return Scored(np.full(len(memories), np.nan), [None] * len(memories), self.manifest)

    ranking = Reranker(Blank(Model.load(folder))).rerank(QUERY, POOL)
    assert "no number for 4 of 4" in ranking.degraded


def test_the_limit_follows_bm25_where_that_is_the_first_stage(reranker):
    options = Options(first_stage="bm25", limit=1)
    ranking = reranker.rerank(QUERY, ["a dog", "the cat", "ruby work"], options=options)
    assert ranking[0].index == 2
    assert ranking[0].scored


def test_records_of_the_callers_own_making_are_checked(reranker):
    with pytest.raises(InputError, match="memory 0: text"):
        reranker.rerank(QUERY, [Memory(None)])
    scores = [1.0, float("nan"), 3.0, float("inf")]
    ranking = reranker.rerank(QUERY, [Memory("cat", first_stage_score=s) for s in scores], options=Options(limit=1))
    assert [r.index for r in ranking] == [2, 0, 1, 3]
    with pytest.raises(InputError, match="memories"):
        reranker.rerank(QUERY, None)


def test_memories_come_back_whole_as_dicts(reranker):
    (record,) = reranker.rerank(QUERY, [Memory("ruby", id="7", occurred_start=Moment(2024))]).as_dicts()
    assert (record["id"], record["occurred_start"]) == ("7", "2024")


def test_the_first_stage_counts_more_where_only_windows_were_read(tiny_onnx):
    model = Model.load(tiny_onnx)
    stage = FirstStage(weight=0.5, in_part=2.0)
    reranker = Reranker(replace(model, manifest=replace(model.manifest, first_stage=stage)))

    def weight(texts):
        memories = [{"text": text, "score": number} for number, text in enumerate(texts)]
        results = reranker.rerank("Where does Ruby work?", memories, explain=True).results
        evidence = max(result.factors["first_stage"] for result in results)
        return evidence / (len(texts) / 10 * (len(texts) - 1) / 2 / np.std(np.arange(len(texts))))

    short, long = "Ruby works at Aurora.", "Ruby works at Aurora. " * 200
    assert weight([short] * 4) == pytest.approx(0.5)
    assert weight([long] * 4) == pytest.approx(2.0)
    assert weight([short, long] * 2) == pytest.approx(1.25)


def test_a_long_turn_is_read_by_its_end_and_says_so(reranker):
    question = "where does ruby work"
    turn = "thanks for the recipe, the soup was lovely and we ate all of it. " * 30 + question
    pool = ["ruby work at aurora labs", "the soup recipe"]
    ranking = reranker.rerank(turn, pool)
    assert all(result.scored for result in ranking)
    (warning,) = ranking.warnings
    assert re.fullmatch(
        rf"query: too long for the model, which read only its last \d+ of {len(turn)} characters", warning
    )
    assert int(warning.split()[-4]) >= len(question)
    assert reranker.rerank("口" * 3000, pool).warnings
    assert not reranker.rerank(question, pool).warnings
    with pytest.raises(InputError, match="leave no room for a memory"):
        reranker.score(turn, pool)


def test_what_had_not_begun_is_no_answer(reranker):
    later = Memory("ruby work now at aurora", occurred_start=Moment(2024))
    assert not reranker.rerank(QUERY, [later]).abstained
    ranking = reranker.rerank(QUERY, [later], as_of="2021")
    assert ranking.abstained
    assert ranking.scored_by is not None


def test_a_floor_drops_what_was_not_scored(reranker):
    options = Options(limit=1, selection=Selection(floor=0.0))
    assert [result.index for result in reranker.rerank(QUERY, POOL, options=options)] == [0]


def test_options_of_another_kind_are_named(reranker):
    with pytest.raises(InputError, match=r"options: expected Options\(…\), got dict"):
        reranker.rerank(QUERY, POOL, options={"limit": 3})
    with pytest.raises(InputError, match="limit: expected a whole number from 1, got 'x'"):
        Options(limit="x")
    with pytest.raises(InputError, match=r"fusion: expected Fusion\(…\), got 'x'"):
        Options(fusion="x")


def test_a_ranking_as_json(reranker):
    ranking = reranker.rerank(QUERY, POOL, top_k=2)
    record = json.loads(json.dumps(ranking.to_dict()))
    assert [each["index"] for each in record["results"]] == [result.index for result in ranking]
    assert {"relevance", "stale", "text"} <= set(record["results"][0])
    assert record["abstained"] is ranking.abstained


def test_an_instruction_that_the_model_cannot_take_is_said(reranker):
    (warning,) = reranker.rerank(QUERY, POOL, instruction="prefer the newest").warnings
    assert warning == "instruction: not read, the model's template 'pair' has none"
