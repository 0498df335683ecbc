"""What follows the scoring obeys the deadline, too."""

from __future__ import annotations

import time

import pytest

from mnemorank import Options, Reranker
from mnemorank import reranker as reranker_module
from mnemorank._internal.deadline import Deadline
from mnemorank.model.model import Model


class PunctualModel:
    """A model whose scores come just in time: the deadline passes right after."""

    def __init__(self, model):
        self.model, self.manifest = model, model.manifest
        self.counted = 0

    def score(self, query, memories, *, instruction=None, deadline=None):
        scored = self.model.score(query, memories, instruction=instruction)
        deadline.cancel()
        return scored

    def count_tokens(self, memories):
        self.counted += len(memories)
        return self.model.count_tokens(memories)

    def close(self):
        self.model.close()


@pytest.fixture
def model(tiny_onnx):
    return PunctualModel(Model.load(tiny_onnx, probe=False))


def rank(model, pool, **options):
    return Reranker(model).rerank_within(Deadline(60), "where does ruby work", pool, options=Options(**options))


OLD = {"id": "old", "text": "ruby works at zenith", "key": "job", "occurred_start": "2020"}
NEW = {"id": "new", "text": "ruby works at aurora", "key": "job", "occurred_start": "2024", "supersedes": ["older"]}
OLDER = {"id": "older", "text": "ruby works at acme"}
POOL = [OLD, NEW, OLDER, "ruby works at zenith now", "the cat"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "supersession"),
        ({"supersede_similar": True}, "supersession"),
        ({"diversity": 0.5, "supersession": "off"}, "diversity"),
        ({"token_budget": 1000, "supersession": "off"}, "token_budget"),
    ],
)
def test_after_the_deadline_nothing_more_is_compared_and_a_warning_says_so(model, monkeypatch, options, named):
    monkeypatch.setattr(reranker_module, "_FINISHING_SECONDS", 0.0)
    ranking = rank(model, POOL, **options)
    assert sorted(result.index for result in ranking) == [0, 1, 2, 3, 4]
    assert [warning.partition(":")[0] for warning in ranking.warnings] == [named]
    assert model.counted == 0
    assert not any(result.stale_because == "stated" for result in ranking)


def test_a_little_time_is_left_for_what_follows_the_scoring(model):
    ranking = rank(model, POOL, diversity=0.5, token_budget=1000, supersede_similar=True)
    assert ranking.warnings == ()
    assert {result.memory.id for result in ranking if result.stale} == {"old", "older"}
    assert model.counted == 5


def test_after_the_deadline_a_token_budget_is_still_kept(model, monkeypatch):
    monkeypatch.setattr(reranker_module, "_FINISHING_SECONDS", 0.0)
    ranking = rank(model, ["ruby"] * 10, token_budget=11, supersession="off")
    assert len(ranking) == 2, "four tokens at most for each"


def test_repeated_ids_in_supersedes_are_read_once(model):
    pool = [{"id": "a", "text": f"ruby {number}", "supersedes": ["a"] * 4000} for number in range(200)]
    started = time.monotonic()
    assert len(Reranker(model.model).rerank("ruby", pool)) == 200
    assert time.monotonic() - started < 5, "comparing each with all memories of that id takes 15 seconds"
