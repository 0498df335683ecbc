"""A model keeps its deadline, however much there is to tokenize."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mnemorank import Memory, Model, Options, Reranker
from mnemorank._internal.deadline import Deadline
from mnemorank.scorers.protocol import ForwardingScorer

QUERY = "Where does Ruby work?"


def long_memories(count: int, characters: int = 27_000) -> list[Memory]:
    sentence = "The committee met on Tuesday and talked about the budget of the library for the coming year. "
    return [Memory((f"Meeting {number}. " + sentence * 300)[:characters]) for number in range(count)]


class TokenizationLog(ForwardingScorer):
    """Records which texts are tokenized, and cancels the deadline after some of them."""

    def __init__(self, scorer, deadline=None, cancel_after=None):
        super().__init__(scorer)
        self.deadline, self.cancel_after = deadline, cancel_after
        self.texts: Counter[str] = Counter()

    def prepare(self, texts):
        self._record(texts)
        return super().prepare(texts)

    def offsets(self, text):
        self._record([text])
        return super().offsets(text)

    def _record(self, texts):
        self.texts.update(texts)
        if self.cancel_after is not None and len(self.long_texts) >= self.cancel_after:
            self.deadline.cancel()

    @property
    def long_texts(self) -> list[str]:
        return [text for text in self.texts if len(text) > 2000]


@pytest.fixture(scope="module")
def mini():
    model = Model.load("mini")
    yield model
    model.close()


def test_tokenization_stops_at_the_deadline(mini):
    memories, deadline = long_memories(30), Deadline(60)
    log = TokenizationLog(mini.scorer, deadline, cancel_after=3)
    scored = replace(mini, scorer=log).score(QUERY, memories, deadline=deadline)
    assert log.long_texts == [memory.text for memory in memories[:3]]
    assert np.isfinite(scored.raw[:2]).all()
    assert np.isnan(scored.raw[2:]).all()


def test_tokenization_of_many_short_memories_stops_at_the_deadline(mini):
    deadline = Deadline(60)
    log = TokenizationLog(mini.scorer)
    memories = [Memory(f"Note {number}: the library opens at nine.") for number in range(500)]

    class CancelAfterScoring(ForwardingScorer):
        def score(self, *arguments, **options):
            scores = super().score(*arguments, **options)
            deadline.cancel()
            return scores

    scored = replace(mini, scorer=CancelAfterScoring(log)).score(QUERY, memories, deadline=deadline)
    finished = int(np.isfinite(scored.raw).sum())
    assert 0 < finished <= 64
    assert np.isfinite(scored.raw[:finished]).all()
    assert sum(text.startswith("Note") for text in log.texts) == finished


def test_a_long_text_is_tokenized_once(mini):
    log = TokenizationLog(mini.scorer)
    replace(mini, scorer=log).score(QUERY, long_memories(3))
    assert len(log.long_texts) == 3
    assert {log.texts[text] for text in log.long_texts} == {1}


def test_very_long_texts_are_abandoned_at_the_deadline(mini):
    memories = [Memory("the cat sat on the mat. " * 200_000)] * 3
    started = time.monotonic()
    scored = mini.score(QUERY, memories, deadline=Deadline(0.05))
    assert time.monotonic() - started < 1
    assert np.isnan(scored.raw).all()


def test_a_deadline_that_is_not_reached_changes_no_score(mini):
    memories = [*long_memories(2), Memory("Ruby works at Aurora Labs."), *long_memories(1, 900), Memory("")]
    expected = mini.score(QUERY, memories)
    scored = mini.score(QUERY, memories, deadline=Deadline(60))
    np.testing.assert_allclose(scored.raw, expected.raw, atol=1e-4)
    assert scored.matched == expected.matched


@pytest.mark.parametrize("deadline_ms", [1, 200])
def test_a_ranking_of_many_long_memories_is_cut_short_and_says_so(mini, deadline_ms):
    memories = long_memories(120)
    started = time.monotonic()
    ranking = Reranker(mini).rerank(QUERY, memories, deadline_ms=deadline_ms)
    assert time.monotonic() - started < 1.5, "scoring them all takes several seconds"
    assert ranking.degraded.kind == "deadline"
    assert len(ranking) == 120
    assert sum(result.scored for result in ranking) < 120


def test_tokens_are_counted_only_until_the_budget_is_spent(mini):
    log = TokenizationLog(mini.scorer)
    memories = long_memories(60)
    options = Options(token_budget=15_000, max_scored=1, first_stage="none")
    ranking = Reranker(replace(mini, scorer=log)).rerank(QUERY, memories, options=options)
    counts = mini.count_tokens([result.memory for result in ranking])
    assert 1 < len(ranking) < 10
    assert sum(counts) <= 15_000
    assert len(log.long_texts) < 30
