"""A training run from recipe to model folder, resumable at any time."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mnemorank._internal.arrays import Floats
from mnemorank._internal.quiet import quiet_libraries
from mnemorank.artifact.manifest import MANIFEST, Manifest, write_manifest
from mnemorank.artifact.templates import templates
from mnemorank.data.examples import Example
from mnemorank.errors import InputError
from mnemorank.model.model import Model
from mnemorank.scorers.encoding import InputWriter
from mnemorank.training.augmentation import TokenMasking
from mnemorank.training.base_model import HEADS, LoadedBase, add_lora, load_base
from mnemorank.training.checkpoints import RunFolder, new_folder, open_run, set_weights, trainable_weights, write_json
from mnemorank.training.dataset import check_dev, dev_examples, drop_long_queries
from mnemorank.training.evaluation import DevResults, calibrate, evaluate_bm25, evaluate_model, wrap_network
from mnemorank.training.model_card import write_card
from mnemorank.training.network import Network, build_network
from mnemorank.training.objective import resolve_losses
from mnemorank.training.optimizer import freeze, is_new_parameter, mix_weights
from mnemorank.training.progress import MessageCallback, ProgressCallback, stop_on_signals
from mnemorank.training.qat import SCALES_FILE, WeightScales, finish_qat, prepare_qat
from mnemorank.training.recipe import PipelineSettings, Recipe
from mnemorank.training.stages import TrainingContext, check_data, run_stages

_BASE_EVALUATION = "base.json"
_CARD = "README.md"


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A trained model and its evaluation.

    :param results: None if the recipe has no dev data.
    """

    output: Path
    manifest: Manifest
    results: DevResults | None


def train(
    recipe: Recipe,
    output: Path,
    *,
    resume: bool = False,
    on_progress: ProgressCallback | None = None,
    on_message: MessageCallback | None = None,
) -> TrainingResult:
    """Train a model and write its folder.

    :param resume: continue from the last checkpoint in `output`; the result is that of an uninterrupted run.
    :param on_progress: called after every step and every evaluation.
    :param on_message: called with a line before each part of the work that may take long.
    """
    on_message = on_message or (lambda _: None)
    check_recipe(recipe)
    run = open_run(recipe, output, resume)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    dev = dev_examples(recipe)
    if not resume:  # a run to resume was checked when it started
        on_message("reading the data of all stages")
        check_data(recipe)
    base = load_base(recipe.model, recipe.seed)
    manifest = draft_manifest(recipe, base)
    writer = InputWriter(base.inference_tokenizer(), manifest)
    template = templates[recipe.model.template]
    for stage in recipe.stage:
        TokenMasking(writer.tokenizer, stage.mask_rates)  # raises now, not in its stage, if there is no mask token
    dev = drop_long_queries(dev, writer, on_message, "dev")
    if dev:
        check_dev(dev, "model.max_length")
    if dev and not (run.path / _BASE_EVALUATION).exists():
        on_message(f"evaluating the base on {_describe(dev)}")
        # Before LoRA or quantization: a base that rounds to INT4 is no longer the base.
        _evaluate_base(run, wrap_network(build_network(base.model, base.tokenizer, template), writer, manifest), dev)
    before, evaluation_seconds = _base_evaluation(run) if dev else ({}, 0.0)
    hf_model = _trainable_model(base, recipe)
    network = build_network(hf_model, base.tokenizer, template, recipe.precision == "bfloat16")
    base_weights = _base_weights(network, base) if recipe.average.with_base else {}
    with stop_on_signals() as stop:
        context = TrainingContext(
            recipe,
            network,
            wrap_network(network, writer, manifest),
            writer,
            run.path,
            dev,
            stop,
            base.new_parameters,
            on_progress,
            on_message,
            evaluation_seconds,
            run.clock,
        )
        run_stages(context)
    if base_weights:
        set_weights(network, mix_weights(trainable_weights(network), base_weights, recipe.average.with_base))
    scales = finish_qat(hf_model, recipe.qat) if recipe.qat else None
    if dev:
        on_message(f"evaluating the result on {_describe(dev)}")
    result = _finish(output, run, context, base, manifest, before, scales)
    shutil.rmtree(run.path)
    return result


def check_recipe(recipe: Recipe) -> None:
    """Raise for settings that cannot be combined, before anything is loaded."""
    for stage in recipe.stage:
        resolve_losses(stage.loss, recipe.file)
        if (stage.features.drop or stage.features.swap) and recipe.model.template != "features":
            raise InputError(f"needs the template 'features', got {recipe.model.template!r}", field="features")
    if recipe.lora and recipe.model.special_tokens:
        raise InputError("cannot be combined with lora, which does not train embeddings", field="model.special_tokens")
    if recipe.lora and recipe.average.with_base:
        raise InputError("cannot be combined with lora, which does not change the base", field="average.with_base")
    for name in ("freeze_layers", "freeze_embeddings"):
        if recipe.lora and getattr(recipe.model, name):
            raise InputError("cannot be combined with lora, which freezes the base itself", field=f"model.{name}")
    if recipe.model.freeze_embeddings and recipe.model.special_tokens:
        raise InputError("would leave special_tokens untrained", field="model.freeze_embeddings")


def draft_manifest(recipe: Recipe, base: LoadedBase) -> Manifest:
    """Return what is known about how to call the model before it is trained."""
    base_name = recipe.model.base
    needs_base = recipe.lora is not None and not recipe.lora.merge
    if needs_base and not base_name.startswith("hf:"):
        base_name = str(base.path.resolve())
    return Manifest(
        name=recipe.name,
        version="1",
        family=_family(recipe),
        format=recipe.model.format,
        template=recipe.model.template,
        instruction=recipe.model.instruction,
        score_kind="logit",
        max_length=recipe.model.max_length,
        windows=recipe.pipeline.windows,
        base=base_name,
        quantization=f"qat-{recipe.qat.weights}" if recipe.qat else "none",
    )


def _family(recipe: Recipe) -> str:
    if recipe.model.kind == "yes-no":
        return "yes-no"
    return "lora" if recipe.lora and not recipe.lora.merge else "torch"


def _trainable_model(base: LoadedBase, recipe: Recipe) -> Any:
    if recipe.lora:
        return add_lora(base, recipe.lora, recipe.model.kind)
    freeze(base.model, recipe.model)
    if recipe.qat:
        prepare_qat(base.model, recipe.qat, skip=HEADS)
    return base.model


def _base_weights(network: Network, base: LoadedBase) -> dict[str, torch.Tensor]:
    """A copy of the weights that came with the base, to average with."""
    weights = trainable_weights(network).items()
    return {name: weight.clone() for name, weight in weights if not is_new_parameter(name, base.new_parameters)}


def _evaluate_base(run: RunFolder, model: Model, dev: Sequence[Example]) -> None:
    """Evaluate the base once per run and save the result for resumption."""
    started = time.monotonic()
    metrics = evaluate_model(model, dev).values
    values = {metric: [None if np.isnan(v) else v for v in numbers] for metric, numbers in metrics.items()}
    write_json(run.path / _BASE_EVALUATION, {"seconds": time.monotonic() - started, "values": values})


def _base_evaluation(run: RunFolder) -> tuple[dict[str, Floats], float]:
    """The metrics of the base, and how many seconds their evaluation took."""
    saved = json.loads((run.path / _BASE_EVALUATION).read_text(encoding="utf-8"))
    return {metric: np.array(values, dtype=np.float64) for metric, values in saved["values"].items()}, saved["seconds"]


def _describe(examples: Sequence[Example]) -> str:
    return f"{len(examples):,} dev queries ({sum(len(example.candidates) for example in examples):,} pairs)"


def _pipeline_fields(pipeline: PipelineSettings) -> dict[str, Any]:
    """The recipe's pipeline settings as fields of the manifest."""
    values = {name: getattr(pipeline, name) for name in PipelineSettings.model_fields}
    return {name: value for name, value in values.items() if value is not None}


def _finish(
    output: Path,
    run: RunFolder,
    context: TrainingContext,
    base: LoadedBase,
    manifest: Manifest,
    before: Mapping[str, Floats],
    scales: WeightScales | None,
) -> TrainingResult:
    recipe, results, seconds = context.recipe, None, run.clock.seconds
    leaked = {query for record in context.stage_records for query in record.pop("leaked", ())}
    record = {**run.record, "stages": context.stage_records, "seconds": round(seconds)}
    if context.dev:
        after = evaluate_model(context.model, context.dev)
        baseline = evaluate_bm25(context.dev).values
        results = DevResults(len(context.dev), baseline, before, after.values, len(leaked))
        manifest = replace(manifest, calibration=calibrate(after), evaluation={"dev": results.to_dict()})
    manifest = replace(manifest, recipe=record, **_pipeline_fields(recipe.pipeline))
    card = write_card(recipe, manifest, record, context.stage_records, results, seconds)
    model = context.network.pair_module.model
    if recipe.lora and recipe.lora.merge:
        model = model.merge_and_unload()
    return TrainingResult(output, _save_model(output, model, base, manifest, card, scales), results)


def _save_model(
    output: Path, model: Any, base: LoadedBase, manifest: Manifest, card: str, scales: WeightScales | None
) -> Manifest:
    """Write the model folder; files are moved into place one by one, the manifest last, which marks it complete."""
    output.mkdir(parents=True, exist_ok=True)
    with new_folder(output / "finished") as folder:
        with quiet_libraries():
            model.save_pretrained(str(folder))
            base.tokenizer.save_pretrained(str(folder))
        if scales is not None:
            scales.save(folder / SCALES_FILE)
        (folder / _CARD).write_text(card, encoding="utf-8")
        files = [path for path in folder.rglob("*") if path.is_file()]
        for path in files:  # safetensors creates files readable by the owner only, whatever the umask
            path.chmod((folder / _CARD).stat().st_mode)
        names = sorted(path.relative_to(folder).as_posix() for path in files)
        written = write_manifest(folder, manifest, names)
    (output / MANIFEST).unlink(missing_ok=True)
    for path in sorted((output / "finished").iterdir(), key=lambda path: path.name == MANIFEST):
        target = output / path.name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(path, target)
    (output / "finished").rmdir()
    return written
