"""`mnemorank learn run` is killed with SIGKILL at every stage; the next one finishes the run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mnemorank.learning.events import RerankEvent, ShownMemory
from mnemorank.learning.loop import Loop
from mnemorank.learning.signals import Signal
from mnemorank.learning.versions import check_version
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from tests.learning import simulation
from tests.learning.server import write_settings
from tests.learning.test_worker import SETTINGS

STAGES = ("mine", "train", "export", "register", "evaluate", "promote")


@pytest.fixture
def root(tmp_path, simulation_base) -> Path:
    """The folder of a loop with the clicks of users who prefer something that the model does not know."""
    files = simulation.write_sets(tmp_path / "sets")
    root = write_settings(tmp_path / "loop", SETTINGS.format(model=simulation_base, **files))
    rng = random.Random(3)
    users = [simulation.User(f"user{number}", random.Random(number)) for number in range(25)]
    with Loop(root) as loop:
        for query in simulation.sample_queries(rng, 260):
            memories, user = simulation.make_pool(rng, query), rng.choice(users)
            shown = tuple(ShownMemory(rank, memory, None, memory.text) for rank, memory in enumerate(memories, 1))
            event = RerankEvent(query, shown, "0001", user=user.name)
            loop.store.record(event)
            ranks = user.clicked_ranks([memory.text for memory in memories])
            loop.store.add_signals([Signal(event.id, "click", rank, actor=user.name) for rank in ranks])
    return root


def learn_run(root: Path, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in processes of its own, which are killed at a stage."""
    customized = os.pathsep.join([str(Path(__file__).with_name("kill_at")), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", "mnemorank", "learn", "run", "--root", str(root), "--json"],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": customized, "KILL_AT": kill_at},
    )  # fmt: skip


def check_current(root: Path, name: str) -> None:
    """The version in service is complete and scores."""
    with Loop(root) as loop:
        current = loop.current()
        assert current.name == name
        check_version(current)
        model = Model.load(loop.versions.current_path, probe=False)
        assert model.score("topicaa aspectaa", [Memory("topicaa aspectaa solid brief")]).raw.shape == (1,)
        model.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_after_a_kill_at_any_stage_the_next_run_finishes(root):
    for stage in STAGES:
        killed = learn_run(root, stage)
        with Loop(root) as loop:
            runs = loop.runs.all()
        if stage == "mine":
            assert (killed.returncode, runs) == (-signal.SIGKILL, [])
        else:  # the command reports that its worker is gone
            assert killed.returncode != 0, killed.stdout
            assert [(run.state, run.stage) for run in runs] == [("running", stage)], killed.stderr
        check_current(root, "0001")
    finished = learn_run(root)
    assert finished.returncode == 0, finished.stderr
    run = json.loads(finished.stdout)
    assert (run["state"], run["promoted"], run["attempt"]) == ("done", True, len(STAGES)), run
    check_current(root, "0002")
    with Loop(root) as loop:
        assert [version.name for version in loop.versions.all()] == ["0001", "0002"]
        assert [each.id for each in loop.runs.all()] == [run["id"]]
        left = {path.name for path in loop.runs.folder(run["id"]).iterdir()}
        assert not left & {"torch", "onnx", "onnx.partial", "base", "base.partial", "feedback.jsonl"}
        assert [entry["action"] for entry in loop.versions.history.entries()].count("promote") == 2
