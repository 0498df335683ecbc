"""Read the weights of a split encoder back from its graphs, by their names in `mnemorank.export.split`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from mnemorank.errors import ArtifactError
from mnemorank.export.weight_reader import Float32s
from mnemorank.scorers.torch.split import SplitClassifier, SplitConfig

_PREFIX = "network."
_PARTS = {
    "attention_output": "attention.output.dense",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
}
_NORMS = {"attention_norm": "attention.output.LayerNorm", "norm": "output.LayerNorm"}
_PROJECTIONS = ("query", "key", "value")
_LINEAR = ("dense", "classifier", "replaced_dense", "replaced", "past_dense", "past")
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")


def read_split_encoder(folder: Path, config: dict[str, Any]) -> SplitClassifier:
    """Build the torch model of an exported split encoder.

    :param config: the content of its config.json.
    """
    settings = {key: value for key, value in config.items() if key not in ("id2label", "label2id", "cosine")}
    model: SplitClassifier = SplitClassifier(SplitConfig(**settings, num_labels=1))
    model.eval()  # type: ignore[no-untyped-call]
    tensors = _Tensors(folder)
    state = {
        "cosine": np.array(config["cosine"], dtype=np.float32),
        "segments.weight": tensors.value("segments.weight"),
    }
    for table in _TABLES:
        state[f"embeddings.{table}.weight"] = tensors.value(f"embeddings.{table}.weight")
    for part in ("weight", "bias"):
        state[f"embeddings.LayerNorm.{part}"] = tensors.value(f"embeddings.LayerNorm.{part}")
    for name in _LINEAR:
        state |= _linear(tensors, name, name)
    for stack in ("apart", "embedder", "joint"):
        for number in getattr(model, stack):
            state |= _layer(tensors, f"{stack}.{number}", int(config["hidden_size"]))
    loaded = {name: torch.tensor(array) for name, array in state.items()}
    try:
        model.load_state_dict(loaded)
    except RuntimeError as error:
        raise ArtifactError(f"{folder}: the weights do not match config.json: {error}") from None
    return model


class _Tensors:
    def __init__(self, folder: Path) -> None:
        graphs = [onnx.load(str(folder / name)).graph for name in ("encoder.onnx", "joint.onnx")]
        self._arrays = {
            tensor.name.removeprefix(_PREFIX): numpy_helper.to_array(tensor)
            for graph in graphs
            for tensor in graph.initializer
        }

    def __contains__(self, name: str) -> bool:
        return any(name + suffix in self._arrays for suffix in ("", "_quantized", "_int8"))

    def value(self, name: str) -> Float32s:
        """Return a tensor, whatever its storage."""
        for suffix in ("_quantized", "_int8"):
            if name + suffix in self._arrays:
                return np.asarray(self._arrays[name + suffix] * self.value(name + "_scale"), dtype=np.float32)
        try:
            return np.asarray(self._arrays[name], dtype=np.float32)
        except KeyError:
            raise ArtifactError(f"the graphs have no tensor {name}") from None


def _linear(tensors: _Tensors, name: str, target: str) -> dict[str, Float32s]:
    weight = tensors.value(f"{name}.weight")
    if f"{name}.smooth" in tensors:
        weight = tensors.value(f"{name}.smooth")[:, None] * weight
    return {f"{target}.weight": np.ascontiguousarray(weight.T), f"{target}.bias": tensors.value(f"{name}.bias")}


def _layer(tensors: _Tensors, name: str, width: int) -> dict[str, Float32s]:
    state: dict[str, Float32s] = {}
    for part, target in _PARTS.items():
        state |= _linear(tensors, f"{name}.{part}", f"{name}.{target}")
    for norm, target in _NORMS.items():
        for part in ("weight", "bias"):
            state[f"{name}.{target}.{part}"] = tensors.value(f"{name}.{norm}.{part}")
    attention = f"{name}.attention.self"
    if f"{name}.projections.weight" in tensors:
        joined = _linear(tensors, f"{name}.projections", "all")
        weights, biases = np.split(joined["all.weight"], 3), np.split(joined["all.bias"], 3)
        for part, weight, bias in zip(_PROJECTIONS, weights, biases, strict=True):
            state[f"{attention}.{part}.weight"], state[f"{attention}.{part}.bias"] = weight, bias
        return state
    # The last joint layer, computed for the first token only: keys and values by head, no key bias.
    state |= _linear(tensors, f"{name}.query", f"{attention}.query")
    state[f"{attention}.key.weight"] = tensors.value(f"{name}.key").reshape(width, width)
    state[f"{attention}.key.bias"] = np.zeros(width, dtype=np.float32)
    state[f"{attention}.value.weight"] = tensors.value(f"{name}.value").transpose(0, 2, 1).reshape(width, width)
    state[f"{attention}.value.bias"] = tensors.value(f"{name}.value_bias").ravel()
    return state
