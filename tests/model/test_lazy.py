"""LazyModel: loaded once on first use, unloaded when idle."""

import threading
import time

import numpy as np
import pytest

from mnemorank.errors import InputError, ScorerError
from mnemorank.memory.memory import Memory
from mnemorank.model.lazy import LazyModel
from mnemorank.model.model import Model
from mnemorank.reranker import Reranker

QUERY = "where does ruby work"
MEMORIES = [Memory("ruby does work at aurora"), Memory("the cat")]


@pytest.fixture
def expected(tiny_onnx):
    return Model.load(tiny_onnx).score(QUERY, MEMORIES).raw


class Loader:
    """Loads a tiny model after a delay, or fails."""

    def __init__(self, folder, seconds=0.0, failures=0):
        self.folder, self.seconds, self.failures, self.models = folder, seconds, failures, []

    def __call__(self):
        time.sleep(self.seconds)
        if self.failures:
            self.failures -= 1
            raise OSError("disk on fire")
        self.models.append(Model.load(self.folder))
        return self.models[-1]


def wait_until(condition, seconds=5.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_nothing_is_loaded_before_the_first_call(tiny_onnx, expected):
    model = LazyModel(tiny_onnx)
    assert model.manifest.name == "overlap"
    assert not model.is_loaded
    np.testing.assert_allclose(model.score(QUERY, MEMORIES).raw, expected)
    assert model.is_loaded
    assert model.count_tokens(MEMORIES)[1] == 2


def test_concurrent_callers_load_once(tiny_onnx, expected):
    loader = Loader(tiny_onnx, seconds=0.2)
    model = LazyModel(loader)
    results = []
    threads = [threading.Thread(target=lambda: results.append(model.score(QUERY, MEMORIES).raw)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loader.models) == model.loads == 1
    assert len(results) == 20
    assert all(np.array_equal(raw, expected) for raw in results)


def test_a_deadline_is_kept_while_the_model_loads(tiny_onnx):
    model = LazyModel(Loader(tiny_onnx, seconds=1.0))
    started = time.monotonic()
    ranking = Reranker(model).rerank(QUERY, ["a", "b"], deadline_ms=100)
    assert time.monotonic() - started < 0.9
    assert ranking.degraded.kind == "model_failed"
    wait_until(lambda: model.is_loaded)
    assert Reranker(model).rerank(QUERY, ["a", "b"], deadline_ms=2000).degraded is None
    assert model.loads == 1


def test_a_failed_load_degrades_the_ranking_and_is_retried_later(tiny_onnx):
    model = LazyModel(Loader(tiny_onnx, failures=1), retry_seconds=0.3)
    reranker = Reranker(model)
    assert "disk on fire" in reranker.rerank(QUERY, ["a", "b"]).degraded.message
    assert "disk on fire" in reranker.rerank(QUERY, ["a", "b"]).degraded.message
    assert model.loads == 0
    time.sleep(0.35)
    assert reranker.rerank(QUERY, ["a", "b"]).degraded is None


def test_a_missing_folder_degrades_the_ranking(tmp_path):
    ranking = Reranker(LazyModel(tmp_path / "nowhere")).rerank(QUERY, ["a", "b"])
    assert "nowhere" in str(ranking.degraded)


def test_an_idle_model_is_unloaded_and_loaded_again(tiny_onnx, expected):
    loader = Loader(tiny_onnx)
    model = LazyModel(loader, idle_seconds=0.7)
    model.warm_up()
    for _ in range(6):
        time.sleep(0.08)
        model.score(QUERY, MEMORIES)
        assert model.loads == 1
    wait_until(lambda: not model.is_loaded)
    with pytest.raises(ScorerError):
        loader.models[0].score(QUERY, MEMORIES)  # it was closed, not only dropped
    np.testing.assert_allclose(model.score(QUERY, MEMORIES).raw, expected)
    assert model.loads == 2
    model.close()


def test_a_model_in_use_is_closed_only_after_the_call(tiny_onnx, expected):
    inside, go_on = threading.Event(), threading.Event()

    class Slow:
        def __init__(self):
            self.real = Model.load(tiny_onnx)
            self.manifest = self.real.manifest
            self.closed = False

        def score(self, *arguments, **options):
            inside.set()
            go_on.wait(5)
            return self.real.score(*arguments, **options)

        def close(self):
            self.closed = True
            self.real.close()

    slow = Slow()
    model = LazyModel(lambda: slow, idle_seconds=0.05)
    results = []
    thread = threading.Thread(target=lambda: results.append(model.score(QUERY, MEMORIES).raw))
    thread.start()
    inside.wait(5)
    time.sleep(0.2)
    assert model.is_loaded
    model.unload()
    assert not model.is_loaded
    assert not slow.closed
    go_on.set()
    thread.join()
    assert slow.closed
    np.testing.assert_allclose(results[0], expected)


def test_a_closed_model_is_not_loaded_again(tiny_onnx):
    model = LazyModel(tiny_onnx)
    model.warm_up()
    model.close()
    assert not model.is_loaded
    with pytest.raises(ScorerError, match="closed"):
        model.score(QUERY, MEMORIES)


def test_a_model_closed_while_loading_is_not_kept(tiny_onnx):
    loader = Loader(tiny_onnx, seconds=0.2)
    model = LazyModel(loader)
    failures = []

    def call():
        try:
            model.score(QUERY, MEMORIES)
        except ScorerError as error:
            failures.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.05)
    model.close()
    thread.join()
    assert "closed" in failures[0]
    assert not model.is_loaded


def test_idle_seconds_must_be_positive(tiny_onnx):
    with pytest.raises(InputError, match="idle_seconds"):
        LazyModel(tiny_onnx, idle_seconds=0)
