"""Training in a process of its own: it can be killed, taken up again, and cancelled."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mnemorank import InputError
from mnemorank.learning.loop import Loop
from mnemorank.learning.mining.miner import MinedExample, split_of
from mnemorank.learning.runs import STORE_VARIABLE
from mnemorank.learning.store import examples
from tests.learning import simulated as world
from tests.learning.learning_server import learning_folder

SETTINGS = """
[privacy]
texts = true
[training]
model = "{model}"
replay = "{replay}"
quantize = "none"
nice = 3
attempts = 50
changes = [
  "train.epochs=5", "train.batch_size=8", "train.learning_rate=0.003", "train.head_factor=1.0", "save_every=2",
]
[guards]
general = "{general}"
dated = "{dated}"
[gate]
latency = 20.0
size = 20.0
least_queries = 10
"""


@pytest.fixture
def root(tmp_path, tiny_world_base) -> Path:
    """A loop whose examples tell what users wish, so that a candidate passes the gate."""
    files = world.write_sets(tmp_path / "sets")
    root = learning_folder(tmp_path / "loop", SETTINGS.format(model=tiny_world_base, **files))
    with Loop(root) as loop:
        given = world.preference_examples(21, 90)
        mined = [
            MinedExample(
                replace(one, id=f"feedback-{number}"),
                "default",
                split_of(one.query),
                {},
                frozenset({("event", str(number))}),
            )
            for number, one in enumerate(given)
        ]
        examples.save(loop.store.database, mined, "feedback")
        loop.current()
    return root


def begin(root: Path):
    """A run that is prepared, but that no process works on."""
    with Loop(root) as loop:
        loop.runs.start = lambda *_: None
        return loop.train(promote=True, who="test")[0]


@pytest.mark.timeout(600)
def test_a_kill_or_a_full_disk_leaves_a_valid_model_and_the_run_goes_on(root):
    run = begin(root)
    script = Path(__file__).with_name("killed_worker.py")
    done = subprocess.run(
        [sys.executable, str(script), str(root), run.id], capture_output=True, text=True, timeout=560,
        env={**os.environ, "OMP_NUM_THREADS": "1", STORE_VARIABLE: str(root / "events.db")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    full, *told = (json.loads(line) for line in done.stdout.splitlines())
    assert (full["state"], full["current"], full["scores"]) == ("failed", "0001", True), full
    assert full["error"], "a full disk is told"
    assert not full["left"], "what a failed run wrote is removed"
    steps = [one["step"] for one in told[:-1]]
    for wanted in ("run: train", "train: step 2", "run: export", "add: rename", "evaluate: record", "promote: swap"):
        assert wanted in steps, steps
    assert all(one["scores"] for one in told)
    swapped = steps.index("promote: record")  # the first step after the swap
    assert [one["current"] for one in told] == ["0001"] * swapped + ["0002"] * (len(told) - swapped)
    assert told[-1]["state"] == "done", told[-1]
    with Loop(root) as loop:
        assert [version.name for version in loop.registry.versions()] == ["0001", "0002"]
        assert loop.runs.get(run.id).promoted
        assert len(examples.trained_on(loop.store.database, "0002")) == run.examples
        assert loop.registry.rollback().name == "0001"
        with pytest.raises(InputError, match="did not pass the gate: not evaluated yet"):
            loop.promote("0001")


@pytest.mark.timeout(400)
def test_a_training_can_be_cancelled_and_its_process_stands_back(root):
    with Loop(root) as loop:
        run, process = loop.train(who="test")
        end = time.monotonic() + 200
        while not (loop.runs.get(run.id).pid and loop.runs.progress(run.id)):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.05)
        niceness = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[16]
        assert int(niceness) >= 3
        assert loop.recover().id == run.id, "a live run is left alone"
        with pytest.raises(InputError, match="is under way"):
            loop.train()
        assert loop.runs.cancel(run.id).state == "cancelled"
        assert process.wait(30) != 0
        assert not (loop.runs.folder(run.id) / "feedback.jsonl").exists()
        assert loop.registry.current().name == "0001"
        with pytest.raises(InputError, match="is cancelled already"):
            loop.runs.cancel(run.id)


def test_a_failed_run_says_why_and_one_killed_too_often_is_given_up(root):
    with Loop(root) as loop:
        run = begin(root)
        loop.runs.update(run.id, attempt=50)
        assert loop.recover().error == "its process was killed 50 times"
        assert loop.runs.open_run() is None
    text = (root / "learning.toml").read_text()
    (root / "learning.toml").write_text(text.replace("attempts = 50", "least_examples = 1000"))
    with Loop(root) as loop, pytest.raises(InputError, match="at least 1000 are needed"):
        loop.train()


def test_deleted_examples_leave_the_files_of_a_waiting_run(root):
    run = begin(root)
    with Loop(root) as loop:
        path = loop.runs.folder(run.id) / "feedback.jsonl"
        lines = path.read_text().split("\n")
        odd = json.dumps({**json.loads(lines[1]), "query": "line\u2028separator\u0085"}, ensure_ascii=False)
        path.write_text("\n".join([lines[0], odd, *lines[2:]]))
        before = [line for line in path.read_text().split("\n") if line]
        gone = json.loads(before[0])["id"]
        done = loop.forget("event", gone.removeprefix("feedback-"), "default")
        assert done.models == {f"run:{run.id}": 1}
        assert path.read_text() == "".join(f"{line}\n" for line in before[1:])
        examples.save(loop.store.database, [], "feedback")  # a mining that no longer makes them
        loop.forget("event", json.loads(before[1])["id"].removeprefix("feedback-"), "default")
        assert path.read_text() == "".join(f"{line}\n" for line in before[2:])


def test_a_deletion_while_a_model_trains_is_recorded_for_that_model(root, tiny_world_base):
    run = begin(root)
    with Loop(root) as loop:
        loop.forget("event", "0", "default")
        loop.forget("event", "1", "default")
        assert loop.status()["deletions_since_training"] == {}, "there is no model yet"
        version = loop.registry.add(tiny_world_base, facts={"run": run.id})
        known = examples.trained_on(loop.store.database, f"run:{run.id}")
        examples.hand_over(loop.store.database, f"run:{run.id}", version.name)
        trained = sum(f"feedback-{number}" in known for number in (0, 1))
        assert loop.status()["deletions_since_training"] == {version.name: trained}
        gone = next(one for one in sorted(known) if one not in ("feedback-0", "feedback-1"))
        done = loop.forget("event", gone.removeprefix("feedback-"), "default")
        assert done.models == {f"run:{run.id}": 1, version.name: 1}
        assert loop.status()["deletions_since_training"] == {version.name: trained + 1}


def test_the_command_line_drives_the_loop(root, capsys):
    from mnemorank.cli import main

    assert main(["learn", "status", "--root", str(root), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["current"] == "0001"
    assert main(["learn", "status", "--root", str(root)]) == 0
    assert "current version" in capsys.readouterr().out
    golden = root / "golden.jsonl"
    golden.write_text(json.dumps({"query": "q", "positive": {"text": "a"}, "negative": {"text": "b"}}) + "\n")
    assert (
        main(["learn", "mine", "--root", str(root), "--golden", str(golden), "--output", str(root / "out.jsonl")]) == 0
    )
    assert json.loads((root / "out.jsonl").read_text())["provenance"]["origin"] == "golden"
    assert main(["learn", "rollback", "--root", str(root)]) == 2
    assert "no earlier version" in capsys.readouterr().err
    assert main(["learn", "train", "--root", str(root)]) == 2
    assert "at least 20 are needed" in capsys.readouterr().err
    assert main(["learn", "history", "--root", str(root)]) == 0
    assert "first version" in capsys.readouterr().out
    assert main(["learn", "forget", "tenant", "nobody", "--root", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 0
    assert main(["learn", "report", "unused", "--root", str(root)]) == 0
    assert main(["learn", "export", "nobody", "--root", str(root)]) == 0
