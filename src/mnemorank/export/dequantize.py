"""Turn an exported BERT cross-encoder back into a torch model, so that training can start from the ONNX file.

The weights are read from the graph in order of use, whatever their names and quantization, and loaded into a Hugging
Face model. If that model does not score like the graph, it is rejected.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import numpy as np

from mnemorank._internal.atomic import atomic_folder
from mnemorank._internal.quiet import quiet_libraries
from mnemorank.artifact.resolve import load_artifact
from mnemorank.data.bundled import bundled_dataset
from mnemorank.data.sources import read_examples
from mnemorank.errors import ArtifactError
from mnemorank.export.weight_reader import Float32s, GraphWeights, read_weights
from mnemorank.scorers.encoding import Ids, load_tokenizer

logger = logging.getLogger(__name__)

_PROJECTIONS = ("query", "key", "value")
_CHECKED_QUERIES = 6
_MAX_RELATIVE_ERROR = 0.3
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def dequantize(model: Path, folder: Path) -> Path:
    """Write a Hugging Face folder with the dequantized weights of an ONNX model and return it.

    :param model: a model folder of the onnx or the split family.
    :param folder: where to write; kept as it is if it has a model already.
    """
    if (folder / "config.json").exists():
        return folder
    from mnemorank.export.split_weights import read_split_encoder

    artifact = load_artifact(model)
    config = json.loads(artifact.file("config.json").read_text(encoding="utf-8"))
    if artifact.manifest.family == "split":
        return _save_closest(model, artifact.path, [read_split_encoder(artifact.path, config)], folder)
    if artifact.manifest.family != "onnx" or config.get("model_type") != "bert":
        raise ArtifactError(f"{model}: only BERT models in ONNX can be dequantized")
    weights = read_weights(artifact.file("model.onnx", "onnx/model.onnx"), config)
    if not _uses_types(artifact.path):
        # The model was trained without segment ids: make them irrelevant for further training too.
        types = weights.tables["token_type_embeddings"]
        weights.tables["token_type_embeddings"] = np.tile(types[:1], (len(types), 1))
    models = [_build_model(config, _state_dict(weights, config, variant)) for variant in _variants(weights, config)]
    return _save_closest(model, artifact.path, models, folder)


def _save_closest(model: Path, path: Path, models: list[Any], folder: Path) -> Path:
    """Save the torch model that scores most like the graph; raise if none does."""
    errors = [_relative_error(torch_model, path) for torch_model in models]
    best = int(np.argmin(errors))
    if errors[best] > _MAX_RELATIVE_ERROR:
        raise ArtifactError(
            f"{model}: the weights read from its graph do not score like it (relative error {errors[best]:.2f}); "
            "set training.base to a torch folder"
        )
    logger.info("dequantized %s with a relative error of %.3f", model, errors[best])
    return _save(models[best], path, folder)


@dataclass(frozen=True, slots=True)
class _Variant:
    """What the shapes of the weights do not determine.

    :param order: the order of query, key and value projections that are separate products.
    :param scaled_keys: whether the keys include the scale of the attention scores.
    """

    order: tuple[str, ...] = _PROJECTIONS
    scaled_keys: bool = False


def _variants(weights: GraphWeights, config: dict[str, Any]) -> list[_Variant]:
    if any(weight.ndim == 3 for weight in weights.weights):
        return [_Variant(), _Variant(scaled_keys=True)]
    fused = sum(weight.shape[1] == 3 * config["hidden_size"] for weight in weights.weights)
    if fused == config["num_hidden_layers"]:
        return [_Variant()]
    return [_Variant(order) for order in permutations(_PROJECTIONS)]


def _state_dict(graph: GraphWeights, config: dict[str, Any], variant: _Variant) -> dict[str, Float32s]:
    """The weights by their names in Hugging Face's BERT."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    weights, biases, norms = deque(graph.weights), deque(graph.biases), deque(graph.norms)
    state: dict[str, Float32s] = {}

    def linear(name: str) -> None:
        state[f"{name}.weight"], state[f"{name}.bias"] = weights.popleft().T, biases.popleft().ravel()

    def norm(name: str) -> None:
        state[f"{name}.weight"], state[f"{name}.bias"] = norms.popleft()

    def attention(name: str) -> None:
        if weights[0].shape == (hidden, 3 * hidden):
            parts = np.split(weights.popleft(), 3, axis=1), np.split(biases.popleft().ravel(), 3)
            for part, weight, bias in zip(_PROJECTIONS, *parts, strict=True):
                state[f"{name}.{part}.weight"], state[f"{name}.{part}.bias"] = weight.T, bias
            return
        if weights[1].ndim == 2:
            for part in variant.order:
                linear(f"{name}.{part}")
            return
        linear(f"{name}.query")
        # The last layer, computed for the first token only: keys and values by head, no key bias (softmax drops it).
        key, value = weights.popleft(), weights.popleft()
        scale = (hidden // heads) ** 0.5 if variant.scaled_keys else 1.0
        state[f"{name}.key.weight"] = key.reshape(hidden, hidden) * scale
        state[f"{name}.key.bias"] = np.zeros(hidden, dtype=np.float32)
        state[f"{name}.value.weight"] = value.transpose(0, 2, 1).reshape(hidden, hidden)
        state[f"{name}.value.bias"] = biases.popleft().ravel()

    try:
        for table, array in graph.tables.items():
            state[f"bert.embeddings.{table}.weight"] = array
        norm("bert.embeddings.LayerNorm")
        for number in range(config["num_hidden_layers"]):
            layer = f"bert.encoder.layer.{number}"
            attention(f"{layer}.attention.self")
            linear(f"{layer}.attention.output.dense")
            norm(f"{layer}.attention.output.LayerNorm")
            linear(f"{layer}.intermediate.dense")
            linear(f"{layer}.output.dense")
            norm(f"{layer}.output.LayerNorm")
        linear("bert.pooler.dense")
        linear("classifier")
    except (IndexError, ValueError):
        raise ArtifactError("model.onnx: the weights do not match the BERT of config.json") from None
    return state


def _build_model(config: dict[str, Any], state: dict[str, Float32s]) -> Any:
    import torch
    import transformers

    library: Any = transformers  # untyped
    bert = library.BertConfig(**{key: value for key, value in config.items() if key not in ("id2label", "label2id")})
    bert.num_labels = 1
    model = library.BertForSequenceClassification(bert).eval()
    tensors = {name: torch.tensor(np.asarray(array, dtype=np.float32)) for name, array in state.items()}
    for name, tensor in model.state_dict().items():
        if "position_ids" not in name and (name not in tensors or tensors[name].shape != tensor.shape):
            raise ArtifactError(f"model.onnx: no weight {name} of shape {tuple(tensor.shape)} in the graph")
    model.load_state_dict(tensors, strict=False)
    return model


def _relative_error(torch_model: Any, model: Path) -> float:
    """The root mean square difference of scores, relative to their standard deviation over pairs."""
    import torch

    session = _session(model)
    expected, actual = [], []
    for ids, types in _pairs(model, torch_model.config):
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
        expected.append(_logit(session, feed))
        with torch.no_grad():
            actual.append(float(torch_model(**{name: torch.from_numpy(value) for name, value in feed.items()}).logits))
    deviation = max(float(np.std(expected)), 1e-6)
    return float(np.sqrt(np.mean(np.square(np.array(actual) - np.array(expected))))) / deviation


def _uses_types(model: Path) -> bool:
    """Return whether the graph uses segment ids."""
    ids = np.arange(8, dtype=np.int64)[None]
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    session = _session(model)
    first, second = (_logit(session, {**feed, "token_type_ids": np.full_like(ids, kind)}) for kind in (0, 1))
    return first != second


def _session(model: Path) -> Any:
    import onnxruntime

    onnx_file = next(path for path in (model / "model.onnx", model / "onnx" / "model.onnx") if path.is_file())
    return onnxruntime.InferenceSession(str(onnx_file), providers=["CPUExecutionProvider"])


def _logit(session: Any, feed: dict[str, Ids]) -> float:
    names = {entry.name for entry in session.get_inputs()}
    (logits, *_) = session.run(None, {name: value for name, value in feed.items() if name in names})
    return float(np.ravel(logits)[0])


def _pairs(model: Path, config: Any) -> Iterator[tuple[Ids, Ids]]:
    """Real pairs, and as many of random tokens for models that know few words of the real ones."""
    tokenizer = load_tokenizer(model / "tokenizer.json")
    longest = config.max_position_embeddings
    rng = np.random.default_rng(1)
    for example in islice(read_examples(bundled_dataset("dated", "dev")), _CHECKED_QUERIES):
        for memory in example.memories:
            encoded = tokenizer.encode(example.query, memory.text)
            ids, types = np.array([encoded.ids[:longest]]), np.array([encoded.type_ids[:longest]])
            yield ids, types
            words = rng.integers(0, config.vocab_size, ids.shape)
            is_special = np.array([encoded.special_tokens_mask[:longest]]) > 0
            yield np.where(is_special, ids, words), types


def _save(torch_model: Any, model: Path, folder: Path) -> Path:
    with atomic_folder(folder) as partial:
        with quiet_libraries():
            torch_model.save_pretrained(str(partial))
        for name in _TOKENIZER_FILES:
            if (model / name).is_file():
                shutil.copy2(model / name, partial / name)
        settings = partial / "tokenizer_config.json"
        if torch_model.config.model_type == "mnemorank-split" and not settings.is_file():
            # Without segment ids, query and memory could not be distinguished.
            inputs = ["input_ids", "attention_mask", "token_type_ids"]
            settings.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}))
    return folder
