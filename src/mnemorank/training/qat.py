"""Quantization-aware training with torchao: the forward pass rounds as the quantized model will.

`prepare` puts fake quantizers on the linear layers (INT8 activations per token, INT4 or INT8 weights in groups);
`convert` leaves plain layers whose weights lie on the grid, with the scales of each group, so that an exporter can
write exactly the trained numbers. `int8-dynamic` rounds as that kind of file does instead (`dynamic_rounding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mnemorank.errors import InputError
from mnemorank.training.quiet import quiet
from mnemorank.training.recipe import DYNAMIC, Qat

SCALES = "qat.safetensors"
_BITS = {"int4": 4, "int8": 8}


@dataclass(frozen=True, slots=True)
class Grid:
    """What an exporter needs: weight = code · scale, code from −2^(bits−1) to 2^(bits−1) − 1.

    :param scales: layer name → (outputs, groups).
    """

    bits: int
    group_size: int
    scales: dict[str, Tensor]


def prepare(model: nn.Module, qat: Qat, skip: tuple[str, ...] = ()) -> list[str]:
    """Make the linear layers round in the forward pass, in place; returns their names.

    :param skip: parts of names of layers to leave alone, such as the head.
    """
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not any(part in name.split(".") for part in skip)
    ]
    if qat.weights == DYNAMIC:
        for name in names:
            _replace(model, name, DynamicLinear.of(model.get_submodule(name)))  # type: ignore[arg-type]
        return names
    with quiet():
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


def convert(model: nn.Module, qat: Qat) -> Grid | None:
    """Put plain linear layers in the place of the rounding ones, in place; their weights lie on the grid, if any."""
    if qat.weights == DYNAMIC:
        for name, module in list(model.named_modules()):
            if isinstance(module, DynamicLinear):
                _replace(model, name, module.plain())
        return None
    from torchao.quantization.qat import FakeQuantizedLinear

    low, high = -(2 ** (_BITS[qat.weights] - 1)), 2 ** (_BITS[qat.weights] - 1) - 1
    scales: dict[str, Tensor] = {}
    rounding = {name: module for name, module in model.named_modules() if isinstance(module, FakeQuantizedLinear)}
    for name, module in rounding.items():
        with torch.no_grad():
            on_grid = module.weight_fake_quantizer(module.weight).detach()
            scale = module.weight_fake_quantizer.scale.detach().float().reshape(len(on_grid), -1)
            codes = torch.round(on_grid / scale.repeat_interleave(qat.group_size, dim=1))
            if codes.min() < low or codes.max() > high:
                raise InputError(
                    f"{name}: codes from {codes.min()} to {codes.max()} do not fit in {qat.weights}", field="qat"
                )
            plain = module.to_linear()
            plain.weight = nn.Parameter(codes * scale.repeat_interleave(qat.group_size, dim=1))
        _replace(model, name, plain)
        scales[name] = scale.contiguous()
    return Grid(_BITS[qat.weights], qat.group_size, scales)


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def _dtype(name: str) -> Any:
    return getattr(torch, name)


_ACTIVATION_STEPS = 255
_WEIGHT_STEPS = 64


class DynamicLinear(nn.Linear):
    @classmethod
    def of(cls, layer: nn.Linear) -> DynamicLinear:
        """The same parameters, rounded on use."""
        rounding = cls(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        rounding.weight, rounding.bias = layer.weight, layer.bias
        return rounding

    def plain(self) -> nn.Linear:
        layer = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        layer.weight, layer.bias = self.weight, self.bias
        return layer

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(rounded_inputs(inputs), rounded_weights(self.weight), self.bias)


def rounded_inputs(inputs: Tensor) -> Tensor:
    """To 256 steps of each pair's own range, 0 among them."""
    with torch.no_grad():
        axes = tuple(range(1, inputs.dim()))
        low = inputs.amin(axes, keepdim=True).clamp(max=0)
        high = inputs.amax(axes, keepdim=True).clamp(min=0)
        scale = ((high - low) / _ACTIVATION_STEPS).clamp(min=1e-8)
        zero = torch.round(-low / scale)
        codes = (torch.round(inputs / scale) + zero).clamp(0, _ACTIVATION_STEPS)
        error = (codes - zero) * scale - inputs
    return inputs + error


def rounded_weights(weight: Tensor) -> Tensor:
    """To 7 bits, each output by its own scale."""
    with torch.no_grad():
        scale = (weight.abs().amax(1, keepdim=True) / _WEIGHT_STEPS).clamp(min=1e-8)
        error = (weight / scale).round().clamp(-_WEIGHT_STEPS, _WEIGHT_STEPS) * scale - weight
    return weight + error
