"""The process that works on a run: `python -m mnemorank.learning.worker ROOT RUN`.

Each stage leaves a result that the next process finds, so that a run whose process was killed goes on where it was.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from mnemorank.artifact.manifest import MANIFEST, Calibration, Manifest, write_manifest
from mnemorank.artifact.resolve import load_artifact, resolve
from mnemorank.data.bundled import bundled_dataset
from mnemorank.data.formats import detect_format
from mnemorank.errors import InputError, MissingExtraError, MnemorankError
from mnemorank.learning.loop import Loop
from mnemorank.learning.runs import DONE, FAILED, FEEDBACK, OPEN_STATES, RUNNING, STORE_VARIABLE, Run, Runs
from mnemorank.learning.settings import Training, settings_from_table
from mnemorank.learning.store import examples
from mnemorank.learning.versions import Version, no_step

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


Report = Callable[[dict[str, Any]], None]
_ENOUGH_FOR_DEV = 60


def training_base(version: Version, configured: str | None, folder: Path) -> Path:
    """Return the folder to train from.

    :param configured: the base named in the settings; used when the version has no torch weights of its own.
    :param folder: where to write weights restored from the version's ONNX file.
    """
    if version.torch_path is not None:
        return version.torch_path
    if configured is not None:
        return resolve(configured)
    from mnemorank.export.dequantize import dequantize

    return dequantize(version.path, folder)


def train_candidate(
    settings: Training, base: Path, parent: Version, feedback: Path, examples: int, output: Path, report: Report
) -> None:
    """Train into `output`, or go on where a killed process left off.

    :param base: the torch folder to begin from.
    :param feedback: the training examples, in our `lists` format.
    """
    if (output / MANIFEST).exists():
        return
    try:
        from mnemorank.training.recipe import load_recipe
        from mnemorank.training.run import train
    except ImportError as error:
        raise MissingExtraError(f"learning needs `pip install 'mnemorank[train]'` ({error})") from error
    recipe = load_recipe(settings.recipe, recipe_changes(settings, base, parent, feedback, examples))
    resume = (output / "checkpoints").is_dir()
    train(recipe, output, resume=resume, on_progress=lambda progress: report(_told(progress)))


def recipe_changes(settings: Training, base: Path, parent: Version, feedback: Path, examples: int) -> list[str]:
    """What the loop sets in its recipe: base, data, and how the model reads memories."""
    manifest = load_artifact(parent.path).manifest
    replay = settings.replay or bundled_dataset("dated", "train")
    has_dev = examples >= _ENOUGH_FOR_DEV
    own = {"path": str(feedback), "format": "lists", "name": "feedback", "weight": 1.0}
    data = [{**own, "split": "train"} if has_dev else own]
    if settings.replay_weight > 0:
        again = {
            "path": str(replay),
            "format": detect_format(replay),
            "name": "replay",
            "weight": settings.replay_weight,
        }
        data.append({**again, "max_examples": settings.replay_most or 2 * examples})
    changes = [
        f"model.base={_toml(str(base))}",
        f"model.format={_toml(manifest.format)}",
        f"model.template={_toml(manifest.template)}",
        f"model.max_length={manifest.max_length}",
        f"data={_toml(data)}",
        f"dev.data={_toml([{**own, 'split': 'dev'}] if has_dev else [])}",
        f"threads={settings.threads}",
    ]
    return [*changes, *settings.changes]


def export_candidate(settings: Training, trained: Path, parent: Version, output: Path, name: str) -> None:
    """Export for serving. How the pipeline runs the model (blend, windows) is taken over from the parent."""
    if (output / MANIFEST).exists():
        return
    from mnemorank.export.exporter import export

    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    export(trained, partial, quantize=settings.quantize)
    manifest, old = load_artifact(partial).manifest, load_artifact(parent.path).manifest
    kept = run_like(manifest, old, name)
    write_manifest(partial, kept, list(manifest.files))
    partial.rename(output)


def run_like(manifest: Manifest, parent: Manifest, version: str) -> Manifest:
    """The candidate's manifest with all that its parent's says about how the pipeline runs the model."""
    # Too few examples for a dev set leave the candidate uncalibrated; its scores are still on its parent's scale.
    calibration = parent.calibration if manifest.calibration == Calibration() else manifest.calibration
    taken_over = (
        "name",
        "instruction",
        "weights",
        "first_stage_method",
        "long_query_terms",
        "windows",
        "abstain_below",
    )
    stated = {each: getattr(parent, each) for each in taken_over}
    return replace(manifest, version=version, calibration=calibration, **stated)


def _toml(value: Any) -> str:
    """A TOML value; JSON's strings, numbers and lists are TOML too, tables are written inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _told(progress: Any) -> dict[str, Any]:
    return {
        "stage": "train",
        "step": progress.step,
        "steps": progress.steps,
        "loss": progress.loss,
        "dev": progress.dev,
        "seconds_left": progress.seconds_left,
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(work(Path(sys.argv[1]), sys.argv[2]))
