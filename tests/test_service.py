"""RerankerService: the interface of the RerankerService project, without its faults."""

import asyncio
import copy
import threading
import time
from types import SimpleNamespace

import pytest

from mnemorank._internal.hardware import HardwareProfile
from mnemorank.artifact import resolve
from mnemorank.errors import InputError, ScorerError
from mnemorank.model.failover import Failover
from mnemorank.model.model import Model
from mnemorank.service import RerankerService, _hardware
from tests.helpers import tiny_models
from tests.helpers.rerank_server import serving
from tests.helpers.tiny_models import QUERY, TEXTS
from tests.scorers.torch.test_causal_lm import reference_scores

SEARCH = "where does ruby work"
CANDIDATES = [
    {"content": "the cat", "id": 1},
    {"content": "ruby does work at aurora", "id": 2, "extra": {"kept": True}},
    {"content": "", "id": 3},
    {"content": "where is ruby", "id": 4},
]


@pytest.fixture
def service(tiny_onnx):
    with RerankerService(reranker_model=tiny_onnx) as running:
        yield running


def ids(results):
    return [result["id"] for result in results]


def test_results_are_copies_sorted_by_rerank_score(service):
    before = copy.deepcopy(CANDIDATES)
    results = service.rerank_results(SEARCH, CANDIDATES)
    assert before == CANDIDATES
    assert ids(results) == [2, 4, 1, 3]
    assert results[0] == {**CANDIDATES[1], "rerank_score": pytest.approx(0.88, abs=0.01)}
    assert results[0] is not CANDIDATES[1]
    scores = [result["rerank_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] == 0.0, "an empty text ranks last"


def test_top_k_and_score_field(service):
    results = service.rerank_results(SEARCH, [{"body": c["content"], "id": c["id"]} for c in CANDIDATES], "body", 2)
    assert ids(results) == [2, 4]


def test_candidates_without_the_field_rank_last(service):
    candidates = [{"id": 1}, {"content": None, "id": 2}, {"content": 12345, "id": 3}, *CANDIDATES[1:2]]
    results = service.rerank_results(SEARCH, [{**c, "id": i} for i, c in enumerate(candidates)])
    assert ids(results) == [3, 2, 0, 1]
    assert [result["rerank_score"] for result in results[2:]] == [0.0, 0.0]


def test_candidates_beyond_the_limit_follow_in_their_order(tiny_onnx):
    candidates = [{"content": "the cat", "id": i} for i in range(130)]
    candidates[40]["content"] = candidates[120]["content"] = "ruby does work"
    candidates[110]["content"] = " "
    with RerankerService(reranker_model=tiny_onnx) as service:
        results = service.rerank_results(SEARCH, candidates)
    assert ids(results)[0] == 40
    assert sorted(ids(results)) == list(range(130))
    assert ids(results)[100:] == [i for i in range(100, 130) if i != 110] + [110]
    assert [r["rerank_score"] for r in results[100:]] == [None] * 29 + [0.0]


def test_a_failing_model_gives_the_original_order_and_no_scores(tiny_onnx):
    model = Model.load(tiny_onnx)
    model.close()
    service = RerankerService(reranker_model=model)
    candidates = [{**candidate, "score": i} for i, candidate in enumerate(CANDIDATES)]
    results = service.rerank_results(SEARCH, candidates, top_k=3)
    assert ids(results) == [1, 2, 3]
    assert [result["rerank_score"] for result in results] == [None, None, 0.0]
    statistics = service.get_statistics()
    assert statistics["total_degraded"] == 1
    assert "overlap" in statistics["last_error"]


def test_no_candidates(service):
    assert service.rerank_results(SEARCH, []) == []


def test_errors_name_the_field(service):
    with pytest.raises(InputError) as error:
        service.rerank_results(SEARCH, [{"content": "a"}, "b"])
    assert error.value.field == "candidates.1"
    with pytest.raises(InputError) as error:
        service.rerank_results(" ", CANDIDATES)
    assert error.value.field == "query"
    with pytest.raises(InputError) as error:
        service.rerank_results(SEARCH, CANDIDATES, top_k=0)
    assert error.value.field == "top_k"
    with pytest.raises(InputError) as error:
        RerankerService(max_candidates=0)
    assert error.value.field == "max_candidates"


def test_concurrent_calls_agree(tiny_onnx):
    async def run():
        with RerankerService(reranker_model=tiny_onnx) as service:
            calls = [asyncio.to_thread(service.rerank_results, SEARCH, CANDIDATES) for _ in range(100)]
            calls += [service.arerank_results(SEARCH, CANDIDATES) for _ in range(100)]
            return await asyncio.gather(*calls), service.get_statistics(), service._rerankers[None].model.loads

    results, statistics, loads = asyncio.run(run())
    assert len(results) == 200
    assert all(result == results[0] for result in results)
    assert ids(results[0]) == [2, 4, 1, 3]
    assert loads == 1
    assert statistics["total_reranks"] == 200
    assert statistics["total_candidates"] == 800
    assert statistics["total_scored"] == 600
    assert statistics["total_degraded"] == 0
    assert statistics["average_time_per_rerank"] > 0


def test_loading_and_scoring_do_not_block_the_event_loop(tiny_onnx):
    real = Model.load(tiny_onnx)

    class Slow:
        manifest = real.manifest

        def score(self, *arguments, **options):
            time.sleep(0.5)
            return real.score(*arguments, **options)

        def close(self):
            real.close()

    async def run():
        longest = 0.0
        with RerankerService(reranker_model=Slow()) as service:
            task = asyncio.ensure_future(service.arerank_results(SEARCH, CANDIDATES))
            while not task.done():
                started = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - started)
            return longest, task.result()

    longest, results = asyncio.run(run())
    assert longest < 0.3
    assert ids(results) == [2, 4, 1, 3]


def test_the_model_is_loaded_once_and_can_be_unloaded(tiny_onnx):
    service = RerankerService(reranker_model=tiny_onnx)
    assert not service.get_statistics()["loaded"]
    service.warmup()
    assert service.get_statistics()["loaded"]
    service.clear_cache()
    assert not service.get_statistics()["loaded"]
    assert ids(service.rerank_results(SEARCH, CANDIDATES)) == [2, 4, 1, 3]
    service.cleanup()
    service.cleanup()
    assert ids(service.rerank_results(SEARCH, CANDIDATES)) == [1, 2, 3, 4]
    assert ids(asyncio.run(service.arerank_results(SEARCH, CANDIDATES))) == [1, 2, 3, 4]


def test_an_idle_service_unloads_its_model(tiny_onnx):
    service = RerankerService(reranker_model=tiny_onnx, idle_seconds=0.1)
    service.warmup()
    until = time.monotonic() + 5
    while service.get_statistics()["loaded"] and time.monotonic() < until:
        time.sleep(0.02)
    assert not service.get_statistics()["loaded"]


def test_warmup_loads_the_model_or_raises(tmp_path, tiny_onnx):
    with RerankerService(reranker_model=tiny_onnx) as service:
        asyncio.run(service.awarmup())
        assert service.get_statistics()["loaded"]
    with pytest.raises(ScorerError, match="nowhere"):
        RerankerService(reranker_model=tmp_path / "nowhere").warmup()


def test_the_bundled_model_is_the_default():
    with RerankerService() as service:
        assert service.get_statistics()["reranker_model"] == "mini"


def test_scores_equal_those_of_the_reranker_service_project(tmp_path):
    """A Qwen3 language model with the prompt, the probabilities and the per-call instruction of that project."""
    folder = tiny_models.qwen_causal(tmp_path / "qwen")
    candidates = [{"content": text} for text in TEXTS]
    profile = SimpleNamespace(cpu_only=True, vector_enabled=True)
    with RerankerService(profile, folder, probe=False) as service:
        for instruction in (None, "find pets"):
            given = {} if instruction is None else {"instruction": instruction}
            expected = reference_scores(folder, TEXTS, **given)
            results = service.rerank_results(QUERY, candidates, instruction=instruction)
            scores = {result["content"]: result["rerank_score"] for result in results}
            assert [scores[text] for text in TEXTS] == pytest.approx(expected, abs=1e-4)
            assert [r["rerank_score"] for r in results] == sorted(scores.values(), reverse=True)


def test_adapters_are_chosen_per_call(tmp_path):
    base = tiny_models.qwen_classifier(tmp_path / "base")
    folders = {name: tiny_models.adapter(tmp_path / name, base, seed) for seed, name in enumerate(("legal", "travel"))}
    candidates = [{"content": text} for text in TEXTS]
    with RerankerService(reranker_model=folders["legal"], adapters=folders, probe=False, device="cpu") as service:
        orders = {
            name: [c["content"] for c in service.rerank_results(QUERY, candidates, adapter=name)]
            for name in (None, *folders)
        }
        assert orders[None] == orders["legal"] != orders["travel"]
        with pytest.raises(InputError, match="legal, travel") as error:
            service.rerank_results(QUERY, candidates, adapter="medical")
        assert (error.value.field, error.value.code) == ("adapter", "unknown")


def test_a_failover_chain_can_be_the_model(tiny_onnx):
    with serving(always="500") as server:
        chain = Failover([Model.load(f"tei:{server.url}", retries=0), Model.load(tiny_onnx)])
        assert ids(RerankerService(reranker_model=chain).rerank_results(SEARCH, CANDIDATES)) == [2, 4, 1, 3]


def test_a_passed_deadline_returns_the_candidates_in_their_order(tiny_onnx):
    gate = threading.Event()
    real = Model.load(tiny_onnx)

    class Stuck:
        manifest = real.manifest

        def score(self, *arguments, **options):
            gate.wait(5)
            raise ScorerError("stuck: gave up")

        def close(self):
            real.close()

    service = RerankerService(reranker_model=Failover([Stuck()]), deadline_ms=100)
    started = time.monotonic()
    results = service.rerank_results(SEARCH, CANDIDATES)
    gate.set()
    assert time.monotonic() - started < 2
    assert ids(results) == [1, 2, 3, 4]


def test_hub_ids_are_accepted_without_a_prefix(tiny_onnx, monkeypatch):
    downloads = []
    monkeypatch.setattr(resolve, "_download", lambda name, hub_id: (downloads.append(hub_id), tiny_onnx)[1])
    with RerankerService(reranker_model="Qwen/Qwen3-Reranker-0.6B") as service:
        assert ids(service.rerank_results(SEARCH, CANDIDATES)) == [2, 4, 1, 3]
    assert set(downloads) == {"Qwen/Qwen3-Reranker-0.6B"}


def test_the_profile_determines_where_a_model_runs():
    mine = HardwareProfile(4, device="cuda", dtype="float16", threads=4)
    assert _hardware(mine, "yes-no") is mine
    assert _hardware(SimpleNamespace(cpu_only=True, vector_enabled=True), "yes-no").device == "cpu"
    assert _hardware(None, "onnx").device == "cpu"
