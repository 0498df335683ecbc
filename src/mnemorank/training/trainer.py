"""CrossEncoderTrainer on lists, with atomic checkpoints, early stopping, and exact resumption."""

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
    list_checkpoints,
    load_weights,
    new_folder,
    prune_checkpoints,
    save_weights,
    trainable_weights,
)
from mnemorank.training.network import Network
from mnemorank.training.objective import Objective
from mnemorank.training.optimizer import RunningAverage, parameter_groups, rate_schedule
from mnemorank.training.recipe import Recipe, StageSettings
from mnemorank.training.sampling import BatchSampler, ListDataset, SampledList

_WEIGHTS, _AVERAGE, _BEST = "weights.safetensors", "average.safetensors", "best.safetensors"
_STATE, _TRAINER_STATE = "stage_state.json", "trainer_state.json"


@dataclass(slots=True)
class StageState:
    """The dev scores of a stage so far; part of each checkpoint.

    :param without_gain: the number of evaluations since the best one.
    :param history: step and dev score of each evaluation.
    """

    best: float | None = None
    best_step: int | None = None
    without_gain: int = 0
    history: list[tuple[int, float]] | None = None

    @classmethod
    def load(cls, checkpoint: Path) -> StageState:
        return cls(**json.loads((checkpoint / _STATE).read_text(encoding="utf-8")))


class StageTrainer(CrossEncoderTrainer):
    """Trains one stage.

    :param folder: where the checkpoints of the stage are written.
    :param evaluate_dev: returns the dev score of the current network; None without dev data.
    :param stop_requested: called after every step; True ends training with a checkpoint.
    :param new_parameters: names of the weights that the base lacks.
    """

    def __init__(
        self,
        network: Network,
        recipe: Recipe,
        stage: StageSettings,
        dataset: ListDataset,
        batches: BatchSampler,
        folder: Path,
        *,
        evaluate_dev: Callable[[], float] | None,
        stop_requested: Callable[[], bool],
        callbacks: list[TrainerCallback],
        new_parameters: tuple[str, ...] = (),
    ) -> None:
        self.recipe, self.stage, self.folder = recipe, stage, folder
        self.stage_state = StageState()
        self.was_stopped = False
        self.last_loss = math.nan
        self._dataset, self._batches = dataset, batches
        self._evaluate_dev, self._stop_requested = evaluate_dev, stop_requested
        self._new_parameters = new_parameters
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
            callbacks=[*callbacks, _StepHooks(self)],
        )
        self.remove_callback(PrinterCallback)

    def run(self) -> None:
        """Train from the last checkpoint, or from the start, and leave the best weights in the network."""
        last = next(reversed(list_checkpoints(self.folder)), None)
        if last is not None and self._is_out_of_patience(StageState.load(last)):
            # The run was interrupted at the step at which early stopping ended the stage.
            self.stage_state = StageState.load(last)
            self.state = TrainerState.load_from_json(str(last / _TRAINER_STATE))
        else:
            self.train(resume_from_checkpoint=str(last) if last else None)
        if self.was_stopped:
            return
        if self.stage_state.best_step is not None:
            load_weights(self.model, self.folder / _BEST)
        elif self._average is not None:
            save_weights(self._average.weights, self.folder / _AVERAGE)
            load_weights(self.model, self.folder / _AVERAGE)

    def get_train_dataloader(self) -> DataLoader[SampledList]:
        return DataLoader(self._dataset, batch_sampler=self._batches, collate_fn=lambda lists: {"lists": lists})

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            groups = parameter_groups(self.model, self.stage, self._new_parameters)
            self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
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
            values = ", ".join(f"{name} {value.item():g}" for name, value in parts.items())
            self._fail(f"the loss is not finite ({values})", inputs["lists"])
        return (total, {}) if return_outputs else total

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        self._current_lists = inputs["lists"]
        return super().training_step(model, inputs, num_items_in_batch)

    def _clip_grad_norm(self, model: Any) -> Any:
        norm = super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]
        if not math.isfinite(float(norm)):
            self._fail("the gradient is not finite", self._current_lists)
        return norm

    def _fail(self, problem: str, lists: list[SampledList]) -> None:
        step = self.state.global_step + 1
        batch = "; ".join(f"{entry.source} {entry.id}: {entry.query!r:.50}" for entry in lists[:4])
        more = f" and {len(lists) - 4} more" if len(lists) > 4 else ""
        raise MnemorankError(
            f"stage {self.stage.name}, step {step}: {problem} for the batch {batch}{more}. "
            f"Lower learning_rate ({self.stage.learning_rate:g}) or check these examples"
        )

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        self._batches.set_epoch(kwargs["epoch"])
        super()._run_epoch(*args, **kwargs)  # type: ignore[no-untyped-call]

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Return the dev score, of the averaged weights if there is an average; save the best weights."""
        if self._average is None:
            score = self._evaluate_and_save_best()
        else:
            with self._average.applied():
                score = self._evaluate_and_save_best()
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, {"dev": score})
        return {"dev": score}

    def _evaluate_and_save_best(self) -> float:
        assert self._evaluate_dev is not None
        score = self._evaluate_dev()
        step, state = self.state.global_step, self.stage_state
        state.history = [*(state.history or []), (step, score)]
        if state.best is None or score > state.best:
            state.best, state.best_step, state.without_gain = score, step, 0
            save_weights(trainable_weights(self.model), self.folder / _BEST)
        else:
            state.without_gain += 1
        return score

    def _save_checkpoint(self, model: Any, trial: Any = None) -> None:
        with new_folder(self.folder / f"checkpoint-{self.state.global_step}") as folder:
            save_weights(trainable_weights(self.model), folder / _WEIGHTS)
            if self._average is not None:
                save_weights(self._average.weights, folder / _AVERAGE)
            self._save_optimizer_and_scheduler(str(folder))
            self._save_rng_state(str(folder))
            self.state.save_to_json(str(folder / _TRAINER_STATE))
            (folder / _STATE).write_text(json.dumps(asdict(self.stage_state)), encoding="utf-8")
        prune_checkpoints(self.folder, keep=2)
        self._saved_at = time.monotonic()

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        folder = Path(checkpoint_path)
        load_weights(self.model, folder / _WEIGHTS)
        if self._average is not None:
            self._average.weights = load_file(folder / _AVERAGE)
        self.stage_state = StageState.load(folder)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Do nothing: `mnemorank.training.model_card` writes the card."""

    def after_step(self, control: Any) -> None:
        """Update the average, and decide whether to evaluate, save and stop."""
        step = self.state.global_step
        if self._average is not None:
            self._average.update(step)
        is_last = step >= self.state.max_steps
        control.should_evaluate = self.evaluates_after(step)
        is_overdue = time.monotonic() - self._saved_at >= 60 * self.recipe.save_minutes
        control.should_save = (step % self.recipe.save_every == 0 or is_overdue) and not is_last
        if self._stop_requested() and not is_last:
            self.was_stopped = True
            control.should_save = control.should_training_stop = True

    def after_evaluation(self, control: Any) -> None:
        if self._is_out_of_patience(self.stage_state):
            control.should_training_stop = True

    def _is_out_of_patience(self, state: StageState) -> bool:
        patience = self.recipe.dev.patience
        return patience is not None and state.without_gain >= patience

    def evaluates_after(self, step: int) -> bool:
        """Return whether the dev data is evaluated after this step."""
        return self._evaluate_dev is not None and (
            step % self._evaluation_interval() == 0 or step >= self.state.max_steps
        )

    def evaluations_left(self, step: int) -> int:
        """Return how many evaluations follow that of this step if the stage does not stop early."""
        if self._evaluate_dev is None or step >= self.state.max_steps:
            return 0
        every, last = self._evaluation_interval(), self.state.max_steps
        return last // every - step // every + (last % every > 0)

    def _evaluation_interval(self) -> int:
        return self.recipe.dev.every or -(-len(self._batches) // self.stage.accumulate)


class _StepHooks(TrainerCallback):
    """Forwards the trainer's events to `StageTrainer`."""

    def __init__(self, trainer: StageTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.after_step(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self._trainer.after_evaluation(control)
