"""Running a benchmark: figures, cache, interruption."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from mnemorank import InputError
from mnemorank.data.benchmarks import loaders
from mnemorank.evaluation.baselines import Answer
from mnemorank.evaluation.benchmark import evaluate, read_ahead
from mnemorank.evaluation.summary import summarise
from mnemorank.evaluation.systems import contestant


class Counting:
    """Ranks by a fixed rule, and counts how often it is asked."""

    def __init__(self, name="counting", fingerprint="counting-1", stop_after=None):
        self.name, self.fingerprint, self.stop_after = name, fingerprint, stop_after
        self.asked = []

    def answer(self, question):
        if self.stop_after is not None and len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        self.asked.append(question.key)
        scores = np.array([float(len(memory.text)) for memory in question.memories])
        return Answer(scores, relevance=scores / 100, abstained=question.key == "none")


def run(path, *contestants, **options):
    return evaluate(loaders["lists"], path, contestants, **options)


def test_figures_of_a_small_benchmark(lists_file):
    summary = summarise(run(lists_file, contestant("bm25"), contestant("random")))
    record = summary.to_json()
    assert (record["queries"], record["ranked_queries"], record["candidates_mean"]) == (5, 4, 5.0)
    assert set(record["models"]) == {"bm25", "random"}
    assert record["models"]["bm25"]["hit@1"] == 1.0
    assert record["models"]["bm25"]["ece"] is None
    assert record["models"]["bm25"]["pairs"] == 25
    assert set(record["models"]["bm25"]["by_kind"]) == {"work", "health", "home", "travel"}
    assert record["comparisons"]["random"]["map"]["losses"] == 0
    assert record["pool_recall"] == 1.0


def test_calibration_and_abstention_of_what_gives_relevance(lists_file):
    record = summarise(run(lists_file, Counting())).to_json()["models"]["counting"]
    assert record["abstention_f1"] == 1.0
    assert 0 < record["ece"] < 1
    assert sum(b["count"] for b in record["reliability"]) == 25


def test_a_question_without_evidence_is_not_unanswerable(lists_file):
    unjudged = {"query": "who was it?", "candidates": [{"text": "somebody", "label": 0}]}
    lists_file.write_text(f"{lists_file.read_text()}\n{json.dumps(unjudged)}")
    record = summarise(run(lists_file, contestant("bm25"))).to_json()
    assert (record["queries"], record["ranked_queries"], record["unanswerable_queries"]) == (6, 4, 1)


def test_a_pool_without_texts_has_no_relevance(tmp_path, tiny_onnx):
    """It counts as 0 beside what was scored: the area under the curve is that of the others."""
    answered = {"query": "ruby", "candidates": [{"text": "ruby", "label": 1}, {"text": "the cat", "label": 0}]}
    blank = {"query": "who", "answerable": False, "candidates": [{"text": " ", "label": 0}, {"text": "", "label": 0}]}
    path = tmp_path / "l.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (answered, blank)))
    for model_only in (False, True):
        (record,) = summarise(run(path, contestant(str(tiny_onnx), model_only=model_only))).to_json()["models"].values()
        assert record["abstention_auc"] == 1.0


def test_added_and_lost_against_the_first_stage(tmp_path):
    """The first stage has the right one in its top 5, the longest text is another: it falls out."""
    path = tmp_path / "l.jsonl"
    texts = ["x", *(f"{'long ' * i}text" for i in range(1, 7))]
    candidates = ", ".join(
        f'{{"text": "{text}", "label": {int(text == "x")}, "score": {int(text == "x")}}}' for text in texts
    )
    path.write_text(f'{{"query": "q", "candidates": [{candidates}]}}')
    (figures,) = summarise(run(path, Counting())).figures.values()
    assert (figures.exchange.added, figures.exchange.lost, figures.exchange.net) == (0, 1, -1)


def test_answers_are_kept_and_used_again(lists_file, tmp_path):
    first, second = Counting(), Counting()
    before = run(lists_file, first, cache=tmp_path / "cache")
    after = run(lists_file, second, cache=tmp_path / "cache")
    assert len(first.asked) == 5
    assert second.asked == []
    figures = [summarise(one).to_json()["models"] for one in (before, after)]
    for one in figures:
        one["counting"].pop("seconds")
        one["counting"].pop("pairs_per_second")
    assert figures[0] == figures[1]


def test_questions_of_one_id_keep_their_own_answers(lists_file, tmp_path):
    path = tmp_path / "mixed.jsonl"
    path.write_text(
        "".join(json.dumps({**json.loads(line), "id": "0"}) + "\n" for line in lists_file.read_text().splitlines())
    )
    first, again = (run(path, Counting(), cache=tmp_path / "cache").outcomes["counting"] for _ in range(2))
    assert len({outcome.ranking for outcome in first}) > 1
    assert [outcome.ranking for outcome in again] == [outcome.ranking for outcome in first]


def test_another_contestant_or_dataset_is_not_mixed_up(lists_file, tmp_path):
    run(lists_file, Counting(), cache=tmp_path / "cache")
    other = Counting(fingerprint="counting-2")
    run(lists_file, other, cache=tmp_path / "cache")
    assert len(other.asked) == 5
    lists_file.write_text(lists_file.read_text().replace("aurora", "zenith"))
    changed = Counting()
    run(lists_file, changed, cache=tmp_path / "cache")
    assert len(changed.asked) == 5
    unnamed = Counting(fingerprint="")
    run(lists_file, unnamed, cache=tmp_path / "cache")
    run(lists_file, unnamed, cache=tmp_path / "cache")
    assert len(unnamed.asked) == 10


def test_resumes_after_an_interruption_in_the_middle_of_a_line(lists_file, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(lists_file, Counting(stop_after=3), cache=tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(kept.read_bytes()[:-20])
    again = Counting()
    whole = run(lists_file, again, cache=tmp_path / "cache")
    assert again.asked == ["q2", "q3", "none"]
    assert len(whole.asked) == 5
    last = Counting()
    run(lists_file, last, cache=tmp_path / "cache")
    assert last.asked == []


def test_contestants_do_not_see_the_order_of_the_file(lists_file):
    """The file lists the right memory first; a contestant that keeps the order must gain nothing by it."""

    class Keeps(Counting):
        def answer(self, question):
            return Answer(-np.arange(len(question.memories), dtype=float))

    values = summarise(run(lists_file, Keeps())).figures["counting"]
    assert values.mean("hit@1") < 1


def test_limit_and_names(lists_file):
    evaluation = run(lists_file, Counting(), Counting(), limit=2)
    assert list(evaluation.outcomes) == ["counting", "counting (2)"]
    assert len(evaluation.asked) == 2


def test_an_empty_file_is_an_error(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    with pytest.raises(InputError, match="holds no questions"):
        run(path, Counting())


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
