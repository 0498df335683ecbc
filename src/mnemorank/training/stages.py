"""The curriculum: check the data of all stages, then train one stage after another, each resumable."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from mnemorank.data.examples import Example
from mnemorank.data.retrieval import load_retriever
from mnemorank.data.splits import find_leaks
from mnemorank.model.model import Model
from mnemorank.scorers.encoding import InputWriter
from mnemorank.training.augmentation import NoisyFeatures
from mnemorank.training.checkpoints import RunClock, load_weights, save_weights, trainable_weights, write_json
from mnemorank.training.dataset import (
    PreparedData,
    check_conflicts,
    check_trainable,
    drop_long_queries,
    is_trainable,
    prepare_lists,
    stage_examples,
)
from mnemorank.training.evaluation import evaluate_model
from mnemorank.training.network import Network
from mnemorank.training.objective import check_candidates, needs_contrast
from mnemorank.training.progress import (
    InterruptedTrainingError,
    MessageCallback,
    ProgressCallback,
    ProgressReporter,
    StopRequest,
)
from mnemorank.training.recipe import Recipe, StageSettings
from mnemorank.training.sampling import BatchSampler, ListDataset, check_sampling
from mnemorank.training.trainer import StageTrainer


@dataclass(slots=True)
class TrainingContext:
    """What the stages share.

    :param folder: where checkpoints are written.
    :param new_parameters: names of the weights that the base lacks.
    :param evaluation_seconds: how long the evaluation of the base took.
    :param stage_records: facts about each finished stage, for the manifest and the model card.
    """

    recipe: Recipe
    network: Network
    model: Model
    writer: InputWriter
    folder: Path
    dev: Sequence[Example]
    stop: StopRequest
    new_parameters: tuple[str, ...]
    on_progress: ProgressCallback | None
    on_message: MessageCallback
    evaluation_seconds: float
    clock: RunClock
    stage_records: list[dict[str, Any]] = field(default_factory=list)


def check_data(recipe: Recipe) -> None:
    """Read the data of all stages, so that an error in the last is found before the first is trained.

    Mined negatives are not checked.
    """
    checked: list[object] = []
    for stage in recipe.stage:
        for source in stage.data:
            if source.hard_negatives is not None:
                load_retriever(source.hard_negatives.retriever)
        relevant_settings = stage.data, stage.loss, stage.lists
        if relevant_settings not in checked:
            _check_stage_data(stage, recipe)
        checked.append(relevant_settings)


def run_stages(context: TrainingContext) -> None:
    """Train every stage that is not finished yet and leave the result in the network."""
    for number, stage in enumerate(context.recipe.stage, 1):
        finished = context.folder / f"{number}-{stage.name}.safetensors"
        record_path = finished.with_suffix(".json")
        if finished.exists():
            load_weights(context.network, finished)
            context.stage_records.append(json.loads(record_path.read_text(encoding="utf-8")))
            continue
        context.on_message(f"{stage.name}: reading {', '.join(source.display_name for source in stage.data)}")
        loaded = stage_examples(stage, context.recipe)
        examples = drop_long_queries(loaded, context.writer, context.on_message, stage.name)
        prepared = prepare_lists(examples, context.model, needs_contrast=needs_contrast(stage.loss))
        if prepared.dropped:
            reason = "all labels equal" if needs_contrast(stage.loss) else "no text"
            context.on_message(f"{stage.name}: dropped {prepared.dropped} of {len(examples)} lists: {reason}")
        leaked = _leaked_dev_ids(examples, context.dev)
        if leaked:
            context.on_message(
                f"{stage.name}: {len(leaked)} of {len(context.dev)} dev queries resemble a training query"
            )
        record = _stage_record(stage, prepared)
        record |= {"leaks": len(leaked), "leaked": leaked, "too_long": len(loaded) - len(examples)}
        context.stage_records.append(record)
        _train_stage(context, number, stage, prepared)
        context.clock.save()
        decline = decline_message(context.stage_records, context.recipe.dev.metric) if context.dev else None
        if decline:
            context.on_message(decline)
        write_json(record_path, context.stage_records[-1])
        save_weights(trainable_weights(context.network), finished)
        shutil.rmtree(context.folder / f"{number}-{stage.name}", ignore_errors=True)


def _check_stage_data(stage: StageSettings, recipe: Recipe) -> None:
    is_mined = any(source.hard_negatives is not None for source in stage.data)
    once = tuple(replace(source, hard_negatives=None, weight=min(source.weight, 1.0)) for source in stage.data)
    examples = stage_examples(stage.model_copy(update={"data": once}), recipe)
    check_conflicts(examples, recipe.model.format)
    lists = [[c for c in example.candidates if c.memory.text.strip()] for example in examples]
    compares = needs_contrast(stage.loss)
    if not is_mined:
        lists = [
            candidates for candidates in lists if is_trainable([c.label for c in candidates], needs_contrast=compares)
        ]
        check_trainable([[c.label for c in candidates] for candidates in lists])
    if compares:
        mined = [0.0] if is_mined else []
        check_sampling([[c.label for c in candidates] + mined for candidates in lists], stage.lists)
    check_candidates([candidate for candidates in lists for candidate in candidates], stage.loss)


def _train_stage(context: TrainingContext, number: int, stage: StageSettings, prepared: PreparedData) -> None:
    seed = context.recipe.seed * 1000 + number
    writer, noise = context.writer, None
    if context.recipe.model.template == "features":
        noise = NoisyFeatures(context.writer.template, stage.features)
        writer = InputWriter(context.writer.tokenizer, context.model.manifest)
        writer.template = noise.template
    reporters = []
    if context.on_progress:
        stage_count = len(context.recipe.stage)
        reporters = [ProgressReporter(context.on_progress, number, stage_count, context.evaluation_seconds)]
    lengths = [entry.mean_length for entry in prepared.lists]

    def evaluate_dev() -> float:
        return evaluate_model(context.model, context.dev).mean(context.recipe.dev.metric)

    trainer = StageTrainer(
        context.network,
        context.recipe,
        stage,
        ListDataset(prepared.lists, writer, stage.lists, seed, noise, stage.mask_rates),
        BatchSampler(lengths, stage.batch_size, seed, sort_by_length=stage.sort_by_length),
        context.folder / f"{number}-{stage.name}",
        evaluate_dev=evaluate_dev if context.dev else None,
        stop_requested=context.stop,
        callbacks=[*reporters, _SaveClock(context.clock)],
        new_parameters=context.new_parameters,
    )
    for reporter in reporters:
        reporter.trainer = trainer
    trainer.run()
    context.stage_records[-1] |= {"steps": trainer.state.global_step, "dev": trainer.stage_state.history}
    if trainer.was_stopped:
        raise InterruptedTrainingError(
            f"stopped and saved at step {trainer.state.global_step} of {trainer.state.max_steps} (stage {stage.name})"
        )


class _SaveClock(TrainerCallback):
    """Saves the elapsed time with every checkpoint."""

    def __init__(self, clock: RunClock) -> None:
        self._clock = clock

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._clock.save()


def decline_message(stage_records: Sequence[Mapping[str, Any]], metric: str) -> str | None:
    """Return a warning if the best dev score of the last stage is below that of the stage before."""
    if len(stage_records) < 2:
        return None
    before, after = (max(score for _, score in record["dev"]) for record in stage_records[-2:])
    if after >= before:
        return None
    name = stage_records[-1]["name"]
    return f"{name}: best dev {metric} is {after:.3f}, below the {before:.3f} of the stage before"


def _leaked_dev_ids(train: Sequence[Example], dev: Sequence[Example]) -> list[str]:
    """The dev queries that share a group or nearly all words with a training query."""
    named = [replace(example, id=f"{example.source or 'dev'} {example.id}") for example in dev]
    return sorted({leak.dev_id for leak in find_leaks(train, named)})


def _stage_record(stage: StageSettings, prepared: PreparedData) -> dict[str, Any]:
    sources: dict[str, int] = {}
    for entry in prepared.lists:
        sources[entry.source] = sources.get(entry.source, 0) + 1
    return {
        "name": stage.name,
        "lists": len(prepared.lists),
        "pairs": sum(len(entry.passages) for entry in prepared.lists),
        "sources": sources,
        "windowed": prepared.windowed,
        "dropped": prepared.dropped,
    }
