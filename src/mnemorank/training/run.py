"""One training from recipe to model folder, resumable at any moment."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mnemorank._internal.arrays import Floats
from mnemorank.artifact.manifest import Manifest
from mnemorank.artifact.templates import templates
from mnemorank.data.examples import Example
from mnemorank.errors import InputError
from mnemorank.scorers.encoding import InputWriter
from mnemorank.training.adapters import HEADS, add_lora
from mnemorank.training.augmentation import Hiding
from mnemorank.training.base_model import Base, load_base
from mnemorank.training.checkpoints import put_weights, trainable, write_whole
from mnemorank.training.dataset import that_fit
from mnemorank.training.evaluation import Results, calibrate, measure_bm25, measure_model, model_in_training
from mnemorank.training.example_loading import check_data, check_dev, dev_examples
from mnemorank.training.model_card import write_card
from mnemorank.training.network import Network, build_network
from mnemorank.training.objective import check_losses
from mnemorank.training.optimizer import freeze, is_fresh, mix
from mnemorank.training.progress import Report, Say, stop_on_signals
from mnemorank.training.qat import Grid, convert
from mnemorank.training.qat import prepare as prepare_quantization
from mnemorank.training.recipe import PipelineTable, Recipe
from mnemorank.training.run_folder import Run, open_run
from mnemorank.training.saving import draft_manifest, save_artifact
from mnemorank.training.stages import Course, hidden_shares, run_stages

_BASE = "base.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """:param results: None where the recipe names no dev data."""

    output: Path
    manifest: Manifest
    results: Results | None


def train(
    recipe: Recipe, output: Path, *, resume: bool = False, report: Report | None = None, say: Say | None = None
) -> Outcome:
    """Train as the recipe says and write the model folder.

    :param resume: go on from the last checkpoint in `output`; the result is that of an unbroken run.
    :param report: called with the progress after every step.
    :param say: called with a line before each part of the work that may take long.
    """
    say = say or (lambda _: None)
    check(recipe)
    run = open_run(recipe, output, resume)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    dev = dev_examples(recipe)
    if not resume:  # what is gone on with has the data that was checked when it began
        say("reading the data of all stages")
        check_data(recipe)
    base = load_base(recipe.model, recipe.seed)
    manifest = draft_manifest(recipe, base)
    writer = InputWriter(base.plain_tokenizer(), manifest)
    template = templates[recipe.model.template]
    for stage in recipe.stage:
        Hiding(writer.tokenizer, hidden_shares(stage))  # stops here, not at its stage, where there is no mask
    dev = that_fit(dev, writer, say, "dev")
    if dev:
        check_dev(dev, f" to the {len(dev)} questions that leave room for a memory: model.max_length")
    if dev and not (run.folder / _BASE).exists():
        say(f"measuring the base on {_extent(dev)}")
        # Before anything is put on it: a base that rounds to INT4 is no longer the base.
        plain = model_in_training(build_network(base.model, base.tokenizer, template), writer, manifest)
        _measure_base(run.folder, lambda: measure_model(plain, dev).values)
    before, measuring = _base_measured(run.folder) if dev else ({}, 0.0)
    model = _trainable_model(base, recipe)
    network = build_network(model, base.tokenizer, template, recipe.precision == "bfloat16")
    reader = model_in_training(network, writer, manifest)
    start = _base_weights(network, base) if recipe.average.with_base else {}
    with stop_on_signals() as stop:
        course = Course(
            recipe, network, reader, writer, run.folder, dev, stop, base.fresh, report, say, measuring, run.clock
        )
        run_stages(course)
    if start:
        put_weights(network, mix(trainable(network), start, recipe.average.with_base))
    grid = convert(model, recipe.qat) if recipe.qat else None
    if dev:
        say(f"measuring the result on {_extent(dev)}")
    outcome = _finish(recipe, output, run, course, base, manifest, before, grid)
    shutil.rmtree(run.folder)
    return outcome


def check(recipe: Recipe) -> None:
    """What can be known to be wrong before anything is loaded."""
    for stage in recipe.stage:
        check_losses(stage.loss)
        noisy = stage.features.drop or stage.features.swap
        if noisy and recipe.model.template != "features":
            raise InputError(
                f"is for the template 'features', the recipe has {recipe.model.template!r}", field="features"
            )
    if recipe.lora and recipe.model.special_tokens:
        raise InputError(
            "new tokens need their embeddings trained, which lora does not; leave one out", field="model.special_tokens"
        )
    if recipe.lora and recipe.average.with_base:
        raise InputError("does not go with lora, which leaves the base as it is", field="average.with_base")
    for name in ("freeze_layers", "freeze_embeddings"):
        if recipe.lora and getattr(recipe.model, name):
            raise InputError(
                f"model.{name}: does not go with lora, which freezes the base's own weights; leave one out"
            )
    if recipe.model.freeze_embeddings and recipe.model.special_tokens:
        raise InputError("would leave the special_tokens untrained", field="model.freeze_embeddings")


def _trainable_model(base: Base, recipe: Recipe) -> Any:
    if recipe.lora:
        return add_lora(base, recipe.lora, recipe.model.kind)
    freeze(base.model, recipe.model)
    if recipe.qat:
        prepare_quantization(base.model, recipe.qat, skip=HEADS)
    return base.model


def _base_weights(network: Network, base: Base) -> dict[str, torch.Tensor]:
    """The weights that came with the base, for averaging with them; the head is new."""
    return {name: weight.clone() for name, weight in trainable(network).items() if not is_fresh(name, base.fresh)}


def _measure_base(folder: Path, measure: Callable[[], Mapping[str, Floats]]) -> None:
    """Keep the base's own scores, measured once a run."""
    started = time.monotonic()
    values = {name: [None if np.isnan(v) else v for v in found] for name, found in measure().items()}
    text = json.dumps({"seconds": time.monotonic() - started, "values": values})
    write_whole(folder / _BASE, lambda partial: partial.write_text(text, encoding="utf-8"))


def _base_measured(folder: Path) -> tuple[dict[str, Floats], float]:
    """The base's own scores, and how many seconds it took to measure them."""
    stored = json.loads((folder / _BASE).read_text(encoding="utf-8"))
    return {name: np.array(found, dtype=np.float64) for name, found in stored["values"].items()}, stored["seconds"]


def _extent(examples: Sequence[Example]) -> str:
    return f"{len(examples):,} dev questions ({sum(len(example.candidates) for example in examples):,} pairs)"


def _as_run(pipeline: PipelineTable) -> dict[str, Any]:
    """What a recipe says about how the model is run, as fields of the manifest."""
    stated = {field.name: getattr(pipeline, field.name) for field in fields(pipeline)}
    return {name: value for name, value in stated.items() if value is not None}


def _finish(
    recipe: Recipe,
    output: Path,
    run: Run,
    course: Course,
    base: Base,
    manifest: Manifest,
    before: Mapping[str, Floats],
    grid: Grid | None,
) -> Outcome:
    results = None
    seconds = run.clock.seconds
    leaked = {question for note in course.notes for question in note.pop("leaked", ())}
    record = {**run.record, "stages": course.notes, "seconds": round(seconds)}
    if course.dev:
        measured = measure_model(course.model, course.dev)
        results = Results(len(course.dev), measure_bm25(course.dev).values, before, measured.values, len(leaked))
        manifest = replace(manifest, calibration=calibrate(measured), evaluation={"dev": results.to_dict()})
    manifest = replace(manifest, recipe=record, **_as_run(recipe.pipeline))
    card = write_card(recipe, manifest, record, course.notes, results, seconds)
    model = course.network.scorer.model
    return Outcome(output, save_artifact(output, model, base, recipe, manifest, card, grid), results)
