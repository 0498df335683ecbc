"""Which weights are trained, how fast each, and how the learning rate runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mnemorank.errors import InputError
from mnemorank.training.checkpoints import put_weights, trainable
from mnemorank.training.recipe import ModelTable, Stage

_LAYER = re.compile(r"\blayers?\.(\d+)\.|\bh\.(\d+)\.")
_POSITIONS = ("position_embeddings", "embed_positions", "wpe")
_FLOOR = 0.03


def freeze(model: nn.Module, table: ModelTable) -> None:
    """Take the recipe's frozen parts out of training."""
    depth = layer_count(model)
    if table.freeze_layers and table.freeze_layers >= depth:
        raise InputError(
            f"{table.freeze_layers} leaves none of the base's {depth} layers to train", field="model.freeze_layers"
        )
    tables = _embedding_tables(model) if table.freeze_embeddings else set()
    for name, parameter in model.named_parameters():
        layer = layer_of(name)
        if (layer is not None and layer < table.freeze_layers) or name in tables:
            parameter.requires_grad = False


def parameter_groups(model: nn.Module, stage: Stage, fresh: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Optimizer groups with a learning rate and weight decay each; vectors (biases, norms) do not decay.

    :param fresh: parameters that the base did not have, by the end of their names.
    """
    depth = layer_count(model)
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rate = stage.learning_rate * _factor(name, depth, stage, is_fresh(name, fresh))
        decay = stage.weight_decay if parameter.ndim > 1 else 0.0
        group = groups.setdefault((rate, decay), {"params": [], "lr": rate, "weight_decay": decay})
        group["params"].append(parameter)
    return list(groups.values())


def rate_schedule(name: str, total: int, warmup: float) -> Callable[[int], float]:
    """The factor on the learning rate at each step: up over the warm-up, then as the schedule says."""
    rise = round(total * warmup)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / (rise + 1)
        done = (step - rise) / max(total - rise, 1)
        if name == "constant":
            return 1.0
        if name == "cosine":
            return max(_FLOOR, 0.5 * (1 + math.cos(math.pi * done)))
        if name == "hold":
            return 1.0 if done < 0.6 else max(_FLOOR, (1 - done) / 0.4)
        return max(0.0, 1 - done)

    return factor


def layer_of(parameter: str) -> int | None:
    """The transformer layer a parameter belongs to, None for embeddings and head."""
    match = _LAYER.search(parameter)
    return int(match[1] or match[2]) if match else None


def layer_count(model: nn.Module) -> int:
    layers = [layer for name, _ in model.named_parameters() if (layer := layer_of(name)) is not None]
    return max(layers) + 1 if layers else 0


def is_fresh(name: str, fresh: tuple[str, ...]) -> bool:
    """Whether a parameter is new; peft keeps the trained copy of a whole module under a longer name."""
    return name.replace("modules_to_save.default.", "").endswith(fresh) if fresh else False


def _factor(name: str, depth: int, stage: Stage, is_new: bool) -> float:
    if is_new:
        return stage.head_factor
    layer = layer_of(name)
    if layer is not None:
        return float(stage.layer_decay ** (depth - layer))
    return float(stage.layer_decay**depth) if "embed" in name else 1.0


def _embedding_tables(model: Any) -> set[str]:
    """The word embeddings, as the model itself names them, and those of positions."""
    try:
        words = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    except (AttributeError, NotImplementedError):
        raise InputError(
            "the base does not say which are its embeddings; leave it out", field="model.freeze_embeddings"
        ) from None
    return {
        name
        for name, parameter in model.named_parameters()
        if id(parameter) in words or any(part in _POSITIONS for part in name.split("."))
    }


class RunningAverage:
    """:param decay: of the average; the first steps count less long, so that the start is soon forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model = model
        self._decay = decay
        self.weights = {name: weight.clone() for name, weight in trainable(model).items()}

    def update(self, step: int) -> None:
        keep = min(self._decay, (1 + step) / (20 + step))
        current = trainable(self._model)
        torch._foreach_lerp_(list(self.weights.values()), [current[name] for name in self.weights], 1 - keep)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the averaged weights, for the length of the block."""
        own = {name: weight.clone() for name, weight in trainable(self._model).items()}
        put_weights(self._model, self.weights)
        try:
            yield
        finally:
            put_weights(self._model, own)


def mix(trained: Mapping[str, Tensor], base: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """The trained weights with a share of the base's in them; weights that the base did not have stay."""
    return {name: torch.lerp(weight, base[name], share) if name in base else weight for name, weight in trained.items()}
