"""CrossEncoderTrainer with lists for data, whole checkpoints, and a stop that loses nothing."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import PrinterCallback, TrainerCallback, TrainerState

from mnemorank.errors import MnemorankError
from mnemorank.training.checkpoints import (
    checkpoints,
    keep_last,
    load_weights,
    save_weights,
    trainable,
    whole_folder,
    write_whole,
)
from mnemorank.training.network import Network
from mnemorank.training.objective import Objective
from mnemorank.training.optimizer import RunningAverage, parameter_groups, rate_schedule
from mnemorank.training.recipe import Recipe, Stage
from mnemorank.training.sampling import Batches, DrawnList, Draws

WEIGHTS, AVERAGE, STANDING = "weights.safetensors", "average.safetensors", "standing.json"
BEST = "best.safetensors"
_TRAINER_STATE = "trainer_state.json"


@dataclass(slots=True)
class Standing:
    """How a stage stands: kept in each checkpoint.

    :param history: step and dev score of each measurement.
    """

    best: float | None = None
    best_step: int | None = None
    without_gain: int = 0
    history: list[tuple[int, float]] | None = None


class StageTrainer(CrossEncoderTrainer):
    """Trains one stage.

    :param folder: where the stage's checkpoints go.
    :param measure: gives the dev score of the network as it is; None where there is no dev data.
    :param stopped: asked after every step whether the user wants to stop.
    :param fresh: names of the weights that the base did not have.
    """

    def __init__(
        self,
        network: Network,
        recipe: Recipe,
        stage: Stage,
        draws: Draws,
        batches: Batches,
        folder: Path,
        *,
        measure: Callable[[], float] | None,
        stopped: Callable[[], bool],
        callbacks: list[TrainerCallback],
        fresh: tuple[str, ...] = (),
    ) -> None:
        self.recipe, self.stage, self.folder = recipe, stage, folder
        self.standing = Standing()
        self.was_stopped = False
        self.last_loss = math.nan
        self._draws, self._batches = draws, batches
        self._measure, self._stopped, self._fresh = measure, stopped, fresh
        self._average = RunningAverage(network, recipe.average.decay) if recipe.average.decay else None
        self._saved_at = time.monotonic()
        self._objective = Objective(network, stage.loss)
        arguments = CrossEncoderTrainingArguments(
            output_dir=str(folder),
            num_train_epochs=stage.epochs,
            max_steps=stage.steps or -1,
            per_device_train_batch_size=stage.batch_size,
            gradient_accumulation_steps=stage.accumulate,
            learning_rate=stage.learning_rate,
            max_grad_norm=stage.max_grad_norm,
            seed=recipe.seed,
            save_strategy="no",
            logging_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        super().__init__(
            model=network,
            args=arguments,
            loss=self._objective,
            callbacks=[*callbacks, _Pace(self)],
        )
        self.remove_callback(PrinterCallback)

    def run(self) -> None:
        """Train from the last whole checkpoint, or from the start, and leave the chosen weights in the network."""
        last = next(reversed(checkpoints(self.folder)), None)
        if last is not None and self._is_exhausted(_standing(last)):
            # It was asked to stop at the very step at which it would have stopped by itself.
            self.standing, self.state = _standing(last), TrainerState.load_from_json(str(last / _TRAINER_STATE))
        else:
            self.train(resume_from_checkpoint=str(last) if last else None)
        if self.was_stopped:
            return
        if self.standing.best_step is not None:
            load_weights(self.model, self.folder / BEST)
        elif self._average is not None:
            load_weights(self.model, self._saved_average())

    def get_train_dataloader(self) -> DataLoader[DrawnList]:
        return DataLoader(self._draws, batch_sampler=self._batches, collate_fn=lambda lists: {"lists": lists})

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(parameter_groups(self.model, self.stage, self._fresh), betas=(0.9, 0.98))
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        if self.lr_scheduler is None:
            factor = rate_schedule(self.stage.schedule, num_training_steps, self.stage.warmup)
            self.lr_scheduler = LambdaLR(optimizer or self.create_optimizer(), factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        parts: Mapping[str, Tensor] = self._objective(inputs["lists"])
        total = torch.stack(list(parts.values())).sum()
        self.last_loss = total.item()
        if not math.isfinite(self.last_loss):
            found = ", ".join(f"{name} {value.item():g}" for name, value in parts.items())
            self._fail(f"the loss is not a number ({found})", inputs["lists"])
        return (total, {}) if return_outputs else total

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        self._current = inputs["lists"]
        return super().training_step(model, inputs, num_items_in_batch)

    def _clip_grad_norm(self, model: Any) -> Any:
        norm = super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]
        if not math.isfinite(float(norm)):
            self._fail("the gradient is not a number", self._current)
        return norm

    def _fail(self, what: str, lists: list[DrawnList]) -> None:
        step = self.state.global_step + 1
        batch = "; ".join(f"{drawn.source} {drawn.id}: {drawn.query!r:.50}" for drawn in lists[:4])
        more = f" and {len(lists) - 4} more" if len(lists) > 4 else ""
        raise MnemorankError(
            f"stage {self.stage.name}, step {step}: {what}. The batch: {batch}{more}. "
            f"Nothing was learned from it; lower learning_rate ({self.stage.learning_rate:g}) or look at these examples"
        )

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        self._batches.set_epoch(kwargs["epoch"])
        super()._run_epoch(*args, **kwargs)  # type: ignore[no-untyped-call]

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The dev score, of the averaged weights where there are some; remembers the best."""
        assert self._measure is not None
        if self._average is None:
            score = self._compare()
        else:
            with self._average.in_place():
                score = self._compare()
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, {"dev": score})
        return {"dev": score}

    def _compare(self) -> float:
        assert self._measure is not None
        score = self._measure()
        step = self.state.global_step
        self.standing.history = [*(self.standing.history or []), (step, score)]
        if self.standing.best is None or score > self.standing.best:
            self.standing.best, self.standing.best_step, self.standing.without_gain = score, step, 0
            write_whole(self.folder / BEST, lambda path: save_weights(trainable(self.model), path))
        else:
            self.standing.without_gain += 1
        return score

    def _save_checkpoint(self, model: Any, trial: Any = None) -> None:
        with whole_folder(self.folder / f"checkpoint-{self.state.global_step}") as folder:
            save_weights(trainable(self.model), folder / WEIGHTS)
            if self._average is not None:
                save_weights(self._average.weights, folder / AVERAGE)
            self._save_optimizer_and_scheduler(str(folder))
            self._save_rng_state(str(folder))
            self.state.save_to_json(str(folder / _TRAINER_STATE))
            (folder / STANDING).write_text(json.dumps(asdict(self.standing)), encoding="utf-8")
        keep_last(self.folder, 2)
        self._saved_at = time.monotonic()

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        folder = Path(checkpoint_path)
        load_weights(self.model, folder / WEIGHTS)
        if self._average is not None:
            self._average.weights = load_file(folder / AVERAGE)
        self.standing = _standing(folder)

    def _saved_average(self) -> Path:
        assert self._average is not None
        path = self.folder / AVERAGE
        weights = self._average.weights
        write_whole(path, lambda partial: save_weights(weights, partial))
        return path

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """The card is ours to write, from what was measured."""

    def after_step(self, control: Any) -> None:
        """Average, and decide on measuring, saving and stopping."""
        step = self.state.global_step
        if self._average is not None:
            self._average.update(step)
        at_end = step >= self.state.max_steps
        control.should_evaluate = self.is_due(step)
        is_late = time.monotonic() - self._saved_at >= 60 * self.recipe.save_minutes
        control.should_save = (step % self.recipe.save_every == 0 or is_late) and not at_end
        if self._stopped() and not at_end:
            self.was_stopped = True
            control.should_save = control.should_training_stop = True

    def after_measure(self, control: Any) -> None:
        if self._is_exhausted(self.standing):
            control.should_training_stop = True

    def _is_exhausted(self, standing: Standing) -> bool:
        patience = self.recipe.dev.patience
        return patience is not None and standing.without_gain >= patience

    def is_due(self, step: int) -> bool:
        """Whether the dev examples are measured after this step."""
        return self._measure is not None and (step % self._measure_every() == 0 or step >= self.state.max_steps)

    def measurements_after(self, step: int) -> int:
        """How many measurements come after this step's, if none ends the stage early."""
        if self._measure is None or step >= self.state.max_steps:
            return 0
        every, last = self._measure_every(), self.state.max_steps
        return last // every - step // every + (last % every > 0)

    def _measure_every(self) -> int:
        return self.recipe.dev.every or -(-len(self._batches) // self.stage.accumulate)


def _standing(checkpoint: Path) -> Standing:
    return Standing(**json.loads((checkpoint / STANDING).read_text(encoding="utf-8")))


class _Pace(TrainerCallback):
    """Hands the trainer's own hooks on to `StageTrainer`."""

    def __init__(self, trainer: StageTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.after_step(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self._trainer.after_measure(control)
