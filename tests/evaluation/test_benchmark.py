"""Running a benchmark: figures, the result cache, interruption."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from mnemorank import InputError, Memory, Moment
from mnemorank.data.benchmarks import loaders
from mnemorank.evaluation.benchmark import excerpt, read_ahead, run_benchmark
from mnemorank.evaluation.protocol import Prediction
from mnemorank.evaluation.summary import summarize
from mnemorank.evaluation.systems import load_system


class Counting:
    """Ranks by the length of the text and records the questions."""

    def __init__(self, name="counting", fingerprint="counting-1", stop_after=None):
        self.name, self.fingerprint, self.stop_after = name, fingerprint, stop_after
        self.questions = []

    def rank(self, question):
        if self.stop_after is not None and len(self.questions) >= self.stop_after:
            raise KeyboardInterrupt
        self.questions.append(question.key)
        scores = np.array([float(len(memory.text)) for memory in question.memories])
        return Prediction(scores, relevance=scores / 100, abstained=question.key == "none")


def run(path, *systems, **options):
    return run_benchmark(loaders["lists"], path, systems, **options)


def test_figures_of_a_small_benchmark(lists_file):
    summary = summarize(run(lists_file, load_system("bm25"), load_system("random")))
    record = summary.to_json()
    assert (record["queries"], record["queries_with_relevant"], record["candidates_mean"]) == (5, 4, 5.0)
    assert set(record["models"]) == {"bm25", "random"}
    assert record["models"]["bm25"]["hit@1"] == 1.0
    assert record["models"]["bm25"]["ece"] is None
    assert record["models"]["bm25"]["pairs"] == 25
    assert set(record["models"]["bm25"]["by_kind"]) == {"work", "health", "home", "travel"}
    assert record["comparisons"]["random"]["map"]["losses"] == 0
    assert record["pool_recall"] == 1.0


def test_calibration_and_abstention(lists_file):
    record = summarize(run(lists_file, Counting())).to_json()["models"]["counting"]
    assert record["abstention"]["answerable_refused"] == 0
    assert record["abstention"]["unanswerable_refused"] == 1
    assert 0 <= record["abstention"]["auc"] <= 1
    assert record["abstention"]["f1"] == 1.0
    assert 0 < record["ece"] < 1
    assert sum(b["count"] for b in record["reliability"]) == 25


def test_a_question_without_relevant_memories_is_not_counted_as_unanswerable(lists_file):
    unjudged = {"query": "who was it?", "candidates": [{"text": "somebody", "label": 0}]}
    lists_file.write_text(f"{lists_file.read_text()}\n{json.dumps(unjudged)}")
    record = summarize(run(lists_file, load_system("bm25"))).to_json()
    assert (record["queries"], record["queries_with_relevant"], record["unanswerable_queries"]) == (6, 4, 1)


def test_a_pool_of_empty_texts_counts_as_irrelevant(tmp_path, tiny_onnx):
    answered = {"query": "ruby", "candidates": [{"text": "ruby", "label": 1}, {"text": "the cat", "label": 0}]}
    blank = {"query": "who", "answerable": False, "candidates": [{"text": " ", "label": 0}, {"text": "", "label": 0}]}
    path = tmp_path / "l.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (answered, blank)))
    for model_only in (False, True):
        (record,) = (
            summarize(run(path, load_system(str(tiny_onnx), model_only=model_only))).to_json()["models"].values()
        )
        assert record["abstention"]["auc"] == 1.0


def test_relevant_memories_lost_against_the_first_stage(tmp_path):
    """The first stage ranks the shortest text first; ranking by length loses it from the top 5."""
    path = tmp_path / "l.jsonl"
    texts = ["x", *(f"{'long ' * i}text" for i in range(1, 7))]
    candidates = ", ".join(
        f'{{"text": "{text}", "label": {int(text == "x")}, "score": {int(text == "x")}}}' for text in texts
    )
    path.write_text(f'{{"query": "q", "candidates": [{candidates}]}}')
    (system,) = summarize(run(path, Counting())).systems.values()
    assert (system.top_k_change.added, system.top_k_change.lost, system.top_k_change.net) == (0, 1, -1)


def test_predictions_are_cached(lists_file, tmp_path):
    first, second = Counting(), Counting()
    before = run(lists_file, first, cache=tmp_path / "cache")
    after = run(lists_file, second, cache=tmp_path / "cache")
    assert len(first.questions) == 5
    assert second.questions == []
    figures = [summarize(benchmark_run).to_json()["models"] for benchmark_run in (before, after)]
    for models in figures:
        models["counting"].pop("seconds")
        models["counting"].pop("pairs_per_second")
    assert figures[0] == figures[1]


def test_questions_with_the_same_id_are_cached_separately(lists_file, tmp_path):
    path = tmp_path / "mixed.jsonl"
    path.write_text(
        "".join(json.dumps({**json.loads(line), "id": "0"}) + "\n" for line in lists_file.read_text().splitlines())
    )
    first, second = (run(path, Counting(), cache=tmp_path / "cache").predictions["counting"] for _ in range(2))
    assert len({prediction.ranking for prediction in first}) > 1
    assert [prediction.ranking for prediction in second] == [prediction.ranking for prediction in first]


def test_the_cache_depends_on_system_and_dataset(lists_file, tmp_path):
    run(lists_file, Counting(), cache=tmp_path / "cache")
    other = Counting(fingerprint="counting-2")
    run(lists_file, other, cache=tmp_path / "cache")
    assert len(other.questions) == 5
    lists_file.write_text(lists_file.read_text().replace("aurora", "zenith"))
    changed = Counting()
    run(lists_file, changed, cache=tmp_path / "cache")
    assert len(changed.questions) == 5
    uncached = Counting(fingerprint="")
    run(lists_file, uncached, cache=tmp_path / "cache")
    run(lists_file, uncached, cache=tmp_path / "cache")
    assert len(uncached.questions) == 10


def test_resumes_after_an_interruption_in_the_middle_of_a_line(lists_file, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(lists_file, Counting(stop_after=3), cache=tmp_path / "cache")
    (cache_file,) = (tmp_path / "cache").iterdir()
    cache_file.write_bytes(cache_file.read_bytes()[:-20])
    resumed = Counting()
    complete = run(lists_file, resumed, cache=tmp_path / "cache")
    assert resumed.questions == ["q2", "q3", "none"]
    assert len(complete.questions) == 5
    last = Counting()
    run(lists_file, last, cache=tmp_path / "cache")
    assert last.questions == []


def test_systems_do_not_see_the_order_of_the_file(lists_file):
    """The file lists the relevant memory first; a system that keeps the order must not profit from it."""

    class KeepsOrder(Counting):
        def rank(self, question):
            return Prediction(-np.arange(len(question.memories), dtype=float))

    system = summarize(run(lists_file, KeepsOrder())).systems["counting"]
    assert system.mean("hit@1") < 1


def test_limit_and_names(lists_file):
    benchmark_run = run(lists_file, Counting(), Counting(), limit=2)
    assert list(benchmark_run.predictions) == ["counting", "counting (2)"]
    assert len(benchmark_run.questions) == 2


def test_an_empty_file_is_an_error(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    with pytest.raises(InputError, match=r"empty\.jsonl") as caught:
        run(path, Counting())
    assert caught.value.code == "empty"


def test_read_ahead_keeps_order_and_errors():
    def items():
        yield from range(30)
        raise InputError("line 31")

    seen = []
    with pytest.raises(InputError, match="line 31"):
        seen.extend(read_ahead(items()))
    assert seen == list(range(30))


def test_read_ahead_stops_with_its_caller():
    ahead = read_ahead(iter(range(10**9)))
    assert next(ahead) == 0
    ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "mnemorank-read-ahead"]


def test_a_short_excerpt_is_the_whole_text_with_its_dates():
    memory = Memory("Lives  in\nOslo", occurred_start=Moment(2021))
    assert excerpt("where", memory) == "[2021 – ongoing] Lives in Oslo"
    ended = Memory("Lived in Rome", occurred_start=Moment(2019), occurred_end=Moment(2021, 3))
    assert excerpt("where", ended) == "[2019 – 2021-03] Lived in Rome"
    assert excerpt("where", Memory("Plain")) == "Plain"


def test_the_excerpt_of_a_long_text_starts_at_its_best_sentence():
    filler = "Nothing to see in this sentence. " * 40
    memory = Memory(filler + "I graduated with a degree in law. " + filler)
    shown = excerpt("which degree did I graduate with", memory, length=320)
    assert shown.startswith("… I graduated with a degree in law.")
    assert len(shown) <= 322
