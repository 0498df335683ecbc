"""The process that works on a training run: `python -m mnemorank.learning.worker ROOT RUN`.

Each stage leaves a result on disk that the next process finds, so a run whose process was killed resumes where it was.
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
from mnemorank.errors import ConflictError, MissingExtraError, MnemorankError
from mnemorank.learning.loop import Loop
from mnemorank.learning.runs import DONE, FAILED, FEEDBACK, RUNNING, STORE_VARIABLE, RunStore, TrainingRun
from mnemorank.learning.settings import LearningSettings, TrainingSettings
from mnemorank.learning.store import examples
from mnemorank.learning.versions import Version, ignore_step

logger = logging.getLogger(__name__)

ProgressReport = Callable[[dict[str, Any]], None]
_STOPPED = 130  # exit code of a process that a signal stopped
_MIN_EXAMPLES_FOR_DEV = 60
_PROGRESS_INTERVAL = 0.5
# How the pipeline runs the model is not trained, so a candidate inherits it from its parent.
_INHERITED_FIELDS = (
    "name",
    "instruction",
    "weights",
    "first_stage_method",
    "long_query_terms",
    "windows",
    "abstain_below",
)


class StopRequestedError(MnemorankError):
    """The process received SIGTERM."""


def work(root: Path, run_id: str, on_step: Callable[[str], None] = ignore_step) -> int:
    """Work on a run until it ends; return the exit code.

    :param on_step: called before each step; tests kill the process there.
    """
    runs = RunStore(root / "runs")
    # Others hold the lock for a moment to see whether a process works on the run.
    with runs.claim(run_id, timeout=2.0) as is_ours:
        if not is_ours:
            return 0
        run = runs.get(run_id)
        if not run.is_active or runs.is_cancel_requested(run_id):
            return 0
        # To the worker, the store that the run was started with is the configured one.
        store = {"store": os.environ.get(STORE_VARIABLE)}
        settings = LearningSettings.from_table({**run.settings, **store}, f"run {run_id}")
        with Loop(root, settings, on_step=on_step) as loop:
            return _Worker(loop, run, on_step).work()


class _Worker:
    def __init__(self, loop: Loop, run: TrainingRun, on_step: Callable[[str], None]) -> None:
        self._loop, self._run, self._on_step = loop, run, on_step
        self._folder = loop.runs.folder(run.id)
        self._reported_at = 0.0

    def work(self) -> int:
        signal.signal(signal.SIGTERM, _raise_stop)
        _set_niceness(self._loop.settings.training.nice)
        runs = self._loop.runs
        runs.update(self._run.id, state=RUNNING, pid=os.getpid(), attempt=self._run.attempt + 1)
        try:
            decision, version = self._run_stages()
            promoted = self._promote(version, decision)
        except Exception as error:  # any error is recorded with the run
            return self._handle_error(error)
        self._on_step("finish: clean")
        runs.clean(self._run.id)
        self._on_step("finish: record")
        runs.finish(self._run.id, DONE, stage="", promoted=promoted)
        self._loop.prune(self._run.who)
        return 0

    def _run_stages(self) -> tuple[dict[str, Any], Version]:
        """Take all stages that no earlier process of this run has completed."""
        version = self._registered()
        if version is None:
            version = self._train_and_export()
        self._on_step("register: record examples")
        examples.copy_training_record(self._loop.store.database, f"run:{self._run.id}", version.name)
        self._loop.runs.update(self._run.id, version=version.name)
        self._begin("evaluate")
        if self._run.decision is not None:  # it may even have been promoted
            return dict(self._run.decision), version
        decision = self._loop.evaluate(version.name, who=self._run.who).to_dict()
        self._loop.runs.update(self._run.id, decision=decision)
        return decision, version

    def _registered(self) -> Version | None:
        return next((v for v in reversed(self._loop.versions.all()) if v.facts.get("run") == self._run.id), None)

    def _train_and_export(self) -> Version:
        """Train a candidate, export it, and add it to the versions."""
        parent = self._loop.versions.get(self._run.base_version)
        training = self._loop.settings.training
        self._begin("train")
        base = find_base(parent, training.base, self._folder / "base")
        feedback = self._folder / FEEDBACK
        if not feedback.exists():  # the process that created the run was killed
            self._run = self._loop.write_examples(self._run)
        # A server that has only the store, not the loop, deletes without knowing of this file.
        remaining = examples.undeleted_example_ids(self._loop.store.database, f"run:{self._run.id}")
        self._loop.runs.keep_examples(self._run.id, remaining)
        trained, exported = self._folder / "torch", self._folder / "onnx"
        train_candidate(training, base, parent, feedback, self._run.examples, trained, self._report)
        self._begin("export")
        export_candidate(training, trained, parent, exported, self._run.id)
        self._begin("register")
        facts = {"run": self._run.id, "examples": self._run.examples}
        return self._loop.versions.add(
            exported, torch=trained, parent=parent.name, facts=facts, who=self._run.who, why="trained on feedback"
        )

    def _promote(self, version: Version, decision: dict[str, Any]) -> bool:
        if not (decision["promote"] and self._run.promote) or self._loop.settings.shadow:
            return False
        self._begin("promote")
        current = self._loop.versions.current()
        if current is not None and current.name == version.name:
            return True
        try:
            self._loop.promote(version.name, who=self._run.who, why="passed the gate")
        except ConflictError as error:  # another version was put in service since the evaluation
            self._loop.runs.update(self._run.id, error=str(error))
            return False
        return True

    def _begin(self, stage: str) -> None:
        self._on_step(f"run: {stage}")
        logger.info("stage: %s", stage)
        self._loop.runs.update(self._run.id, stage=stage)
        self._loop.runs.write_progress(self._run.id, {"stage": stage})

    def _report(self, progress: dict[str, Any]) -> None:
        self._on_step(f"train: step {progress['step']}")
        if time.monotonic() - self._reported_at > _PROGRESS_INTERVAL or progress["step"] == progress["steps"]:
            self._reported_at = time.monotonic()
            self._loop.runs.write_progress(self._run.id, progress)
            self._loop.runs.add_to_curve(self._run.id, progress)

    def _handle_error(self, error: Exception) -> int:
        runs = self._loop.runs
        if runs.is_cancel_requested(self._run.id):
            runs.clean(self._run.id)
            return _STOPPED  # `RunStore.cancel` records the state once this process has ended
        if _is_interruption(error):
            logger.info("stopped; the run resumes when it is started again")
            return _STOPPED
        logger.error("the run failed", exc_info=not isinstance(error, MnemorankError))
        message = " ".join(str(error).split()) or type(error).__name__
        runs.finish(self._run.id, FAILED, error=message)
        return 1


def _raise_stop(_number: int, _frame: FrameType | None) -> None:
    raise StopRequestedError("received SIGTERM")


def _is_interruption(error: Exception) -> bool:
    if isinstance(error, StopRequestedError):
        return True
    try:
        from mnemorank.training.progress import InterruptedTrainingError
    except ImportError:  # without the train extra, nothing was interrupted
        return False
    return isinstance(error, InterruptedTrainingError)


def _set_niceness(niceness: int) -> None:
    if hasattr(os, "nice"):  # not on Windows
        os.nice(max(niceness - os.nice(0), 0))


def find_base(version: Version, configured: str | None, folder: Path) -> Path:
    """Return the folder to train from.

    :param configured: the base of the settings, for versions without torch weights.
    :param folder: where to write weights that are restored from the version's ONNX file.
    """
    if version.torch_path is not None:
        return version.torch_path
    if configured is not None:
        return resolve(configured)
    from mnemorank.export.dequantize import dequantize

    return dequantize(version.path, folder)


def train_candidate(
    settings: TrainingSettings,
    base: Path,
    parent: Version,
    feedback: Path,
    example_count: int,
    output: Path,
    report: ProgressReport,
) -> None:
    """Train into `output`, or resume what a killed process left there.

    :param base: the torch folder to start from.
    :param feedback: the training examples, in the `lists` format.
    """
    if (output / MANIFEST).exists():
        return
    try:
        from mnemorank.training.recipe import load_recipe
        from mnemorank.training.run import train
    except ImportError as error:
        raise MissingExtraError(f"learning needs `pip install 'mnemorank[train]'` ({error})") from error
    recipe = load_recipe(settings.recipe, recipe_overrides(settings, base, parent, feedback, example_count))
    resume = (output / "checkpoints").is_dir()
    train(recipe, output, resume=resume, on_progress=lambda progress: report(_progress_record(progress)))


def recipe_overrides(
    settings: TrainingSettings, base: Path, parent: Version, feedback: Path, example_count: int
) -> list[str]:
    """Return what the loop sets in its recipe: base model, data, and how the model reads memories."""
    manifest = load_artifact(parent.path).manifest
    has_dev = example_count >= _MIN_EXAMPLES_FOR_DEV
    source = {"path": str(feedback), "format": "lists", "name": "feedback", "weight": 1.0}
    data = [{**source, "split": "train"} if has_dev else source]
    if settings.replay_weight > 0:
        replay = settings.replay or bundled_dataset("dated", "train")
        data.append(
            {
                "path": str(replay),
                "format": detect_format(replay),
                "name": "replay",
                "weight": settings.replay_weight,
                "max_examples": settings.max_replay or 2 * example_count,
            }
        )
    overrides = [
        f"model.base={_to_toml(str(base))}",
        f"model.format={_to_toml(manifest.format)}",
        f"model.template={_to_toml(manifest.template)}",
        f"model.max_length={manifest.max_length}",
        f"data={_to_toml(data)}",
        f"dev.data={_to_toml([{**source, 'split': 'dev'}] if has_dev else [])}",
        f"threads={settings.threads}",
    ]
    return [*overrides, *settings.overrides]


def export_candidate(settings: TrainingSettings, trained: Path, parent: Version, output: Path, version: str) -> None:
    """Export a trained candidate for serving, unless a killed process already did."""
    if (output / MANIFEST).exists():
        return
    from mnemorank.export.exporter import export

    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    export(trained, partial, quantize=settings.quantize)
    manifest = load_artifact(partial).manifest
    inherited = inherit_pipeline(manifest, load_artifact(parent.path).manifest, version)
    write_manifest(partial, inherited)
    partial.rename(output)


def inherit_pipeline(manifest: Manifest, parent: Manifest, version: str) -> Manifest:
    """Return the candidate's manifest with the pipeline settings of its parent."""
    # Without a dev set the candidate is uncalibrated, but its scores are still on the scale of its parent.
    calibration = parent.calibration if manifest.calibration == Calibration() else manifest.calibration
    inherited = {name: getattr(parent, name) for name in _INHERITED_FIELDS}
    return replace(manifest, version=version, calibration=calibration, **inherited)


def _to_toml(value: Any) -> str:
    """Write a TOML value. Strings, numbers and lists are as in JSON; tables are written inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_to_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_to_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _progress_record(progress: Any) -> dict[str, Any]:
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
