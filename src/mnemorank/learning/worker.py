"""The process that works on a run: `python -m mnemorank.learning.worker ROOT RUN`.

Each stage leaves a result that the next process finds, so that a run whose process was killed goes on where it was.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from mnemorank.errors import InputError, MnemorankError
from mnemorank.learning import examples
from mnemorank.learning.base import training_base
from mnemorank.learning.candidate import export_candidate, train_candidate
from mnemorank.learning.loop import Loop
from mnemorank.learning.registry import Version, no_step
from mnemorank.learning.runs import DONE, FAILED, FEEDBACK, OPEN_STATES, RUNNING, STORE_VARIABLE, Run, Runs
from mnemorank.learning.settings import settings_from_table

logger = logging.getLogger(__name__)


class StoppedError(MnemorankError):
    """The process was asked to stop."""


def work(root: Path, run_id: str, on_step: Callable[[str], None] = no_step) -> int:
    """Work on a run to its end; returns the exit code.

    :param on_step: called before each step; tests kill the process there.
    """
    runs = Runs(root / "runs")
    with runs.working(run_id) as is_ours:
        if not is_ours:
            return 0
        run = runs.get(run_id)
        if run.state not in OPEN_STATES or runs.is_cancelled(run_id):
            return 0
        # The store that the run was begun with is the worker's own: it is no other than the loop's.
        settings = replace(settings_from_table(run.settings), store=os.environ.get(STORE_VARIABLE))
        with Loop(root, settings, on_step=on_step) as loop:
            return _Worker(loop, run, on_step).work()


class _Worker:
    def __init__(self, loop: Loop, run: Run, on_step: Callable[[str], None]) -> None:
        self._loop, self._run, self._step = loop, run, on_step
        self._folder = loop.runs.folder(run.id)
        self._told_at = 0.0

    def work(self) -> int:
        signal.signal(signal.SIGTERM, _stop)
        nice = self._run.settings["training"]["nice"]
        os.nice(max(nice - os.nice(0), 0))
        runs = self._loop.runs
        runs.update(self._run.id, state=RUNNING, pid=os.getpid(), attempt=self._run.attempt + 1)
        try:
            decision, version = self._stages()
            promoted = self._promote(version, decision)
        except Exception as error:  # whatever ends the run is recorded with it
            return self._ended_by(error)
        runs.end(self._run.id, DONE, stage="", promoted=promoted)
        self._loop.collect(self._run.who)
        return 0

    def _stages(self) -> tuple[dict[str, Any], Version]:
        parent = self._loop.registry.version(self._run.base_version)
        training = self._loop.settings.training
        self._begin("train")
        base = training_base(parent, training.base, self._folder / "base")
        data = self._folder / FEEDBACK
        # A server that has the store and not the loop deletes without knowing of this file.
        self._loop.runs.keep_only(self._run.id, examples.not_deleted(self._loop.store.database, f"run:{self._run.id}"))
        trained, exported = self._folder / "torch", self._folder / "onnx"
        train_candidate(training, base, parent, data, self._run.examples, trained, self._progress)
        self._begin("export")
        export_candidate(training, trained, parent, exported, self._run.id)
        self._begin("register")
        version = self._registered(exported, trained, parent)
        self._loop.runs.update(self._run.id, version=version.name)
        self._begin("evaluate")
        if self._run.decision is not None:  # an earlier process asked the gate, and may even have promoted
            return dict(self._run.decision), version
        decision = self._loop.evaluate(version.name, who=self._run.who).to_dict()
        self._loop.runs.update(self._run.id, decision=decision)
        return decision, version

    def _registered(self, exported: Path, trained: Path, parent: Version) -> Version:
        """The candidate in the registry, added unless an earlier process of this run did."""
        registry = self._loop.registry
        known = next((v for v in reversed(registry.versions()) if v.facts.get("run") == self._run.id), None)
        facts = {"run": self._run.id, "examples": self._run.examples}
        version = known or registry.add(
            exported, torch=trained, parent=parent.name, facts=facts, who=self._run.who, why="trained on feedback"
        )
        self._step("register: record examples")
        database = self._loop.store.database
        examples.hand_over(database, f"run:{self._run.id}", version.name)
        return version

    def _promote(self, version: Version, decision: dict[str, Any]) -> bool:
        if not (decision["promote"] and self._run.promote) or self._loop.settings.shadow:
            return False
        self._begin("promote")
        current = self._loop.registry.current()
        if current is not None and current.name == version.name:
            return True
        try:
            self._loop.promote(version.name, who=self._run.who, why="passed the gate")
        except InputError as error:  # another version came into service since the gate was asked
            self._loop.runs.update(self._run.id, error=str(error))
            return False
        return True

    def _begin(self, stage: str) -> None:
        self._step(f"run: {stage}")
        logger.info("stage: %s", stage)
        self._loop.runs.update(self._run.id, stage=stage)
        self._loop.runs.write_progress(self._run.id, {"stage": stage})

    def _progress(self, told: dict[str, Any]) -> None:
        self._step(f"train: step {told['step']}")
        if time.monotonic() - self._told_at > 0.5 or told["step"] == told["steps"]:
            self._told_at = time.monotonic()
            self._loop.runs.write_progress(self._run.id, told)

    def _ended_by(self, error: Exception) -> int:
        runs = self._loop.runs
        if runs.is_cancelled(self._run.id):
            runs.clean(self._run.id)
            return 130  # `cancel` records the state once this process has gone
        if isinstance(error, StoppedError) or type(error).__name__ == "InterruptedTrainingError":
            logger.info("stopped; the run goes on when it is started again")
            return 130
        logger.error("the run failed", exc_info=not isinstance(error, MnemorankError))
        message = " ".join(str(error).split()) or type(error).__name__
        runs.end(self._run.id, FAILED, error=message)
        return 1


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise StoppedError("asked to stop")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(work(Path(sys.argv[1]), sys.argv[2]))
