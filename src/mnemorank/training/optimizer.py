"""Frozen layers, learning rates per layer, learning rate schedules, and weight averaging."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mnemorank.errors import InputError
from mnemorank.training.checkpoints import set_weights, trainable_weights
from mnemorank.training.recipe import ModelSettings, StageSettings

_LAYER = re.compile(r"\b(?:layers?|h|apart|embedder|joint)\.(\d+)\.")
_POSITION_EMBEDDINGS = ("position_embeddings", "embed_positions", "wpe")
_LOWEST_FACTOR = 0.03


def freeze(model: nn.Module, settings: ModelSettings) -> None:
    """Exclude the layers and embeddings that the recipe freezes from training."""
    depth = layer_count(model)
    if settings.freeze_layers and settings.freeze_layers >= depth:
        raise InputError(
            f"expected less than the base's {depth} layers, got {settings.freeze_layers}", field="model.freeze_layers"
        )
    embeddings = _embedding_parameters(model) if settings.freeze_embeddings else set()
    for name, parameter in model.named_parameters():
        layer = layer_of(name)
        if (layer is not None and layer < settings.freeze_layers) or name in embeddings:
            parameter.requires_grad = False


def parameter_groups(
    model: nn.Module, stage: StageSettings, new_parameters: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Return optimizer groups with their learning rate and weight decay; vectors (biases, norms) do not decay.

    :param new_parameters: suffixes of the names of parameters that the base lacks.
    """
    depth = layer_count(model)
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rate = stage.learning_rate * _rate_factor(name, depth, stage, is_new_parameter(name, new_parameters))
        decay = stage.weight_decay if parameter.ndim > 1 else 0.0
        group = groups.setdefault((rate, decay), {"params": [], "lr": rate, "weight_decay": decay})
        group["params"].append(parameter)
    return list(groups.values())


def rate_schedule(name: str, total: int, warmup: float) -> Callable[[int], float]:
    """Return the learning rate factor as a function of the step: rising in the warmup, then as the schedule says."""
    warmup_steps = round(total * warmup)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        done = (step - warmup_steps) / max(total - warmup_steps, 1)
        if name == "constant":
            return 1.0
        if name == "cosine":
            return max(_LOWEST_FACTOR, 0.5 * (1 + math.cos(math.pi * done)))
        if name == "hold":
            return 1.0 if done < 0.6 else max(_LOWEST_FACTOR, (1 - done) / 0.4)
        return max(0.0, 1 - done)

    return factor


def layer_of(parameter: str) -> int | None:
    """Return the transformer layer of a parameter; None for embeddings and head."""
    match = _LAYER.search(parameter)
    return int(match[1]) if match else None


def layer_count(model: nn.Module) -> int:
    layers = [layer for name, _ in model.named_parameters() if (layer := layer_of(name)) is not None]
    return max(layers) + 1 if layers else 0


def is_new_parameter(name: str, new_parameters: tuple[str, ...]) -> bool:
    """Return whether the base lacks a parameter. Peft prefixes the names of modules that it trains as a whole."""
    return name.replace("modules_to_save.default.", "").endswith(new_parameters) if new_parameters else False


def _rate_factor(name: str, depth: int, stage: StageSettings, is_new: bool) -> float:
    if is_new:
        return stage.head_factor
    layer = layer_of(name)
    if layer is not None:
        return float(stage.layer_decay ** (depth - layer))
    return float(stage.layer_decay**depth) if "embed" in name else 1.0


def _embedding_parameters(model: Any) -> set[str]:
    """The names of the word and position embeddings."""
    try:
        words = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    except (AttributeError, NotImplementedError):
        raise InputError(
            "not supported by this base: it does not name its input embeddings", field="model.freeze_embeddings"
        ) from None
    return {
        name
        for name, parameter in model.named_parameters()
        if id(parameter) in words or any(part in _POSITION_EMBEDDINGS for part in name.split("."))
    }


class RunningAverage:
    """An exponential moving average of the trained weights.

    :param decay: the final decay; it is smaller in the first steps, so that the start is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model = model
        self._decay = decay
        self.weights = {name: weight.clone() for name, weight in trainable_weights(model).items()}

    def update(self, step: int) -> None:
        keep = min(self._decay, (1 + step) / (20 + step))
        current = trainable_weights(self._model)
        torch._foreach_lerp_(list(self.weights.values()), [current[name] for name in self.weights], 1 - keep)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averaged weights into the model for the duration of the block."""
        current = {name: weight.clone() for name, weight in trainable_weights(self._model).items()}
        set_weights(self._model, self.weights)
        try:
            yield
        finally:
            set_weights(self._model, current)


def mix_weights(trained: Mapping[str, Tensor], base: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return the trained weights with a share of the base's mixed in; weights that the base lacks stay as they are."""
    return {name: torch.lerp(weight, base[name], share) if name in base else weight for name, weight in trained.items()}
