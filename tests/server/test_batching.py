"""Pairs of concurrent requests in shared, fair rounds."""

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
from mnemorank.server.batching import BatchingScorer, CountingScorer, FairQueue, Job, FairQueue, Job
from mnemorank.server.errors import DeadlineError, OverloadedError, RequestCanceledError
from mnemorank.server.requests import ActiveRequest, current_request


class GatedScorer(OnnxScorer):
    """The real scorer behind a gate, so that a test decides when rounds run, and sees them."""

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


def test_scores_are_those_of_the_scorer_alone_and_requests_share_batches(gated, batcher):
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
    assert [len(set(asked)) for asked in gated.rounds[1:2]] == [3]
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
    asked = [query for one in gated.rounds for query in one]
    assert asked.index("small") < 20
    assert len(asked) - asked[::-1].index("small") < 30, "the small request was done long before the large one"


def test_a_full_queue_refuses_and_says_when_to_come_back(gated, batcher):
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batcher.score, "cat", gated.prepare(["the cat"] * 90))
        wait_for(lambda: batcher.waiting_pairs > 0)
        with pytest.raises(OverloadedError, match="queue_pairs = 100") as caught:
            batcher.score("dog", gated.prepare(["the dog"] * 50))
        assert caught.value.retry_after >= 1
        gated.gate.set()
        assert np.isfinite(first.result(10)).all()


def test_a_request_that_was_let_in_is_not_refused_half_way(gated, batcher):
    request = ActiveRequest()
    with ThreadPoolExecutor(2) as pool:
        first = in_thread(pool, request, lambda: batcher.score("cat", gated.prepare(["the cat"] * 90)))
        wait_for(lambda: batcher.waiting_pairs > 0)
        rest = in_thread(pool, request, lambda: batcher.score("cat", gated.prepare(["the cat"] * 90)))
        wait_for(lambda: batcher.waiting_pairs > 100)
        gated.gate.set()
        assert len(first.result(10)) == len(rest.result(10)) == 90


def test_a_request_larger_than_the_queue_is_taken_when_nothing_waits(gated, batcher):
    gated.gate.set()
    assert len(batcher.score("cat", gated.prepare(["the cat"] * 150))) == 150


def test_cancelling_drops_what_waits(gated, batcher):
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
    assert sum(query == "cat" for one in gated.rounds for query in one) <= 20, "only the round that was under way"


def test_a_deadline_is_kept_even_while_a_round_runs(gated, batcher):
    started = time.monotonic()
    scores = batcher.score("cat", gated.prepare(["the cat"] * 10), deadline=Deadline(0.2))
    assert 0.15 < time.monotonic() - started < 2
    assert np.isnan(scores).all()


def test_a_request_out_of_time_is_an_error_where_no_partial_answer_was_asked_for(gated, batcher):
    with ThreadPoolExecutor(1) as pool:
        request = ActiveRequest(deadline=Deadline(0.1))
        work = in_thread(pool, request, lambda: batcher.score("cat", gated.prepare(["the cat"])))
        with pytest.raises(DeadlineError):
            work.result(10)


def test_a_request_that_fails_does_not_fail_those_in_its_round(gated, batcher):
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


def test_the_request_counts_pairs_tokens_and_time(gated, batcher):
    gated.gate.set()
    request = ActiveRequest()
    with ThreadPoolExecutor(1) as pool:
        in_thread(pool, request, lambda: batcher.score("ruby", gated.prepare(["the cat", "the dog"]))).result(10)
    assert (request.pairs, request.tokens) == (2, 6)
    assert request.inference_seconds > 0
    assert request.queue_seconds >= 0


def test_without_batching_scores_and_counts_are_the_same(tiny_onnx):
    scorer = CountingScorer(OnnxScorer(load_artifact(tiny_onnx)))
    request = ActiveRequest()
    with ThreadPoolExecutor(1) as pool:
        scores = in_thread(pool, request, lambda: scorer.score("ruby cat", scorer.prepare(["the cat", "ruby cat"])))
        assert scores.result(10).tolist() == [0.0, 1.0]
    assert (request.pairs, request.tokens) == (2, 8)
    scorer.close()


def test_the_pairs_of_one_request_are_shared_among_the_cores(tiny_onnx):
    """Two threads wait for work: neither takes all of it, whatever a round may hold."""
    scorer = GatedScorer(tiny_onnx, threads=1, token_budget=512)
    batcher = BatchingScorer(scorer, workers=2)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(batcher.score, "ruby", scorer.prepare(["the cat"] * 10))
        wait_for(lambda: batcher.waiting_pairs == 2)  # one took five of ten, the other three of the five left
        scorer.gate.set()
        assert asked.result(10).tolist() == [-1.0] * 10
    batcher.close()


@pytest.mark.parametrize("lengths", [[0], [0, 0, 0], [3, 0]])
def test_pairs_without_tokens_are_taken_too(tiny_onnx, lengths):
    """A round that takes none of them would be followed by another, without end."""
    (passage,) = OnnxScorer(load_artifact(tiny_onnx)).prepare(["ruby"])
    queue = FairQueue(100, workers=2)
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
