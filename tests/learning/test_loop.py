"""How the loop handles versions: gate, baseline, attempts, pruning."""

from pathlib import Path

import numpy as np
import pytest

from mnemorank import Memory
from mnemorank.data.examples import Candidate, Example
from mnemorank.errors import ArtifactError, ConflictError, NotFoundError
from mnemorank.learning import loop as loop_module
from mnemorank.learning import worker
from mnemorank.learning.loop import Loop
from mnemorank.learning.measurement import Measurement, SetResult
from mnemorank.learning.mining.miner import HELD_OUT, TRAIN, MinedExample
from mnemorank.learning.settings import LearningSettings, TrainingSettings
from mnemorank.learning.store import examples

METRICS = ("map", "mrr@10", "ndcg@10", "hit@1")


@pytest.fixture
def loop(tmp_path, tiny_onnx):
    settings = LearningSettings(keep=2, training=TrainingSettings(model=str(tiny_onnx), nice=0))
    with Loop(tmp_path / "loop", settings) as loop:
        loop.current()
        yield loop


def add_versions(loop: Loop, count: int = 1) -> str:
    """Add versions; return the name of the last one."""
    for _ in range(count):
        version = loop.versions.add(Path(loop.settings.training.model))
    return version.name


def version_names(loop: Loop) -> list[str]:
    return [version.name for version in loop.versions.all()]


def create_run(loop: Loop, *, promote: bool, base_version: str):
    fields = {"who": "", "promote": promote, "base_version": base_version, "examples": 1}
    return loop.runs.create(**fields, settings=loop.settings.to_table())


def test_the_model_of_the_settings_becomes_the_first_version(loop):
    assert loop.current().name == "0001"
    assert [entry["action"] for entry in loop.versions.history.entries()] == ["add", "promote"]


def test_a_missing_current_link_is_not_replaced_by_the_first_version(loop):
    loop.versions.current_path.unlink()
    with pytest.raises(ArtifactError, match="rollback VERSION"):
        loop.current()
    assert version_names(loop) == ["0001"]


def test_a_first_version_that_was_added_but_not_promoted_is_promoted(tmp_path, tiny_onnx):
    settings = LearningSettings(training=TrainingSettings(model=str(tiny_onnx)))
    with Loop(tmp_path, settings) as loop:
        loop.versions.add(tiny_onnx)
        assert loop.current().name == "0001"
        assert version_names(loop) == ["0001"]


@pytest.mark.parametrize("force", [False, True])
def test_an_unknown_version_is_not_found(loop, force):
    with pytest.raises(NotFoundError) as error:
        loop.promote("9999", force=force)
    assert error.value.field == "version"


def test_a_promotion_removes_old_versions(loop):
    loop.promote(add_versions(loop), force=True)
    loop.promote(add_versions(loop), force=True)
    loop.settings = loop.settings.model_copy(update={"keep": 1})
    loop.promote(add_versions(loop), force=True)
    assert version_names(loop) == ["0003", "0004"], "the previous version, and the current one, which is the baseline"


def test_the_end_of_a_run_removes_old_versions(loop, monkeypatch):
    add_versions(loop, 3)
    run = create_run(loop, promote=False, base_version="0001")
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker._Worker, "_run_stages", lambda self: ({"promote": False}, None))
    assert worker._Worker(loop, run, lambda _: None).work() == 0
    assert version_names(loop) == ["0001", "0004"], "the newest candidate may still be promoted"


def test_the_baseline_is_the_first_version_or_the_last_forced_one(loop):
    for _ in range(3):
        loop.versions.promote(add_versions(loop))
    loop.prune()
    assert version_names(loop) == ["0001", "0003", "0004"]
    assert loop.versions.baseline().name == "0001"
    loop.promote(add_versions(loop), force=True)
    loop.versions.promote(add_versions(loop))
    assert loop.versions.baseline().name == "0005"


def measurement(feedback: float, general: float) -> Measurement:
    sets = {"feedback": feedback, "general": general, "dated": 0.9}
    results = {name: SetResult({metric: np.full(50, value) for metric in METRICS}) for name, value in sets.items()}
    return Measurement(results, 0, 1, 1)


def test_a_candidate_is_also_compared_with_the_baseline(loop, monkeypatch):
    loop.versions.promote(add_versions(loop))
    add_versions(loop)
    measured = {"0001": measurement(0.1, 0.9), "0002": measurement(0.2, 0.895), "0003": measurement(0.3, 0.888)}
    monkeypatch.setattr(loop_module, "measure_models", lambda paths, _: [measured[path.name] for path in paths])
    decision = loop.evaluate("0003")
    assert [check.name for check in decision.checks if not check.passed] == ["general_vs_baseline"]
    entry = loop.versions.history.entries()[-1]
    assert entry["why"] == "; ".join(decision.reasons)
    assert entry["facts"]["baseline"]["version"] == "0001"
    assert entry["facts"]["compared_with"] == "0002"


def test_the_current_version_is_not_compared_with_itself(loop):
    with pytest.raises(ConflictError) as error:
        loop.evaluate("0001")
    assert error.value.code == "current_version"


def test_a_rollback_does_not_restart_the_count_of_attempts(loop):
    history = loop.versions.history
    loop.versions.promote(add_versions(loop))
    history.append(action="evaluate", version="0009")
    loop.versions.rollback()
    history.append(action="evaluate", version="0009")
    assert loop._attempt() == 3
    loop.versions.promote("0002")
    assert loop._attempt() == 1


def record_pass(loop: Loop, name: str, compared_with: str) -> None:
    """Record that a version has passed the gate."""
    facts = {"promote": True, "attempt": 1, "checks": [], "compared_with": compared_with}
    loop.versions.history.append(action="evaluate", version=name, facts=facts)


def test_rolling_back_a_forced_version_restores_the_baseline(loop):
    forced = add_versions(loop)
    loop.promote(forced, force=True)
    assert loop.versions.baseline().name == forced
    loop.versions.rollback()
    assert loop.versions.baseline().name == "0001"
    for _ in range(3):
        name = add_versions(loop)
        record_pass(loop, name, loop.current().name)
        loop.promote(name)
    assert loop.versions.baseline().name == "0001"
    assert version_names(loop) == ["0001", "0004", "0005"], "the baseline is not removed"


def test_a_forced_version_that_returns_is_the_baseline_until_it_passes_the_gate(loop):
    forced = add_versions(loop)
    loop.promote(forced, force=True)
    loop.versions.rollback()
    loop.versions.rollback(forced)
    assert (loop.current().name, loop.versions.baseline().name) == (forced, forced)
    loop.versions.rollback()
    record_pass(loop, forced, "0001")
    loop.promote(forced)
    assert loop.versions.baseline().name == "0001"


def test_a_version_replaces_only_the_one_it_was_compared_with(loop, monkeypatch):
    first, second = add_versions(loop), add_versions(loop)
    record_pass(loop, first, "0001")
    record_pass(loop, second, "0001")
    with Loop(loop.root, loop.settings) as other:
        promote = other.versions.promote

        def promote_later(name: str, **fields):
            loop.promote(first)
            return promote(name, **fields)

        monkeypatch.setattr(other.versions, "promote", promote_later)
        with pytest.raises(ConflictError) as error:
            other.promote(second)
        assert error.value.code == "outdated"
        assert loop.current().name == first
        monkeypatch.setattr(other.versions, "promote", promote)
        assert other.promote(second, force=True).name == second


def test_a_rollback_during_an_evaluation_prevents_the_promotion(loop, monkeypatch):
    loop.versions.promote(add_versions(loop))
    candidate = add_versions(loop)
    run = create_run(loop, promote=True, base_version="0002")
    (loop.runs.folder(run.id) / "feedback.jsonl").write_text("{}\n")

    def run_stages(self):
        record_pass(loop, candidate, "0002")
        loop.versions.rollback(why="complaints")
        return {"promote": True}, loop.versions.get(candidate)

    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker._Worker, "_run_stages", run_stages)
    assert worker._Worker(loop, run, lambda _: None).work() == 0
    finished = loop.runs.get(run.id)
    assert (finished.state, finished.promoted) == ("done", False)
    assert finished.error.startswith("version: ")
    assert loop.current().name == "0001"
    assert not (loop.runs.folder(run.id) / "feedback.jsonl").exists()


def test_queries_that_a_golden_file_trains_on_are_not_evaluated(loop):
    def mined(example_id: str, query: str, split: str) -> MinedExample:
        candidates = (Candidate(Memory("a"), 1.0), Candidate(Memory("b"), 0.0))
        example = Example(example_id, query, candidates)
        return MinedExample(example, "default", split, {}, frozenset({("tenant", "default")}))

    held_out = [mined("feedback-1", "Where is Ruby?", HELD_OUT), mined("feedback-2", "Who is Ann?", HELD_OUT)]
    examples.replace_examples(loop.store.database, held_out, "feedback")
    examples.replace_examples(loop.store.database, [mined("golden-1", "where is ruby", TRAIN)], "golden")
    assert [example.id for example in loop.evaluation_sets()["feedback"]] == ["feedback-2"]
