"""Making a candidate: train from the current version on feedback and replay, then export it for serving."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnemorank.artefact import load_artefact
from mnemorank.data.shipped import shipped
from mnemorank.errors import MissingExtraError
from mnemorank.learning.golden import format_of
from mnemorank.learning.registry import Version
from mnemorank.learning.settings import Training
from mnemorank.manifest import MANIFEST, Calibration, Manifest, write_manifest

Report = Callable[[dict[str, Any]], None]
_ENOUGH_FOR_DEV = 60


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
        from mnemorank.training.loading import load_recipe
        from mnemorank.training.run import train
    except ImportError as error:
        raise MissingExtraError(f"learning needs `pip install 'mnemorank[train]'` ({error})") from error
    recipe = load_recipe(settings.recipe, recipe_changes(settings, base, parent, feedback, examples))
    resume = (output / "checkpoints").is_dir()
    train(recipe, output, resume=resume, report=lambda progress: report(_told(progress)))


def recipe_changes(settings: Training, base: Path, parent: Version, feedback: Path, examples: int) -> list[str]:
    """What the loop sets in its recipe: base, data, and how the model reads memories."""
    manifest = load_artefact(parent.path).manifest
    replay = settings.replay or shipped("train")
    has_dev = examples >= _ENOUGH_FOR_DEV
    own = {"path": str(feedback), "format": "lists", "name": "feedback", "weight": 1.0}
    data = [{**own, "split": "train"} if has_dev else own]
    if settings.replay_weight > 0:
        again = {"path": str(replay), "format": format_of(replay), "name": "replay", "weight": settings.replay_weight}
        data.append({**again, "cap": settings.replay_most or 2 * examples})
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
    from mnemorank.export import export

    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    export(trained, partial, quantize=settings.quantize)
    manifest, old = load_artefact(partial).manifest, load_artefact(parent.path).manifest
    kept = run_like(manifest, old, name)
    write_manifest(partial, kept, list(manifest.files))
    partial.rename(output)


def run_like(manifest: Manifest, parent: Manifest, version: str) -> Manifest:
    """The candidate's manifest with all that its parent's says about how the pipeline runs the model."""
    # Too few examples for a dev set leave the candidate uncalibrated; its scores are still on its parent's scale.
    calibration = parent.calibration if manifest.calibration == Calibration() else manifest.calibration
    weights = ("link_weight", "occasion_weight", "asked_time_weight", "closer_weight")
    taken_over = ("name", "instruction", "first_stage", "windows", *weights, "abstain_below")
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
