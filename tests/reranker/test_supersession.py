"""Supersession through `rerank`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mnemorank import Memory, Moment, Options, Reranker
from mnemorank.artifact.manifest import Calibration
from mnemorank.model.judge import Judge
from mnemorank.scorers.protocol import Passage
from tests.helpers.requests import QUERY

OLD_AND_NEW = [
    {"text": "ruby work now", "occurred_start": "2019", "key": "job"},
    {"text": "ruby work", "occurred_start": "2024", "key": "job"},
]


@pytest.fixture
def judging(reranker):
    """A reranker whose model also judges: a memory with "aurora" or "labs" replaces those with "zenith"."""

    class Words:
        width, max_memory = 1, 50

        def prepare(self, texts):
            return [Passage(text, len(text.split()), text) for text in texts]

        def embed(self, passages):
            return np.ones((len(passages), 1))

        def replacement(self, pairs):
            replaced = [older.text.endswith("zenith") and "zenith" not in newer.text[-6:] for older, newer in pairs]
            return np.where(replaced, 4.0, -4.0)

        def asks_about_past(self, query):
            return 1.0 if "before" in query else -1.0

    class Judging:
        manifest = reranker.model.manifest

        def score(self, query, memories, **settings):
            scored = reranker.model.score(query, memories, **settings)
            return replace(scored, manifest=self.manifest, judge=Judge(Words(), self.manifest))

        def count_tokens(self, memories):
            return reranker.model.count_tokens(memories)

        def close(self):
            pass

    return Reranker(Judging(), options=Options(first_stage="none"))


def test_what_the_model_judges_replaced_is_demoted_and_flagged(judging):
    old, new = Memory("ruby has work now at zenith"), Memory("ruby has work at aurora")
    ranking = judging.rerank(QUERY, [old, new])
    assert [(r.index, r.stale, r.stale_because) for r in ranking] == [(1, False, None), (0, True, "similar")]
    assert ranking[1].superseded_by == 1
    past = judging.rerank("where did ruby work before now", [old, new])
    assert (past[0].index, past[0].stale) == (0, True)
    ignored = Options(first_stage="none", detect_past_questions=False)
    assert judging.rerank("where did ruby work before now", [old, new], options=ignored)[0].index == 1
    for options in (
        Options(first_stage="none", supersede_similar=False),
        Options(first_stage="none", supersession="off"),
    ):
        off = judging.rerank(QUERY, [old, new], options=options)
        assert [(r.index, r.stale) for r in off] == [(0, False), (1, False)]


def test_memories_that_hardly_answer_the_query_are_not_judged(judging):
    old, new = Memory("the cat sleeps at zenith"), Memory("the cat sleeps at aurora")
    alone = judging.rerank("the cat", [old, new])
    assert {r.index for r in alone if r.stale} == {0}
    judging.model.manifest = replace(judging.model.manifest, calibration=Calibration(scale=4.0))
    best = Memory("ruby work now")
    relevance = [score.relevance for score in judging.score(QUERY, [old, new, best])]
    assert max(relevance[:2]) < 0.05 * relevance[2]
    assert not any(r.stale for r in judging.rerank(QUERY, [old, new, best]))


def test_supersession_off_applies_with_as_of(reranker):
    later = {"text": "ruby work now at last", "occurred_start": "2026"}
    options = Options(first_stage="none", supersession="off")
    ranking = reranker.rerank(QUERY, [*OLD_AND_NEW, later], as_of="2025", options=options)
    assert [(r.index, r.stale) for r in ranking] == [(0, False), (1, False), (2, False)]


def test_superseded_memories_are_dropped_before_top_k(reranker):
    pool = [*OLD_AND_NEW, "the cat"]
    options = Options(first_stage="none", supersession="drop")
    assert [r.index for r in reranker.rerank(QUERY, pool, top_k=2, options=options)] == [1, 2]
    demoted = reranker.rerank(QUERY, pool, options=Options(first_stage="none", supersession="demote"))
    assert [(r.index, r.stale_because) for r in demoted] == [(1, None), (0, "key"), (2, None)]


def test_memories_that_the_model_judges_replaced_are_never_dropped(judging):
    pool = [Memory("ruby work now at zenith"), Memory("ruby work at aurora")]
    ranking = judging.rerank(QUERY, pool, options=Options(first_stage="none", supersession="drop"))
    assert [(r.index, r.stale_because) for r in ranking] == [(1, None), (0, "similar")]


def test_questions_about_the_past_keep_what_a_key_replaced(judging):
    pool = [*OLD_AND_NEW, "the cat"]
    options = Options(first_stage="none", supersession="drop")
    assert 0 in [r.index for r in judging.rerank("where did ruby work before", pool, options=options)]
    assert 0 not in [r.index for r in judging.rerank("where did ruby work", pool, options=options)]


def test_as_of_restores_an_earlier_state(reranker):
    old = Memory("ruby work at zenith", type="world", occurred_start=Moment(2019), occurred_end=Moment(2023))
    new = Memory("ruby work at aurora now", type="world", occurred_start=Moment(2024))
    ranking = reranker.rerank(QUERY, [old, new], as_of="2021")
    assert [r.index for r in ranking] == [0, 1]
    assert not ranking[0].stale


@pytest.mark.parametrize("selection", [{}, {"diversity": 0.9}, {"replace_margin": 0.1}])
def test_selection_respects_supersession(reranker, selection):
    options = Options(first_stage="none", **selection)
    assert [r.index for r in reranker.rerank(QUERY, OLD_AND_NEW, options=options)] == [1, 0]
    assert [r.index for r in reranker.rerank(QUERY, OLD_AND_NEW, options=options, as_of="2020")] == [0, 1]


def test_a_dropped_memory_still_demotes_what_it_replaced(judging):
    oldest = Memory("ruby work now at zenith", occurred_start="2015")
    older = Memory("ruby work at zenith labs", occurred_start="2019", id="older")
    newest = Memory("a dog now", occurred_start="2024", metadata={"supersedes": "older"})
    for mode, stale in (("demote", {1, 0}), ("drop", {0})):
        options = Options(first_stage="none", supersession=mode)
        ranking = judging.rerank(QUERY, [oldest, older, newest], options=options)
        assert ranking[0].index == 2
        assert {result.index for result in ranking[1:]} == stale
        assert {result.index: result.stale_because for result in ranking}[0] == "similar"
