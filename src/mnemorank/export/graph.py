"""A trained sequence classifier as an ONNX graph: three int64 inputs, `logits` out, any batch and length from 1."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mnemorank.artifact.resolve import Artifact
from mnemorank.errors import ArtifactError
from mnemorank.export.layers import LOWEST, SMOOTHED, FirstRowLayer, FusedLayer
from mnemorank.scorers.torch.classifier import set_pad
from mnemorank.scorers.torch.loading import adapter_base, load_network, load_tokenizing

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OPSET = 17
Feed = Mapping[str, NDArray[np.int64]]


def load_classifier(artifact: Artifact) -> Any:
    """The model of a folder, in eval mode and full precision; a LoRA adapter is merged into its base."""
    from transformers import AutoModelForSequenceClassification as Classifier

    folder, manifest = artifact.path, artifact.manifest
    if manifest.family not in ("torch", "lora"):
        wanted = "the folder that training wrote" if manifest.family == "onnx" else "a sequence classifier"
        raise ArtifactError(f"{folder}: is of the family {manifest.family}; export takes {wanted}")
    settings: dict[str, Any] = {"attn_implementation": "eager"}
    if manifest.family == "lora":
        from peft import PeftModel

        base = adapter_base(folder, manifest.base)
        loaded = load_network(Classifier, base, torch.device("cpu"), torch.float32, num_labels=1, **settings)
        model = PeftModel.from_pretrained(loaded.network, str(folder)).merge_and_unload().eval()
    else:
        loaded = load_network(Classifier, folder, torch.device("cpu"), torch.float32, **settings)
        if loaded.missing:
            raise ArtifactError(f"{folder}: lacks the weights {', '.join(loaded.missing)}; train the model first")
        model = loaded.network
    if model.config.num_labels not in (1, 2):
        raise ArtifactError(f"{folder}: has {model.config.num_labels} labels; a reranker has one or two logits a pair")
    tokenizing = load_tokenizing(*tokenizer_folders(artifact))
    set_pad(model, tokenizing.pad_id)
    model.tokenizer_inputs = tokenizing.inputs
    return model.float().requires_grad_(False)


def tokenizer_folders(artifact: Artifact) -> list[Path]:
    """Where the tokenizer may lie: the folder itself, and an adapter's base."""
    if artifact.manifest.family == "lora":
        return [artifact.path, adapter_base(artifact.path, artifact.manifest.base)]
    return [artifact.path]


def bert_layers(model: Any) -> nn.ModuleList | None:
    """The layers of a BERT-like encoder (BERT, RoBERTa, XLM-R, ELECTRA, …); None where they are built differently."""
    encoder = getattr(getattr(model, model.base_model_prefix, None), "encoder", None)
    layers = getattr(encoder, "layer", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers) or getattr(model.config, "is_decoder", False):
        return None
    parts = (
        *(f"attention.self.{name}" for name in ("query", "key", "value")),
        *(f"{name}.{part}" for name in ("attention.output", "output") for part in ("dense", "LayerNorm")),
        "intermediate.dense",
    )
    names = {name for name, _ in layers[-1].named_modules()}
    is_relative = any("distance_embedding" in name or "rel_embeddings" in name for name in names)
    return layers if names.issuperset(parts) and not is_relative else None


class Pairs(nn.Module):
    """The model as the graph sees it: three tensors in, logits out. Takes the model over and changes its layers."""

    def __init__(self, model: Any, one_node_attention: bool = True, calibration: Sequence[Feed] = ()) -> None:
        super().__init__()
        self.model = model
        layers = bert_layers(model)
        self.is_bert = layers is not None
        self.takes_types = "token_type_ids" in accepted_inputs(model)
        if layers is not None:
            reach = largest_inputs(model, layers, calibration)
            for number in range(len(layers) - 1):
                layers[number] = FusedLayer(layers[number], one_node_attention, reach[number])
            layers[-1] = FirstRowLayer(layers[-1])

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        mask = attention_mask
        if self.is_bert:
            # Four dimensions: transformers hands it on to the layers as it is.
            mask = (1 - attention_mask[:, None, None, :].to(torch.float32)) * LOWEST
        types = {"token_type_ids": token_type_ids} if self.takes_types else {}
        return self.model(input_ids=input_ids, attention_mask=mask, **types).logits  # type: ignore[no-any-return]


def largest_inputs(model: Any, layers: nn.ModuleList, calibration: Sequence[Feed]) -> list[dict[str, Tensor]]:
    """For each layer and smoothed part of it, the largest absolute value of each input over the calibration pairs."""
    reach: list[dict[str, Tensor]] = [{} for _ in layers]

    def watch(number: int, name: str) -> Any:
        def see(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen = inputs[0].abs().amax((0, 1))
            reach[number][name] = torch.maximum(reach[number].get(name, seen), seen)

        return layers[number].get_submodule(name).register_forward_pre_hook(see)

    watches = [watch(number, name) for number in range(len(layers)) for name in SMOOTHED]
    with torch.no_grad():
        for feed in calibration:
            model(**{name: torch.from_numpy(values) for name, values in feed.items() if name in accepted_inputs(model)})
    for hook in watches:
        hook.remove()
    return reach


def accepted_inputs(model: Any) -> set[str]:
    """The inputs that the model makes use of: segment ids only where its tokenizer states them, as in training."""
    taken = set(inspect.signature(model.forward).parameters)
    has_types = getattr(model.config, "type_vocab_size", 0) > 1 and "token_type_ids" in model.tokenizer_inputs
    return taken if has_types else taken - {"token_type_ids"}


def write_graph(model: Any, path: Path, *, one_node_attention: bool = True, calibration: Sequence[Feed] = ()) -> None:
    """Trace the model into an ONNX file. The model's layers are replaced and it should not be used afterwards.

    :param one_node_attention: False where the projections will be quantized as matrix products of their own.
    :param calibration: inputs of some pairs, where the graph is to be smoothed for INT8; the result is the same.
    """
    pairs = Pairs(model, one_node_attention, calibration).eval()
    ids = torch.arange(3 * 17).view(3, 17) % min(model.config.vocab_size, 40)
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    mask[1, 12:] = 0
    if pairs.takes_types:
        types[:, 8:] = 1
    axes = {name: {0: "batch", 1: "sequence"} for name in INPUTS}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the tracer warns of every branch on a shape, and of its own age
            torch.onnx.export(
                pairs,
                (ids, mask, types),
                str(path),
                input_names=list(INPUTS),
                output_names=["logits"],
                dynamic_axes={**axes, "logits": {0: "batch"}},
                opset_version=OPSET,
                dynamo=False,
                custom_opsets={"com.microsoft": 1} if pairs.is_bert else None,
            )
    except (RuntimeError, TypeError, ValueError, torch.onnx.errors.OnnxExporterError) as error:
        kind = model.config.model_type
        raise ArtifactError(f"the architecture {kind} cannot be traced into an ONNX graph: {error}") from error
    complete_inputs(path)


def complete_inputs(path: Path) -> None:
    """Give the graph all three inputs, so that one calling convention fits every model; a spare one is ignored."""
    model = onnx.load(str(path))
    found = {entry.name: entry for entry in model.graph.input}
    missing = [name for name in INPUTS if name not in found]
    for name in missing:
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch", "sequence"])
        )
    if missing:
        onnx.save(model, str(path))
