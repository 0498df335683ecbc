"""What the loop does with versions: the gate's floor, attempts, and collection."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mnemorank import InputError, Memory
from mnemorank.data.examples import Candidate, Example
from mnemorank.learning import loop as loop_module
from mnemorank.learning import worker
from mnemorank.learning.loop import Loop
from mnemorank.learning.measurement import Measurement, SetResult
from mnemorank.learning.mining.miner import HELD_OUT, TRAIN, MinedExample
from mnemorank.learning.settings import Settings, Training, settings_to_table
from mnemorank.learning.store import examples


@pytest.fixture
def loop(tmp_path, tiny_onnx):
    settings = Settings(keep=2, training=Training(model=str(tiny_onnx), nice=0))
    with Loop(tmp_path / "loop", settings) as opened:
        opened.current()
        yield opened


def add(loop: Loop, count: int = 1) -> str:
    for _ in range(count):
        version = loop.registry.add(Path(loop.settings.training.model))
    return version.name


def names(loop: Loop) -> list[str]:
    return [version.name for version in loop.registry.versions()]


@pytest.mark.parametrize("force", [False, True])
def test_a_version_that_does_not_exist_is_told_as_such(loop, force):
    with pytest.raises(InputError, match="no version '9999'"):
        loop.promote("9999", force=force)


def test_versions_beyond_keep_go_at_every_promotion(loop):
    loop.promote(add(loop), force=True)
    loop.promote(add(loop), force=True)
    loop.settings = replace(loop.settings, keep=1)
    loop.promote(add(loop), force=True)
    assert names(loop) == ["0003", "0004"], "current, which is the floor, and previous"


def test_versions_beyond_keep_go_at_the_end_of_every_training(loop, monkeypatch):
    add(loop, 3)
    fields = {"who": "", "promote": False, "base_version": "0001", "examples": 1}
    run = loop.runs.create(**fields, settings=settings_to_table(loop.settings))
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker._Worker, "_stages", lambda self: ({"promote": False}, None))
    assert worker._Worker(loop, run, lambda _: None).work() == 0
    assert names(loop) == ["0001", "0004"], "a candidate that somebody may promote stays"


def test_the_floor_is_the_first_version_or_the_last_by_force(loop):
    for _ in range(3):
        loop.registry.promote(add(loop))
    loop.collect()
    assert names(loop) == ["0001", "0003", "0004"]
    assert loop.registry.floor().name == "0001"
    loop.promote(add(loop), force=True)
    loop.registry.promote(add(loop))
    assert loop.registry.floor().name == "0005"


def measured(feedback: float, general: float) -> Measurement:
    sets = {"feedback": feedback, "general": general, "dated": 0.9}
    return Measurement(
        {name: SetResult({m: np.full(50, value) for m in METRICS}) for name, value in sets.items()}, 0, 1, 1
    )


METRICS = ("map", "mrr@10", "ndcg@10", "hit@1")


def test_a_candidate_is_also_held_to_the_first_version(loop, monkeypatch):
    loop.registry.promote(add(loop))
    add(loop)
    found = {"0001": measured(0.1, 0.9), "0002": measured(0.2, 0.895), "0003": measured(0.3, 0.888)}
    monkeypatch.setattr(loop_module, "measure_models", lambda paths, _: [found[path.name] for path in paths])
    decision = loop.evaluate("0003")
    assert [check.name for check in decision.checks if not check.passed] == ["general since the first version"]
    told = loop.registry.history.entries()[-1]
    assert "general since the first version map 0.9000 → 0.8880: falls beyond" in told["why"]
    assert told["facts"]["floor"]["version"] == "0001"


def test_a_rollback_does_not_begin_a_new_count_of_attempts(loop):
    history = loop.registry.history
    loop.registry.promote(add(loop))
    history.append(action="evaluate", version="0009")
    loop.registry.rollback()
    history.append(action="evaluate", version="0009")
    assert loop._attempt() == 3
    loop.registry.promote("0002")
    assert loop._attempt() == 1


def passed(loop: Loop, name: str, against: str) -> None:
    facts = {"promote": True, "attempt": 1, "checks": [], "against": against}
    loop.registry.history.append(action="evaluate", version=name, facts=facts)


def test_a_rollback_takes_a_forced_floor_back(loop):
    forced = add(loop)
    loop.promote(forced, force=True)
    assert loop.registry.floor().name == forced
    loop.registry.rollback()
    assert loop.registry.floor().name == "0001"
    for _ in range(3):
        name = add(loop)
        passed(loop, name, loop.current().name)
        loop.promote(name)
    assert loop.registry.floor().name == "0001"
    assert names(loop) == ["0001", "0004", "0005"], "and it is not collected"


def test_a_forced_version_that_is_put_back_is_the_floor_again(loop):
    forced = add(loop)
    loop.promote(forced, force=True)
    loop.registry.rollback()
    loop.registry.rollback(forced)
    assert (loop.current().name, loop.registry.floor().name) == (forced, forced)
    loop.registry.rollback()
    passed(loop, forced, "0001")
    loop.promote(forced)
    assert loop.registry.floor().name == "0001", "it has passed the gate this time"


def test_a_version_is_promoted_only_instead_of_the_one_it_was_compared_with(loop, monkeypatch):
    faster, slower = add(loop), add(loop)
    passed(loop, faster, "0001")
    passed(loop, slower, "0001")
    with Loop(loop.root, loop.settings) as other:
        promote = other.registry.promote

        def promote_later(name: str, **given):
            loop.promote(faster)
            return promote(name, **given)

        monkeypatch.setattr(other.registry, "promote", promote_later)
        with pytest.raises(InputError, match=f"{slower} passed the gate against 0001, but {faster} is in service now"):
            other.promote(slower)
        assert loop.current().name == faster
        monkeypatch.setattr(other.registry, "promote", promote)
        assert other.promote(slower, force=True).name == slower


def test_a_rollback_while_a_candidate_is_measured_ends_the_run_in_order(loop, monkeypatch):
    loop.registry.promote(add(loop))
    candidate = add(loop)
    fields = {"who": "", "promote": True, "base_version": "0002", "examples": 1}
    run = loop.runs.create(**fields, settings=settings_to_table(loop.settings))
    (loop.runs.folder(run.id) / "feedback.jsonl").write_text("{}\n")

    def stages(self):
        passed(loop, candidate, "0002")
        loop.registry.rollback(why="complaints")
        return {"promote": True}, loop.registry.version(candidate)

    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker._Worker, "_stages", stages)
    assert worker._Worker(loop, run, lambda _: None).work() == 0
    ended = loop.runs.get(run.id)
    assert (ended.state, ended.promoted) == ("done", False)
    assert f"{candidate} did not pass the gate: not evaluated yet against 0001" in ended.error
    assert loop.current().name == "0001"
    assert not (loop.runs.folder(run.id) / "feedback.jsonl").exists()


def test_nothing_is_measured_on_that_is_trained_on_in_a_file_of_known_answers(loop):
    def mined(name: str, query: str, split: str) -> MinedExample:
        candidates = (Candidate(Memory("a"), 1.0), Candidate(Memory("b"), 0.0))
        return MinedExample(Example(name, query, candidates), "default", split, {}, frozenset({("tenant", "default")}))

    held_out = [mined("feedback-1", "Where is Ruby?", HELD_OUT), mined("feedback-2", "Who is Ann?", HELD_OUT)]
    examples.save(loop.store.database, held_out, "feedback")
    examples.save(loop.store.database, [mined("golden-1", "where is ruby", TRAIN)], "golden")
    assert [one.id for one in loop.evaluation_sets()["feedback"]] == ["feedback-2"]
