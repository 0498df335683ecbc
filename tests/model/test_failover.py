"""The failover chain: real models, a real server, killed and brought back."""

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mnemorank._internal.deadline import Deadline
from mnemorank.errors import InputError, ScorerError
from mnemorank.memory.memory import Memory
from mnemorank.model.failover import Breaker, Failover
from mnemorank.model.lazy import LazyModel
from mnemorank.model.model import Model
from mnemorank.reranker import Reranker
from tests.helpers.rerank_server import overlap, serving

QUERY = "where does ruby work"
TEXTS = ["the cat", "ruby does work at aurora", "nothing"]
MEMORIES = [Memory(text) for text in TEXTS]


@pytest.fixture
def local(tiny_onnx):
    return Model.load(tiny_onnx)


def remote(server, **options):
    return Model.load(f"tei:{server.url}", **{"retries": 0, **options})


class Broken:
    """A model of a user's own that raises what it likes."""

    def __init__(self, manifest, error):
        self.manifest, self.error, self.calls = dataclasses.replace(manifest, name="broken"), error, 0

    def score(self, *arguments, **options):
        self.calls += 1
        raise self.error

    def count_tokens(self, memories):
        raise ScorerError("broken: cannot count")

    def close(self):
        self.closed = True


def test_the_first_model_scores_while_it_can(local):
    with serving() as server:
        ranking = Reranker(Failover([remote(server), local])).rerank(QUERY, TEXTS)
    assert ranking.scored_by == f"tei:{server.url}"
    assert ranking[0].raw_score == overlap(QUERY, TEXTS[1])


@pytest.mark.parametrize("trouble", ["500", "429", "cut", "cut-mid", "malformed", "partial", "nan", "logits"])
def test_the_next_model_steps_in_with_its_own_calibration(trouble, local):
    with serving(always=trouble) as server:
        chain = Failover([remote(server), local])
        ranking = Reranker(chain).rerank(QUERY, TEXTS)
    assert ranking.scored_by == "overlap"
    assert ranking.degraded is None
    np.testing.assert_allclose(
        [result.relevance for result in ranking], [r.relevance for r in Reranker(local).rerank(QUERY, TEXTS)]
    )
    assert chain.status()[0].failed == 1
    assert chain.status()[1].answered == 1


def test_a_stalling_model_loses_its_turn_at_its_timeout(local):
    with serving(always="stall") as server:
        chain = Failover([remote(server), local], timeouts=[0.2, None])
        started = time.monotonic()
        ranking = Reranker(chain).rerank(QUERY, TEXTS)
        assert time.monotonic() - started < 1.5
    assert ranking.scored_by == "overlap"


def test_a_model_that_hangs_is_left_behind(local):
    """It ignores the deadline altogether, as a native call may."""
    release = threading.Event()

    class Hanging(Broken):
        def score(self, *arguments, **options):
            release.wait(10)
            raise self.error

    chain = Failover([Hanging(local.manifest, ScorerError("late")), local], timeouts=0.1)
    started = time.monotonic()
    assert chain.score(QUERY, MEMORIES).manifest.name == "overlap"
    assert time.monotonic() - started < 1
    assert chain.status()[0].last_error == "broken: no answer in time"
    release.set()


def test_if_none_can_the_first_stage_order_stands_with_every_reason(local):
    with serving(always="500") as server:
        chain = Failover([remote(server), Broken(local.manifest, ScorerError("broken: out of memory"))])
        ranking = Reranker(chain).rerank(QUERY, TEXTS)
    assert [result.index for result in ranking] == [0, 1, 2]
    assert ranking.scored_by is None
    assert "the server answered 500" in str(ranking.degraded)
    assert "broken: out of memory" in str(ranking.degraded)


def test_any_exception_of_a_model_is_survived(local):
    chain = Failover([Broken(local.manifest, ZeroDivisionError("oops")), local])
    assert chain.score(QUERY, MEMORIES).manifest.name == "overlap"
    assert chain.status()[0].last_error == "broken: ZeroDivisionError: oops"
    assert chain.count_tokens(MEMORIES) == local.count_tokens(MEMORIES)


def test_the_breaker_opens_and_half_opens(local):
    broken = Broken(local.manifest, ScorerError("broken: no"))
    chain = Failover([broken, local], failures=3, cooldown=0.3)
    for _ in range(10):
        assert chain.score(QUERY, MEMORIES).manifest.name == "overlap"
    assert broken.calls == 3
    assert chain.status()[0].state == "open"
    time.sleep(0.35)
    assert chain.status()[0].state == "half-open"
    for _ in range(5):
        chain.score(QUERY, MEMORIES)
    assert broken.calls == 4


def test_a_query_too_long_for_one_model_goes_to_the_next(local):
    with serving() as server:
        chain = Failover([local, remote(server)])
        long_query = "ruby " * 100
        assert chain.score(long_query, MEMORIES).manifest.name == f"tei:{server.url}"
        assert chain.status()[0].failed == 0
        with pytest.raises(InputError, match="query: its"):
            Failover([local]).score(long_query, MEMORIES)


def test_a_hurried_caller_does_not_open_the_breaker(local):
    with serving(delay=0.3) as server:
        chain = Failover([remote(server)], failures=1)
        scored = chain.score(QUERY, MEMORIES, deadline=Deadline(0.1))
        assert np.isnan(scored.raw).all()
        assert chain.status()[0].state == "closed"
        assert np.isfinite(chain.score(QUERY, MEMORIES).raw).all()


def test_hurried_callers_do_not_shut_out_a_model_that_is_still_being_loaded(tiny_onnx):
    begin = threading.Event()

    def load():
        begin.wait(10)
        return Model.load(tiny_onnx)

    chain = Failover([LazyModel(load)])
    for _ in range(3):
        with pytest.raises(ScorerError, match="is still being loaded"):
            chain.score(QUERY, MEMORIES, deadline=Deadline(0.02))
    assert (chain.status()[0].state, chain.status()[0].failed) == ("closed", 0)
    begin.set()
    assert np.isfinite(chain.score(QUERY, MEMORIES).raw).all()


@pytest.mark.parametrize(("timeouts", "state"), [(None, "closed"), ([0.02], "open")])
def test_a_model_that_hangs_fails_by_its_own_limit_and_not_by_the_callers(local, timeouts, state):
    release = threading.Event()

    class Hanging(Broken):
        def score(self, *arguments, **options):
            release.wait(10)
            raise self.error

    chain = Failover([Hanging(local.manifest, ScorerError("late"))], timeouts=timeouts, failures=1)
    with pytest.raises(ScorerError, match="no answer in time"):
        chain.score(QUERY, MEMORIES, deadline=Deadline(0.02 if timeouts is None else 5))
    assert chain.status()[0].state == state
    release.set()


def test_a_dead_server_opens_the_breaker_under_a_callers_deadline_too(local):
    with serving() as server:
        address = f"tei:{server.url}"
    chain = Failover([Model.load(address, back_off=10), local], failures=2)
    for _ in range(3):
        scored = chain.score(QUERY, MEMORIES, deadline=Deadline(4))
        assert scored.manifest.name == "overlap"
        assert np.isfinite(scored.raw).all()
    assert chain.status()[0].state == "open"


def test_killing_the_primary_in_mid_traffic_loses_no_request(local):
    with serving() as server:
        primary = f"tei:{server.url}"
        chain = Failover([remote(server, concurrency=8), local], timeouts=[2.0, None], failures=3, cooldown=60)
        reranker = Reranker(chain)

        def call(number):
            if number == 150:
                threading.Thread(target=server.kill).start()
            return reranker.rerank(QUERY, TEXTS)

        with ThreadPoolExecutor(16) as pool:
            rankings = list(pool.map(call, range(400)))
    assert len(rankings) == 400
    assert {ranking.degraded for ranking in rankings} == {None}
    assert {ranking[0].index for ranking in rankings} == {1}
    assert {ranking.scored_by for ranking in rankings} == {primary, "overlap"}
    assert rankings[0].scored_by == primary
    assert rankings[-1].scored_by == "overlap"
    assert chain.status()[0].state == "open"
    assert chain.status()[0].answered + chain.status()[1].answered == 400


def test_the_primary_is_taken_back_when_it_recovers(local):
    with serving(plan=["500"] * 2) as server:
        chain = Failover([remote(server), local], failures=2, cooldown=0.2)
        names = []
        for _ in range(4):
            names.append(chain.score(QUERY, MEMORIES).manifest.name)
        assert names == ["overlap"] * 4
        time.sleep(0.25)
        assert chain.score(QUERY, MEMORIES).manifest.name == f"tei:{server.url}"
        assert chain.status()[0].state == "closed"


def test_names_are_loaded_when_needed(tiny_onnx):
    with serving() as server:
        chain = Failover([f"tei:{server.url}", tiny_onnx])
        chain.score(QUERY, MEMORIES)
        assert chain.manifest.name == f"tei:{server.url}"
        assert not chain._links[1].model.is_loaded
        chain.close()
    with pytest.raises(ScorerError, match="was closed"):
        chain.score(QUERY, MEMORIES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": []}, "models: expected a list of at least one model"),
        ({"models": "mini"}, "models: expected a list"),
        ({"timeouts": [1.0]}, "timeouts: expected 2, one a model, got 1"),
        ({"timeouts": [0, None]}, "timeouts: expected seconds above 0"),
        ({"failures": 0}, "failures: expected a whole number from 1"),
        ({"cooldown": -1}, "cooldown: expected a number of seconds from 0"),
    ],
)
def test_bad_options_are_named(options, message, local):
    with pytest.raises(InputError, match=message):
        Failover(**{"models": [local, local], **options})


def test_breaker_by_the_clock():
    now = 0.0
    breaker = Breaker(failures=2, cooldown=10, clock=lambda: now)
    assert breaker.allows()
    breaker.failed()
    breaker.succeeded()
    breaker.failed()
    assert breaker.state == "closed"
    breaker.failed()
    assert breaker.state == "open"
    assert not breaker.allows()
    now = 10.0
    assert breaker.allows()
    assert not breaker.allows(), "one call tries, the others wait for its outcome"
    breaker.withdrew()
    assert breaker.allows()
    breaker.failed()
    assert breaker.state == "open"
    now = 20.0
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.state == "closed"
    assert breaker.allows()
    assert breaker.allows()
