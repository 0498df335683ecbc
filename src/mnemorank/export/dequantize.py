"""Torch weights from an exported BERT cross-encoder, so that training can begin from the ONNX file that is served.

The weights are read off the graph in the order in which they are used, whatever they are called and however they are
quantized, and put into a Hugging Face model. That model must then score like the graph, or the result is refused.
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

from mnemorank.artifact.resolve import load_artifact
from mnemorank.data.bundled import bundled_dataset
from mnemorank.data.sources import read_examples
from mnemorank.errors import ArtifactError
from mnemorank.export.graph_weights import Float32s, GraphWeights, read_weights
from mnemorank.scorers.encoding import Ids, load_tokenizer

logger = logging.getLogger(__name__)

_PROJECTIONS = ("query", "key", "value")
_CHECKED_QUESTIONS = 6
_LARGEST_ERROR = 0.3
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def dequantize(model: Path, folder: Path) -> Path:
    """Write a Hugging Face folder with the weights of an ONNX model, dequantized.

    :param model: a model folder of the onnx family.
    """
    if (folder / "config.json").exists():
        return folder
    artifact = load_artifact(model)
    config = json.loads(artifact.file("config.json").read_text(encoding="utf-8"))
    if artifact.manifest.family != "onnx" or config.get("model_type") != "bert":
        raise ArtifactError(f"{model}: torch weights can be restored from BERT models in ONNX only")
    found = read_weights(artifact.file("model.onnx", "onnx/model.onnx"), config)
    if not _reads_types(artifact.path):
        # Exported from a model that was trained without segment ids: they must not matter in training either.
        types = found.tables["token_type_embeddings"]
        found.tables["token_type_embeddings"] = np.tile(types[:1], (len(types), 1))
    models = [_model(config, _state(found, config, variant)) for variant in _variants(found, config)]
    errors = [_difference(torch_model, artifact.path) for torch_model in models]
    best = int(np.argmin(errors))
    if errors[best] > _LARGEST_ERROR:
        raise ArtifactError(
            f"{model}: the weights read off its graph do not score like it (relative error {errors[best]:.2f}); "
            "name a torch folder with training.base"
        )
    logger.info("restored torch weights from %s: relative error %.3f", model, errors[best])
    return _save(models[best], artifact.path, folder)


@dataclass(frozen=True, slots=True)
class _Variant:
    """What the shapes of the weights do not tell.

    :param order: in which the projections of an attention stand that are products of their own.
    :param scaled_keys: the scale of the attention scores was put into the keys.
    """

    order: tuple[str, ...] = _PROJECTIONS
    scaled_keys: bool = False


def _variants(found: GraphWeights, config: dict[str, Any]) -> list[_Variant]:
    if any(weight.ndim == 3 for weight in found.weights):
        return [_Variant(), _Variant(scaled_keys=True)]
    fused = sum(weight.shape[1] == 3 * config["hidden_size"] for weight in found.weights)
    if fused == config["num_hidden_layers"]:
        return [_Variant()]
    return [_Variant(order) for order in permutations(_PROJECTIONS)]


def _state(found: GraphWeights, config: dict[str, Any], variant: _Variant) -> dict[str, Float32s]:
    """The weights by Hugging Face's names."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    weights, biases, norms = deque(found.weights), deque(found.biases), deque(found.norms)
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
        # The last layer for the first token alone: keys and values by head, and no key bias, which softmax drops.
        key, value = weights.popleft(), weights.popleft()
        scale = (hidden // heads) ** 0.5 if variant.scaled_keys else 1.0
        state[f"{name}.key.weight"] = key.reshape(hidden, hidden) * scale
        state[f"{name}.key.bias"] = np.zeros(hidden, dtype=np.float32)
        state[f"{name}.value.weight"] = value.transpose(0, 2, 1).reshape(hidden, hidden)
        state[f"{name}.value.bias"] = biases.popleft().ravel()

    try:
        for table, array in found.tables.items():
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
        raise ArtifactError("model.onnx: its weights are not those of the BERT that config.json describes") from None
    return state


def _model(config: dict[str, Any], state: dict[str, Float32s]) -> Any:
    import torch
    import transformers

    library: Any = transformers  # its functions carry no types
    stated = library.BertConfig(**{key: value for key, value in config.items() if key not in ("id2label", "label2id")})
    stated.num_labels = 1
    model = library.BertForSequenceClassification(stated).eval()
    tensors = {name: torch.tensor(np.asarray(array, dtype=np.float32)) for name, array in state.items()}
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        if "position_ids" not in name and (name not in tensors or tensors[name].shape != tensor.shape):
            raise ArtifactError(f"model.onnx: {name} was not found in the graph in the shape {tuple(tensor.shape)}")
    model.load_state_dict(tensors, strict=False)
    return model


def _difference(torch_model: Any, model: Path) -> float:
    """How far the two score apart, relative to how far the scores of different pairs lie apart."""
    import torch

    session = _session(model)
    theirs, ours = [], []
    for ids, types in _pairs(model, torch_model.config):
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
        theirs.append(_logit(session, feed))
        with torch.no_grad():
            ours.append(float(torch_model(**{name: torch.from_numpy(value) for name, value in feed.items()}).logits))
    spread = max(float(np.std(theirs)), 1e-6)
    return float(np.sqrt(np.mean(np.square(np.array(ours) - np.array(theirs))))) / spread


def _reads_types(model: Path) -> bool:
    """Whether the graph makes use of segment ids."""
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
    wanted = {entry.name for entry in session.get_inputs()}
    (logits, *_) = session.run(None, {name: value for name, value in feed.items() if name in wanted})
    return float(np.ravel(logits)[0])


def _pairs(model: Path, config: Any) -> Iterator[tuple[Ids, Ids]]:
    """Real pairs, and as many of random words, for models that know few of the real ones."""
    tokenizer = load_tokenizer(model / "tokenizer.json")
    longest = config.max_position_embeddings
    chance = np.random.default_rng(1)
    for example in islice(read_examples(bundled_dataset("dated", "dev")), _CHECKED_QUESTIONS):
        for memory in example.memories:
            encoded = tokenizer.encode(example.query, memory.text)
            ids, types = np.array([encoded.ids[:longest]]), np.array([encoded.type_ids[:longest]])
            yield ids, types
            words = chance.integers(0, config.vocab_size, ids.shape)
            is_special = np.array([encoded.special_tokens_mask[:longest]]) > 0
            yield np.where(is_special, ids, words), types


def _save(torch_model: Any, model: Path, folder: Path) -> Path:
    from mnemorank.training.quiet import quiet

    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with quiet():
        torch_model.save_pretrained(str(partial))
    for name in _TOKENIZER_FILES:
        if (model / name).is_file():
            shutil.copy2(model / name, partial / name)
    partial.rename(folder)
    return folder
