import numpy as np
import pytest

from mnemorank import InputError, Memory, Reranker
from mnemorank.data.examples import Candidate, Example
from mnemorank.learning.gate import GateRules, among_others, decide, guard_sets
from mnemorank.learning.measurement import Measurement, SetResult, measure_models
from mnemorank.memory.moment import Moment

METRICS = ("map", "mrr@10", "ndcg@10", "hit@1")


def result(values) -> SetResult:
    return SetResult({metric: np.asarray(values, dtype=float) for metric in METRICS})


def measured(feedback, general=0.9, dated=0.9, ece=0.05, seconds=1.0, size=100) -> Measurement:
    sets = {"feedback": result(feedback), "general": result([general] * 50), "dated": result([dated] * 50)}
    return Measurement(sets, ece, seconds, size)


BASE = np.tile([0.25, 0.5, 1.0, 0.5], 25)
BETTER = np.tile([0.5, 1.0, 1.0, 0.5], 25)


def failed(decision) -> list[str]:
    return [check.name for check in decision.checks if not check.passed]


def test_a_clearly_better_candidate_is_promoted():
    decision = decide(measured(BASE), measured(BETTER))
    assert decision.promote
    assert failed(decision) == []
    assert "significantly better" in " ".join(decision.reasons)


def test_the_same_model_is_not():
    assert failed(decide(measured(BASE), measured(BASE))) == ["gain"]


def test_a_worse_model_is_not_however_significant():
    assert failed(decide(measured(BETTER), measured(BASE))) == ["gain"]


@pytest.mark.parametrize(
    ("fields", "guard"),
    [
        ({"general": 0.88}, "general"),
        ({"dated": 0.87}, "dated"),
        ({"ece": 0.11}, "ece"),
        ({"seconds": 1.6}, "latency"),
        ({"size": 160}, "size"),
    ],
)
def test_a_guard_beyond_its_tolerance_stops_a_better_candidate(fields, guard):
    decision = decide(measured(BASE), measured(BETTER, **fields))
    assert not decision.promote
    assert failed(decision) == [guard]
    assert guard in decision.reasons[0]


def test_guards_within_their_tolerance_do_not():
    near = measured(BETTER, general=0.891, dated=0.881, ece=0.09, seconds=1.4, size=140)
    assert decide(measured(BASE), near).promote


@pytest.mark.parametrize(
    ("fields", "guard"), [({"general": 0.885}, "general"), ({"dated": 0.875}, "dated"), ({"ece": 0.12}, "ece")]
)
def test_small_losses_do_not_add_up_over_promotions(fields, guard):
    first, current = measured(BASE), measured(BASE, general=0.892, dated=0.885, ece=0.08)
    candidate = measured(BETTER, **{"general": 0.895, "dated": 0.89, "ece": 0.08, **fields})
    assert decide(current, candidate).promote
    decision = decide(current, candidate, floor=first)
    assert failed(decision) == [f"{guard} since the first version"]
    assert f"{guard} since the first version" in decision.reasons[0]
    assert decide(current, measured(BETTER, general=0.891, dated=0.881, ece=0.09), floor=first).promote


def test_too_few_held_out_queries_decide_nothing():
    decision = decide(measured(np.zeros(29)), measured(np.ones(29)))
    assert failed(decision) == ["queries"]
    assert decide(measured([]), measured([])).promote is False
    assert decide(measured(np.zeros(30)), measured(np.ones(30))).promote


def test_a_gain_too_small_is_not_enough():
    assert failed(decide(measured(BASE), measured(BETTER), GateRules(least_gain=0.5))) == ["gain"]


def test_every_attempt_is_tested_more_strictly():
    rules = GateRules()
    assert sum(rules.alpha_at(attempt) for attempt in range(1, 10_000)) < rules.alpha
    wins = np.zeros(40)
    wins[:8] = 0.5  # p = 2/256: enough at the first attempt, not at the third
    assert decide(measured(np.zeros(40)), measured(wins), attempt=1).promote
    assert not decide(measured(np.zeros(40)), measured(wins), attempt=3).promote


def test_a_clear_gain_passes_however_many_were_tried_before():
    decision = decide(measured(BASE), measured(BETTER), attempt=60)
    assert decision.promote, decision.reasons
    refused = decide(measured(BASE), measured(BASE), attempt=60)
    assert "not shown to be better at p < 1.37e-05" in refused.reasons[0]


def test_chance_passes_at_most_as_often_as_alpha_says():
    rng = np.random.default_rng(7)
    passed = 0
    for _ in range(400):
        old, new = rng.random(60), rng.random(60)
        passed += decide(measured(old), measured(new), attempt=1).promote
    assert passed / 400 <= 0.025  # alpha/2 is spent on the first attempt, and only half of it on gains


@pytest.mark.parametrize("fields", [{"metric": "recall"}, {"alpha": 0.0}, {"alpha": 1.0}])
def test_bad_rules_are_refused(fields):
    with pytest.raises(InputError, match=r"gate\."):
        GateRules(**fields)


def example(query: str, right: str, *wrong: str) -> Example:
    candidates = (Candidate(Memory(right), 1.0), *(Candidate(Memory(text), 0.0) for text in wrong))
    return Example(query, query, candidates, group=query)


def test_models_are_measured_as_users_run_them(tiny_onnx):
    sets = {
        "feedback": [example("ruby work", "ruby work now", "cat", "dog"), example("cat", "dog", "cat", "trip")],
        "dated": [example("python", "python rust", "go")],
    }
    ticks = []
    first, second = measure_models([tiny_onnx, tiny_onnx], sets, lambda: ticks.append(1))
    assert list(first.sets["feedback"].values("map")) == list(second.sets["feedback"].values("map"))
    assert first.sets["feedback"].values("hit@1").tolist() == [1.0, 0.0]
    assert first.sets["dated"].mean("map") == 1.0
    assert first.seconds_per_pair > 0
    assert first.bytes == second.bytes > 1000
    assert 0 < first.ece < 1
    assert len(ticks) == 6
    assert first.summary()["sets"]["feedback"]["queries"] == 2


@pytest.mark.parametrize("asked", [None, Moment(2019, 5)])
def test_a_question_is_asked_at_its_own_time_or_at_the_newest_of_its_memories(tiny_onnx, monkeypatch, asked):
    times = []
    rerank = Reranker.rerank

    def note_time(self, *arguments, now, **options):
        times.append(now)
        return rerank(self, *arguments, now=now, **options)

    monkeypatch.setattr(Reranker, "rerank", note_time)
    memories = Memory("ruby", occurred_start="2021-03"), Memory("cat", occurred_start="2020")
    candidates = (Candidate(memories[0], 1.0), Candidate(memories[1], 0.0))
    measure_models([tiny_onnx], {"feedback": [Example("1", "ruby", candidates, asked)]})
    assert times == [asked or Moment(2021, 3)]


def test_a_question_too_long_for_the_model_is_measured_by_its_end(tiny_onnx):
    long = example("where is the cat " * 400 + "ruby", "ruby", "dog")
    (found,) = measure_models([tiny_onnx], {"feedback": [long]})
    assert found.sets["feedback"].mean("map") == 1.0
    assert 0 < found.seconds_per_pair < float("inf")


def test_our_own_guard_sets_are_there_without_any_setting():
    sets = guard_sets()
    assert len(sets["dated"]) == len(sets["general"]) > 100
    assert {len(one.candidates) for one in sets["general"]} == {16}
    assert sets["general"] == guard_sets()["general"]
    one = among_others([example("a", "right", "wrong"), example("b", "other", "third")], most=1)[0]
    assert [candidate.label for candidate in one.candidates] == [1.0, 0.0, 0.0]
