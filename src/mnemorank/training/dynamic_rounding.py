"""Linear layers that round as an `int8-dynamic` file does, so that training can learn to live with it.

That file rounds the inputs of a product to 256 steps of their range, pair by pair, and the weights of each output to 7
bits. Gradients pass as if nothing had been rounded; the weights themselves stay as fine as they are, since the export
rounds them. The export smooths the inputs first and leaves the last layer as it is, so that its error is smaller than
what training got used to.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

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
