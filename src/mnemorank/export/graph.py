"""A trained sequence classifier as an ONNX graph: three int64 inputs, `logits` out, any batch and length from 1."""

from __future__ import annotations

import inspect
import logging
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
from mnemorank.scorers.torch.loading import adapter_base, load_auto_tokenizer, load_network

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OPSET = 17
Feed = Mapping[str, NDArray[np.int64]]
_FUSION_KINDS = {"deberta-v2": "bert", "mpnet": "bert", "distilbert": "bert"}


def load_classifier(artifact: Artifact) -> Any:
    """Load the model of a folder in evaluation mode and float32; a LoRA adapter is merged into its base."""
    from transformers import AutoModelForSequenceClassification as Classifier

    folder, manifest = artifact.path, artifact.manifest
    if manifest.family not in ("torch", "lora"):
        expected = "the folder written by training" if manifest.family == "onnx" else "a sequence classifier"
        raise ArtifactError(f"{folder}: expected {expected}, got a model of family {manifest.family}")
    options: dict[str, Any] = {"attn_implementation": "eager"}
    if manifest.family == "lora":
        from peft import PeftModel

        base = adapter_base(folder, manifest.base)
        loaded = load_network(Classifier, base, torch.device("cpu"), torch.float32, num_labels=1, **options)
        model = PeftModel.from_pretrained(loaded.network, str(folder)).merge_and_unload().eval()
    else:
        loaded = load_network(Classifier, folder, torch.device("cpu"), torch.float32, **options)
        if loaded.missing:
            raise ArtifactError(f"{folder}: missing weights {', '.join(loaded.missing)}; train the model first")
        model = loaded.network
    if model.config.num_labels not in (1, 2):
        raise ArtifactError(f"{folder}: expected one or two labels, got {model.config.num_labels}")
    tokenizer = load_auto_tokenizer(*tokenizer_folders(artifact))
    set_pad(model, tokenizer.pad_id)
    model.tokenizer_inputs = tokenizer.inputs
    return model.float().requires_grad_(False)


def tokenizer_folders(artifact: Artifact) -> list[Path]:
    """Return the folders to search for a tokenizer: the model's own, and the base of an adapter."""
    if artifact.manifest.family == "lora":
        return [artifact.path, adapter_base(artifact.path, artifact.manifest.base)]
    return [artifact.path]


def bert_layers(model: Any) -> nn.ModuleList | None:
    """Return the layers of a BERT-like encoder (BERT, RoBERTa, XLM-R, ELECTRA, …); None for other architectures."""
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


class ExportModule(nn.Module):
    """The model as it is traced: three tensors in, logits out. Replaces the layers of the model it is given."""

    def __init__(self, model: Any, fuse_projections: bool = True, calibration: Sequence[Feed] = ()) -> None:
        super().__init__()
        self.model = model
        layers = bert_layers(model)
        self.is_bert = layers is not None
        self.takes_types = "token_type_ids" in accepted_inputs(model)
        if layers is not None:
            largest = largest_inputs(model, layers, calibration)
            for number in range(len(layers) - 1):
                layers[number] = FusedLayer(layers[number], fuse_projections, largest[number])
            layers[-1] = FirstRowLayer(layers[-1])

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        mask = attention_mask
        if self.is_bert:
            # With four dimensions, transformers passes the mask to the layers unchanged.
            mask = (1 - attention_mask[:, None, None, :].to(torch.float32)) * LOWEST
        types = {"token_type_ids": token_type_ids} if self.takes_types else {}
        return self.model(input_ids=input_ids, attention_mask=mask, **types).logits  # type: ignore[no-any-return]


def largest_inputs(model: Any, layers: nn.ModuleList, calibration: Sequence[Feed]) -> list[dict[str, Tensor]]:
    """Return, per layer and smoothed part of it, the largest absolute value of each input over the calibration data."""
    largest: list[dict[str, Tensor]] = [{} for _ in layers]

    def add_hook(number: int, name: str) -> Any:
        def update(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            values = inputs[0].abs().amax((0, 1))
            largest[number][name] = torch.maximum(largest[number].get(name, values), values)

        return layers[number].get_submodule(name).register_forward_pre_hook(update)

    hooks = [add_hook(number, name) for number in range(len(layers)) for name in SMOOTHED]
    with torch.no_grad():
        for feed in calibration:
            model(**{name: torch.from_numpy(values) for name, values in feed.items() if name in accepted_inputs(model)})
    for hook in hooks:
        hook.remove()
    return largest


def accepted_inputs(model: Any) -> set[str]:
    """Return the inputs that the model uses: segment ids only if its tokenizer produces them, as in training."""
    accepted = set(inspect.signature(model.forward).parameters)
    has_types = getattr(model.config, "type_vocab_size", 0) > 1 and "token_type_ids" in model.tokenizer_inputs
    return accepted if has_types else accepted - {"token_type_ids"}


def write_graph(model: Any, path: Path, *, fuse_projections: bool = True, calibration: Sequence[Feed] = ()) -> None:
    """Trace the model into an ONNX file. The layers of the model are replaced; do not use it afterwards.

    :param fuse_projections: put the query, key and value projections into the attention node; False if they will be
        quantized as separate matrix products.
    :param calibration: inputs to smooth the graph for INT8 with; scores do not change.
    """
    module = ExportModule(model, fuse_projections, calibration).eval()
    ids = torch.arange(3 * 17).view(3, 17) % min(model.config.vocab_size, 40)
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    mask[1, 12:] = 0
    if module.takes_types:
        types[:, 8:] = 1
    axes = {name: {0: "batch", 1: "sequence"} for name in INPUTS}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the tracer warns about branches on shapes and its own deprecation
            torch.onnx.export(
                module,
                (ids, mask, types),
                str(path),
                input_names=list(INPUTS),
                output_names=["logits"],
                dynamic_axes={**axes, "logits": {0: "batch"}},
                opset_version=OPSET,
                dynamo=False,
                custom_opsets={"com.microsoft": 1} if module.is_bert else None,
            )
    except (RuntimeError, TypeError, ValueError, torch.onnx.errors.OnnxExporterError) as error:
        kind = model.config.model_type
        raise ArtifactError(f"the architecture {kind} could not be traced into an ONNX graph: {error}") from error
    complete_inputs(path)


def complete_inputs(path: Path) -> None:
    """Declare all three inputs, so that every model is called the same way. Graphs ignore inputs they do not use."""
    model = onnx.load(str(path))
    declared = {entry.name for entry in model.graph.input}
    missing = [name for name in INPUTS if name not in declared]
    for name in missing:
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch", "sequence"])
        )
    if missing:
        onnx.save(model, str(path))


def fuse(path: Path, config: Any) -> dict[str, int]:
    """Fuse what ONNX Runtime's optimizer recognizes, in place; return the number of fused nodes by type.

    :param config: the Hugging Face configuration of the model.
    """
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    kind = _FUSION_KINDS.get(config.model_type)
    if kind is None:
        return {}
    options = FusionOptions(kind)
    # These patterns lose the attention mask in graphs of transformers 5.
    options.enable_embed_layer_norm = False
    options.enable_skip_layer_norm = False
    logging.getLogger("onnxruntime.transformers").setLevel(logging.ERROR)
    optimizer = optimize_model(
        str(path),
        model_type=kind,
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        optimization_options=options,
        opt_level=0,
    )
    optimizer.save_model_to_file(str(path))
    complete_inputs(path)
    return {name: count for name, count in optimizer.get_fused_operator_statistics().items() if count}
