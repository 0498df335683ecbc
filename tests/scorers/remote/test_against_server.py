"""The remote scorer with our own server: every dialect returns the relevance of the local model."""

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
def test_relevance_over_http_equals_that_of_the_local_model(dialect, server, tiny_onnx):
    with Reranker(tiny_onnx) as local:
        expected = [score.relevance for score in local.score(QUERY, TEXTS)]
    with Reranker(f"{dialect}:{server.url}#{tiny_onnx.name}") as remote:
        received = [score.relevance for score in remote.score(QUERY, TEXTS)]
    assert received == pytest.approx(expected, abs=1e-6)
    assert max(received) - min(received) > 0.2


def test_stopping_the_server_loses_no_request(tiny_onnx):
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
