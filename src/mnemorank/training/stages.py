"""The curriculum: stage after stage on one network, each kept once it is done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from mnemorank.data.examples import Example
from mnemorank.data.splits import find_leaks
from mnemorank.model.model import Model
from mnemorank.scorers.encoding import InputWriter
from mnemorank.training.augmentation import NoisyFeatures
from mnemorank.training.checkpoints import load_weights, save_weights, trainable, write_whole
from mnemorank.training.dataset import ReadyData, prepare, that_fit
from mnemorank.training.evaluation import measure_model
from mnemorank.training.example_loading import stage_examples
from mnemorank.training.network import Network
from mnemorank.training.objective import ranks_only
from mnemorank.training.progress import InterruptedTrainingError, Report, Reporting, Say, StopRequest
from mnemorank.training.recipe import Recipe, Stage
from mnemorank.training.run_folder import Clock
from mnemorank.training.sampling import Batches, Draws
from mnemorank.training.trainer import StageTrainer


@dataclass(slots=True)
class Course:
    """What the stages share.

    :param folder: of the run's checkpoints.
    :param measuring: seconds that the base's measurement took.
    :param notes: what is worth knowing about each stage, for the record.
    """

    recipe: Recipe
    network: Network
    model: Model
    writer: InputWriter
    folder: Path
    dev: Sequence[Example]
    stop: StopRequest
    fresh: tuple[str, ...]
    report: Report | None
    say: Say
    measuring: float
    clock: Clock
    notes: list[dict[str, Any]] = field(default_factory=list)


def run_stages(course: Course) -> None:
    """Train every stage that is not done yet; the network holds the result."""
    for number, stage in enumerate(course.recipe.stage, 1):
        done = course.folder / f"{number}-{stage.name}.safetensors"
        note = done.with_suffix(".json")
        if done.exists():
            load_weights(course.network, done)
            course.notes.append(json.loads(note.read_text(encoding="utf-8")))
            continue
        course.say(f"{stage.name}: reading {', '.join(source.display_name for source in stage.data)}")
        found = stage_examples(stage, course.recipe)
        examples = that_fit(found, course.writer, course.say, stage.name)
        ready = prepare(examples, course.model, ranking=ranks_only(stage.loss))
        if ready.dropped:
            why = "nothing differs in label" if ranks_only(stage.loss) else "no text"
            course.say(f"{stage.name}: left out {ready.dropped} of {len(examples)} lists: {why}")
        leaked = _leaked(examples, course.dev)
        if leaked:
            course.say(f"{stage.name}: {len(leaked)} of {len(course.dev)} dev questions resemble a training question")
        course.notes.append(_note(stage, ready) | {"leaks": len(leaked), "leaked": leaked})
        course.notes[-1]["too_long"] = len(found) - len(examples)
        _run_stage(course, number, stage, ready)
        course.clock.keep()
        _tell_a_fall(course)
        text = json.dumps(course.notes[-1])
        write_whole(note, lambda path, text=text: path.write_text(text, encoding="utf-8"))  # type: ignore[misc]
        write_whole(done, lambda path: save_weights(trainable(course.network), path))
        shutil.rmtree(course.folder / f"{number}-{stage.name}", ignore_errors=True)


def hidden_shares(stage: Stage) -> dict[str, float]:
    """The share of tokens to hide, by source."""
    return {source.display_name: source.mask_rate for source in stage.data}


def _run_stage(course: Course, number: int, stage: Stage, ready: ReadyData) -> None:
    seed = course.recipe.seed * 1000 + number
    writer, noise = course.writer, None
    if course.recipe.model.template == "features":
        noise = NoisyFeatures(course.writer.template, stage.features)
        writer = InputWriter(course.writer.tokenizer, course.model.manifest)
        writer.template = noise.template
    lengths = [entry.length for entry in ready.lists]
    reporting = [Reporting(course.report, number, len(course.recipe.stage), course.measuring)] if course.report else []
    trainer = StageTrainer(
        course.network,
        course.recipe,
        stage,
        Draws(ready.lists, writer, stage.lists, seed, noise, hidden_shares(stage)),
        Batches(lengths, stage.batch_size, seed, sort_by_length=stage.sort_by_length),
        course.folder / f"{number}-{stage.name}",
        measure=(lambda: measure_model(course.model, course.dev).mean(course.recipe.dev.measure))
        if course.dev
        else None,
        stopped=course.stop,
        callbacks=[*reporting, _Keeping(course.clock)],
        fresh=course.fresh,
    )
    for callback in reporting:
        callback.trainer = trainer
    trainer.run()
    course.notes[-1] |= {"steps": trainer.state.global_step, "dev": trainer.standing.history}
    if trainer.was_stopped:
        raise InterruptedTrainingError(
            f"stopped and saved at step {trainer.state.global_step} of {trainer.state.max_steps} (stage {stage.name})"
        )


class _Keeping(TrainerCallback):
    """Notes the time with every checkpoint."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._clock.keep()


def _tell_a_fall(course: Course) -> None:
    """Say where a stage, at its best, is below what the one before ended with: each is kept whatever it did."""
    if not course.dev or len(course.notes) < 2:
        return
    before, after = (max(score for _, score in note["dev"]) for note in course.notes[-2:])
    if after < before:
        name = course.notes[-1]["name"]
        course.say(f"{name}: dev {course.recipe.dev.measure} {after:.3f} at best, below the {before:.3f} it began with")


def _leaked(train: Sequence[Example], dev: Sequence[Example]) -> list[str]:
    """The dev questions that share their group or nearly their words with a training question, each once."""
    named = [replace(example, id=f"{example.source or 'dev'} {example.id}") for example in dev]
    return sorted({leak.dev_id for leak in find_leaks(train, named)})


def _note(stage: Stage, ready: ReadyData) -> dict[str, Any]:
    sources: dict[str, int] = {}
    for entry in ready.lists:
        sources[entry.source] = sources.get(entry.source, 0) + 1
    return {
        "name": stage.name,
        "lists": len(ready.lists),
        "pairs": sum(len(entry.passages) for entry in ready.lists),
        "sources": sources,
        "windowed": ready.windowed,
        "dropped": ready.dropped,
    }
