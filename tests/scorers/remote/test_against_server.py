"""Our client against our own server: every dialect that both speak, the same relevance as the model at hand."""

import pytest

from mnemorank.model.failover import Failover
from mnemorank.model.model import Model
from mnemorank.reranker import Reranker
from mnemorank.server import ServerSettings
from tests.server.conftest import Running

QUERY = "where does ruby work"
TEXTS = [f"{text} {number}" for number in range(30) for text in ("ruby does work", "the cat", "ruby in berlin")]


@pytest.fixture(scope="module")
def server(tiny_onnx):
    running = Running(ServerSettings(model=str(tiny_onnx), shutdown_timeout=5.0))
    yield running
    running.stop()


@pytest.mark.parametrize("dialect", ["cohere", "jina", "voyage", "tei", "vllm", "litellm"])
def test_relevance_over_http_is_the_models(dialect, server, tiny_onnx):
    with Reranker(tiny_onnx) as at_hand:
        expected = [score.relevance for score in at_hand.score(QUERY, TEXTS)]
    with Reranker(f"{dialect}:{server.url}#{tiny_onnx.name}") as remote:
        given = [score.relevance for score in remote.score(QUERY, TEXTS)]
    assert given == pytest.approx(expected, abs=1e-6)
    assert max(given) - min(given) > 0.2


def test_stopping_the_server_in_mid_traffic_loses_no_request(tiny_onnx):
    running = Running(ServerSettings(model=str(tiny_onnx), shutdown_timeout=1.0))
    chain = Failover([Model.load(f"tei:{running.url}", retries=0), Model.load(tiny_onnx)], timeouts=[5.0, None])
    reranker = Reranker(chain)
    before = [reranker.rerank(QUERY, TEXTS[:9]) for _ in range(5)]
    running.stop()
    after = [reranker.rerank(QUERY, TEXTS[:9]) for _ in range(5)]
    assert {ranking.scored_by for ranking in before} == {f"tei:{running.url}"}
    assert {ranking.scored_by for ranking in after} == {"overlap"}
    orders = {tuple(result.index for result in ranking) for ranking in before + after}
    assert len(orders) == 1
