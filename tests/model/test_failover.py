"""Failover between real models, some of them behind a real server that fails."""

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mnemorank._internal.deadline import Deadline
from mnemorank.errors import InputError, ScorerError
from mnemorank.memory.memory import Memory
from mnemorank.model.failover import CircuitBreaker, Failover
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
    """A user-defined model that raises any exception."""

    def __init__(self, manifest, error):
        self.manifest, self.error, self.calls = dataclasses.replace(manifest, name="broken"), error, 0

    def score(self, *arguments, **options):
        self.calls += 1
        raise self.error

    def count_tokens(self, memories):
        raise ScorerError("broken: cannot count")

    def close(self):
        self.closed = True


def test_the_first_model_scores_if_it_can(local):
    with serving() as server:
        ranking = Reranker(Failover([remote(server), local])).rerank(QUERY, TEXTS)
    assert ranking.scored_by == f"tei:{server.url}"
    assert ranking[0].raw_score == overlap(QUERY, TEXTS[1])


@pytest.mark.parametrize("trouble", ["500", "429", "cut", "cut-mid", "malformed", "partial", "nan", "logits"])
def test_the_next_model_takes_over_with_its_own_calibration(trouble, local):
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


def test_a_stalled_model_times_out(local):
    with serving(always="stall") as server:
        chain = Failover([remote(server), local], timeouts=[0.2, None])
        started = time.monotonic()
        ranking = Reranker(chain).rerank(QUERY, TEXTS)
        assert time.monotonic() - started < 1.5
    assert ranking.scored_by == "overlap"


def test_a_hanging_model_is_abandoned(local):
    """It ignores the deadline, as native code can."""
    release = threading.Event()

    class Hanging(Broken):
        def score(self, *arguments, **options):
            release.wait(10)
            raise self.error

    chain = Failover([Hanging(local.manifest, ScorerError("late")), local], timeouts=0.1)
    started = time.monotonic()
    assert chain.score(QUERY, MEMORIES).manifest.name == "overlap"
    assert time.monotonic() - started < 1
    assert chain.status()[0].last_error.startswith("broken: ")
    assert chain.status()[0].failed == 1
    release.set()


def test_if_all_fail_the_ranking_is_in_first_stage_order_with_every_reason(local):
    with serving(always="500") as server:
        chain = Failover([remote(server), Broken(local.manifest, ScorerError("broken: out of memory"))])
        ranking = Reranker(chain).rerank(QUERY, TEXTS)
    assert [result.index for result in ranking] == [0, 1, 2]
    assert ranking.scored_by is None
    assert ranking.degraded.kind == "model_failed"
    assert "HTTP 500" in ranking.degraded.message
    assert "broken: out of memory" in ranking.degraded.message


def test_any_exception_leads_to_the_next_model(local):
    chain = Failover([Broken(local.manifest, ZeroDivisionError("oops")), local])
    assert chain.score(QUERY, MEMORIES).manifest.name == "overlap"
    assert chain.status()[0].last_error == "broken: ZeroDivisionError: oops"
    assert chain.count_tokens(MEMORIES) == local.count_tokens(MEMORIES)


def test_the_circuit_opens_after_failures_and_half_opens_after_the_cooldown(local):
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
        with pytest.raises(InputError, match="query"):
            Failover([local]).score(long_query, MEMORIES)


def test_a_short_deadline_of_the_caller_does_not_open_the_circuit(local):
    with serving(delay=0.3) as server:
        chain = Failover([remote(server)], failures=1)
        scored = chain.score(QUERY, MEMORIES, deadline=Deadline(0.1))
        assert np.isnan(scored.raw).all()
        assert chain.status()[0].state == "closed"
        assert np.isfinite(chain.score(QUERY, MEMORIES).raw).all()


def test_short_deadlines_do_not_open_the_circuit_of_a_model_that_is_loading(tiny_onnx):
    begin = threading.Event()

    def load():
        begin.wait(10)
        return Model.load(tiny_onnx)

    chain = Failover([LazyModel(load)])
    for _ in range(3):
        with pytest.raises(ScorerError, match="loading"):
            chain.score(QUERY, MEMORIES, deadline=Deadline(0.02))
    assert (chain.status()[0].state, chain.status()[0].failed) == ("closed", 0)
    begin.set()
    assert np.isfinite(chain.score(QUERY, MEMORIES).raw).all()


@pytest.mark.parametrize(("timeouts", "state"), [(None, "closed"), ([0.02], "open")])
def test_a_hanging_model_fails_by_its_own_timeout_not_by_the_callers_deadline(local, timeouts, state):
    release = threading.Event()

    class Hanging(Broken):
        def score(self, *arguments, **options):
            release.wait(10)
            raise self.error

    chain = Failover([Hanging(local.manifest, ScorerError("late"))], timeouts=timeouts, failures=1)
    with pytest.raises(ScorerError, match="timed out"):
        chain.score(QUERY, MEMORIES, deadline=Deadline(0.02 if timeouts is None else 5))
    assert chain.status()[0].state == state
    release.set()


def test_a_dead_server_opens_the_circuit_even_under_a_callers_deadline(local):
    with serving() as server:
        address = f"tei:{server.url}"
    chain = Failover([Model.load(address, backoff=10), local], failures=2)
    for _ in range(3):
        scored = chain.score(QUERY, MEMORIES, deadline=Deadline(4))
        assert scored.manifest.name == "overlap"
        assert np.isfinite(scored.raw).all()
    assert chain.status()[0].state == "open"


def test_killing_the_preferred_model_loses_no_request(local):
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


def test_the_preferred_model_is_used_again_after_it_recovers(local):
    with serving(plan=["500"] * 2) as server:
        chain = Failover([remote(server), local], failures=2, cooldown=0.2)
        names = []
        for _ in range(4):
            names.append(chain.score(QUERY, MEMORIES).manifest.name)
        assert names == ["overlap"] * 4
        time.sleep(0.25)
        assert chain.score(QUERY, MEMORIES).manifest.name == f"tei:{server.url}"
        assert chain.status()[0].state == "closed"


def test_models_given_by_name_are_loaded_on_first_use(tiny_onnx):
    with serving() as server:
        chain = Failover([f"tei:{server.url}", tiny_onnx])
        chain.score(QUERY, MEMORIES)
        assert chain.manifest.name == f"tei:{server.url}"
        assert not chain._members[1].model.is_loaded
        chain.close()
    with pytest.raises(ScorerError, match="closed"):
        chain.score(QUERY, MEMORIES)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("models", []),
        ("models", "mini"),
        ("timeouts", [1.0]),
        ("timeouts", [0, None]),
        ("failures", 0),
        ("cooldown", -1),
    ],
)
def test_an_invalid_option_is_named(option, value, local):
    with pytest.raises(InputError) as error:
        Failover(**{"models": [local, local], option: value})
    assert error.value.field == option


def test_the_states_of_a_circuit_breaker():
    now = 0.0
    breaker = CircuitBreaker(failures=2, cooldown=10, clock=lambda: now)
    assert breaker.allow_call()
    breaker.record_failure()
    breaker.record_success()
    breaker.record_failure()
    assert breaker.state == "closed"
    breaker.record_failure()
    assert breaker.state == "open"
    assert not breaker.allow_call()
    now = 10.0
    assert breaker.allow_call()
    assert not breaker.allow_call(), "only one call is on trial"
    breaker.release()
    assert breaker.allow_call()
    breaker.record_failure()
    assert breaker.state == "open"
    now = 20.0
    assert breaker.allow_call()
    breaker.record_success()
    assert breaker.state == "closed"
    assert breaker.allow_call()
    assert breaker.allow_call()
