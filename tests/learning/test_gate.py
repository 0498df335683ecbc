import numpy as np
import pytest

from mnemorank import InputError, Memory, Reranker
from mnemorank.data.examples import Candidate, Example
from mnemorank.learning.gate import add_distractors, decide, load_guard_sets
from mnemorank.learning.measurement import Measurement, SetResult, measure_models
from mnemorank.learning.settings import GateSettings, LearningSettings
from mnemorank.memory.moment import Moment

METRICS = ("map", "mrr@10", "ndcg@10", "hit@1")


def set_result(values) -> SetResult:
    return SetResult({metric: np.asarray(values, dtype=float) for metric in METRICS})


def measurement(feedback, general=0.9, dated=0.9, ece=0.05, seconds=1.0, size=100) -> Measurement:
    sets = {"feedback": set_result(feedback), "general": set_result([general] * 50), "dated": set_result([dated] * 50)}
    return Measurement(sets, ece, seconds, size)


BASE = np.tile([0.25, 0.5, 1.0, 0.5], 25)
BETTER = np.tile([0.5, 1.0, 1.0, 0.5], 25)


def failed_checks(decision) -> list[str]:
    return [check.name for check in decision.checks if not check.passed]


def test_a_clearly_better_candidate_is_promoted():
    decision = decide(measurement(BASE), measurement(BETTER))
    assert decision.promote
    assert failed_checks(decision) == []
    assert len(decision.reasons) == len(decision.checks)
    gain = next(check for check in decision.checks if check.name == "gain")
    assert 0 < gain.low < gain.candidate - gain.current < gain.high


def test_an_equal_candidate_is_not_promoted():
    assert failed_checks(decide(measurement(BASE), measurement(BASE))) == ["gain"]


def test_a_significantly_worse_candidate_is_not_promoted():
    assert failed_checks(decide(measurement(BETTER), measurement(BASE))) == ["gain"]


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
def test_a_loss_beyond_its_tolerance_prevents_a_promotion(fields, guard):
    decision = decide(measurement(BASE), measurement(BETTER, **fields))
    assert not decision.promote
    assert failed_checks(decision) == [guard]
    assert decision.reasons == [check.reason for check in decision.checks if check.name == guard]


def test_losses_within_their_tolerances_are_allowed():
    candidate = measurement(BETTER, general=0.891, dated=0.881, ece=0.09, seconds=1.4, size=140)
    assert decide(measurement(BASE), candidate).promote


@pytest.mark.parametrize(
    ("fields", "guard"), [({"general": 0.885}, "general"), ({"dated": 0.875}, "dated"), ({"ece": 0.12}, "ece")]
)
def test_small_losses_do_not_add_up_over_promotions(fields, guard):
    first, current = measurement(BASE), measurement(BASE, general=0.892, dated=0.885, ece=0.08)
    candidate = measurement(BETTER, **{"general": 0.895, "dated": 0.89, "ece": 0.08, **fields})
    assert decide(current, candidate).promote
    assert failed_checks(decide(current, candidate, baseline=first)) == [f"{guard}_vs_baseline"]
    assert decide(current, measurement(BETTER, general=0.891, dated=0.881, ece=0.09), baseline=first).promote


def test_too_few_held_out_queries_prevent_a_promotion():
    assert failed_checks(decide(measurement(np.zeros(29)), measurement(np.ones(29)))) == ["queries"]
    assert decide(measurement([]), measurement([])).promote is False
    assert decide(measurement(np.zeros(30)), measurement(np.ones(30))).promote


def test_a_gain_below_the_minimum_prevents_a_promotion():
    assert failed_checks(decide(measurement(BASE), measurement(BETTER), GateSettings(min_gain=0.5))) == ["gain"]


def test_every_attempt_is_tested_more_strictly():
    settings = GateSettings()
    assert sum(settings.alpha_for(attempt) for attempt in range(1, 10_000)) < settings.alpha
    wins = np.zeros(40)
    wins[:8] = 0.5  # p = 2/256: significant at the first attempt, but not at the third
    assert decide(measurement(np.zeros(40)), measurement(wins), attempt=1).promote
    assert not decide(measurement(np.zeros(40)), measurement(wins), attempt=3).promote


def test_a_clear_gain_passes_after_many_attempts():
    decision = decide(measurement(BASE), measurement(BETTER), attempt=60)
    assert decision.promote, decision.reasons
    assert not decide(measurement(BASE), measurement(BASE), attempt=60).promote


def test_chance_passes_at_most_as_often_as_alpha_allows():
    rng = np.random.default_rng(7)
    promoted = 0
    for _ in range(400):
        old, new = rng.random(60), rng.random(60)
        promoted += decide(measurement(old), measurement(new), attempt=1).promote
    assert promoted / 400 <= 0.025  # the first attempt has alpha/2, and only half of that for gains


@pytest.mark.parametrize("table", [{"metric": "recall"}, {"alpha": 0.0}, {"alpha": 1.0}])
def test_invalid_gate_settings(table):
    with pytest.raises(InputError) as error:
        LearningSettings.from_table({"gate": table})
    assert error.value.field == f"gate.{next(iter(table))}"


def make_example(query: str, positive: str, *negatives: str) -> Example:
    candidates = (Candidate(Memory(positive), 1.0), *(Candidate(Memory(text), 0.0) for text in negatives))
    return Example(query, query, candidates, group=query)


def test_models_are_measured_with_the_full_pipeline(tiny_onnx):
    sets = {
        "feedback": [
            make_example("ruby work", "ruby work now", "cat", "dog"),
            make_example("cat", "dog", "cat", "trip"),
        ],
        "dated": [make_example("python", "python rust", "go")],
    }
    calls = []
    first, second = measure_models([tiny_onnx, tiny_onnx], sets, lambda: calls.append(1))
    assert list(first.sets["feedback"].values("map")) == list(second.sets["feedback"].values("map"))
    assert first.sets["feedback"].values("hit@1").tolist() == [1.0, 0.0]
    assert first.sets["dated"].mean("map") == 1.0
    assert first.seconds_per_pair > 0
    assert first.size_bytes == second.size_bytes > 1000
    assert 0 < first.ece < 1
    assert len(calls) == 6
    assert first.summary()["sets"]["feedback"]["queries"] == 2


@pytest.mark.parametrize("query_time", [None, Moment(2019, 5)])
def test_now_is_the_query_time_or_the_newest_date_of_the_memories(tiny_onnx, monkeypatch, query_time):
    times = []
    rerank = Reranker.rerank

    def record_now(self, *arguments, now, **options):
        times.append(now)
        return rerank(self, *arguments, now=now, **options)

    monkeypatch.setattr(Reranker, "rerank", record_now)
    memories = Memory("ruby", occurred_start="2021-03"), Memory("cat", occurred_start="2020")
    candidates = (Candidate(memories[0], 1.0), Candidate(memories[1], 0.0))
    measure_models([tiny_onnx], {"feedback": [Example("1", "ruby", candidates, query_time)]})
    assert times == [query_time or Moment(2021, 3)]


def test_a_query_that_is_too_long_is_measured_by_its_end(tiny_onnx):
    example = make_example("where is the cat " * 400 + "ruby", "ruby", "dog")
    (measured,) = measure_models([tiny_onnx], {"feedback": [example]})
    assert measured.sets["feedback"].mean("map") == 1.0
    assert 0 < measured.seconds_per_pair < float("inf")


def test_guard_sets_are_bundled():
    sets = load_guard_sets()
    assert len(sets["dated"]) == len(sets["general"]) > 100
    assert {len(example.candidates) for example in sets["general"]} == {16}
    assert sets["general"] == load_guard_sets()["general"]


def test_distractors_are_irrelevant_memories_of_other_examples():
    examples = [make_example("a", "right", "wrong"), make_example("b", "other", "third")]
    extended = add_distractors(examples, count=1)[0]
    assert [candidate.label for candidate in extended.candidates] == [1.0, 0.0, 0.0]
