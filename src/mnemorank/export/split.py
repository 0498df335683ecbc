"""Split encoders as ONNX graphs that share one file of weights.

- `encoder.onnx` reads a text: its states for the joint layers in INT8, its embedding, and if it asks about the past
- `joint.onnx` reads the states of two texts: relevance, or whether the second replaces the first
- `model.onnx` reads a pair of query and memory, as any other cross-encoder does
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx.external_data_helper import set_external_data
from torch import Tensor, nn

from mnemorank.export.graph import INPUTS, OPSET, Feed
from mnemorank.export.layers import SMOOTHED, FirstRowLayer, FusedLayer
from mnemorank.export.quantize import int8_dynamic
from mnemorank.scorers.torch.split import SplitClassifier, mean

WEIGHTS = "weights.bin"
GRAPHS = ("encoder.onnx", "joint.onnx", "model.onnx")
_SMALLEST_SHARED = 1024
_ALIGNMENT = 64


def write_split_graphs(network: SplitClassifier, folder: Path, *, quantize: bool, calibration: Sequence[Feed]) -> None:
    """Write the three graphs and their weights. The layers of the network are replaced; do not use it afterwards.

    :param calibration: pairs that show the ranges of activations.
    """
    largest, state_scales = _largest_inputs(network, calibration), _state_scales(network, calibration)
    for name in ("apart", "embedder", "joint"):
        layers = getattr(network, name)
        for number, layer in list(layers.items()):
            is_last = name == "joint" and int(number) == network.config.num_hidden_layers - 1
            layers[number] = FirstRowLayer(layer) if is_last else FusedLayer(layer, largest=largest[name, number])
    width = network.config.hidden_size
    ids = torch.arange(2 * 17).view(2, 17) % min(network.config.vocab_size, 40)
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    mask[1, 12:], types[:, 8:] = 0, 1
    states, scales = torch.ones(2, 17, width, dtype=torch.int8), torch.ones(2, 17)
    text, pair, row = {0: "batch", 1: "sequence"}, {0: "batch", 1: "sequence"}, {0: "batch"}
    graphs: dict[str, tuple[nn.Module, dict[str, tuple[Tensor, Any]], dict[str, Any]]] = {
        "encoder.onnx": (
            _Encoder(network, state_scales),
            {"input_ids": (ids, text), "attention_mask": (mask, text), "first_position": (torch.tensor([1]), {})},
            {"states": text, "scales": text, "embedding": row, "past": row},
        ),
        "joint.onnx": (
            _Joint(network, state_scales),
            {
                "states": (states, pair),
                "scales": (scales, pair),
                "segments": (types, pair),
                "attention_mask": (mask, pair),
                "cosine": (torch.ones(2), row),
            },
            {"relevance": row, "replacement": row},
        ),
        "model.onnx": (
            _Pair(network),
            {name: (value, pair) for name, value in zip(INPUTS, (ids, mask, types), strict=True)},
            {"logits": row},
        ),
    }
    for name, (module, inputs, outputs) in graphs.items():
        target = folder / name
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the tracer warns about branches on shapes and its own deprecation
            torch.onnx.export(
                module.eval(),
                tuple(value for value, _ in inputs.values()),
                str(target),
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes={key: axes for key, (_, axes) in inputs.items() if axes} | outputs,
                opset_version=OPSET,
                dynamo=False,
                custom_opsets={"com.microsoft": 1},
            )
        if quantize:
            int8_dynamic(target, target)
    _share_weights(folder)


class _Encoder(nn.Module):
    state_scales: Tensor

    def __init__(self, network: SplitClassifier, state_scales: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("state_scales", state_scales)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, first_position: Tensor) -> tuple[Tensor, ...]:
        net = self.network
        positions = (torch.arange(input_ids.shape[1]) + first_position)[None]
        mask = (1 - attention_mask[:, None, None].float()) * -1e4
        states = net.embed(input_ids, positions)
        for layer in net.apart.values():
            states = layer(states, mask)
        embedded = states
        for layer in net.embedder.values():
            embedded = layer(embedded, mask)
        embedding = mean(embedded, attention_mask)
        even = states / self.state_scales
        scales = even.abs().amax(-1) / 127
        codes = torch.round(even / scales[..., None]).to(torch.int8)
        return codes, scales, nn.functional.normalize(embedding, dim=-1), net.about_past(embedding)


class _Joint(nn.Module):
    state_scales: Tensor

    def __init__(self, network: SplitClassifier, state_scales: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("state_scales", state_scales)

    def forward(
        self, states: Tensor, scales: Tensor, segments: Tensor, attention_mask: Tensor, cosine: Tensor
    ) -> tuple[Tensor, Tensor]:
        net = self.network
        hidden = states.float() * scales[..., None] * self.state_scales + net.segments(segments)
        mask = (1 - attention_mask[:, None, None].float()) * -1e4
        for layer in net.joint.values():
            hidden = layer(hidden, mask)
        first = hidden[:, 0]
        return net.relevance(first, cosine), net.replacement(first)


class _Pair(nn.Module):
    def __init__(self, network: SplitClassifier) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        net, types = self.network, token_type_ids
        query_length = (attention_mask * (1 - types)).sum(1, keepdim=True)
        positions = torch.arange(input_ids.shape[1])[None] - types * (query_length - 1)
        same_text = (types[:, :, None] == types[:, None, :]).float()
        apart_mask = ((1 - same_text * attention_mask[:, None].float()) * -1e4)[:, None]
        mask = (1 - attention_mask[:, None, None].float()) * -1e4
        states = net.embed(input_ids, positions.clamp(min=0))
        for layer in net.apart.values():
            states = layer(states, apart_mask)
        embedded = states
        for layer in net.embedder.values():
            embedded = layer(embedded, apart_mask)
        query, memory = (mean(embedded, attention_mask * (types == kind)) for kind in (0, 1))
        cosine = nn.functional.cosine_similarity(query, memory, dim=-1)
        hidden = states + net.segments(types)
        for layer in net.joint.values():
            hidden = layer(hidden, mask)
        return net.relevance(hidden[:, 0], cosine)[:, None]


def _largest_inputs(
    network: SplitClassifier, calibration: Sequence[Feed]
) -> Mapping[tuple[str, str], dict[str, Tensor]]:
    """Return, by stack and number of a layer, the largest absolute value of each input of its smoothed parts."""
    largest: dict[tuple[str, str], dict[str, Tensor]] = {
        (name, number): {} for name in ("apart", "embedder", "joint") for number in getattr(network, name)
    }
    with _watched(network, largest), torch.no_grad():
        for feed in calibration:
            network(**{name: torch.from_numpy(values) for name, values in feed.items()})
    return largest


def _state_scales(network: SplitClassifier, calibration: Sequence[Feed]) -> Tensor:
    """Return what the states are divided by before rounding: a few dimensions are many times larger than the others."""
    largest = torch.ones(network.config.hidden_size)
    with torch.no_grad():
        for number, feed in enumerate(calibration):
            ids = torch.from_numpy(feed["input_ids"])
            values = network.encode(ids, torch.ones_like(ids))[0].abs().amax((0, 1))
            largest = torch.maximum(largest, values) if number else values
    return (largest / largest.median()) ** 0.75


@contextmanager
def _watched(network: SplitClassifier, largest: Mapping[tuple[str, str], dict[str, Tensor]]) -> Iterator[None]:
    def add_hook(stack: str, number: str, part: str) -> Any:
        seen = largest[stack, number]

        def update(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            values = inputs[0].abs().amax((0, 1))
            seen[part] = torch.maximum(seen.get(part, values), values)

        return getattr(network, stack)[number].get_submodule(part).register_forward_pre_hook(update)

    hooks = [add_hook(stack, number, part) for stack, number in largest for part in SMOOTHED]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _share_weights(folder: Path) -> None:
    """Move the weights of all graphs into one file, where tensors of equal bytes are stored once."""
    places: dict[bytes, tuple[int, int]] = {}
    with (folder / WEIGHTS).open("wb") as stream:
        for name in GRAPHS:
            model = onnx.load(str(folder / name))
            for tensor in model.graph.initializer:
                raw = onnx.numpy_helper.to_array(tensor).tobytes()
                if len(raw) < _SMALLEST_SHARED:
                    continue
                digest = hashlib.sha256(raw).digest()
                if digest not in places:
                    stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
                    places[digest] = stream.tell(), len(raw)
                    stream.write(raw)
                offset, length = places[digest]
                tensor.raw_data = raw
                set_external_data(tensor, WEIGHTS, offset, length)
                tensor.ClearField("raw_data")
                for field in ("float_data", "int32_data", "int64_data"):
                    tensor.ClearField(field)
            onnx.save(model, str(folder / name))
