"""Quantization-aware training: the forward pass rounds weights and activations as the quantized model will.

`int4` and `int8` use torchao's fake quantizers (INT8 activations per token, weights in groups); afterwards the weights
are exact multiples of their group's scale, and the scales are saved so that the export writes exactly the trained
numbers. `int8-dynamic` rounds as the dynamic INT8 export does (`DynamicLinear`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from mnemorank._internal.quiet import quiet_libraries
from mnemorank.errors import InputError
from mnemorank.training.recipe import QatSettings

SCALES_FILE = "qat.safetensors"
_BITS = {"int4": 4, "int8": 8}


@dataclass(frozen=True, slots=True)
class WeightScales:
    """The scales of weights in groups: weight = code · scale, with codes from −2^(bits−1) to 2^(bits−1) − 1.

    :param scales: by layer name, of shape (outputs, groups).
    """

    bits: int
    group_size: int
    scales: Mapping[str, Tensor]

    def save(self, path: Path) -> None:
        metadata = {"bits": str(self.bits), "group_size": str(self.group_size)}
        save_file(dict(self.scales), path, metadata=metadata)

    @classmethod
    def load(cls, path: Path) -> WeightScales:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata()
            scales = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return cls(int(metadata["bits"]), int(metadata["group_size"]), scales)


def prepare_qat(model: nn.Module, qat: QatSettings, skip: tuple[str, ...] = ()) -> list[str]:
    """Make the linear layers round in the forward pass, in place; return their names.

    :param skip: layers with one of these parts in their name stay as they are, such as the head.
    """
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not any(part in name.split(".") for part in skip)
    ]
    if qat.weights == "int8-dynamic":
        for name in names:
            _replace_module(model, name, DynamicLinear.wrap(model.get_submodule(name)))  # type: ignore[arg-type]
        return names
    with quiet_libraries():
        from torchao.quantization import quantize_
        from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    for name in names:
        width = model.get_submodule(name).in_features
        if width % qat.group_size:  # type: ignore[operator]
            raise InputError(f"{qat.group_size} does not divide the {width} inputs of {name}", field="qat.group_size")
    chosen = set(names)
    weights = IntxFakeQuantizeConfig(_dtype(qat.weights), group_size=qat.group_size, is_symmetric=True)
    activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    config = QATConfig(activation_config=activations, weight_config=weights, step="prepare")
    quantize_(model, config, filter_fn=lambda _, name: name in chosen)
    return names


def finish_qat(model: nn.Module, qat: QatSettings) -> WeightScales | None:
    """Replace the rounding layers by plain ones with rounded weights, in place; return the scales, if any."""
    if qat.weights == "int8-dynamic":
        for name, module in list(model.named_modules()):
            if isinstance(module, DynamicLinear):
                _replace_module(model, name, module.unwrap())
        return None
    from torchao.quantization.qat import FakeQuantizedLinear

    low, high = -(2 ** (_BITS[qat.weights] - 1)), 2 ** (_BITS[qat.weights] - 1) - 1
    scales: dict[str, Tensor] = {}
    rounding = {name: module for name, module in model.named_modules() if isinstance(module, FakeQuantizedLinear)}
    for name, module in rounding.items():
        with torch.no_grad():
            rounded = module.weight_fake_quantizer(module.weight).detach()
            scale = module.weight_fake_quantizer.scale.detach().float().reshape(len(rounded), -1)
            codes = torch.round(rounded / scale.repeat_interleave(qat.group_size, dim=1))
            if codes.min() < low or codes.max() > high:
                raise InputError(
                    f"{name}: codes from {codes.min()} to {codes.max()} do not fit in {qat.weights}", field="qat"
                )
            plain = module.to_linear()
            plain.weight = nn.Parameter(codes * scale.repeat_interleave(qat.group_size, dim=1))
        _replace_module(model, name, plain)
        scales[name] = scale.contiguous()
    return WeightScales(_BITS[qat.weights], qat.group_size, scales)


def _replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def _dtype(name: str) -> Any:
    return getattr(torch, name)


_ACTIVATION_STEPS = 255
_WEIGHT_STEPS = 64


class DynamicLinear(nn.Linear):
    """A linear layer that rounds inputs and weights as ONNX Runtime's dynamic INT8 quantization does."""

    @classmethod
    def wrap(cls, layer: nn.Linear) -> DynamicLinear:
        """Return a rounding layer that shares the parameters of a plain one."""
        rounding = cls(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        rounding.weight, rounding.bias = layer.weight, layer.bias
        return rounding

    def unwrap(self) -> nn.Linear:
        """Return a plain layer that shares the parameters."""
        layer = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        layer.weight, layer.bias = self.weight, self.bias
        return layer

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(_round_inputs(inputs), _round_weights(self.weight), self.bias)


def _round_inputs(inputs: Tensor) -> Tensor:
    """Round to 256 steps over the range of each pair, 0 included; gradients pass unchanged."""
    with torch.no_grad():
        axes = tuple(range(1, inputs.dim()))
        low = inputs.amin(axes, keepdim=True).clamp(max=0)
        high = inputs.amax(axes, keepdim=True).clamp(min=0)
        scale = ((high - low) / _ACTIVATION_STEPS).clamp(min=1e-8)
        zero = torch.round(-low / scale)
        codes = (torch.round(inputs / scale) + zero).clamp(0, _ACTIVATION_STEPS)
        error = (codes - zero) * scale - inputs
    return inputs + error


def _round_weights(weight: Tensor) -> Tensor:
    """Round to 7 bits with one scale per output; gradients pass unchanged."""
    with torch.no_grad():
        scale = (weight.abs().amax(1, keepdim=True) / _WEIGHT_STEPS).clamp(min=1e-8)
        error = (weight / scale).round().clamp(-_WEIGHT_STEPS, _WEIGHT_STEPS) * scale - weight
    return weight + error
