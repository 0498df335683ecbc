"""Admission: what cannot be answered in time is refused at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.manifest import Manifest, Windows
from mnemorank.server import admission
from mnemorank.server.admission import Admission, Work
from mnemorank.server.errors import OverloadedError


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def queue(clock):
    """An admission that knows a speed of 100 characters per second."""
    queue = Admission(max_pairs=1000)
    with queue.admit(Work(1, 100), Deadline(10)) as load:
        clock.now += 1.0
        queue.record(load, 1, 100)
    assert queue.speed == pytest.approx(100)
    return queue


def is_admitted(queue, work, seconds):
    try:
        with queue.admit(work, Deadline(seconds)):
            return True
    except OverloadedError:
        return False


def test_alone_a_request_of_any_size_is_admitted(queue):
    assert is_admitted(queue, Work(5000, 1e9), seconds=0.01)


def test_more_than_the_maximum_of_pairs_is_refused(queue):
    with queue.admit(Work(900, 10), Deadline(10)):
        assert is_admitted(queue, Work(100, 10), seconds=10)
        with pytest.raises(OverloadedError) as caught:
            queue.admit(Work(101, 10), Deadline(10)).__enter__()
    assert caught.value.retry_after >= 1


def test_a_request_that_would_be_late_because_of_others_is_refused(queue):
    with queue.admit(Work(10, 500), Deadline(60)):  # 5 seconds
        assert not is_admitted(queue, Work(10, 500), seconds=10)  # both would be done after 10
        assert is_admitted(queue, Work(10, 500), seconds=20)
        assert is_admitted(queue, Work(1, 100), seconds=5), "a small one is done sooner, after 2 seconds"


def test_a_request_that_would_make_an_earlier_one_late_is_refused(queue):
    with queue.admit(Work(10, 500), Deadline(7)):
        assert is_admitted(queue, Work(1, 50), seconds=60)
        assert not is_admitted(queue, Work(10, 500), seconds=60)


def test_a_request_that_is_late_anyway_keeps_nobody_out(queue):
    with queue.admit(Work(10, 10_000), Deadline(2)):
        assert is_admitted(queue, Work(1, 100), seconds=10)


def test_work_that_is_done_makes_room(queue, clock):
    with queue.admit(Work(10, 500), Deadline(60)) as load:
        assert not is_admitted(queue, Work(10, 500), seconds=10)
        clock.now += 4
        queue.record(load, 8, 400)
        assert is_admitted(queue, Work(10, 500), seconds=10)
    assert queue.speed == pytest.approx(100)


def test_before_the_speed_is_known_everything_is_admitted(clock):
    queue = Admission(max_pairs=1000)
    with queue.admit(Work(10, 1e9), Deadline(1)):
        assert is_admitted(queue, Work(10, 1e9), seconds=1)


def test_the_speed_is_that_of_the_last_seconds_and_idle_time_does_not_count(queue, clock):
    clock.now += 3600
    with queue.admit(Work(10, 500), Deadline(600)) as load:
        assert queue.speed == pytest.approx(100)
        clock.now += 5 * admission._SPEED_WINDOW
        queue.record(load, 10, 500)
    assert queue.speed == pytest.approx(10, rel=0.3)


def test_retry_after_is_when_the_admitted_work_is_done(queue):
    with queue.admit(Work(10, 750), Deadline(60)), pytest.raises(OverloadedError) as caught:
        queue.admit(Work(10, 750), Deadline(1)).__enter__()
    assert caught.value.retry_after == 8


def test_the_work_of_long_documents_is_limited_by_their_windows():
    manifest = Manifest("m", max_length=100, windows=Windows(max_count=3))  # windows of 400 characters
    assert Work.of("query", [10, 0], manifest) == Work(2, 20)
    assert Work.of("query", [401], manifest) == Work(1, 411)
    assert Work.of("query", [100_000], manifest) == Work(1, 3 * 405)
    assert Work.of("query", [10] * 10, manifest, max_pairs=4) == Work(4, 60)


SECONDS_PER_PAIR = 0.01


def slow_down(running):
    """Let a running server score 100 pairs per second, on any machine; return the list of scored batch sizes."""
    scorer = running.app.state.slot.current.scorer.scorer
    score, sizes = scorer.score_pairs, []

    def slow(pairs, **options):
        time.sleep(SECONDS_PER_PAIR * len(pairs))
        sizes.append(len(pairs))
        return score(pairs, **options)

    scorer.score_pairs = slow
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/rerank", "/v1/memories/rerank"])
def test_under_twofold_overload_most_work_is_delivered_in_time(start, path):
    """Clients send 200 pairs per second, in requests of 20 pairs that may take one second."""
    running = start(threads=1)
    sizes = slow_down(running)
    texts = ["ruby works at aurora labs"] * 20
    body = {"query": "ruby", "texts" if path == "/rerank" else "memories": texts}
    answers = []

    def ask():
        answer = httpx.post(running.url + path, json=body, headers={"x-deadline-ms": "1000"}, timeout=30)
        is_complete = answer.status_code == 200 and (path == "/rerank" or answer.json()["degraded"] is None)
        answers.append("complete" if is_complete else answer.status_code)

    seconds = 8
    with ThreadPoolExecutor(64) as pool:
        for _ in range(10 * seconds):
            pool.submit(ask)
            time.sleep(0.1)
    delivered = 20 * answers.count("complete")
    assert delivered >= 0.8 * sum(sizes), answers
    assert delivered >= 0.5 * seconds / SECONDS_PER_PAIR, "capacity is left unused"
    assert answers.count(429) > 0


def test_a_request_is_refused_before_anything_is_tokenized(start):
    running = start(queue_pairs=10)
    served = running.app.state.slot.current
    released = threading.Event()
    score = served.scorer.scorer.score_pairs
    served.scorer.scorer.score_pairs = lambda pairs, **options: (released.wait(20), score(pairs, **options))[1]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(running.client.post, "/rerank", json={"query": "ruby", "texts": ["ruby"] * 10})
        while served.scorer.waiting_pairs == 0:
            time.sleep(0.01)
        tokenized = []
        served.scorer.prepare = served.scorer.offsets = tokenized.append
        try:
            for path, name in (("/rerank", "texts"), ("/score", "documents"), ("/v1/memories/rerank", "memories")):
                body = {"query" if path != "/score" else "queries": "ruby", name: ["ruby"]}
                assert running.client.post(path, json=body).status_code == 429
        finally:
            del served.scorer.prepare, served.scorer.offsets
            released.set()
        assert waiting.result().status_code == 200
    assert tokenized == []
