"""Batching: pairs of concurrent requests share rounds, fairly."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import numpy as np
import pytest

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import ScorerError
from mnemorank.scorers.onnx import OnnxScorer
from mnemorank.scorers.protocol import Batch, Pair
from mnemorank.server.batching import BatchingScorer, CountingScorer, FairQueue, Job
from mnemorank.server.errors import RequestCanceledError
from mnemorank.server.requests import ActiveRequest, current_request


class GatedScorer(OnnxScorer):
    """A scorer that waits for a gate and records its rounds."""

    def __init__(self, folder, **options):
        super().__init__(load_artifact(folder), **options)
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.rounds: list[list[str]] = []

    def score_pairs(self, pairs, *, deadline=None):
        self.entered.set()
        self.gate.wait(20)
        self.rounds.append([pair.query for pair in pairs])
        if any("poison" in pair.query for pair in pairs):
            raise ScorerError("poisoned")
        return super().score_pairs(pairs, deadline=deadline)


@pytest.fixture
def gated(tiny_onnx):
    scorer = GatedScorer(tiny_onnx, threads=1, token_budget=60)
    yield scorer
    scorer.gate.set()


@pytest.fixture
def batcher(gated):
    batcher = BatchingScorer(gated, queue_pairs=100)
    yield batcher
    gated.gate.set()
    batcher.close()


def in_thread(pool, request, work):
    def run():
        current_request.set(request)
        return work()

    return pool.submit(copy_context().run, run)


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


def test_requests_share_batches_and_get_the_scores_of_the_plain_scorer(gated, batcher):
    batches: list[Batch] = []
    gated.on_batch = batches.append
    texts = [["ruby works", "the cat", "ruby moved to berlin"], ["dog and cat", "berlin"], ["lisbon trip", "ruby"]]
    queries = ["where does ruby work", "cat", "trip to lisbon"]
    passages = [gated.prepare(each) for each in texts]
    with ThreadPoolExecutor(4) as pool:
        pool.submit(batcher.score, "the", gated.prepare(["the"]))
        assert gated.entered.wait(10)
        answers = [pool.submit(batcher.score, q, p) for q, p in zip(queries, passages, strict=True)]
        wait_for(lambda: batcher.waiting_pairs == 7)
        gated.gate.set()
        results = [answer.result(10) for answer in answers]
    assert [len(set(queries)) for queries in gated.rounds[1:2]] == [3]
    assert max(batch.pairs for batch in batches) > 3
    gated.on_batch = None
    for query, own, result in zip(queries, passages, results, strict=True):
        np.testing.assert_array_equal(result, gated.score(query, own))


def test_a_large_request_does_not_starve_a_small_one(gated, batcher):
    large, small = gated.prepare(["the cat and the dog"] * 90), gated.prepare(["ruby"] * 5)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(batcher.score, "large", large)
        wait_for(lambda: batcher.waiting_pairs == 84)
        quick = pool.submit(batcher.score, "small", small)
        wait_for(lambda: batcher.waiting_pairs == 89)
        gated.gate.set()
        quick.result(10), slow.result(10)
    scored = [query for queries in gated.rounds for query in queries]
    assert scored.index("small") < 20
    assert len(scored) - scored[::-1].index("small") < 30, "the small request was done long before the large one"


def test_canceling_drops_the_waiting_pairs(gated, batcher):
    request = ActiveRequest()
    with ThreadPoolExecutor(2) as pool:
        work = in_thread(pool, request, lambda: batcher.score("cat", gated.prepare(["the cat"] * 90)))
        wait_for(lambda: batcher.waiting_pairs > 0)
        request.cancel()
        with pytest.raises(RequestCanceledError):
            work.result(10)
    assert batcher.waiting_pairs == 0
    gated.gate.set()
    batcher.score("dog", gated.prepare(["the dog"]))
    assert sum(query == "cat" for queries in gated.rounds for query in queries) <= 20, (
        "only the round that was under way"
    )


def test_a_deadline_holds_while_a_round_runs(gated, batcher):
    started = time.monotonic()
    scores = batcher.score("cat", gated.prepare(["the cat"] * 10), deadline=Deadline(0.2))
    assert 0.15 < time.monotonic() - started < 2
    assert np.isnan(scores).all()


def test_canceling_expires_the_deadline():
    request = ActiveRequest(Deadline(60))
    assert not request.deadline.expired
    request.cancel()
    assert request.deadline.expired
    with pytest.raises(RequestCanceledError):
        request.raise_if_canceled()


@pytest.mark.parametrize(
    ("needs_all", "order"), [(False, ["short", "long", "short"]), (True, ["long", "short", "short"])]
)
def test_a_deadline_scores_in_order_unless_partial_results_are_useless(tiny_onnx, needs_all, order):
    """Otherwise the longest pairs go first, which needs less padding."""
    scorer = GatedScorer(tiny_onnx, threads=1, token_budget=6)
    scorer.gate.set()
    scored = []
    score_pairs = scorer.score_pairs
    scorer.score_pairs = lambda pairs, **options: (scored.extend(pairs), score_pairs(pairs, **options))[1]
    batcher = BatchingScorer(scorer)
    texts = {"short": "cat", "long": "the cat and the dog"}
    passages = scorer.prepare([texts["short"], texts["long"], texts["short"]])
    with ThreadPoolExecutor(1) as pool:
        request = ActiveRequest(needs_all=needs_all)
        in_thread(pool, request, lambda: batcher.score("ruby", passages, deadline=Deadline(10))).result(10)
    batcher.close()
    assert [pair.passage.text for pair in scored] == [texts[name] for name in order]


def test_a_failing_request_does_not_fail_the_others_of_its_round(gated, batcher):
    with ThreadPoolExecutor(3) as pool:
        pool.submit(batcher.score, "the", gated.prepare(["the"]))
        assert gated.entered.wait(10)
        bad = pool.submit(batcher.score, "poison", gated.prepare(["ruby"]))
        good = pool.submit(batcher.score, "ruby", gated.prepare(["ruby"]))
        wait_for(lambda: batcher.waiting_pairs == 2)
        gated.gate.set()
        assert good.result(10).tolist() == [0.0]
        with pytest.raises(ScorerError, match="poisoned"):
            bad.result(10)


def test_usage_counts_pairs_tokens_and_time(gated, batcher):
    gated.gate.set()
    request = ActiveRequest()
    with ThreadPoolExecutor(1) as pool:
        in_thread(pool, request, lambda: batcher.score("ruby", gated.prepare(["the cat", "the dog"]))).result(10)
    assert (request.pairs, request.tokens) == (2, 6)
    assert request.inference_seconds > 0
    assert request.queue_seconds >= 0


def test_scores_and_usage_are_the_same_without_batching(tiny_onnx):
    scorer = CountingScorer(OnnxScorer(load_artifact(tiny_onnx)))
    request = ActiveRequest()
    with ThreadPoolExecutor(1) as pool:
        scores = in_thread(pool, request, lambda: scorer.score("ruby cat", scorer.prepare(["the cat", "ruby cat"])))
        assert scores.result(10).tolist() == [0.0, 1.0]
    assert (request.pairs, request.tokens) == (2, 8)
    scorer.close()


def test_the_pairs_of_one_request_are_shared_between_workers(tiny_onnx):
    """Neither of two idle workers takes all pairs, even if they would fit in one round."""
    scorer = GatedScorer(tiny_onnx, threads=1, token_budget=512)
    batcher = BatchingScorer(scorer, workers=2)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(batcher.score, "ruby", scorer.prepare(["the cat"] * 10))
        wait_for(
            lambda: batcher.waiting_pairs == 2
        )  # one worker took five of ten, the other three of the remaining five
        scorer.gate.set()
        assert future.result(10).tolist() == [-1.0] * 10
    batcher.close()


@pytest.mark.parametrize("lengths", [[0], [0, 0, 0], [3, 0]])
def test_pairs_without_tokens_leave_the_queue(tiny_onnx, lengths):
    """A round that skips them would be followed by another one forever."""
    (passage,) = OnnxScorer(load_artifact(tiny_onnx)).prepare(["ruby"])
    queue = FairQueue(workers=2)
    queue.put(Job([Pair("ruby", passage)] * len(lengths), lengths))
    rounds = 0
    while queue.pairs:
        rounds += 1
        assert queue.take(512), "a round of nothing"
    assert 1 <= rounds <= len(lengths)


def test_a_request_without_tokens_is_scored(tiny_onnx):
    scorer = OnnxScorer(load_artifact(tiny_onnx), threads=1)
    batcher = BatchingScorer(scorer, workers=2)
    passages = scorer.prepare([""] * 3)
    assert {passage.length for passage in passages} == {0}
    assert np.isfinite(batcher.score("", passages, deadline=Deadline(5))).all()
    batcher.close()
