"""Training runs in a separate process: they survive kills, resume, and can be canceled."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mnemorank.errors import ConflictError
from mnemorank.learning.loop import Loop
from mnemorank.learning.mining.miner import MinedExample, split_of_query
from mnemorank.learning.runs import STORE_VARIABLE
from mnemorank.learning.store import examples
from tests.learning import simulation
from tests.learning.server import write_settings

SETTINGS = """
[privacy]
texts = true
[training]
model = "{model}"
replay = "{replay}"
quantize = "none"
nice = 3
attempts = 50
overrides = [
  "train.epochs=5", "train.batch_size=8", "train.learning_rate=0.003", "train.head_factor=1.0", "save_every=2",
]
[guards]
general = "{general}"
dated = "{dated}"
[gate]
max_latency_ratio = 20.0
max_size_ratio = 20.0
min_queries = 10
"""


@pytest.fixture
def root(tmp_path, simulation_base) -> Path:
    """The folder of a loop whose examples show what users prefer, so that a candidate passes the gate."""
    files = simulation.write_sets(tmp_path / "sets")
    root = write_settings(tmp_path / "loop", SETTINGS.format(model=simulation_base, **files))
    with Loop(root) as loop:
        mined = [
            MinedExample(
                replace(example, id=f"feedback-{number}"),
                "default",
                split_of_query(example.query),
                {},
                frozenset({("event", str(number))}),
            )
            for number, example in enumerate(simulation.preference_examples(21, 90))
        ]
        examples.replace_examples(loop.store.database, mined, "feedback")
        loop.current()
    return root


def create_run(root: Path):
    """Create a run that no process works on."""
    with Loop(root) as loop:
        loop.runs.start = lambda *_: None
        return loop.train(promote=True, who="test")[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_a_kill_or_on_a_full_disk_the_model_is_valid_and_the_run_resumes(root):
    run = create_run(root)
    script = Path(__file__).with_name("kill_worker.py")
    finished = subprocess.run(
        [sys.executable, str(script), str(root), run.id], capture_output=True, text=True, timeout=560,
        env={**os.environ, "OMP_NUM_THREADS": "1", STORE_VARIABLE: str(root / "events.db")},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    full_disk, *outcomes = (json.loads(line) for line in finished.stdout.splitlines())
    assert (full_disk["state"], full_disk["current"], full_disk["is_usable"]) == ("failed", "0001", True), full_disk
    assert full_disk["error"]
    assert full_disk["leftovers"] == []
    steps = [outcome["step"] for outcome in outcomes[:-1]]
    for step in ("run: train", "train: step 2", "run: export", "add: rename", "evaluate: record", "promote: swap",
                 "finish: clean", "finish: record"):  # fmt: skip
        assert step in steps, steps
    assert steps.count("run: train") == 1
    assert all(outcome["is_usable"] for outcome in outcomes)
    swapped = steps.index("promote: record")  # the first step after the swap
    assert [o["current"] for o in outcomes] == ["0001"] * swapped + ["0002"] * (len(outcomes) - swapped)
    assert outcomes[-1]["state"] == "done", outcomes[-1]
    with Loop(root) as loop:
        assert [version.name for version in loop.versions.all()] == ["0001", "0002"]
        assert loop.runs.get(run.id).promoted
        assert len(examples.trained_example_ids(loop.store.database, "0002")) == run.examples
        assert loop.versions.rollback().name == "0001"
        with pytest.raises(ConflictError) as error:
            loop.promote("0001")
        assert error.value.code == "not_evaluated"


START_STEPS = ["mine: store", "run: create", "run: load examples", "run: write examples", "run: start"]


@pytest.mark.parametrize("killed_at", START_STEPS)
def test_after_a_kill_before_the_process_starts_the_next_run_goes_on(root, killed_at):
    """In a forked process, `learn run` is killed at a step. Then it is called again, in this process."""
    child = os.fork()
    if child == 0:

        def on_step(name: str) -> None:
            if name == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)

        with Loop(root, on_step=on_step) as loop:
            loop.mine = lambda golden: (on_step("mine: store"), golden)  # the examples of this loop are not mined
            loop.runs.start = lambda *_: os._exit(1)
            loop.run(who="first")
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with Loop(root) as loop:
        loop.mine = lambda golden: golden
        started = []
        loop.runs.start = lambda run, *_: (started.append(run), subprocess.Popen(["true"]))[1]
        assert loop.run(who="second").is_active, "the process that would finish it does nothing here"
        (run,) = loop.runs.all()
        assert [each.id for each in started] == [run.id]
        assert run.who == ("second" if killed_at in START_STEPS[:2] else "first")
        count = examples.count_examples(loop.store.database)["train"]
        if (loop.runs.folder(run.id) / "feedback.jsonl").exists():
            assert len((loop.runs.folder(run.id) / "feedback.jsonl").read_text().splitlines()) == count
        else:
            assert killed_at in START_STEPS[2:4], "the process writes them"
            assert loop.write_examples(run).examples == count
        assert not list(loop.runs.folder(run.id).glob("*.partial"))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_can_be_canceled_and_has_low_priority(root):
    with Loop(root) as loop:
        run, process = loop.train(who="test")
        end = time.monotonic() + 200
        while not (loop.runs.get(run.id).pid and loop.runs.progress(run.id)):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.05)
        niceness = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[16]
        assert int(niceness) >= 3
        assert loop.recover().id == run.id, "a run with a process is not started again"
        with pytest.raises(ConflictError) as error:
            loop.train()
        assert error.value.code == "run_in_progress"
        assert loop.runs.cancel(run.id).state == "canceled"
        assert process.wait(30) != 0
        assert not (loop.runs.folder(run.id) / "feedback.jsonl").exists()
        assert loop.versions.current().name == "0001"
        with pytest.raises(ConflictError) as error:
            loop.runs.cancel(run.id)
        assert error.value.code == "finished"


def test_a_run_whose_process_was_killed_too_often_fails(root):
    with Loop(root) as loop:
        run = create_run(root)
        loop.runs.update(run.id, attempt=50)
        failed = loop.recover()
        assert (failed.state, bool(failed.error)) == ("failed", True)
        assert loop.runs.active() is None


def test_training_needs_a_minimum_of_examples(root):
    text = (root / "learning.toml").read_text()
    (root / "learning.toml").write_text(text.replace("attempts = 50", "min_examples = 1000"))
    with Loop(root) as loop, pytest.raises(ConflictError) as error:
        loop.train()
    assert error.value.code == "too_few_examples"


def test_deleted_examples_are_removed_from_the_file_of_a_waiting_run(root):
    run = create_run(root)
    with Loop(root) as loop:
        path = loop.runs.folder(run.id) / "feedback.jsonl"
        lines = path.read_text().split("\n")
        odd = json.dumps({**json.loads(lines[1]), "query": "line\u2028separator\u0085"}, ensure_ascii=False)
        path.write_text("\n".join([lines[0], odd, *lines[2:]]))
        before = [line for line in path.read_text().split("\n") if line]
        event_ids = [json.loads(line)["id"].removeprefix("feedback-") for line in before[:2]]
        assert loop.delete("event", event_ids[0], "default").models == {f"run:{run.id}": 1}
        assert path.read_text() == "".join(f"{line}\n" for line in before[1:])
        examples.replace_examples(loop.store.database, [], "feedback")  # mining has replaced them
        loop.delete("event", event_ids[1], "default")
        assert path.read_text() == "".join(f"{line}\n" for line in before[2:])


def test_deletions_during_training_count_for_the_trained_version(root, simulation_base):
    run = create_run(root)
    with Loop(root) as loop:
        loop.delete("event", "0", "default")
        loop.delete("event", "1", "default")
        assert loop.status()["deletions_since_training"] == {}, "there is no version yet"
        version = loop.versions.add(simulation_base, facts={"run": run.id})
        trained = examples.trained_example_ids(loop.store.database, f"run:{run.id}")
        examples.copy_training_record(loop.store.database, f"run:{run.id}", version.name)
        count = sum(f"feedback-{number}" in trained for number in (0, 1))
        assert loop.status()["deletions_since_training"] == {version.name: count}
        other = next(example_id for example_id in sorted(trained) if example_id not in ("feedback-0", "feedback-1"))
        deletion = loop.delete("event", other.removeprefix("feedback-"), "default")
        assert deletion.models == {f"run:{run.id}": 1, version.name: 1}
        assert loop.status()["deletions_since_training"] == {version.name: count + 1}


def test_the_command_line(root, capsys):
    from mnemorank.cli import main

    def learn(*arguments: str) -> int:
        return main(["learn", arguments[0], "--root", str(root), *arguments[1:]])

    assert learn("status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["current"] == "0001"
    assert learn("status") == 0
    assert "current version" in capsys.readouterr().out
    golden, output = root / "golden.jsonl", root / "out.jsonl"
    golden.write_text(json.dumps({"query": "q", "positive": {"text": "a"}, "negative": {"text": "b"}}) + "\n")
    assert learn("mine", "--golden", str(golden), "--output", str(output)) == 0
    assert json.loads(output.read_text())["provenance"]["origin"] == "golden"
    capsys.readouterr()
    assert learn("rollback") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert learn("train") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert learn("history") == 0
    assert "first version" in capsys.readouterr().out
    assert learn("delete", "tenant", "nobody", "--json") == 0
    assert json.loads(capsys.readouterr().out)["events"] == 0
    assert learn("report", "unused") == 0
    assert learn("report", "no-hits", "--min-count", "1", "--json") == 0
    assert learn("export", "nobody") == 0
    assert learn("expire") == 0


def test_the_curve_of_a_run_survives_a_line_that_a_kill_cut_short(root):
    run = create_run(root)
    with Loop(root) as loop:
        loop.runs.add_to_curve(run.id, {"stage": "train", "step": 1, "steps": 9, "loss": 2.0, "dev": None, "more": 1})
        with (loop.runs.folder(run.id) / "curve.jsonl").open("a") as stream:
            stream.write('{"stage": "tra')
        loop.runs.add_to_curve(run.id, {"stage": "train", "step": 2, "steps": 9, "loss": 1.0, "dev": 0.5})
        curve = loop.runs.curve(run.id)
        assert [(point["step"], point["loss"], point["dev"]) for point in curve] == [(1, 2.0, None), (2, 1.0, 0.5)]
        for step in range(3, 1300):
            loop.runs.add_to_curve(run.id, {"step": step})
        thin = loop.runs.curve(run.id, max_points=100)
        assert 50 < len(thin) <= 100
